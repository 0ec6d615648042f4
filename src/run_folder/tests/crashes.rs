//! Saving a state, interrupted after each of its steps: the previous state or the new one is valid, never a mixture.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::model_file::FILE_NAME;
use crate::run_folder::states::{self, Position, WriteFile};

/// Saves the state after so many epochs, together with a model.
fn save(run: &Path, epoch: usize) -> Result<()> {
    let model = |path: &Path| -> Result<()> { Ok(fs::write(path, format!("model {epoch}"))?) };
    save_with(run, epoch, Some(&model))
}

fn save_with(run: &Path, epoch: usize, model: Option<WriteFile<'_>>) -> Result<()> {
    let write = |folder: &Path| Ok(fs::write(folder.join("weights"), format!("weights {epoch}"))?);
    states::save(run, Position { updates: epoch, epoch }, write, model)
}

/// The weights of the valid state and the model of the run.
fn contents(run: &Path) -> (String, String) {
    let folder = states::open(run).unwrap();
    let text = |path: PathBuf| fs::read_to_string(path).unwrap();
    (text(folder.join("weights")), text(run.join(FILE_NAME)))
}

fn of_epoch(epoch: usize) -> (String, String) {
    (format!("weights {epoch}"), format!("model {epoch}"))
}

/// The names in `last/`, apart from `current`.
fn states_of(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("last")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != "current");
    names.sort_unstable();
    names
}

/// A run whose first state is saved.
fn saved() -> tempfile::TempDir {
    let run = tempfile::tempdir().unwrap();
    fs::create_dir(run.path().join("last")).unwrap();
    save(run.path(), 1).unwrap();
    run
}

#[test]
fn a_new_state_replaces_the_old_one_and_its_model() {
    let run = saved();
    assert_eq!(contents(run.path()), of_epoch(1));
    save(run.path(), 2).unwrap();
    assert_eq!(contents(run.path()), of_epoch(2));
    assert_eq!(states_of(run.path()), ["000000002-000002-0"]);
    save_with(run.path(), 3, None).unwrap();
    assert_eq!(contents(run.path()), ("weights 3".to_owned(), "model 2".to_owned()), "no better model");
}

#[test]
fn killed_while_a_state_is_written_the_previous_one_is_valid() {
    let run = saved();
    let folder = run.path().join("last/000000002-000002-0");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("weights"), "wei").unwrap();
    fs::write(run.path().join("last/000000002-000002-0.safetensors"), "model 2").unwrap();
    assert_eq!(contents(run.path()), of_epoch(1), "neither the half state nor its model counts");
    save(run.path(), 2).unwrap();
    assert_eq!(contents(run.path()), of_epoch(2));
    assert_eq!(
        states_of(run.path()),
        ["000000002-000002-1"],
        "the half state is gone, its name not used again"
    );
}

#[test]
fn killed_after_a_state_became_valid_its_model_follows_when_the_run_is_opened() {
    let run = saved();
    let (old, new) = (run.path().join("last/000000001-000001-0"), run.path().join("last/000000002-000002-0"));
    let kept = tempfile::tempdir().unwrap();
    let copy = |from: &Path, to: &Path| {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    };
    copy(&old, kept.path());
    save(run.path(), 2).unwrap();
    // As if the program had been killed before the model moved and the previous state was removed.
    fs::rename(run.path().join(FILE_NAME), new.with_extension("safetensors")).unwrap();
    fs::write(run.path().join(FILE_NAME), "model 1").unwrap();
    copy(kept.path(), &old);
    assert_eq!(contents(run.path()), of_epoch(2));
    assert_eq!(states_of(run.path()), ["000000001-000001-0", "000000002-000002-0"]);
    save(run.path(), 3).unwrap();
    assert_eq!(states_of(run.path()), ["000000003-000003-0"], "both are removed with the next state");
}

#[test]
fn a_disk_that_refuses_leaves_the_previous_state_valid() {
    let run = saved();
    let position = Position { updates: 2, epoch: 2 };
    let full = |_: &Path| -> Result<()> { bail!("the disk is full") };
    let error = states::save(run.path(), position, full, None).unwrap_err();
    let message = format!("{error:#}");
    assert!(message.contains("the checkpoint cannot be written: the disk is full"), "{message}");
    assert_eq!(contents(run.path()), of_epoch(1));
    let written = Cell::new(false);
    let write = |_: &Path| -> Result<()> {
        written.set(true);
        Ok(())
    };
    assert!(states::save(run.path(), position, write, Some(&full)).is_err());
    assert!(!written.get(), "the model comes first: without it no state of a later epoch becomes valid");
    assert_eq!(contents(run.path()), of_epoch(1));
}

#[test]
fn what_a_disk_had_no_space_for_takes_no_space() {
    let run = saved();
    let position = Position { updates: 2, epoch: 2 };
    let model = |path: &Path| -> Result<()> { Ok(fs::write(path, "model 2")?) };
    let half = |folder: &Path| -> Result<()> {
        fs::write(folder.join("weights"), "wei")?;
        bail!("the disk is full")
    };
    assert!(states::save(run.path(), position, half, Some(&model)).is_err());
    assert_eq!(states_of(run.path()), ["000000001-000001-0"], "neither the half state nor its model");
    let half_model = |path: &Path| -> Result<()> {
        fs::write(path, "mod")?;
        bail!("the disk is full")
    };
    assert!(save_with(run.path(), 2, Some(&half_model)).is_err());
    assert_eq!(states_of(run.path()), ["000000001-000001-0"]);
    assert_eq!(contents(run.path()), of_epoch(1));
}

#[test]
fn a_state_with_a_missing_file_is_refused_and_one_with_another_file_is_not() {
    let run = saved();
    let folder = states::locate(run.path()).unwrap();
    fs::write(folder.join("notes.txt"), "mine").unwrap();
    assert_eq!(contents(run.path()), of_epoch(1));
    for (file, part) in [("weights", "weights is missing"), ("checksums.toml", "cannot be read")] {
        let path = folder.join(file);
        let content = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let message = format!("{:#}", states::open(run.path()).unwrap_err());
        assert!(message.contains(part) && message.contains("--pretrained"), "{message}");
        fs::write(&path, content).unwrap();
    }
    assert_eq!(contents(run.path()), of_epoch(1));
}

#[test]
fn a_pointer_to_no_state_is_named_with_a_way_out() {
    let run = saved();
    let current = run.path().join("last/current");
    let name = fs::read_to_string(&current).unwrap();
    for text in ["000000009-000009-0", "", " \n"] {
        fs::write(&current, text).unwrap();
        let message = states::open(run.path()).unwrap_err().to_string();
        assert!(
            message.contains("does not exist") && message.contains("--pretrained"),
            "{text:?}: {message}"
        );
    }
    fs::write(&current, format!("{name}\n")).unwrap();
    assert_eq!(contents(run.path()), of_epoch(1), "an editor may add a line break");
    fs::remove_file(&current).unwrap();
    assert!(!states::is_saved(run.path()));
    let message = states::open(run.path()).unwrap_err().to_string();
    assert!(message.contains("is gone") && message.contains("--pretrained"), "{message}");
}
