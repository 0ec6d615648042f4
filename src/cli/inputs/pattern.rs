//! What a glob pattern finds on the disk. Names need not be UTF-8, as they must be for the search of the crate `glob`: what is no text in
//! them counts as replacement characters, which `*` and `?` match.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::FileType;
use std::path::{Component, Path, PathBuf, is_separator};
use std::{fs, io};

use glob::{Pattern, PatternError};

/// The part of a pattern that stands for any number of folders.
const ANY_FOLDERS: &str = "**";

/// An iterator over the files and folders that a pattern finds, in the order of their names, a folder before what is in it. A folder that
/// cannot be read is an error with its path. `**` does not follow a link to a folder around it, where it would find the same again without
/// end.
pub(super) struct Matches {
    /// What each name on the way must match, from that of a folder to that of what is found.
    parts: Vec<Pattern>,
    /// Whether only folders are found, because the pattern ends with a separator.
    only_folders: bool,
    /// What is still to be examined, the last one first.
    todo: Vec<Result<Candidate, (PathBuf, io::Error)>>,
}

/// A path that a pattern may find.
struct Candidate {
    path: PathBuf,
    /// The part of the pattern that the last name must match; `None` if it does.
    part: Option<usize>,
    /// What is there, if the list of its folder says so.
    kind: Option<FileType>,
}

impl Candidate {
    /// Whether this is a folder, or a link to one. Only links take another look at the disk.
    fn is_folder(&self) -> bool {
        match self.kind {
            Some(kind) if !kind.is_symlink() => kind.is_dir(),
            Some(_) | None => self.path.is_dir(),
        }
    }

    /// Whether this is a link to a folder on the way to it, or to one around such a folder.
    fn leads_back(&self) -> bool {
        if self.kind.is_some_and(|kind| !kind.is_symlink()) {
            return false;
        }
        let Ok(target) = self.path.canonicalize() else { return false };
        // What is above `..` need not be around it.
        let mut on_the_way = self.path.ancestors().skip(1).take_while(|folder| !folder.ends_with(".."));
        on_the_way
            .any(|folder| or_here(folder).canonicalize().is_ok_and(|folder| folder.starts_with(&target)))
    }
}

impl Matches {
    /// What the pattern finds, whose folders are read as they are reached.
    ///
    /// # Errors
    /// If the pattern is not valid.
    pub(super) fn of(pattern: &str) -> Result<Self, PatternError> {
        // An error has the position in the whole pattern.
        Pattern::new(pattern)?;
        let is_root =
            |component: &Component<'_>| matches!(component, Component::Prefix(_) | Component::RootDir);
        let root: PathBuf = Path::new(pattern).components().take_while(is_root).collect();
        let below = pattern.get(root.as_os_str().len()..).unwrap_or_default();
        let names = below.split(is_separator).filter(|name| !name.is_empty());
        let mut parts = names.map(Pattern::new).collect::<Result<Vec<_>, _>>()?;
        parts.dedup_by(|next, part| part.as_str() == ANY_FOLDERS && next.as_str() == ANY_FOLDERS);
        let only_folders = pattern.ends_with(is_separator);
        let mut matches = Self { parts, only_folders, todo: Vec::new() };
        let start = if root.as_os_str().is_empty() { Path::new(".") } else { &root };
        matches.look_into(start, 0);
        Ok(matches)
    }

    /// Adds what a folder holds and the part at `index` may match.
    fn look_into(&mut self, folder: &Path, index: usize) {
        let Some(part) = self.parts.get(index).map(Pattern::as_str) else { return };
        if part.contains(['*', '?', '[']) {
            match names_in(folder) {
                Ok(names) => self.todo.extend(names.into_iter().rev().map(|(name, kind)| {
                    Ok(Candidate { path: within(folder, name), part: Some(index), kind })
                })),
                Err(_) if !folder.is_dir() => {}
                Err(error) => self.todo.push(Err((folder.to_owned(), error))),
            }
            return;
        }
        // This also finds `..`, and what is in a folder that cannot be listed.
        let path = within(folder, part);
        let Ok(about) = path.symlink_metadata() else { return };
        if index + 1 < self.parts.len() {
            self.look_into(&path, index + 1);
        } else {
            self.todo.push(Ok(Candidate { path, part: None, kind: Some(about.file_type()) }));
        }
    }

    /// Whether a candidate whose last name may match the part at `index` is found. If it is on the way, adds what it holds.
    fn finds(&mut self, candidate: &Candidate, mut index: usize) -> bool {
        let (path, last) = (&candidate.path, self.parts.len() - 1);
        if self.parts[index].as_str() == ANY_FOLDERS {
            let is_folder = candidate.is_folder();
            if is_folder && !candidate.leads_back() {
                self.look_into(path, index);
            }
            if index == last {
                return is_folder;
            }
            index += 1;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !self.parts[index].matches(&name) {
            return false;
        }
        if index < last && candidate.is_folder() {
            self.look_into(path, index + 1);
        }
        index == last
    }
}

impl Iterator for Matches {
    type Item = Result<PathBuf, (PathBuf, io::Error)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let candidate = match self.todo.pop()? {
                Ok(candidate) => candidate,
                Err(unreadable) => return Some(Err(unreadable)),
            };
            let is_found = candidate.part.is_none_or(|index| self.finds(&candidate, index));
            if is_found && (!self.only_folders || candidate.is_folder()) {
                return Some(Ok(candidate.path));
            }
        }
    }
}

/// The names of what is in a folder, each with what it is.
fn names_in(folder: &Path) -> io::Result<BTreeMap<OsString, Option<FileType>>> {
    let named =
        |entry: io::Result<fs::DirEntry>| entry.map(|entry| (entry.file_name(), entry.file_type().ok()));
    fs::read_dir(folder)?.map(named).collect()
}

/// A folder, or the one in which the program runs, which is not part of paths.
fn or_here(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

/// The path of what has a name in a folder. The folder in which the program runs is not part of it.
fn within(folder: &Path, name: impl AsRef<Path>) -> PathBuf {
    if folder == Path::new(".") { name.as_ref().to_owned() } else { folder.join(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a pattern finds below a folder, as paths in it.
    fn found(root: &Path, pattern: &str) -> Vec<PathBuf> {
        let pattern = root.join(pattern);
        let matches = Matches::of(pattern.to_str().unwrap()).unwrap();
        matches.map(|path| path.unwrap().strip_prefix(root).unwrap().to_owned()).collect()
    }

    #[test]
    fn the_same_is_found_as_by_the_search_of_the_crate_glob() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["a/b/c", "a/d", "e"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        for file in ["a/1.png", "a/b/2.png", "a/b/c/3.png", "a/d/10.png", "e/x[1].png", "4.png", ".5.png"] {
            fs::write(root.path().join(file), "").unwrap();
        }
        for (pattern, count) in [
            ("*.png", 2),
            ("*", 4),
            ("*/", 2),
            ("*/*.png", 2),
            ("**/*.png", 7),
            ("**/**/*.png", 7),
            ("**/b/**/*.png", 2),
            ("a/**", 3),
            ("a/**/", 3),
            ("a/[bd]/?.png", 1),
            ("a/[!b]/??.png", 1),
            ("a/./*.png", 1),
            ("*/../4.png", 2),
            ("e/x[[]1].png", 1),
            ("4.png/*", 0),
            ("none/*", 0),
        ] {
            let paths = found(root.path(), pattern);
            let whole = root.path().join(pattern);
            let by_glob = glob::glob(whole.to_str().unwrap()).unwrap();
            let by_glob: Vec<PathBuf> =
                by_glob.map(|path| path.unwrap().strip_prefix(root.path()).unwrap().to_owned()).collect();
            assert_eq!(paths, by_glob, "{pattern}");
            assert_eq!(paths.len(), count, "{pattern}: {paths:?}");
        }
        assert!(Matches::of("a***").is_err() && Matches::of("a/**b").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_a_folder_around_it_is_followed_only_where_the_pattern_names_it() {
        use std::os::unix::fs::symlink;
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        fs::create_dir(root.path().join("c")).unwrap();
        for file in ["a/1.png", "a/b/2.png", "c/3.png"] {
            fs::write(root.path().join(file), "").unwrap();
        }
        let links = [
            ("a/b/again", "."),
            ("a/b/up", "../.."),
            ("a/b/4.png", "../1.png"),
            ("a/c", "../c"),
            ("c/a", "../a"),
        ];
        for (link, target) in links {
            symlink(target, root.path().join(link)).unwrap();
        }
        let paths = |pattern: &str| {
            let found = found(root.path(), pattern).into_iter();
            found.map(|path| path.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            paths("**/*.png"),
            [
                "a/1.png",
                "a/b/2.png",
                "a/b/4.png",
                "a/c/3.png",
                "c/3.png",
                "c/a/1.png",
                "c/a/b/2.png",
                "c/a/b/4.png"
            ]
        );
        assert_eq!(paths("a/b/up/c/*.png"), ["a/b/up/c/3.png"]);
        assert_eq!(paths("a/b/*/*.png"), ["a/b/again/2.png", "a/b/again/4.png"]);
        assert_eq!(paths("*/b/*/"), ["a/b/again", "a/b/up"]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn names_need_not_be_utf8() {
        use std::os::unix::ffi::OsStringExt;
        let root = tempfile::tempdir().unwrap();
        let name = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let folder = PathBuf::from(name(b"cl\xe9"));
        let file = folder.join(name(b"\xe4.png"));
        fs::create_dir(root.path().join(&folder)).unwrap();
        fs::write(root.path().join(&file), "").unwrap();
        for pattern in ["*/*.png", "**/*.png", "cl*/?.png"] {
            assert_eq!(found(root.path(), pattern), [file.as_path()], "{pattern}");
        }
        assert_eq!(found(root.path(), "c*"), [folder]);
        assert!(found(root.path(), "*/[!?].jpg").is_empty());
    }
}
