//! The life of a run: begun, stopped, resumed, lengthened, and never lost.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};

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

const TRAIN: [&str; 8] = ["train", "data", "--model", "tiny.toml", "--batch-size", "8", "--threads", "1"];

fn train(pictures: &Pictures, more: &[&str]) {
    vitrine(pictures).args(TRAIN).args(more).assert().success();
}

fn resume(pictures: &Pictures, run: &str, more: &[&str]) -> assert_cmd::assert::Assert {
    vitrine(pictures).args(["train", "--resume", run, "--threads", "1"]).args(more).assert()
}

/// Every file of a folder, with its content.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    files
}

/// The columns of `metrics.csv` that do not tell the time.
fn metrics(pictures: &Pictures, run: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(pictures.path(run).join("metrics.csv")).unwrap();
    let untimed = |line: &str| -> Vec<String> {
        line.split(',').enumerate().filter(|(i, _)| ![2, 8].contains(i)).map(|(_, v)| v.to_owned()).collect()
    };
    text.lines().map(untimed).collect()
}

#[test]
fn a_finished_run_says_so_and_is_not_touched() {
    let pictures = prepared();
    train(&pictures, &["--epochs", "3", "--output", "run"]);
    let before = contents(&pictures.path("run"));
    let finished =
        || contains("run is finished: 3 epochs").and(contains("--epochs N").and(contains("--time T")));
    resume(&pictures, "run", &[]).success().stderr(finished());
    resume(&pictures, "run", &["--epochs", "3"]).success().stderr(finished());
    resume(&pictures, "run", &["--epochs", "2"]).failure().stderr(contains("--epochs 2: 3 epochs are done"));
    resume(&pictures, "run", &["--time", "1ms"])
        .failure()
        .stderr(contains("--time").and(contains("3 epochs are done")));
    assert!(contents(&pictures.path("run")) == before, "the run was touched");
}

#[test]
fn a_lengthened_run_has_the_bits_of_one_that_was_stopped_in_between() {
    let pictures = prepared();
    for run in ["whole", "crashed"] {
        train(&pictures, &["--epochs", "3", "--output", run]);
    }
    resume(&pictures, "whole", &["--epochs", "6"]).success().stderr(contains("epoch 6/6"));
    // What a crash leaves that came after the new length was written, and half of a state.
    let config = fs::read_to_string(pictures.path("crashed/config.toml")).unwrap();
    pictures.write("crashed/config.toml", &config.replace("epochs = 3", "epochs = 6"));
    pictures.write("crashed/last/000000015-000000-0/model.bpk", "half");
    for folder in fs::read_dir(pictures.path("crashed/last")).unwrap().flatten() {
        let name = folder.file_name().into_string().unwrap();
        if folder.path().is_dir() && !name.ends_with("-000000-0") {
            pictures.write(&format!("crashed/last/{}9/progress.toml", &name[..name.len() - 1]), "half");
        }
    }
    resume(&pictures, "crashed", &[]).success().stderr(contains("epoch 6/6"));
    assert_eq!(metrics(&pictures, "whole"), metrics(&pictures, "crashed"));
    let model = |run: &str| fs::read(pictures.path(run).join("model.safetensors")).unwrap();
    assert!(model("whole") == model("crashed"));
    assert!(pictures.path("crashed/report.html").is_file());
}

#[test]
fn a_finished_run_without_its_report_is_given_one() {
    let pictures = prepared();
    train(&pictures, &["--epochs", "2", "--output", "run"]);
    fs::remove_file(pictures.path("run/report.html")).unwrap();
    resume(&pictures, "run", &[]).success().stdout(contains("report.html"));
    assert!(pictures.path("run/report.html").is_file());
    assert_eq!(metrics(&pictures, "run").len(), 3);
}

#[test]
fn a_run_by_the_clock_is_lengthened_by_the_clock_and_by_epochs() {
    let pictures = prepared();
    train(&pictures, &["--time", "1s", "--output", "run"]);
    let epochs = metrics(&pictures, "run").len() - 1;
    resume(&pictures, "run", &[]).success().stderr(contains("is finished"));
    // More than it has taken, however slow the machine is.
    let rows = fs::read_to_string(pictures.path("run/metrics.csv")).unwrap();
    let taken: f64 = rows.lines().last().unwrap().split(',').nth(2).unwrap().parse().unwrap();
    let longer = format!("{}s", taken as u64 + 4);
    resume(&pictures, "run", &["--time", &longer]).success().stdout(contains("report.html"));
    let more = metrics(&pictures, "run").len() - 1;
    assert!(more > epochs, "{more} {epochs}");
    let (last, next) = ((more + 2).to_string(), format!("epoch {}/{}", more + 2, more + 2));
    resume(&pictures, "run", &["--epochs", &last]).success().stderr(contains(next));
    resume(&pictures, "run", &["--time", "1s"]).failure().stderr(contains("--time"));
}

#[test]
fn a_run_is_resumed_from_any_folder_and_where_its_data_went() {
    let pictures = prepared();
    // An image that cannot be read is the same one wherever the folder is.
    #[cfg(unix)]
    std::os::unix::fs::symlink("nowhere", pictures.path("data/red/broken.png")).unwrap();
    train(&pictures, &["--epochs", "1", "--output", "run", "--bad-file-limit", "0.5"]);
    pictures.folder("elsewhere");
    let resume = |folder: &str, run: &str, epochs: &str| {
        vitrine(&pictures)
            .current_dir(pictures.path(folder))
            .args(["train", "--resume", run, "--epochs", epochs])
            .assert()
    };
    resume("elsewhere", "../run", "2").success();
    fs::create_dir(pictures.path("moved")).unwrap();
    fs::rename(pictures.path("data"), pictures.path("moved/data")).unwrap();
    resume("elsewhere", "../run", "3").failure().stderr(contains("data"));
    resume("moved", "../run", "3").success();
}

#[test]
fn weights_that_are_no_numbers_any_more_are_never_the_best() {
    let pictures = prepared();
    let assert = vitrine(&pictures)
        .args([
            "train",
            "data",
            "--model",
            "tiny.toml",
            "--batch-size",
            "1",
            "--threads",
            "1",
            "--epochs",
            "1",
        ])
        .args(["--learning-rate", "1", "--weight-decay", "1e6", "--output", "run"])
        .assert();
    assert.code(1).stderr(contains("training diverged").and(contains("--weight-decay")));
    assert!(!pictures.path("run/model.safetensors").exists());
}

#[test]
fn what_was_damaged_is_named_and_not_trained_on() {
    let pictures = prepared();
    train(&pictures, &["--epochs", "1", "--output", "run"]);
    let last = fs::read_to_string(pictures.path("run/last/current")).unwrap();
    for (name, part) in
        [("model.bpk", "model.bpk was damaged"), ("optimiser.bpk", "optimiser.bpk was damaged")]
    {
        let file = pictures.path("run/last").join(last.trim()).join(name);
        let whole = fs::read(&file).unwrap();
        let mut damaged = whole.clone();
        damaged[whole.len() / 2] ^= 1;
        fs::write(&file, damaged).unwrap();
        resume(&pictures, "run", &["--epochs", "2"]).code(1).stderr(contains(part));
        fs::write(&file, whole).unwrap();
    }
    resume(&pictures, "run", &["--epochs", "2"]).success();
    let config = fs::read_to_string(pictures.path("run/config.toml")).unwrap();
    for (key, value) in [("learning_rate = ", "nan"), ("image_size = ", "[0, 16]"), ("channels = ", "7")] {
        let line = config.lines().find(|line| line.starts_with(key)).unwrap();
        pictures.write("run/config.toml", &config.replace(line, &format!("{key}{value}")));
        resume(&pictures, "run", &["--epochs", "3"]).code(1).stderr(contains("config.toml: "));
    }
    pictures.write("run/config.toml", &config);
    fs::write(pictures.path("run/images.csv"), "").unwrap();
    resume(&pictures, "run", &["--epochs", "3"])
        .code(1)
        .stderr(contains("images.csv: was damaged or changed"));
}

#[test]
fn a_run_folder_in_the_data_set_is_refused_before_anything_is_made() {
    let pictures = prepared();
    let data = pictures.path("data");
    for more in [&[][..], &["--output", "run"], &["--output", "../data/red/run"]] {
        vitrine(&pictures)
            .current_dir(&data)
            .args(["train", ".", "--model", "../tiny.toml", "--epochs", "1"])
            .args(more)
            .assert()
            .failure()
            .stderr(contains("--output").and(contains("data set .")));
    }
    assert_eq!(fs::read_dir(&data).unwrap().count(), 2);
    assert_eq!(fs::read_dir(data.join("red")).unwrap().count(), 12);
}

#[test]
fn programs_that_start_at_once_get_a_folder_each() {
    let pictures = prepared();
    let start = |_| -> Child {
        Process::new(assert_cmd::cargo::cargo_bin!("vitrine"))
            .current_dir(pictures.path(""))
            .args(TRAIN)
            .args(["--epochs", "1"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..4).map(start).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    for number in 1..=4 {
        assert!(pictures.path(&format!("runs/data-tiny-{number}/report.html")).is_file(), "{number}");
    }
}

#[test]
fn a_run_that_another_program_trains_is_refused() {
    let pictures = prepared();
    train(&pictures, &["--epochs", "1", "--output", "run"]);
    let lock = File::options().write(true).open(pictures.path("run/last/lock")).unwrap();
    lock.try_lock().unwrap();
    resume(&pictures, "run", &["--epochs", "2"]).failure().stderr(contains("run: another vitrine trains"));
    drop(lock);
    resume(&pictures, "run", &["--epochs", "2"]).success();
}
