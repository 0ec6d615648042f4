//! The files in the folder of a backbone: those of features, and a note about the backbone.

use std::fs::{self, DirEntry, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use crate::files::is_temporary;

/// The extension of files of features.
pub(super) const EXTENSION: &str = "features";
/// The file that says what the backbone of a folder is. Its time of modification is that of the last use.
pub(super) const ABOUT: &str = "about.txt";

/// The files of features in a folder, sorted; none if it does not exist.
pub(super) fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("{}: cannot be read", folder.display()))?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("{}: cannot be read", folder.display()))?.path();
        let is_ours = path.extension().is_some_and(|extension| extension == EXTENSION)
            && path.file_name().is_some_and(|name| !is_temporary(name));
        files.extend(is_ours.then_some(path));
    }
    files.sort_unstable();
    Ok(files)
}

/// Temporary files of programs that were killed: those that nobody has written to for an hour.
pub(super) fn left_behind(folder: &Path) -> Vec<PathBuf> {
    const OLD: Duration = Duration::from_secs(3600);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_old = |entry: &DirEntry| {
        let age = entry.metadata().ok().and_then(|of| of.modified().ok()?.elapsed().ok());
        is_temporary(&entry.file_name()) && age.is_some_and(|age| age > OLD)
    };
    entries.filter(is_old).map(|entry| entry.path()).collect()
}

/// Notes in the folder of a backbone what it is, and that its features have just been used.
pub(super) fn note_use(folder: &Path, about: &str) {
    let file = folder.join(ABOUT);
    let noted = File::options().write(true).open(&file).and_then(|file| file.set_modified(SystemTime::now()));
    if noted.is_err() && folder.is_dir() {
        // Without the note, the features are used as well.
        let _ = fs::write(&file, format!("{about}\n"));
    }
}
