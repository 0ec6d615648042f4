//! Run folders: created, refused, taken over, opened, and changed by their run.

use std::fs;
use std::path::Path;

use crate::events::testing::Lines;
use crate::events::{EpochRow, Quiet};
use crate::recipe::Recipe;
use crate::run_folder::file_names::{CONFIG, METRICS, REPORT};
use crate::run_folder::states::{self, Position};
use crate::run_folder::testing::config;
use crate::run_folder::{RunConfig, RunFolder, checksums, first_free};

fn usual() -> RunConfig {
    config(&["a", "b"])
}

fn create(path: &Path) -> anyhow::Result<RunFolder> {
    RunFolder::create(Some(path), &usual(), "data", &Quiet)
}

fn refused(path: &Path) -> String {
    format!("{:#}", create(path).unwrap_err())
}

/// Saves a state that consists of one file.
fn save(run: &Path, epoch: usize) {
    let write = |folder: &Path| Ok(fs::write(folder.join("progress.toml"), format!("epoch = {epoch}"))?);
    states::save(run, Position { updates: 10 * epoch, epoch }, write, None).unwrap();
}

#[test]
fn a_new_run_is_written_into_a_new_or_an_empty_folder() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("empty")).unwrap();
    for name in ["new", "empty", "deep/inside"] {
        let folder = create(&place.path().join(name)).unwrap();
        assert_eq!(RunConfig::read(&folder.path().join(CONFIG)).unwrap(), usual(), "{name}");
        assert!(folder.path().join("last/lock").is_file());
    }
}

#[test]
fn a_folder_with_other_files_is_refused_and_left_alone() {
    let place = tempfile::tempdir().unwrap();
    let taken = place.path().join("my notes");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("notes.txt"), "mine").unwrap();
    let message = refused(&taken);
    assert!(message.contains("--output") && message.contains("not empty"), "{message}");
    assert!(message.contains(&format!("vitrine train --resume '{}'", taken.display())), "{message}");
    assert_eq!(fs::read_dir(&taken).unwrap().count(), 1, "nothing was written");
    let message = refused(&taken.join("notes.txt"));
    assert!(message.contains("a file is in the way"), "{message}");
    assert_eq!(fs::read_to_string(taken.join("notes.txt")).unwrap(), "mine");
}

#[test]
fn a_run_that_saved_nothing_is_replaced_unless_its_program_still_runs() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("run");
    let first = create(&path).unwrap();
    assert!(refused(&path).contains("another vitrine is training"), "the first program still runs");
    drop(first);
    let lines = Lines::default();
    let other = RunConfig { seed: 8, ..usual() };
    let second = RunFolder::create(Some(&path), &other, "data", &lines).unwrap();
    let told = lines.0.lock().unwrap();
    assert!(told.len() == 1 && told[0].contains("saved nothing: it starts over"), "{told:?}");
    assert_eq!(RunConfig::read(&path.join(CONFIG)).unwrap().seed, 8);
    save(&path, 1);
    drop(second);
    assert!(refused(&path).contains("--resume"), "from its first state on, a run is resumed");
}

#[test]
fn an_invalid_configuration_makes_no_folder() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("run");
    let mut invalid = usual();
    invalid.preprocessing.image_size = [32, 32];
    assert!(RunFolder::create(Some(&path), &invalid, "data", &Quiet).is_err());
    assert!(!path.exists());
}

#[test]
fn a_discarded_run_leaves_nothing_unless_a_state_or_another_file_is_there() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    create(&at("nothing")).unwrap().discard_unsaved();
    assert!(!at("nothing").exists());
    let folder = create(&at("noted")).unwrap();
    fs::write(at("noted/notes.txt"), "mine").unwrap();
    folder.discard_unsaved();
    assert!(at("noted/notes.txt").is_file() && !at("noted").join(CONFIG).exists());
    let folder = create(&at("saved")).unwrap();
    save(&at("saved"), 1);
    folder.discard_unsaved();
    assert!(at("saved").join(CONFIG).is_file() && states::is_saved(&at("saved")));
}

#[test]
fn only_a_run_with_a_state_is_opened() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("run");
    let refused = |path: &Path| format!("{:#}", RunFolder::open(path).unwrap_err());
    assert!(refused(&path).contains("no such run folder"));
    fs::create_dir(&path).unwrap();
    assert!(refused(&path).contains("not a run folder: it holds no config.toml"));
    drop(create(&path).unwrap());
    let message = refused(&path);
    assert!(message.contains("nothing was saved there yet") && message.contains("--output"), "{message}");
    save(&path, 1);
    let (folder, read) = RunFolder::open(&path).unwrap();
    assert_eq!((folder.path(), read), (path.as_path(), usual()));
    assert!(refused(&path).contains("another vitrine is training"));
    drop(folder);
    fs::create_dir(path.join(METRICS)).unwrap();
    let message = refused(&path);
    assert!(message.contains(METRICS) && message.contains("move it away"), "{message}");
    fs::remove_dir(path.join(METRICS)).unwrap();
    fs::write(path.join(CONFIG), "seed = 1\nspeed = 2\n").unwrap();
    assert!(refused(&path).contains(CONFIG));
}

#[test]
fn opening_a_run_removes_the_temporary_files_of_a_killed_program_alone() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("run");
    drop(create(&path).unwrap());
    save(&path, 1);
    for name in [".vitrine-a.tmp", "last/.vitrine-b.tmp", ".vitrine-notes", "mine.tmp"] {
        fs::write(path.join(name), "").unwrap();
    }
    RunFolder::open(&path).unwrap();
    let is_there = [".vitrine-a.tmp", "last/.vitrine-b.tmp", ".vitrine-notes", "mine.tmp"]
        .map(|name| path.join(name).exists());
    assert_eq!(is_there, [false, false, true, true]);
}

#[test]
fn the_same_length_does_not_count_as_another() {
    let place = tempfile::tempdir().unwrap();
    let folder = create(&place.path().join("run")).unwrap();
    let read = || RunConfig::read(&folder.path().join(CONFIG)).unwrap();
    let fixed = folder.fixed().unwrap();
    folder.write_length(&usual().recipe).unwrap();
    assert_eq!(read(), usual());
    folder.write_length(&Recipe { epochs: Some(9), ..usual().recipe }).unwrap();
    let longer = read();
    assert_eq!((longer.recipe.epochs, longer.lengthened), (Some(9), true));
    assert_eq!(RunConfig { recipe: usual().recipe, lengthened: false, ..longer }, usual(), "the rest stays");
    folder.write_length(&usual().recipe).unwrap();
    assert!(read().lengthened, "the learning rate followed another length for a while");
    assert_eq!(folder.fixed().unwrap(), fixed, "a length is never part of the checksums");
}

#[test]
fn every_key_of_the_configuration_is_free_or_fixed() {
    let place = tempfile::tempdir().unwrap();
    let written = RunConfig {
        data_path: Some("/data".into()),
        pretrained: Some("weights".to_owned()),
        pretrained_path: Some("/weights".into()),
        lengthened: true,
        max_file_size: Some(1),
        split_seed: Some(1),
        ..usual()
    };
    let folder = RunFolder::create(Some(&place.path().join("run")), &written, "data", &Quiet).unwrap();
    let path = folder.path().join(CONFIG);
    let fixed = folder.fixed().unwrap();
    let table: toml::Table = toml::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let free = ["data", "data_path", "data_dir", "max_file_size", "pretrained_path", "lengthened"];
    assert!(table.len() > 15, "{table:?}");
    for key in table.keys() {
        let mut changed = table.clone();
        changed.remove(key);
        fs::write(&path, toml::to_string(&changed).unwrap()).unwrap();
        let outcome = checksums::check_fixed(folder.path(), &fixed);
        assert_eq!(outcome.is_ok(), free.contains(&key.as_str()), "{key}");
        if let Err(error) = outcome {
            let message = error.to_string();
            assert!(message.contains(CONFIG) && message.contains("--epochs"), "{key}: {message}");
        }
    }
    let recipe = table["recipe"].as_table().unwrap();
    for key in recipe.keys() {
        let mut changed = table.clone();
        changed["recipe"].as_table_mut().unwrap().remove(key);
        fs::write(&path, toml::to_string(&changed).unwrap()).unwrap();
        let is_free = ["epochs", "time_seconds"].contains(&key.as_str());
        assert_eq!(checksums::check_fixed(folder.path(), &fixed).is_ok(), is_free, "recipe.{key}");
    }
}

#[test]
fn metrics_are_replaced_and_a_report_may_be_missing() {
    let place = tempfile::tempdir().unwrap();
    let folder = create(&place.path().join("run")).unwrap();
    let row = |epoch| EpochRow { epoch, val_top1: Some(0.1 + 0.2), ..EpochRow::default() };
    for epochs in [3, 2] {
        let rows: Vec<EpochRow> = (1..=epochs).map(row).collect();
        folder.write_metrics(&rows).unwrap();
        let mut reader = csv::Reader::from_path(folder.path().join(METRICS)).unwrap();
        let read: Vec<EpochRow> = reader.deserialize().map(Result::unwrap).collect();
        assert_eq!(read, rows, "to the last bit");
    }
    folder.remove_report().unwrap();
    folder.write_report("<html>").unwrap();
    assert!(folder.report().is_file());
    folder.remove_report().unwrap();
    assert!(!folder.path().join(REPORT).exists());
    let message = format!("{:#}", RunFolder::results(folder.path()).unwrap_err());
    assert!(message.contains("metrics.json: cannot be read"), "{message}");
}

#[test]
fn numbers_that_are_taken_are_skipped() {
    let place = tempfile::tempdir().unwrap();
    let stem = place.path().join("runs/data-tiny");
    let number = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(number(&first_free(&stem).unwrap()), "data-tiny-1");
    fs::write(place.path().join("runs/data-tiny-2"), "a file counts").unwrap();
    assert_eq!(number(&first_free(&stem).unwrap()), "data-tiny-3");
    fs::remove_dir(place.path().join("runs/data-tiny-1")).unwrap();
    assert_eq!(number(&first_free(&stem).unwrap()), "data-tiny-1");
}

#[test]
fn data_is_where_it_was_or_else_where_its_name_points_to() {
    let place = tempfile::tempdir().unwrap();
    let (there, gone) = (place.path().join("there"), place.path().join("gone"));
    fs::create_dir(&there).unwrap();
    let name = there.display().to_string();
    let now = |data: &str, path: &Path| {
        RunConfig { data: data.to_owned(), data_path: Some(path.to_owned()), ..usual() }.data_now()
    };
    assert_eq!(now("no such name", &there), name, "it has not moved");
    assert_eq!(now(&name, &gone), name, "it has moved to where its name points from here");
    assert_eq!(
        now("no such name", &gone),
        gone.display().to_string(),
        "messages name the place where it was"
    );
    assert_eq!(usual().data_now(), "data", "a published name has no path");
    assert_eq!(usual().pretrained_now(), None);
}

#[test]
fn a_configuration_chooses_validation_images_by_its_own_seed_or_by_that_of_its_series() {
    let seed = |config: RunConfig| config.hold_out().seed;
    assert_eq!([seed(usual()), seed(RunConfig { split_seed: Some(3), ..usual() })], [7, 3]);
    let fold = |number| vitrine_datasets::Fold { number, of: 4 };
    for (number, is_valid) in [(0, false), (1, true), (4, true), (5, false)] {
        let config = RunConfig { fold: Some(fold(number)), ..usual() };
        assert_eq!(config.validate().is_ok(), is_valid, "fold {number} of 4");
        assert_eq!(config.hold_out().fold, Some(fold(number)));
    }
}
