//! `--tta` averages the logits of an image and its mirror image, and is refused for models that were trained without
//! flips.

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

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
    for command in [["evaluate", "without", "data", "--tta"], ["classify", "without", "data", "--tta"]] {
        vitrine(&images)
            .args(command)
            .assert()
            .code(1)
            .stderr(contains("--tta").and(contains("horizontal_flip")).and(contains("leave it out")));
    }
}
