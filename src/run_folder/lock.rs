//! One program at a time trains in a run folder.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::states::FOLDER;

/// The file of the lock, in the folder of the states.
pub(super) const LOCK: &str = "lock";

/// The sole right to write into a run folder. The system takes it back when the program ends, however it ends.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

impl RunLock {
    /// Takes the lock of the run folder `run`.
    ///
    /// # Errors
    /// When another program has it, or the file of the lock cannot be made.
    pub fn take(run: &Path) -> Result<Self> {
        let folder = run.join(FOLDER);
        let path = folder.join(LOCK);
        let open = || -> std::io::Result<File> {
            fs::create_dir_all(&folder)?;
            File::options().create(true).truncate(false).write(true).open(&path)
        };
        let file = open().with_context(|| format!("{}: cannot be created", path.display()))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                bail!("{}: another vitrine is training in this run folder; wait for it to end", run.display())
            }
            // Some network drives have no locks: there the user must see to it.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Self { _file: file }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_locked_until_the_lock_is_dropped() {
        let run = tempfile::tempdir().unwrap();
        let lock = RunLock::take(run.path()).unwrap();
        let message = RunLock::take(run.path()).unwrap_err().to_string();
        assert!(message.contains(&run.path().display().to_string()), "{message}");
        drop(lock);
        RunLock::take(run.path()).unwrap();
    }
}
