//! Runs that were killed or failed before they saved anything, leftover temporary files, and edited files of a run.

use std::fs;
use std::path::Path;

use predicates::prelude::*;
use predicates::str::contains;

use crate::support::{Images, vitrine};

const TRAIN: [&str; 10] =
    ["train", "data", "--model", "tiny.toml", "--batch-size", "8", "--threads", "1", "--output", "run"];

/// A run of two epochs.
fn trained() -> Images {
    let images = Images::prepared();
    vitrine(&images).args(TRAIN).args(["--epochs", "2"]).assert().success();
    images
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
fn edited_files_that_a_run_began_with_are_refused() {
    let images = trained();
    let resumed =
        || vitrine(&images).args(["train", "--resume", "run", "--threads", "1", "--epochs", "3"]).assert();
    for (file, from, to) in [
        ("config.toml", "batch_size = 8", "batch_size = 4"),
        ("config.toml", "seed = 0", "seed = 1"),
        ("config.toml", "\"blue\", \"red\"", "\"red\", \"blue\""),
        ("config.toml", "val_fraction = 0.2", "val_fraction = 0.3"),
        ("images.csv", ",red,train", ",red,val"),
        ("trained_on.json", "\"images\":", "\"images\":1"),
    ] {
        let path = images.path("run").join(file);
        let text = fs::read_to_string(&path).unwrap();
        let changed = text.replacen(from, to, 1);
        assert_ne!(text, changed, "{file} has no {from}");
        fs::write(&path, changed).unwrap();
        resumed().failure().stderr(contains(file).and(contains("changed")).and(contains("--pretrained run")));
        fs::write(&path, text).unwrap();
    }
    // The path of the data may be edited, because the images are identified by their content.
    fs::rename(images.path("data"), images.path("elsewhere")).unwrap();
    let path = images.path("run/config.toml");
    let text = fs::read_to_string(&path).unwrap();
    let moved = text.lines().filter(|line| !line.starts_with("data_path"));
    let moved: String =
        moved.map(|line| line.replace("data = \"data\"", "data = \"elsewhere\"") + "\n").collect();
    fs::write(&path, moved).unwrap();
    resumed().success().stderr(contains("epoch 3/3"));
}

#[test]
fn a_run_that_was_killed_before_it_saved_anything_starts_again() {
    let images = trained();
    let model = fs::read(images.path("run/model.safetensors")).unwrap();
    for file in ["last/current", "model.safetensors", "metrics.csv", "metrics.json", "report.html"] {
        fs::remove_file(images.path("run").join(file)).unwrap();
    }
    images.write("run/.vitrine-abcdef.tmp", "half");
    vitrine(&images)
        .args(["train", "--resume", "run"])
        .assert()
        .failure()
        .stderr(contains("nothing was saved there yet").and(contains("--output run")));
    vitrine(&images)
        .args(TRAIN)
        .args(["--epochs", "2"])
        .assert()
        .success()
        .stderr(contains("the run that was started there saved nothing"));
    assert!(fs::read(images.path("run/model.safetensors")).unwrap() == model, "the model has other bytes");
    assert!(!names(&images.path("run")).iter().any(|name| name.ends_with(".tmp")));
    // A folder with other files is refused.
    fs::remove_file(images.path("run/last/current")).unwrap();
    vitrine(&images).args(TRAIN).assert().failure().stderr(contains("the folder is not empty"));
    // Before anything else is looked at.
    vitrine(&images)
        .args(["train", "nowhere", "--output", "run"])
        .assert()
        .failure()
        .stderr(contains("the folder is not empty"));
}

#[test]
fn temporary_files_of_killed_programs_are_removed_on_resuming() {
    let images = trained();
    for name in ["run/.vitrine-abcdef.tmp", "run/last/.vitrine-ghijkl.tmp", "run/mine.tmp"] {
        images.write(name, "half");
    }
    images.write("run/last/my copy/model.bpk", "a copy of a state");
    vitrine(&images).args(["train", "--resume", "run", "--epochs", "3"]).assert().success();
    assert!(!images.path("run/.vitrine-abcdef.tmp").exists());
    assert!(!images.path("run/last/.vitrine-ghijkl.tmp").exists());
    assert!(images.path("run/mine.tmp").exists(), "a file of the user's");
    assert!(images.path("run/last/my copy/model.bpk").exists(), "a folder of the user's");
    let states = names(&images.path("run/last")).into_iter().filter(|name| name.ends_with("-0"));
    assert_eq!(states.count(), 1, "one state of the program's");
}

#[test]
fn a_folder_in_place_of_an_output_file_is_named_before_training() {
    let images = trained();
    fs::remove_file(images.path("run/report.html")).unwrap();
    images.folder("run/report.html");
    vitrine(&images)
        .args(["train", "--resume", "run", "--epochs", "3"])
        .assert()
        .failure()
        .stderr(contains("report.html").and(contains("a folder is where")).and(contains("epoch 3").not()));
}

#[cfg(unix)]
#[test]
fn a_file_above_the_size_limit_of_the_system_is_an_error_and_the_run_folder_is_removed() {
    use std::process::Command;
    let images = Images::prepared();
    let limited = |arguments: &str| {
        let program = assert_cmd::cargo::cargo_bin("vitrine");
        let script = format!("ulimit -f 16; exec '{}' {arguments}", program.display());
        let output = Command::new("sh").args(["-c", &script]).current_dir(images.path("")).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, message) = limited("train data --model tiny.toml --epochs 1 --output run");
    assert_eq!(status, Some(1), "{message}");
    assert!(message.contains("run") && message.contains("too large"), "{message}");
    assert!(!images.path("run").exists(), "the folder of a run without a saved model is still there");
    vitrine(&images).args(TRAIN).args(["--epochs", "1"]).assert().success();
    let (status, message) = limited("export run --layout timm --output exported");
    assert_eq!(status, Some(1), "{message}");
    assert!(message.contains("exported"), "{message}");
}
