//! What is left of a run that was killed or refused before anything of it was saved, and what was changed behind its back.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::Path;

use predicates::prelude::*;
use predicates::str::contains;
use support::{Pictures, TINY, vitrine};

fn prepared() -> Pictures {
    let pictures = Pictures::new();
    pictures.fill("data/red", [200, 30, 30], 12);
    pictures.fill("data/blue", [30, 30, 200], 12);
    pictures.write("tiny.toml", TINY);
    pictures
}

const TRAIN: [&str; 10] =
    ["train", "data", "--model", "tiny.toml", "--batch-size", "8", "--threads", "1", "--output", "run"];

/// A run of two epochs.
fn trained() -> Pictures {
    let pictures = prepared();
    vitrine(&pictures).args(TRAIN).args(["--epochs", "2"]).assert().success();
    pictures
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn what_a_run_was_begun_with_cannot_be_changed_behind_its_back() {
    let pictures = trained();
    let resumed =
        || vitrine(&pictures).args(["train", "--resume", "run", "--threads", "1", "--epochs", "3"]).assert();
    for (file, from, to) in [
        ("config.toml", "batch_size = 8", "batch_size = 4"),
        ("config.toml", "seed = 0", "seed = 1"),
        ("config.toml", "\"blue\", \"red\"", "\"red\", \"blue\""),
        ("config.toml", "val_fraction = 0.2", "val_fraction = 0.3"),
        ("images.csv", ",red,train", ",red,val"),
        ("trained_on.json", "\"images\":", "\"images\":1"),
    ] {
        let path = pictures.path("run").join(file);
        let text = fs::read_to_string(&path).unwrap();
        let changed = text.replacen(from, to, 1);
        assert_ne!(text, changed, "{file} has no {from}");
        fs::write(&path, changed).unwrap();
        resumed().failure().stderr(contains(file).and(contains("changed")).and(contains("--pretrained run")));
        fs::write(&path, text).unwrap();
    }
    // Where the data are may be written by hand: their content is what counts.
    fs::rename(pictures.path("data"), pictures.path("elsewhere")).unwrap();
    let path = pictures.path("run/config.toml");
    let text = fs::read_to_string(&path).unwrap();
    let moved = text.lines().filter(|line| !line.starts_with("data_path"));
    let moved: String =
        moved.map(|line| line.replace("data = \"data\"", "data = \"elsewhere\"") + "\n").collect();
    fs::write(&path, moved).unwrap();
    resumed().success().stderr(contains("epoch 3/3"));
}

#[test]
fn a_run_that_was_killed_before_it_saved_anything_begins_anew() {
    let pictures = trained();
    let model = fs::read(pictures.path("run/model.safetensors")).unwrap();
    for file in ["last/current", "model.safetensors", "metrics.csv", "metrics.json", "report.html"] {
        fs::remove_file(pictures.path("run").join(file)).unwrap();
    }
    pictures.write("run/.vitrine-abcdef.tmp", "half");
    vitrine(&pictures)
        .args(["train", "--resume", "run"])
        .assert()
        .failure()
        .stderr(contains("nothing was saved there yet").and(contains("--output run")));
    vitrine(&pictures)
        .args(TRAIN)
        .args(["--epochs", "2"])
        .assert()
        .success()
        .stderr(contains("nothing was saved of the run that was begun there"));
    assert!(fs::read(pictures.path("run/model.safetensors")).unwrap() == model, "the model has other bytes");
    assert!(!names(&pictures.path("run")).iter().any(|name| name.ends_with(".tmp")));
    // A folder with anything else in it is not taken.
    fs::remove_file(pictures.path("run/last/current")).unwrap();
    vitrine(&pictures).args(TRAIN).assert().failure().stderr(contains("the folder is not empty"));
}

#[test]
fn temporary_files_of_programs_that_were_killed_go_when_the_run_goes_on() {
    let pictures = trained();
    for name in ["run/.vitrine-abcdef.tmp", "run/last/.vitrine-ghijkl.tmp", "run/mine.tmp"] {
        pictures.write(name, "half");
    }
    vitrine(&pictures).args(["train", "--resume", "run", "--epochs", "3"]).assert().success();
    assert!(!pictures.path("run/.vitrine-abcdef.tmp").exists());
    assert!(!pictures.path("run/last/.vitrine-ghijkl.tmp").exists());
    assert!(pictures.path("run/mine.tmp").exists(), "a file of the user's");
}

#[test]
fn a_folder_in_the_place_of_a_file_is_named_before_training() {
    let pictures = trained();
    fs::remove_file(pictures.path("run/report.html")).unwrap();
    pictures.folder("run/report.html");
    vitrine(&pictures)
        .args(["train", "--resume", "run", "--epochs", "3"])
        .assert()
        .failure()
        .stderr(contains("report.html").and(contains("a folder is where")).and(contains("epoch 3").not()));
}

#[cfg(unix)]
#[test]
fn a_file_larger_than_the_system_allows_is_an_error_and_what_was_begun_is_taken_back() {
    use std::process::Command;
    let pictures = prepared();
    let limited = |arguments: &str| {
        let program = assert_cmd::cargo::cargo_bin("vitrine");
        let script = format!("ulimit -f 16; exec '{}' {arguments}", program.display());
        let output =
            Command::new("sh").args(["-c", &script]).current_dir(pictures.path("")).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, message) = limited("train data --model tiny.toml --epochs 1 --output run");
    assert_eq!(status, Some(1), "{message}");
    assert!(message.contains("run") && message.contains("too large"), "{message}");
    assert!(!pictures.path("run").exists(), "a run of which nothing is saved stayed");
    vitrine(&pictures).args(TRAIN).args(["--epochs", "1"]).assert().success();
    let (status, message) = limited("export run --layout timm --output exported");
    assert_eq!(status, Some(1), "{message}");
    assert!(message.contains("exported"), "{message}");
}
