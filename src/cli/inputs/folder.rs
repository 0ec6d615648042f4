//! A recursive search of a folder for images, which reports files that cannot be classified.

use std::path::{Path, PathBuf};

use vitrine_datasets::{Entry, LeftOut, Reason, Walk, shown};

use crate::cli::output::note;

/// An iterator over the images of a folder and its subfolders, in the order of their paths. An image that is not
/// supported or cannot be read is an error with the reason. Other files are counted, and the counts are printed on
/// standard error after the last image.
pub(super) struct Folder {
    root: PathBuf,
    walk: Walk,
    /// Hidden files, and files that are not images.
    others: LeftOut,
    is_empty: bool,
    is_finished: bool,
}

impl Folder {
    pub(super) fn new(root: &Path) -> Self {
        let (walk, others) = (Walk::new(root), LeftOut::default());
        Self { root: root.to_owned(), walk, others, is_empty: true, is_finished: false }
    }

    /// The same for one folder of several, which may be empty.
    pub(super) fn within(root: &Path) -> Self {
        Self { is_empty: false, ..Self::new(root) }
    }

    /// On the first call, prints the counts of other files, and returns an error if the folder has no images.
    fn finish(&mut self) -> Option<(PathBuf, String)> {
        if std::mem::replace(&mut self.is_finished, true) {
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
        self.finish().map(Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_images_are_errors_and_other_files_are_skipped() {
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
