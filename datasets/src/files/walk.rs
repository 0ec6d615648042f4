//! Walking a folder: finding all folders and image files below it, and all files that are not used.

use std::io::Read;
use std::path::{Path, PathBuf};

use walkdir::{DirEntry, WalkDir};

use super::Fault;
use super::kind::{FileKind, HEAD_BYTES, is_hidden, is_image_name};
use super::left_out::Reason;
use super::regular::open_regular;
use super::shown::shown;

/// A file or folder below the root of a [`Walk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A folder, followed by its contents.
    Folder(PathBuf),
    /// An image file, according to its name or first bytes. It may still turn out to be unreadable.
    Image(PathBuf),
    /// A file or folder that is not used, with the reason. A folder is not followed by its contents.
    LeftOut(PathBuf, Reason),
}

/// Walks through all files and folders below a root, in the order of their names. Links are followed, except those that
/// lead back to a folder that contains them.
pub struct Walk {
    root: PathBuf,
    /// The canonical path of the root, if it exists.
    canonical_root: Option<PathBuf>,
    entries: walkdir::IntoIter,
}

impl Walk {
    /// A walk through the folder `root`, which is read lazily.
    pub fn new(root: &Path) -> Self {
        let entries = WalkDir::new(root).min_depth(1).follow_links(true).sort_by_file_name().into_iter();
        Self { root: root.to_owned(), canonical_root: root.canonicalize().ok(), entries }
    }

    /// The folder that `entry` links to, if it contains the root. Links to folders between the root and the entry are
    /// found by `walkdir`.
    fn folder_around_root(&self, entry: &DirEntry) -> Option<PathBuf> {
        let above = entry.path_is_symlink().then(|| entry.path().canonicalize().ok())??;
        self.canonical_root.as_ref()?.starts_with(&above).then_some(above)
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
        match self.folder_around_root(&entry) {
            Some(above) => {
                self.entries.skip_current_dir();
                Some(Entry::LeftOut(entry.into_path(), back_to(&above)))
            }
            None => Some(Entry::Folder(entry.into_path())),
        }
    }
}

/// The entry of a file, by its name and, if need be, its first bytes.
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

/// Reads the first bytes of a file.
fn head(path: &Path) -> Result<Vec<u8>, Fault> {
    let (file, _) = open_regular(path, u64::MAX)?;
    let mut bytes = Vec::with_capacity(HEAD_BYTES);
    file.take(HEAD_BYTES as u64).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// The reason for leaving out a link to a folder that contains it.
fn back_to(above: &Path) -> Reason {
    Reason::Unreadable(Fault::Other(format!("a link back to {}, which contains it", shown(above))))
}

/// The entry of a path that the walk could not read.
fn unreadable(error: &walkdir::Error, root: &Path) -> Entry {
    let path = error.path().unwrap_or(root).to_owned();
    if let Some(above) = error.loop_ancestor() {
        return Entry::LeftOut(path, back_to(above));
    }
    // A broken link with the name of an image counts as an unreadable image.
    if path.file_name().is_some_and(|name| is_image_name(&shown(name))) && path.is_symlink() {
        return Entry::Image(path);
    }
    let message = error.io_error().map_or_else(|| error.to_string(), ToString::to_string);
    Entry::LeftOut(path, Reason::Unreadable(Fault::Other(message)))
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Fills the folder `cat` in a root with files, links, and a hidden folder. Some links lead to another folder.
    fn fill(root: &Path, elsewhere: &Path) {
        fs::write(elsewhere.join("far.png"), "").unwrap();
        let folder = root.join("cat");
        fs::create_dir_all(folder.join(".cache/deep")).unwrap();
        symlink(elsewhere.join("far.png"), folder.join("a.png")).unwrap();
        symlink(elsewhere.join("nothing.png"), folder.join("b.png")).unwrap();
        symlink(elsewhere, folder.join("c")).unwrap();
        symlink(root, folder.join("d")).unwrap();
        fs::write(folder.join("e.heic"), "").unwrap();
        fs::write(folder.join("f.txt"), "GIF89a").unwrap();
        fs::write(folder.join("g"), "GIF89a").unwrap();
        symlink(folder.join("nothing"), folder.join("h")).unwrap();
    }

    #[test]
    fn links_are_followed_and_files_that_are_left_out_have_a_reason() {
        let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fill(root.path(), elsewhere.path());
        let folder = root.path().join("cat");
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
    fn a_link_to_a_folder_that_contains_the_root_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data/cat");
        fs::create_dir_all(&folder).unwrap();
        symlink(root.path(), folder.join("circle")).unwrap();
        let found: Vec<Entry> = Walk::new(&folder).collect();
        let [Entry::LeftOut(path, Reason::Unreadable(_))] = &found[..] else { panic!("{found:?}") };
        assert!(path.ends_with("cat/circle"));
    }

    #[test]
    fn a_missing_folder_gives_a_single_unreadable_entry() {
        let found: Vec<Entry> = Walk::new(Path::new("/nowhere/at/all")).collect();
        assert!(matches!(&found[..], [Entry::LeftOut(_, Reason::Unreadable(_))]), "{found:?}");
    }
}
