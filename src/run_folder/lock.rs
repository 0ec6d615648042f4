//! The lock of a run folder, which keeps a second program from training in it at the same time.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::states::FOLDER;

/// The name of the lock file, in the folder of the saved states.
pub(super) const LOCK: &str = "lock";

/// The exclusive right to write into a run folder. The operating system releases it when the program ends, even if it
/// is killed.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

impl RunLock {
    /// Takes the lock of the run folder `run`, without waiting for it.
    ///
    /// # Errors
    /// If another program holds the lock, or the lock file cannot be created.
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
            // Some network file systems support no locks. Training goes on there without this protection.
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
