//! Everything below a folder, each entry with what is to be done with it.

use std::io::Read;
use std::path::{Path, PathBuf};

use walkdir::{DirEntry, WalkDir};

use super::Fault;
use super::kind::{FileKind, HEAD_BYTES, is_hidden, is_image_name};
use super::left_out::Reason;
use super::regular::open_regular;
use super::shown::shown;

/// Something below a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A folder; what is in it follows.
    Folder(PathBuf),
    /// An image file by its name or content. Whether it can be read shows when it is decoded.
    Image(PathBuf),
    /// What is not used, and why. Nothing below it follows.
    LeftOut(PathBuf, Reason),
}

/// Walks through a folder and all below, in the order of names. Links are followed; one that leads back to a folder
/// above it is left out.
pub struct Walk {
    root: PathBuf,
    /// The root without links, where it is there.
    place: Option<PathBuf>,
    entries: walkdir::IntoIter,
}

impl Walk {
    /// Nothing is read before the first entry is asked for.
    pub fn new(root: &Path) -> Self {
        let entries = WalkDir::new(root).min_depth(1).follow_links(true).sort_by_file_name().into_iter();
        Self { root: root.to_owned(), place: root.canonicalize().ok(), entries }
    }

    /// The folder around the root that a link leads back to. The walk knows those that it came through itself.
    fn circle(&self, entry: &DirEntry) -> Option<PathBuf> {
        let above = entry.path_is_symlink().then(|| entry.path().canonicalize().ok())??;
        self.place.as_ref()?.starts_with(&above).then_some(above)
    }
}

impl Iterator for Walk {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let entry = match self.entries.next()? {
            Ok(entry) => entry,
            Err(error) => return Some(unreadable(&error, &self.root)),
        };
        let name = shown(entry.file_name());
        let is_folder = entry.file_type().is_dir();
        if is_hidden(&name) {
            if is_folder {
                self.entries.skip_current_dir();
            }
            return Some(Entry::LeftOut(entry.into_path(), Reason::Hidden));
        }
        if !is_folder {
            return Some(file(&name, entry));
        }
        match self.circle(&entry) {
            Some(above) => {
                self.entries.skip_current_dir();
                Some(Entry::LeftOut(entry.into_path(), back_to(&above)))
            }
            None => Some(Entry::Folder(entry.into_path())),
        }
    }
}

fn file(name: &str, entry: DirEntry) -> Entry {
    let mut fault = None;
    let kind = FileKind::of(name, || {
        if !entry.file_type().is_file() {
            return Vec::new();
        }
        head(entry.path()).unwrap_or_else(|problem| {
            fault = Some(problem);
            Vec::new()
        })
    });
    let reason = match (kind, fault) {
        (FileKind::Image, _) => return Entry::Image(entry.into_path()),
        (FileKind::Unsupported(format), _) => Reason::Unsupported(format),
        (FileKind::Other, Some(fault)) => Reason::Unreadable(fault),
        (FileKind::Other, None) => Reason::NoImage,
    };
    Entry::LeftOut(entry.into_path(), reason)
}

/// The first bytes of a file.
fn head(path: &Path) -> Result<Vec<u8>, Fault> {
    let (file, _) = open_regular(path, u64::MAX)?;
    let mut bytes = Vec::with_capacity(HEAD_BYTES);
    file.take(HEAD_BYTES as u64).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

fn back_to(above: &Path) -> Reason {
    Reason::Unreadable(Fault::Other(format!("a link back to {}, which contains it", shown(above))))
}

fn unreadable(error: &walkdir::Error, root: &Path) -> Entry {
    let path = error.path().unwrap_or(root).to_owned();
    if let Some(above) = error.loop_ancestor() {
        return Entry::LeftOut(path, back_to(above));
    }
    // A link to nothing: an image that cannot be read, if its name says so.
    if path.file_name().is_some_and(|name| is_image_name(&shown(name))) && path.is_symlink() {
        return Entry::Image(path);
    }
    let message = error.io_error().map_or_else(|| error.to_string(), ToString::to_string);
    Entry::LeftOut(path, Reason::Unreadable(Fault::Other(message)))
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_and_what_is_left_out_has_its_reason() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("far.png"), "").unwrap();
        let folder = root.path().join("cat");
        fs::create_dir_all(folder.join(".cache/deep")).unwrap();
        symlink(elsewhere.path().join("far.png"), folder.join("a.png")).unwrap();
        symlink(elsewhere.path().join("nothing.png"), folder.join("b.png")).unwrap();
        symlink(elsewhere.path(), folder.join("c")).unwrap();
        symlink(root.path(), folder.join("d")).unwrap();
        fs::write(folder.join("e.heic"), "").unwrap();
        fs::write(folder.join("f.txt"), "GIF89a").unwrap();
        fs::write(folder.join("g"), "GIF89a").unwrap();
        symlink(folder.join("nothing"), folder.join("h")).unwrap();
        let found: Vec<Entry> = Walk::new(root.path()).collect();
        let left_out = |name: &str, reason| Entry::LeftOut(folder.join(name), reason);
        assert_eq!(found.len(), 11, "{found:?}");
        assert_eq!(
            found[..5],
            [
                Entry::Folder(folder.clone()),
                left_out(".cache", Reason::Hidden),
                Entry::Image(folder.join("a.png")),
                Entry::Image(folder.join("b.png")),
                Entry::Folder(folder.join("c")),
            ]
        );
        assert_eq!(found[5], Entry::Image(folder.join("c/far.png")));
        let Entry::LeftOut(path, Reason::Unreadable(Fault::Other(message))) = &found[6] else {
            panic!("{:?}", found[6])
        };
        assert!(path.ends_with("cat/d") && message.contains("a link back to"), "{message}");
        assert_eq!(
            found[7..10],
            [
                left_out("e.heic", Reason::Unsupported("HEIC")),
                left_out("f.txt", Reason::NoImage),
                Entry::Image(folder.join("g")),
            ]
        );
        assert!(matches!(&found[10], Entry::LeftOut(path, Reason::Unreadable(_)) if path.ends_with("cat/h")));
    }

    #[test]
    fn a_link_to_a_folder_around_the_root_is_a_circle() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data/cat");
        fs::create_dir_all(&folder).unwrap();
        symlink(root.path(), folder.join("circle")).unwrap();
        let found: Vec<Entry> = Walk::new(&folder).collect();
        let [Entry::LeftOut(path, Reason::Unreadable(_))] = &found[..] else { panic!("{found:?}") };
        assert!(path.ends_with("cat/circle"));
    }

    #[test]
    fn a_folder_that_is_not_there_is_one_fault() {
        let found: Vec<Entry> = Walk::new(Path::new("/nowhere/at/all")).collect();
        assert!(matches!(&found[..], [Entry::LeftOut(_, Reason::Unreadable(_))]), "{found:?}");
    }
}
