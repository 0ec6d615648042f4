//! A run whose accuracy stays at chance starts over with a gentler recipe.

use std::fs;
use std::process::{Command as Process, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use predicates::prelude::*;
use predicates::str::contains;

use crate::support::{Images, TINY, vitrine};

/// A data set of three colors, and a recipe with a learning rate that is too low to learn anything.
fn prepared() -> Images {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 40);
    images.fill("data/blue", [30, 30, 200], 40);
    images.fill("data/green", [30, 200, 30], 40);
    images.write("tiny.toml", TINY);
    images.write(
        "recipe.toml",
        "epochs = 100\nbatch_size = 16\nlearning_rate = 1e-7\nwarmup = 0.02\nclip_norm = 0.0\n[augmentation]\nmixup = 0.2\n",
    );
    images
}

const TRAIN: [&str; 8] =
    ["train", "data", "--model", "tiny.toml", "--recipe", "recipe.toml", "--threads", "1"];

#[test]
fn a_run_at_chance_starts_over_and_says_so() {
    let images = prepared();
    vitrine(&images).args(TRAIN).args(["--output", "run"]).assert().success().stderr(
        contains("not learning: after").and(contains("it starts over")).and(contains("epoch 100/100")),
    );
    let report = fs::read_to_string(images.path("run/report.html")).unwrap();
    assert!(report.contains("Started over") && report.contains("chance alone gives"));
    let config = fs::read_to_string(images.path("run/config.toml")).unwrap();
    assert!(
        config.contains("learning_rate = 0.0000001")
            || config.contains("learning_rate = 1e-7") && config.contains("mixup = 0.2"),
        "config.toml keeps the recipe that was asked for"
    );
    // The same run, killed before its end and resumed.
    let run = images.path("killed");
    let start = Instant::now();
    let mut child = Process::new(assert_cmd::cargo::cargo_bin("vitrine"))
        .current_dir(images.path(""))
        .args(TRAIN)
        .args(["--output", "killed"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !run.join("last/current").exists() && start.elapsed() < Duration::from_secs(60) {
        sleep(Duration::from_millis(5));
    }
    sleep(Duration::from_millis(300));
    child.kill().unwrap();
    child.wait().unwrap();
    vitrine(&images).args(["train", "--resume", "killed", "--threads", "1"]).assert().success();
    let model = |run: &str| fs::read(images.path(run).join("model.safetensors")).unwrap();
    assert!(model("run") == model("killed"), "a resumed run has other bits");
    vitrine(&images).args(["train", "--config", "run", "--output", "again"]).assert().success();
    assert!(model("run") == model("again"), "a repeated run has other bits");
}

#[test]
fn a_result_at_chance_is_named_on_standard_output_and_explained_on_standard_error() {
    let images = prepared();
    vitrine(&images)
        .args(TRAIN)
        .args(["--output", "run", "--epochs", "1"])
        .assert()
        .success()
        .stdout(contains("; at chance\n"))
        .stderr(contains("\nat chance: "));
}

#[test]
fn a_run_that_learns_does_not_start_over() {
    let images = prepared();
    let recipe = fs::read_to_string(images.path("recipe.toml")).unwrap();
    images.write("recipe.toml", &recipe.replace("learning_rate = 1e-7", "learning_rate = 0.003"));
    vitrine(&images)
        .args(TRAIN)
        .args(["--output", "run"])
        .assert()
        .success()
        .stderr(contains("not learning").not());
}
