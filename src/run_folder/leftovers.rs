//! What a run that was killed leaves in its folder.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::file_names::{CONFIG, IMAGES, TRAINED_ON};
use super::lock::LOCK;
use super::states::{self, FOLDER};

use crate::files::is_temporary;

/// The files of a run before its first state is saved.
const BEGUN: [&str; 3] = [CONFIG, IMAGES, TRAINED_ON];

/// Takes away the temporary files of programs that were killed. The caller has the lock of the run folder `run`.
///
/// # Errors
/// When a file cannot be removed.
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

/// Whether `run` holds a run that was begun, of which nothing was saved, and nothing else.
pub(super) fn is_unsaved_run(run: &Path) -> bool {
    let is_ours = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name();
            name == FOLDER || BEGUN.iter().any(|begun| name == *begun) || is_temporary(&name)
        })
    };
    run.join(FOLDER).join(LOCK).is_file()
        && !states::is_saved(run)
        && fs::read_dir(run).is_ok_and(|mut entries| entries.all(is_ours))
}

/// Takes away what the program made of a run of which nothing was saved, but for its lock, which the caller has.
///
/// # Errors
/// When something cannot be removed.
pub(super) fn remove_begun(run: &Path) -> io::Result<()> {
    remove_temporary(run)?;
    for name in BEGUN {
        match fs::remove_file(run.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    states::remove_states(&run.join(FOLDER), None)
}

/// Takes away the lock and the folders of a run of which nothing else is left. A folder that holds other files stays.
///
/// # Errors
/// When something cannot be removed.
pub(super) fn remove_folders(run: &Path) -> io::Result<()> {
    fs::remove_file(run.join(FOLDER).join(LOCK))?;
    fs::remove_dir(run.join(FOLDER))?;
    fs::remove_dir(run)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A run folder with these files.
    fn run(names: &[&str]) -> tempfile::TempDir {
        let run = tempfile::tempdir().unwrap();
        fs::create_dir_all(run.path().join("last/000000003-000001-0")).unwrap();
        for name in names {
            fs::write(run.path().join(name), "").unwrap();
        }
        run
    }

    #[test]
    fn a_run_that_saved_nothing_is_told_from_one_that_did_and_from_other_folders() {
        let begun = ["last/lock", "config.toml", ".vitrine-x.tmp"];
        assert!(is_unsaved_run(run(&begun).path()));
        for more in ["last/current", "model.safetensors", "notes.txt"] {
            assert!(!is_unsaved_run(run(&[&begun[..], &[more]].concat()).path()), "{more}");
        }
        assert!(!is_unsaved_run(run(&["config.toml"]).path()), "without a lock it is no run");
    }

    #[test]
    fn what_was_begun_goes_and_what_is_not_ours_stays() {
        let run = run(&[
            "last/lock",
            "last/.vitrine-a.tmp",
            "config.toml",
            ".vitrine-x.tmp",
            ".tmpfile",
            "notes.txt",
        ]);
        remove_begun(run.path()).unwrap();
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
    fn folders_go_unless_they_hold_what_is_not_ours() {
        let begun = run(&["last/lock", "config.toml"]);
        remove_begun(begun.path()).unwrap();
        remove_folders(begun.path()).unwrap();
        assert!(!begun.path().exists());
        let copied = run(&["last/lock", "config.toml"]);
        fs::create_dir(copied.path().join("last/my copy")).unwrap();
        remove_begun(copied.path()).unwrap();
        assert!(remove_folders(copied.path()).is_err());
        assert!(copied.path().join("last/my copy").is_dir());
    }
}
