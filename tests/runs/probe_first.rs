//! Runs from pretrained weights, which begin with a probe and go on with fine-tuning.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command as Process, Stdio};

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;

use crate::support::{Images, vitrine};

const TRAIN: [&str; 8] = ["train", "data", "--pretrained", "run", "--threads", "1", "--batch-size", "8"];

/// A data set with a class more than the weights in `run` know.
fn with_a_new_class() -> Images {
    let images = Images::trained();
    images.fill("data/green", [30, 200, 30], 12);
    images
}

/// Trains in the run folder `output`, and returns what was printed on standard error.
fn train(images: &Images, output: &str, more: &[&str]) -> String {
    let assert = vitrine(images).args(TRAIN).args(["--output", output]).args(more).assert().success();
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}

fn text(images: &Images, file: &str) -> String {
    fs::read_to_string(images.path(file)).unwrap()
}

fn model(images: &Images, run: &str) -> Vec<u8> {
    fs::read(images.path(&format!("{run}/model.safetensors"))).unwrap()
}

/// The epoch, the validation accuracy and whether the model was kept, from each row of `metrics.csv`.
fn epochs(images: &Images, run: &str) -> Vec<(usize, f64, bool)> {
    let file = text(images, &format!("{run}/metrics.csv"));
    let mut lines = file.lines();
    let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
    let place = |name: &str| columns.iter().position(|column| *column == name).unwrap();
    let [epoch, top1, kept] = ["epoch", "val_top1", "kept"].map(place);
    lines
        .map(|line| line.split(',').collect::<Vec<_>>())
        .map(|row| (row[epoch].parse().unwrap(), row[top1].parse().unwrap(), row[kept] == "true"))
        .collect()
}

#[test]
fn a_probe_comes_before_the_epochs_and_its_head_is_where_they_start() {
    let images = with_a_new_class();
    let told = train(&images, "tuned", &["--epochs", "3"]);
    for part in ["a probe first", "features: 36 images computed", "head: ", "C = ", "epoch 3/3"] {
        assert!(told.contains(part), "{part} is not in: {told}");
    }
    let rows = epochs(&images, "tuned");
    assert_eq!(rows.iter().map(|row| row.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let probe = rows[0].1;
    assert!(rows[0].2 && rows.iter().all(|(_, top1, kept)| !kept || *top1 >= probe), "{rows:?}");
    assert!(text(&images, "tuned/config.toml").contains("probe_first = true"));
    let report = text(&images, "tuned/report.html");
    assert!(report.contains("Probe") && report.contains("Best epoch by"), "{report}");
    // Without learning, the epochs have the probe's result: they start from its head.
    train(&images, "still", &["--epochs", "1", "--learning-rate", "1e-12", "--weight-decay", "0"]);
    let rows = epochs(&images, "still");
    assert_eq!((rows[0].1, rows.len()), (rows[1].1, 2));
    train(&images, "fitted", &["--freeze", "backbone"]);
    assert_eq!(epochs(&images, "fitted")[0].1, rows[0].1, "the same probe as --freeze backbone makes");
    let told = train(&images, "plain", &["--recipe", "fine-tune", "--epochs", "1"]);
    assert!(!told.contains("probe") && !told.contains("features"), "{told}");
    assert_eq!(epochs(&images, "plain").len(), 1);
}

#[test]
fn epochs_worse_than_the_probe_leave_it_in_place() {
    let images = with_a_new_class();
    let recipe = "probe_first = true\nepochs = 2\nlearning_rate = 1\nfinal_learning_rate = 1\nwarmup = 0\nclip_norm = 0\n";
    images.write("ruin.toml", recipe);
    // Of few validation images, even a ruined model may recognize all.
    let halves = ["--seed", "1", "--val-fraction", "0.5"];
    let ruin = [&["--recipe", "ruin.toml"], &halves[..]].concat();
    let assert = vitrine(&images).args(TRAIN).args(["--output", "ruined"]).args(ruin).assert().success();
    assert.stdout(contains("the probe: no epoch of 2 was as good"));
    train(&images, "fitted", &[&["--freeze", "backbone"], &halves[..]].concat());
    let [ruined, fitted] =
        ["ruined", "fitted"].map(|run| vitrine::model_file::read(&images.path(run)).unwrap());
    assert!(ruined.1.iter().zip(&fitted.1).all(|(a, b)| a.name == b.name && a.values == b.values));
    assert!(ruined.0.recipe.unwrap().fit_head);
    assert!(text(&images, "ruined/report.html").contains("best: the probe"));
}

#[test]
fn a_run_without_time_for_an_epoch_ends_with_the_probe() {
    let images = with_a_new_class();
    let told = train(&images, "short", &["--time", "1ms"]);
    assert!(told.contains("the probe is the result") && !told.contains("epoch 1"), "{told}");
    assert!(told.contains("the time of 1ms does not pay for the least that a run needs"), "{told}");
    assert_eq!(epochs(&images, "short").len(), 1);
    vitrine(&images).args(["classify", "short", "data/green/3.png"]).assert().success();
    vitrine(&images)
        .args(["train", "--resume", "short", "--epochs", "2"])
        .assert()
        .success()
        .stderr(contains("epoch 2/2"));
    assert_eq!(epochs(&images, "short").len(), 3);
}

#[test]
fn a_run_killed_before_or_after_its_probe_has_the_same_bits_when_resumed() {
    let images = with_a_new_class();
    let length = ["--epochs", "3", "--seed", "3"];
    train(&images, "whole", &length);
    for event in ["features_start", "head_fitted"] {
        let run = format!("killed-at-{event}");
        let mut child = Process::new(assert_cmd::cargo::cargo_bin!("vitrine"))
            .current_dir(images.path(""))
            .args(TRAIN)
            .args(length)
            .args(["--log-format", "json", "--no-cache", "--output", &run])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let found = lines.map_while(Result::ok).any(|line| line.contains(&format!("\"event\":\"{event}\"")));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found, "there was no event {event}");
        vitrine(&images).args(["train", "--resume", &run, "--threads", "1"]).assert().success();
        assert!(model(&images, "whole") == model(&images, &run), "{event}");
        assert_eq!(epochs(&images, "whole"), epochs(&images, &run));
    }
    vitrine(&images).args(["train", "--config", "whole", "--output", "again"]).assert().success();
    assert!(model(&images, "whole") == model(&images, "again"));
}

#[test]
fn a_probe_is_refused_where_no_head_can_be_fitted() {
    let images = with_a_new_class();
    images.write("probe.toml", "probe_first = true\nepochs = 1\n");
    let recipe = ["train", "data", "--recipe", "probe.toml", "--output", "none"];
    vitrine(&images)
        .args(recipe)
        .args(["--model", "tiny.toml"])
        .assert()
        .code(1)
        .stderr(contains("--recipe probe.toml: `probe_first` needs --pretrained"));
    vitrine(&images)
        .args(["train", "data", "--pretrained", "run", "--recipe", "probe.toml", "--output", "by-file"])
        .assert()
        .success()
        .stderr(contains("head: ").and(contains("epoch 1/1")));
    // Weights that know these classes have a head that needs no probe.
    fs::remove_dir_all(images.path("data/green")).unwrap();
    let told = train(&images, "known", &["--epochs", "1"]);
    assert!(!told.contains("probe"), "{told}");
}
