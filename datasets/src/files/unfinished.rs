//! The temporary files and folders of what is being written, which a program can remove when it ends at once.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn unfinished() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A note of a temporary file or folder, which [`remove_unfinished`] removes while the note exists.
pub struct Unfinished(PathBuf);

impl Unfinished {
    /// Notes a file or a folder.
    pub fn note(path: &Path) -> Self {
        unfinished().insert(path.to_owned());
        Self(path.to_owned())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        unfinished().remove(&self.0);
    }
}

/// Removes the temporary files of what is being written, downloads among them, before the program ends at once.
pub fn remove_unfinished() {
    for path in unfinished().iter() {
        // What cannot be removed only takes up space.
        let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
}
