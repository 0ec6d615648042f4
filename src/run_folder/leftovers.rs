//! Removal of leftovers: temporary files of killed programs, and runs that ended before they saved anything.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::file_names::{CONFIG, IMAGES, TRAINED_ON};
use super::lock::LOCK;
use super::states::{self, FOLDER};

use crate::files::is_temporary;

/// The files of a run before its first state is saved.
const INITIAL_FILES: [&str; 3] = [CONFIG, IMAGES, TRAINED_ON];

/// Removes temporary files that killed programs left in the run folder `run`. The caller must hold its lock, since a
/// program that is running may still need such files.
///
/// # Errors
/// If a file cannot be removed.
pub(super) fn remove_temporary(run: &Path) -> io::Result<()> {
    for folder in [run, &run.join(FOLDER)] {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if is_temporary(&entry.file_name()) {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

/// Whether `run` is the folder of a run that began but saved no state, and holds no other files.
pub(super) fn is_unsaved_run(run: &Path) -> bool {
    let is_ours = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name();
            name == FOLDER || INITIAL_FILES.iter().any(|file| name == *file) || is_temporary(&name)
        })
    };
    run.join(FOLDER).join(LOCK).is_file()
        && !states::is_saved(run)
        && fs::read_dir(run).is_ok_and(|mut entries| entries.all(is_ours))
}

/// Removes the files of a run that saved no state, except for its lock, which the caller must hold.
///
/// # Errors
/// If a file cannot be removed.
pub(super) fn remove_unsaved_run(run: &Path) -> io::Result<()> {
    remove_temporary(run)?;
    for name in INITIAL_FILES {
        match fs::remove_file(run.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    states::remove_states(&run.join(FOLDER), None)
}

/// Removes the lock and the emptied folders of a run. A folder that holds other files stays.
///
/// # Errors
/// If the lock or a folder cannot be removed, for instance because the folder is not empty.
pub(super) fn remove_folders(run: &Path) -> io::Result<()> {
    fs::remove_file(run.join(FOLDER).join(LOCK))?;
    fs::remove_dir(run.join(FOLDER))?;
    fs::remove_dir(run)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A run folder with an unfinished state and these files.
    fn run(names: &[&str]) -> tempfile::TempDir {
        let run = tempfile::tempdir().unwrap();
        fs::create_dir_all(run.path().join("last/000000003-000001-0")).unwrap();
        for name in names {
            fs::write(run.path().join(name), "").unwrap();
        }
        run
    }

    #[test]
    fn only_a_run_folder_without_saved_state_or_other_files_is_unsaved() {
        let begun = ["last/lock", "config.toml", ".vitrine-x.tmp"];
        assert!(is_unsaved_run(run(&begun).path()));
        for more in ["last/current", "model.safetensors", "notes.txt"] {
            assert!(!is_unsaved_run(run(&[&begun[..], &[more]].concat()).path()), "{more}");
        }
        assert!(!is_unsaved_run(run(&["config.toml"]).path()), "a folder without a lock is not a run folder");
    }

    #[test]
    fn files_of_an_unsaved_run_are_removed_and_others_stay() {
        let run = run(&[
            "last/lock",
            "last/.vitrine-a.tmp",
            "config.toml",
            ".vitrine-x.tmp",
            ".tmpfile",
            "notes.txt",
        ]);
        remove_unsaved_run(run.path()).unwrap();
        let names = |folder: &Path| {
            let names =
                fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(run.path()), [".tmpfile", "last", "notes.txt"]);
        assert_eq!(names(&run.path().join("last")), ["lock"]);
    }

    #[test]
    fn folders_are_removed_unless_they_hold_other_files() {
        let begun = run(&["last/lock", "config.toml"]);
        remove_unsaved_run(begun.path()).unwrap();
        remove_folders(begun.path()).unwrap();
        assert!(!begun.path().exists());
        let copied = run(&["last/lock", "config.toml"]);
        fs::create_dir(copied.path().join("last/my copy")).unwrap();
        remove_unsaved_run(copied.path()).unwrap();
        assert!(remove_folders(copied.path()).is_err());
        assert!(copied.path().join("last/my copy").is_dir());
    }
}
