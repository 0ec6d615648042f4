//! The images of a folder and all below it, and what is said of the rest.

use std::path::{Path, PathBuf};

use vitrine_datasets::{Entry, LeftOut, Reason, Walk, shown};

use crate::cli::output::note;

/// Images in the order of their paths, and images that are not supported or cannot be read with the reason. Files that
/// are no images are counted on standard error at the end.
pub(super) struct Folder {
    root: PathBuf,
    walk: Walk,
    others: LeftOut,
    is_empty: bool,
    is_over: bool,
}

impl Folder {
    pub(super) fn new(root: &Path) -> Self {
        let (walk, others) = (Walk::new(root), LeftOut::default());
        Self { root: root.to_owned(), walk, others, is_empty: true, is_over: false }
    }

    fn end(&mut self) -> Option<(PathBuf, String)> {
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        for line in self.others.others() {
            note!("{}: {line}", shown(&self.root));
        }
        self.is_empty.then(|| (self.root.clone(), "the folder holds no images".to_owned()))
    }
}

impl Iterator for Folder {
    type Item = Result<PathBuf, (PathBuf, String)>;

    fn next(&mut self) -> Option<Self::Item> {
        for entry in self.walk.by_ref() {
            match entry {
                Entry::Folder(_) => {}
                Entry::Image(path) => {
                    self.is_empty = false;
                    return Some(Ok(path));
                }
                Entry::LeftOut(path, reason @ (Reason::NoImage | Reason::Hidden)) => {
                    self.others.add(shown(&path), reason);
                }
                Entry::LeftOut(path, reason @ (Reason::Unsupported(_) | Reason::Unreadable(_))) => {
                    self.is_empty = false;
                    return Some(Err((path, reason.message())));
                }
            }
        }
        self.end().map(Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_image_is_passed_over_and_what_is_not_supported_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        for name in ["a.png", "b.heic", "c.txt", ".hidden.png"] {
            std::fs::write(root.path().join(name), "").unwrap();
        }
        let found: Vec<_> = Folder::new(root.path()).collect();
        assert_eq!(found[0], Ok(root.path().join("a.png")));
        let Err((path, message)) = &found[1] else { panic!("{found:?}") };
        assert!(path.ends_with("b.heic") && message.contains("HEIC images are not supported"), "{message}");
        assert_eq!(found.len(), 2);
        std::fs::remove_file(root.path().join("a.png")).unwrap();
        std::fs::remove_file(root.path().join("b.heic")).unwrap();
        let found: Vec<_> = Folder::new(root.path()).collect();
        assert!(matches!(&found[..], [Err((_, message))] if message.contains("no images")), "{found:?}");
    }
}
