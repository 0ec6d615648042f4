//! Storage of checkpoints, arranged so that a crash at any moment leaves the previous state or the new one.
//!
//! `last/` holds one folder for each saved state, and the file `current`, which names the valid one and is replaced by
//! renaming. A folder is never written twice, and none that was saved is removed before `current` names another. Entries
//! whose names do not follow this program's pattern, such as a user's copy of a state, are left alone.
//!
//! The caller decides which files a state has; this module adds their checksums.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::checksums::checksum;
use crate::files::{sync_folder, write_atomically};
use crate::model_file::FILE_NAME;

/// The folder of the saved states inside a run folder.
pub(super) const FOLDER: &str = "last";
/// The file that names the valid state.
const CURRENT: &str = "current";
/// The file with the checksums of a state's other files.
const CHECKSUMS: &str = "checksums.toml";
/// The extension of a model file that waits in `last/`, under the name of its state, until that state is the valid one.
const STAGED: &str = ".safetensors";

/// Writes one file to the path that it is given.
pub type WriteFile<'a> = &'a dyn Fn(&Path) -> Result<()>;

/// The position of a state in its run, from which its folder is named.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Optimizer updates done.
    pub updates: usize,
    /// Whole epochs done.
    pub epoch: usize,
}

/// Saves a state of the run in the folder `run`: `write` writes its files into a new folder, and `write_model` the best
/// model, if there is a new one, to the path that it is given.
///
/// First everything is written; then the state becomes the valid one; then the model moves to its place; then the
/// previous state is removed. The model file is thus never of a later epoch than the state from which the run resumes.
/// If the program is killed before the model has moved, [`open`] moves it.
///
/// # Errors
/// If a file cannot be written; the previous state then stays valid, and nothing of the new one stays.
pub fn save(
    run: &Path,
    position: Position,
    write: impl FnOnce(&Path) -> Result<()>,
    write_model: Option<WriteFile<'_>>,
) -> Result<()> {
    let root = run.join(FOLDER);
    let (name, folder) = new_folder(&root, position)
        .with_context(|| format!("{}: no checkpoint can be written there", root.display()))?;
    let make_valid = || -> Result<()> {
        if let Some(write_model) = write_model {
            write_model(&staged(&root, &name))?;
        }
        write(&folder)
            .and_then(|()| seal(&folder))
            .with_context(|| format!("{}: the checkpoint cannot be written", folder.display()))?;
        sync_folder(&root)?;
        write_atomically(&root.join(CURRENT), name.as_bytes())
    };
    make_valid().inspect_err(|_| discard(&root, &name))?;
    move_model(run, &name)?;
    // A state that cannot be removed only takes up space: `current` no longer names it.
    let _ = remove_states(&root, Some(&name));
    Ok(())
}

/// Saves the valid state of a run once more, with `content` in its file `name`. Its other files are linked where the file system can do
/// that, and take no space then.
///
/// # Errors
/// If the valid state is damaged, or as for [`save`].
pub fn save_again(run: &Path, position: Position, (name, content): (&str, &str)) -> Result<()> {
    let valid = open(run)?;
    let write = |folder: &Path| -> Result<()> {
        for entry in fs::read_dir(&valid)? {
            let entry = entry?;
            let file = entry.file_name();
            // These two are written anew, which through a link would change the valid state.
            if file == name || file == CHECKSUMS {
                continue;
            }
            let (from, to) = (entry.path(), folder.join(file));
            fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(|_| ()))?;
        }
        Ok(fs::write(folder.join(name), content)?)
    };
    save(run, position, write, None)
}

/// Adds the checksums to the files of a state, and waits until all are on the disk.
fn seal(folder: &Path) -> Result<()> {
    fs::write(folder.join(CHECKSUMS), toml::to_string(&checksums(folder)?)?)?;
    for entry in fs::read_dir(folder)? {
        File::open(entry?.path())?.sync_all()?;
    }
    Ok(sync_folder(folder)?)
}

/// Removes a state that could not be saved and its waiting model: on a full disk, the best model of the run needs the space.
/// What `current` names stays, as does everything if `current` cannot be read.
fn discard(root: &Path, name: &str) {
    let is_valid = match fs::read_to_string(root.join(CURRENT)) {
        Ok(valid) => valid.trim() == name,
        Err(error) => error.kind() != ErrorKind::NotFound,
    };
    if !is_valid {
        // What cannot be removed only takes up space.
        let _ = fs::remove_dir_all(root.join(name));
        let _ = fs::remove_file(staged(root, name));
    }
}

/// Checks every file of the valid state against its checksum, and moves the model that was saved with it to its place
/// if that is still to be done. Returns the folder of the state.
///
/// # Errors
/// If nothing was saved, or a file of the state is damaged.
pub fn open(run: &Path) -> Result<PathBuf> {
    let folder = locate(run)?;
    let prepare = || {
        verify(&folder)?;
        move_model(run, &folder.file_name().unwrap_or_default().to_string_lossy())
    };
    prepare().with_context(|| unreadable(run, &folder))?;
    Ok(folder)
}

/// The message about a state that cannot be read.
pub fn unreadable(run: &Path, folder: &Path) -> String {
    format!(
        "{}: the checkpoint cannot be read; start a new run with --pretrained {} to keep what its best model has learned",
        folder.display(),
        run.display()
    )
}

/// The folder of the valid state of a run.
///
/// # Errors
/// If `run` is not a run folder, or nothing was saved yet.
pub fn locate(run: &Path) -> Result<PathBuf> {
    let root = run.join(FOLDER);
    let Ok(name) = fs::read_to_string(root.join(CURRENT)) else {
        if run.join(FILE_NAME).is_file() {
            bail!(
                "--resume {run}: what resuming needs is gone ({FOLDER}/{CURRENT} does not exist): start a new run with --pretrained {run} to \
                 keep what its best model has learned",
                run = run.display()
            );
        }
        bail!(
            "--resume {run}: nothing was saved there yet ({FOLDER}/{CURRENT} does not exist): start the run again with --output {run}",
            run = run.display()
        );
    };
    let folder = root.join(name.trim());
    if name.trim().is_empty() || !folder.is_dir() {
        bail!(
            "--resume {run}: {FOLDER}/{CURRENT} names the state `{name}`, which does not exist; write the name of a folder in {FOLDER} into it, \
             or start a new run with --pretrained {run} to keep what its best model has learned",
            run = run.display(),
            name = name.trim()
        );
    }
    Ok(folder)
}

/// Whether a state of the run was saved.
pub fn is_saved(run: &Path) -> bool {
    run.join(FOLDER).join(CURRENT).is_file()
}

/// The path of a model that waits until the state `name` is the valid one.
fn staged(root: &Path, name: &str) -> PathBuf {
    root.join(format!("{name}{STAGED}"))
}

/// Moves the model that was saved with the valid state `name` to its place, unless it is there already.
fn move_model(run: &Path, name: &str) -> Result<()> {
    let (from, to) = (staged(&run.join(FOLDER), name), run.join(FILE_NAME));
    match fs::rename(&from, &to) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        moved => moved.and_then(|()| sync_folder(run)),
    }
    .with_context(|| format!("{}: cannot be written", to.display()))
}

/// Removes the states in `root`, except for the one named `kept`, together with their waiting models. Entries that this
/// program did not name stay.
///
/// # Errors
/// If the folder cannot be read, or an entry cannot be removed; the other entries are removed nevertheless.
pub(super) fn remove_states(root: &Path, kept: Option<&str>) -> io::Result<()> {
    let mut result = Ok(());
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let state = name.strip_suffix(STAGED).unwrap_or(name);
        if !is_state(state) || kept == Some(state) {
            continue;
        }
        // A state is a folder without an extension, and a waiting model a file with one. Other combinations are not
        // this program's and stay.
        let removed = match (entry.file_type()?.is_dir(), state == name) {
            (true, true) => fs::remove_dir_all(entry.path()),
            (false, false) => fs::remove_file(entry.path()),
            (true, false) | (false, true) => Ok(()),
        };
        result = result.and(removed);
    }
    result
}

/// Whether `name` is the name of a state: three numbers, the first two of at least nine and six digits.
fn is_state(name: &str) -> bool {
    let parts: Vec<&str> = name.split('-').collect();
    let is_number =
        |part: &str, digits: usize| part.len() >= digits && part.bytes().all(|byte| byte.is_ascii_digit());
    matches!(parts[..], [updates, epoch, number] if is_number(updates, 9) && is_number(epoch, 6) && is_number(number, 1))
}

/// Creates a folder that did not exist, so that neither the valid state nor the remains of a crash are overwritten.
fn new_folder(root: &Path, Position { updates, epoch }: Position) -> Result<(String, PathBuf)> {
    fs::create_dir_all(root)?;
    for number in 0.. {
        let name = format!("{updates:09}-{epoch:06}-{number}");
        let folder = root.join(&name);
        match fs::create_dir(&folder) {
            Ok(()) => return Ok((name, folder)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("every name is taken")
}

/// The SHA-256 of each file of a state, by file name.
fn checksums(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut checksums = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() != CHECKSUMS {
            let checksum = checksum(&fs::read(entry.path())?);
            checksums.insert(entry.file_name().to_string_lossy().into_owned(), checksum);
        }
    }
    Ok(checksums)
}

/// Checks that every file of a state is as it was written: training must not continue from damaged files.
fn verify(folder: &Path) -> Result<()> {
    let written: BTreeMap<String, String> = toml::from_str(&fs::read_to_string(folder.join(CHECKSUMS))?)?;
    let found = checksums(folder)?;
    for (name, checksum) in &written {
        match found.get(name) {
            Some(other) if other == checksum => {}
            Some(_) => bail!("{name} was damaged or changed since it was written"),
            None => bail!("{name} is missing"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_folder_of_a_state_is_written_twice() {
        let root = tempfile::tempdir().unwrap();
        let position = Position { updates: 7, epoch: 1 };
        let (first, _) = new_folder(root.path(), position).unwrap();
        let (second, folder) = new_folder(root.path(), position).unwrap();
        assert_ne!(first, second);
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    }

    #[test]
    fn old_states_are_removed_and_other_entries_stay() {
        let root = tempfile::tempdir().unwrap();
        let position = |updates| Position { updates, epoch: 1 };
        let (old, _) = new_folder(root.path(), position(7)).unwrap();
        let (new, _) = new_folder(root.path(), position(1_234_567_890)).unwrap();
        let copies =
            ["000000007-000001-0 copy", "backup", "000-0", "000000007-000001-x", "000000007-000001-0-0"];
        for copy in copies {
            fs::create_dir(root.path().join(copy)).unwrap();
        }
        let others =
            ["current", "lock", "notes.safetensors", "000000009-000001-0", &format!("{new}.safetensors")];
        for file in others.into_iter().chain(["000000007-000001-0.safetensors"]) {
            fs::write(root.path().join(file), "").unwrap();
        }
        remove_states(root.path(), Some(&new)).unwrap();
        for stays in copies.into_iter().chain(others).chain([new.as_str()]) {
            assert!(root.path().join(stays).exists(), "{stays}");
        }
        for gone in [&old, "000000007-000001-0.safetensors"] {
            assert!(!root.path().join(gone).exists(), "{gone}");
        }
        remove_states(root.path(), None).unwrap();
        assert!(!root.path().join(&new).exists() && root.path().join("backup").is_dir());
    }

    #[test]
    fn a_state_is_saved_again_with_another_file_and_the_others_as_they_were() {
        let run = tempfile::tempdir().unwrap();
        let position = Position { updates: 1, epoch: 0 };
        let write =
            |folder: &Path, name: &str, text: &str| -> Result<()> { Ok(fs::write(folder.join(name), text)?) };
        let both = |folder: &Path| -> Result<()> {
            write(folder, "weights", "1 2 3")?;
            write(folder, "progress", "a")
        };
        save(run.path(), position, both, None).unwrap();
        // Other names of the files of the first state, which is removed.
        let first = open(run.path()).unwrap();
        let kept = |name: &str| run.path().join(format!("{name} of the first"));
        for name in ["progress", CHECKSUMS] {
            fs::hard_link(first.join(name), kept(name)).unwrap();
        }
        let checksums = fs::read_to_string(kept(CHECKSUMS)).unwrap();
        save_again(run.path(), position, ("progress", "b")).unwrap();
        let folder = open(run.path()).unwrap();
        assert_ne!(first, folder);
        assert_eq!(fs::read_to_string(kept("progress")).unwrap(), "a", "the first state stays as it was");
        assert_eq!(fs::read_to_string(kept(CHECKSUMS)).unwrap(), checksums);
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!([text("weights"), text("progress")], ["1 2 3", "b"]);
        fs::write(folder.join("weights"), "1 2 4").unwrap();
        let again = save_again(run.path(), position, ("progress", "c"));
        assert!(again.is_err(), "a damaged state stays one");
    }

    #[test]
    fn a_damaged_state_is_refused_and_a_whole_one_gets_its_model_moved() {
        let run = tempfile::tempdir().unwrap();
        let write = |folder: &Path| Ok(fs::write(folder.join("weights"), "1 2 3")?);
        let model = |path: &Path| -> Result<()> { Ok(fs::write(path, "model")?) };
        save(run.path(), Position { updates: 1, epoch: 0 }, write, Some(&model)).unwrap();
        assert_eq!(fs::read_to_string(run.path().join(FILE_NAME)).unwrap(), "model");
        let folder = open(run.path()).unwrap();
        // Simulates a program that was killed before the model was moved.
        let name = folder.file_name().unwrap().to_str().unwrap();
        fs::rename(run.path().join(FILE_NAME), staged(&run.path().join(FOLDER), name)).unwrap();
        open(run.path()).unwrap();
        assert!(run.path().join(FILE_NAME).is_file());
        fs::write(folder.join("weights"), "1 2 4").unwrap();
        let error = format!("{:#}", open(run.path()).unwrap_err());
        assert!(error.contains("weights was damaged") && error.contains("--pretrained"), "{error}");
    }
}
