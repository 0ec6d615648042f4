//! Repeated runs: the same run from its `config.toml`, and series of runs that differ in the seed or in the held-out images.

use std::collections::BTreeSet;
use std::fs;

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use crate::support::{Images, vitrine};

/// A command with many options, all of which a repetition has to keep.
const TRAIN: [&str; 16] = [
    "train",
    "data",
    "--model",
    "tiny.toml",
    "--recipe",
    "recipe.toml",
    "--epochs",
    "3",
    "--batch-size",
    "8",
    "--threads",
    "1",
    "--val-fraction",
    "0.3",
    "--metric",
    "macro-f1",
];

fn prepared() -> Images {
    let images = Images::prepared();
    images.write(
        "recipe.toml",
        "warmup = 0.2\nema_decay = 0.9\n[augmentation]\nhorizontal_flip = 0.5\nmixup = 0.4\nbrightness = 0.3\n",
    );
    images
}

fn train(images: &Images, arguments: &[&str]) -> assert_cmd::assert::Assert {
    vitrine(images).args(arguments).assert()
}

fn model(images: &Images, run: &str) -> Vec<u8> {
    fs::read(images.path(run).join("model.safetensors")).unwrap()
}

/// The paths of a split in the image list of a run.
fn listed(images: &Images, run: &str, split: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(images.path(run).join("images.csv")).unwrap();
    let rows = text.lines().filter(|line| line.split(',').nth(2) == Some(split));
    // Paths may be absolute, so only the part inside of the data set is compared.
    let name = |line: &str| line.split(',').next().unwrap().rsplit_once("data").unwrap().1.to_owned();
    rows.map(name).collect()
}

#[test]
fn a_run_is_repeated_bit_for_bit_after_its_data_were_moved() {
    let images = prepared();
    train(&images, &[&TRAIN[..], &["--seed", "5", "--output", "run"]].concat()).success();
    fs::create_dir(images.path("moved")).unwrap();
    fs::rename(images.path("data"), images.path("moved/data")).unwrap();
    // Neither new nor renamed images change the repeated run.
    images.fill("other", [90, 90, 90], 1);
    fs::rename(images.path("other/0.png"), images.path("moved/data/red/new.png")).unwrap();
    fs::rename(images.path("moved/data/red/3.png"), images.path("moved/data/red/a.png")).unwrap();
    let repeat = |config: &str, output: &str| {
        let mut command = vitrine(&images);
        command.current_dir(images.path("moved"));
        command.args(["train", "--config", config, "--output", output]).assert()
    };
    repeat("../run", "../again").success().stderr(contains("new.png").and(contains("bit for bit").not()));
    repeat("../again/config.toml", "../third").success();
    for other in ["again", "third"] {
        assert!(model(&images, "run") == model(&images, other), "{other} has other bits");
    }
    // Without the image list, config.toml still says how many images each split had.
    fs::copy(images.path("run/config.toml"), images.path("alone.toml")).unwrap();
    repeat("../alone.toml", "../fourth")
        .code(1)
        .stderr(contains("has changed since: train had 24 images and has 25"));
    assert!(!images.path("fourth").exists());
    fs::remove_file(images.path("moved/data/red/new.png")).unwrap();
    fs::rename(images.path("moved/data/red/a.png"), images.path("moved/data/red/3.png")).unwrap();
    repeat("../alone.toml", "../fourth").success();
    assert!(model(&images, "run") == model(&images, "fourth"));
    // A missing training image is an error.
    fs::remove_file(images.path("moved/data/red/3.png")).unwrap();
    repeat("../run", "../fifth")
        .code(1)
        .stderr(contains("--config ../run: of the 24 images").and(contains("3.png")));
}

#[test]
fn options_that_contradict_config_are_refused_and_differences_are_named() {
    let images = prepared();
    train(&images, &[&TRAIN[..], &["--output", "run"]].concat()).success();
    for (more, option) in [
        (&["--seed", "1"][..], "--seed"),
        (&["--epochs", "2"], "--epochs"),
        (&["--metric", "loss"], "--metric"),
        (&["--model", "tiny.toml"], "--model"),
        (&["--gradient-checkpointing"], "--gradient-checkpointing"),
        (&["--resume", "run"], "--resume"),
        (&["--folds", "3"], "--folds"),
        (&["--offline"], "--offline"),
    ] {
        train(&images, &[&["train", "--config", "run"][..], more].concat())
            .code(2)
            .stderr(contains("--config").and(contains(option)));
    }
    // Another place is possible, but not other images.
    let other = contains("--config run: of the 24 images").and(contains("24 are gone"));
    train(&images, &["train", "shapes", "--config", "run"]).code(1).stderr(other);
    train(&images, &["train", "--config", "nothing"]).code(1).stderr(contains("--config nothing"));
    train(&images, &["train", "--config", "run", "--threads", "2", "--output", "two"])
        .success()
        .stderr(contains("it used 1 threads; --threads 1 avoids this"));
    train(&images, &["train", "--resume", "run", "--epochs", "4"]).success();
    train(&images, &["train", "--config", "run", "--output", "longer"])
        .success()
        .stderr(contains("another length after it had begun").and(contains("epoch 4/4")));
    train(&images, &["train", "data", "--model", "tiny.toml", "--time", "1s", "--output", "timed"]).success();
    train(&images, &["train", "--config", "timed", "--output", "timed-again"])
        .success()
        .stderr(contains("followed the clock"));
}

#[test]
fn a_run_from_pretrained_weights_is_repeated_only_with_the_same_weights() {
    let images = prepared();
    train(&images, &[&TRAIN[..], &["--output", "first"]].concat()).success();
    let pretrained = ["train", "data", "--pretrained", "first", "--epochs", "2", "--threads", "1"];
    train(&images, &[&pretrained[..], &["--freeze", "backbone", "--output", "run"]].concat()).success();
    train(&images, &["train", "--config", "run", "--output", "again"]).success();
    assert!(model(&images, "run") == model(&images, "again"));
    train(&images, &[&TRAIN[..], &["--seed", "3", "--output", "other"]].concat()).success();
    fs::copy(images.path("other/model.safetensors"), images.path("first/model.safetensors")).unwrap();
    train(&images, &["train", "--config", "run", "--output", "third"])
        .code(1)
        .stderr(contains("not the weights any more").and(contains("first")));
}

#[test]
fn folds_are_disjoint_and_hold_out_every_image_once() {
    let images = prepared();
    // A copy in the same class, and a copy in the other class.
    fs::copy(images.path("data/red/1.png"), images.path("data/red/copy.png")).unwrap();
    fs::copy(images.path("data/red/2.png"), images.path("data/blue/relabeled.png")).unwrap();
    let folds = ["train", "data", "--model", "tiny.toml", "--epochs", "2", "--threads", "1", "--folds", "3"];
    let assert = train(&images, &[&folds[..], &["--output", "cv"]].concat()).success();
    let table = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    for row in ["run ", "fold-1", "fold-2", "fold-3", "mean", "std"] {
        assert!(table.lines().any(|line| line.starts_with(row)), "{table}");
    }
    let held_out: Vec<BTreeSet<String>> =
        (1..=3).map(|fold| listed(&images, &format!("cv/fold-{fold}"), "val")).collect();
    assert_eq!(held_out.iter().map(BTreeSet::len).sum::<usize>(), 26);
    assert_eq!(held_out.iter().flatten().collect::<BTreeSet<_>>().len(), 26);
    for (fold, val) in held_out.iter().enumerate() {
        let red = val.iter().filter(|path| path.contains("red") && !path.contains("copy")).count();
        assert!((3..=5).contains(&red), "{val:?}");
        let train = listed(&images, &format!("cv/fold-{}", fold + 1), "train");
        assert_eq!(train.len() + val.len(), 26);
        let has = |name: &str| val.iter().any(|path| path.replace('\\', "/").ends_with(name));
        assert_eq!(has("red/1.png"), has("red/copy.png"));
        assert_eq!(has("red/2.png"), has("blue/relabeled.png"));
    }
    let summary: Value = serde_json::from_slice(&fs::read(images.path("cv/summary.json")).unwrap()).unwrap();
    let top1: Vec<f64> = (0..3).map(|run| summary["runs"][run]["val"]["top1"].as_f64().unwrap()).collect();
    let result = fs::read(images.path("cv/fold-2/metrics.json")).unwrap();
    let result: Value = serde_json::from_slice(&result).unwrap();
    assert!((result["val"]["top1"].as_f64().unwrap() - top1[1]).abs() < 1e-12, "{result}");
    let mean = top1.iter().sum::<f64>() / 3.0;
    let std = (top1.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 2.0).sqrt();
    assert!((summary["mean"]["val"]["top1"].as_f64().unwrap() - mean).abs() < 1e-12, "{summary}");
    assert!((summary["std"]["val"]["top1"].as_f64().unwrap() - std).abs() < 1e-12, "{summary}");
    // The run of one fold can be repeated by itself.
    train(&images, &["train", "--config", "cv/fold-2", "--output", "again"]).success();
    assert!(model(&images, "cv/fold-2") == model(&images, "again"));
    train(&images, &["train", "--config", "cv", "--output", "whole"])
        .code(1)
        .stderr(contains("--config: cv: this is a folder of several runs"));
    train(&images, &[&folds[..], &["--output", "cv"]].concat()).code(2).stderr(contains("--resume cv"));
}

#[test]
fn seeds_share_their_validation_images_and_an_interrupted_series_is_resumed() {
    let images = prepared();
    let assert = train(&images, &[&TRAIN[..], &["--seed", "4", "--seeds", "3", "--output", "all"]].concat());
    let table = assert.success().get_output().stdout.clone();
    train(&images, &[&TRAIN[..], &["--seed", "4", "--output", "single"]].concat()).success();
    assert!(
        model(&images, "single") == model(&images, "all/seed-4"),
        "the first run of a series equals a single run with its seed"
    );
    for run in ["all/seed-5", "all/seed-6"] {
        assert_eq!(listed(&images, run, "val"), listed(&images, "single", "val"));
        assert!(model(&images, run) != model(&images, "single"));
    }
    // An interrupted series: the first run is finished, the second has saved nothing, and the third is missing.
    let summary = fs::read(images.path("all/summary.json")).unwrap();
    let (second, third) = (model(&images, "all/seed-5"), model(&images, "all/seed-6"));
    fs::remove_file(images.path("all/summary.json")).unwrap();
    fs::remove_dir_all(images.path("all/seed-6")).unwrap();
    for file in ["last/current", "model.safetensors", "metrics.csv", "metrics.json", "report.html"] {
        fs::remove_file(images.path("all/seed-5").join(file)).unwrap();
    }
    train(&images, &["train", "--resume", "all", "--epochs", "9"]).code(2).stderr(contains("--epochs"));
    let again = train(&images, &["train", "--resume", "all"]).success();
    assert_eq!(again.get_output().stdout, table);
    assert_eq!(fs::read(images.path("all/summary.json")).unwrap(), summary);
    assert!(model(&images, "all/seed-5") == second && model(&images, "all/seed-6") == third);
    // A run that is longer than the others, as an earlier version allowed.
    fs::rename(images.path("all/seed-5"), images.path("apart")).unwrap();
    train(&images, &["train", "--resume", "apart", "--epochs", "4"]).success();
    fs::rename(images.path("apart"), images.path("all/seed-5")).unwrap();
    let longer = "the runs have different lengths: 3 epochs (seed-4, seed-6), 4 epochs (seed-5)";
    train(&images, &["train", "--resume", "all"]).success().stdout(contains(longer));
}

#[test]
fn options_that_make_no_sense_for_a_series_are_refused() {
    let images = prepared();
    for (more, words) in [
        (&["--seeds", "1"][..], "at least 2"),
        (&["--folds", "3", "--seeds", "3"], "--folds"),
        (&["--folds", "3", "--val-fraction", "0.5"], "--val-fraction"),
    ] {
        train(&images, &[&["train", "data", "--model", "tiny.toml"][..], more].concat())
            .code(2)
            .stderr(contains(words));
    }
    for class in ["red", "blue"] {
        images.fill(&format!("split/train/{class}"), [90, 30, 30], 4);
        images.fill(&format!("split/val/{class}"), [30, 90, 30], 4);
    }
    train(&images, &["train", "split", "--model", "tiny.toml", "--folds", "2"])
        .code(2)
        .stderr(contains("--folds 2").and(contains("a validation split of its own")));
}
