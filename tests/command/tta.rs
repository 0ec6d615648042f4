//! `--tta` averages the logits of an image and its mirror image, and is refused for models that were trained without
//! flips. Models for which validation has chosen mirror images need no flag.

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use vitrine::model_file::{self, ModelCard};
use vitrine::weights_file::Precision;

use crate::support::{Images, vitrine};

/// The logits of the images of `data`, in order.
fn logits(images: &Images, model: &str, folder: &str, more: &[&str]) -> Vec<Vec<f64>> {
    let assert = vitrine(images)
        .args(["classify", model, folder, "--format", "jsonl", "--logits"])
        .args(more)
        .assert()
        .success();
    let text = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    let row = |line: &str| serde_json::from_str::<Value>(line).unwrap()["logits"].clone();
    text.lines().map(|line| serde_json::from_value(row(line)).unwrap()).collect()
}

#[test]
fn logits_of_mirror_images_are_averaged_unless_the_model_was_trained_without_flips() {
    let images = Images::prepared();
    for (flips, run) in [("0.5", "with"), ("0.0", "without")] {
        images.write(
            "recipe.toml",
            &format!("batch_size = 8\nepochs = 1\n[augmentation]\nhorizontal_flip = {flips}\n"),
        );
        vitrine(&images)
            .args(["train", "data", "--model", "tiny.toml", "--recipe", "recipe.toml", "--output", run])
            .assert()
            .success();
    }
    images.folder("mirrored");
    for index in 0..12 {
        let image = image::open(images.path(&format!("data/red/{index}.png"))).unwrap();
        image.fliph().save(images.path(&format!("mirrored/{index}.png"))).unwrap();
    }
    let one = logits(&images, "with", "data/red", &[]);
    let other = logits(&images, "with", "mirrored", &[]);
    let both = logits(&images, "with", "data/red", &["--tta"]);
    assert_eq!((one.len(), both.len()), (12, 12));
    assert_ne!(one, both);
    for ((one, other), both) in one.iter().zip(&other).zip(&both) {
        for ((a, b), mean) in one.iter().zip(other).zip(both) {
            assert!((mean - (a + b) / 2.0).abs() < 1e-4, "{mean} of {a} and {b}");
        }
    }
    let output = vitrine(&images).args(["evaluate", "with", "data", "--tta", "--json"]).assert().success();
    let result: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(result["tta"], true);
    vitrine(&images)
        .args(["evaluate", "with", "data", "--tta"])
        .assert()
        .success()
        .stdout(contains("each with its mirror image"));
    // Shifts are no mirror images.
    let shifted = |model: &str, views: &str| {
        let command = ["evaluate", model, "data", views, "--json"];
        let assert = vitrine(&images).args(command).assert().success();
        let found: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
        assert_eq!(found["tta"], true);
        found["views"].clone()
    };
    assert_eq!([shifted("without", "--tta=shifts"), shifted("with", "--tta=all")], [2, 4]);
    let two = logits(&images, "with", "data/red", &["--tta=shifts"]);
    assert!(two != one && two != both);
    vitrine(&images)
        .args(["classify", "with", "data/red", "--tta=none"])
        .assert()
        .code(2)
        .stderr(contains("mirror").and(contains("shifts")).and(contains("all")));
    for command in [
        ["evaluate", "without", "data", "--tta"],
        ["classify", "without", "data", "--tta"],
        ["classify", "without", "data", "--tta=all"],
    ] {
        vitrine(&images)
            .args(command)
            .assert()
            .code(2)
            .stderr(contains("--tta").and(contains("horizontal_flip")).and(contains("leave it out")));
    }
}

/// Whether the model of a run is asked about mirror images too, as its file says.
fn mirrors(images: &Images, run: &str) -> bool {
    model_file::read_card(&images.path(run)).unwrap().mirror_views
}

#[test]
fn mirror_images_are_wanted_or_not() {
    let images = Images::new();
    for command in ["evaluate run data", "classify run data"] {
        for both in [["--tta", "--no-tta"], ["--no-tta", "--tta"]] {
            let assert = vitrine(&images).args(command.split(' ')).args(both).assert();
            assert.code(2).stderr(contains("cannot be used with"));
        }
    }
}

#[test]
fn validation_decides_about_mirror_images_and_the_model_file_keeps_it() {
    let images = Images::prepared();
    images.write(
        "recipe.toml",
        "batch_size = 8\nepochs = 2\nmirror_views = true\nshifted_views = true\n[augmentation]\nhorizontal_flip = 0.5\n",
    );
    let train = |output: &str, more: &[&str]| {
        let arguments =
            ["train", "data", "--model", "tiny.toml", "--recipe", "recipe.toml", "--output", output];
        let assert = vitrine(&images).args(arguments).args(more).assert().success();
        String::from_utf8(assert.get_output().stderr.clone()).unwrap()
    };
    let decided = train("judged", &[]);
    let chosen = decided.contains("each image is classified together with its mirror image");
    assert_ne!(chosen, decided.contains("no image is classified together"), "{decided}");
    assert_eq!(mirrors(&images, "judged"), chosen);
    let shifts = decided.contains("each image is classified in two shifts");
    assert_ne!(shifts, decided.contains("no image is classified in two shifts"), "{decided}");
    assert_eq!(model_file::read_card(&images.path("judged")).unwrap().shifted_views, shifts);
    let undecided = train("plain", &["--no-tta"]);
    assert!(!undecided.contains("mirror image") && !mirrors(&images, "plain"), "{undecided}");
    assert!(!undecided.contains("shift"), "{undecided}");

    let device = vitrine::device::select(Some("cpu")).unwrap().0;
    let (card, model) = model_file::load(&images.path("plain"), &device.device).unwrap();
    let card = ModelCard { mirror_views: true, ..card };
    model_file::save(&images.path("mirrored.safetensors"), &card, &model, Precision::F32).unwrap();
    let of = |more: &[&str]| logits(&images, "mirrored.safetensors", "data/red", more);
    assert_eq!(of(&[]), of(&["--tta"]));
    assert_eq!(of(&["--no-tta"]), logits(&images, "plain", "data/red", &[]));
    assert_ne!(of(&[]), of(&["--no-tta"]));
    let measured = |more: &[&str]| -> Value {
        let output = vitrine(&images)
            .args(["evaluate", "mirrored.safetensors", "data", "--json"])
            .args(more)
            .assert()
            .success();
        serde_json::from_slice(&output.get_output().stdout).unwrap()
    };
    assert_eq!(measured(&[])["tta"], true);
    assert!(measured(&["--no-tta"])["tta"].is_null());
    vitrine(&images)
        .args(["inspect", "mirrored.safetensors"])
        .assert()
        .success()
        .stdout(contains("mirror_views"));
}
