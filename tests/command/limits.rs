//! Sizes that no machine has the memory for are errors that say what to lower, and leave no files.

use std::collections::HashMap;

use burn::tensor::Device;
use predicates::prelude::*;
use predicates::str::contains;
use vitrine::model_file::{self, KEY, ModelCard, read};
use vitrine::weights_file::{Precision, save};
use vitrine_datasets::Preprocessing;
use vitrine_models::{ImageSize, ModelConfig, Position};

use crate::support::{Images, TINY, vitrine};

#[test]
fn training_that_exceeds_the_memory_is_refused_before_a_run_folder_is_made() {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 12);
    images.fill("data/blue", [30, 30, 200], 12);
    // Each image has a million tokens and each batch 8 of them.
    images.write(
        "large.toml",
        "image_size = 8192\npatch_size = 8\nembed_dim = 64\ndepth = 400\nnum_heads = 2\nposition = \"none\"\n",
    );
    images.write("tiny.toml", TINY);
    let refused = || contains("GB of memory is needed").and(contains("--batch-size"));
    vitrine(&images)
        .args(["train", "data", "--model", "large.toml", "--epochs", "1", "--batch-size", "8"])
        .assert()
        .code(1)
        .stderr(refused().and(contains("--gradient-checkpointing")).and(contains("--image-size")));
    assert!(!images.path("runs").exists(), "a refused run leaves no folder behind");
    vitrine(&images)
        .args(["bench", "--model", "vit_large_patch16_224", "--batch-size", "60000"])
        .assert()
        .code(1)
        .stderr(refused());
    // The batch size is no problem if the data set has only a few images.
    vitrine(&images)
        .args([
            "train",
            "data",
            "--model",
            "tiny.toml",
            "--epochs",
            "1",
            "--batch-size",
            "60000",
            "--output",
            "run",
        ])
        .assert()
        .success()
        .stderr(contains("memory").not());
    for command in [&["classify", "run", "data"][..], &["evaluate", "run", "data"]] {
        vitrine(&images).args(command).args(["--batch-size", "60000"]).assert().success();
    }
}

#[test]
fn bench_refuses_a_model_file_by_its_header_before_it_reads_the_weights() {
    let images = Images::trained();
    let (card, weights) = read(&images.path("run")).unwrap();
    let large = ModelConfig {
        image_size: ImageSize::square(8192),
        depth: 400.into(),
        position: Position::None,
        ..card.model
    };
    let preprocessing = Preprocessing { image_size: [8192; 2], ..card.preprocessing };
    let card = ModelCard { model: large, preprocessing, ..card };
    let header = HashMap::from([(KEY.to_owned(), serde_json::to_string(&card).unwrap())]);
    // They would not fit.
    save(&images.path("large.safetensors"), &weights, &[], Precision::F32, header).unwrap();
    vitrine(&images)
        .args(["bench", "--model", "large.safetensors"])
        .assert()
        .code(1)
        .stderr(contains("GB of memory is needed"));
}

/// Writes a model for square images of this side, in patches of 4 pixels and without positions.
fn save_wide(images: &Images, name: &str, side: usize) {
    let (card, _) = read(&images.path("run")).unwrap();
    let model = ModelConfig {
        image_size: ImageSize::square(side),
        patch_size: 4,
        position: Position::None,
        ..card.model
    };
    let preprocessing = Preprocessing { image_size: [side; 2], ..card.preprocessing };
    let card = ModelCard { model, preprocessing, ..card };
    let model = card.model.init(&Device::default()).unwrap();
    model_file::save(&images.path(name), &card, &model, Precision::F32).unwrap();
}

#[test]
fn maps_are_made_of_as_many_images_at_once_as_fit_the_memory() {
    let images = Images::trained();
    // The attention of each image has two million weights.
    save_wide(&images, "wide.safetensors", 128);
    let explain = ["explain", "wide.safetensors", "--batch-size", "60000", "--output"];
    vitrine(&images)
        .args(explain)
        .args(["maps", "data/red/0.png"])
        .assert()
        .success()
        .stderr(contains("memory").not());
    assert!(images.path("maps/0.grad-cam.png").is_file());
    vitrine(&images)
        .args(explain)
        .args(["listed", "-"])
        .write_stdin("data/red/1.png\ndata/blue/2.png\n")
        .assert()
        .success();
    assert!(images.path("listed/2.grad-cam.png").is_file());
}

#[test]
fn maps_of_an_image_that_alone_exceeds_the_memory_are_refused_before_their_folder_is_made() {
    let images = Images::trained();
    // Four million tokens have 35 trillion weights.
    save_wide(&images, "huge.safetensors", 8192);
    vitrine(&images)
        .args(["explain", "huge.safetensors", "data/red/0.png", "--output", "maps"])
        .assert()
        .code(1)
        .stderr(contains("GB of memory is needed").and(contains("a smaller model")));
    assert!(!images.path("maps").exists());
}

#[test]
fn absurd_numbers_are_refused_by_key() {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 6);
    images.fill("data/blue", [30, 30, 200], 6);
    let huge = ["1000000000", "2147483648", "9223372036854775807"];
    let train = |more: &[&str]| vitrine(&images).args(["train", "data"]).args(more).assert().failure();
    for value in huge {
        for key in ["depth", "embed_dim", "num_heads", "image_size", "patch_size"] {
            let model: String =
                TINY.lines()
                    .map(|line| {
                        if line.starts_with(key) { format!("{key} = {value}\n") } else { format!("{line}\n") }
                    })
                    .collect();
            images.write("model.toml", &model);
            train(&["--model", "model.toml"]).stderr(contains(key).and(contains("panicked").not()));
        }
        for key in ["epochs", "batch_size", "accumulate"] {
            images.write("recipe.toml", &format!("{key} = {value}\n"));
            train(&["--recipe", "recipe.toml"]).stderr(contains(key).and(contains("panicked").not()));
        }
    }
    assert!(!images.path("runs").exists());
    // The same numbers in the description of a model file.
    images.write("tiny.toml", TINY);
    vitrine(&images)
        .args(["train", "data", "--model", "tiny.toml", "--epochs", "1", "--output", "run"])
        .assert()
        .success();
    let model = std::fs::read(images.path("run/model.safetensors")).unwrap();
    for (key, value) in
        [(r#"\"depth\":1,"#, r#"\"depth\":1000000000,"#), (r#"\"embed_dim\":16,"#, r#"\"embed_dim\":65536,"#)]
    {
        std::fs::write(images.path("spoiled.safetensors"), spoiled(&model, key, value)).unwrap();
        for command in
            [&["classify", "spoiled.safetensors", "data"][..], &["evaluate", "spoiled.safetensors", "data"]]
        {
            vitrine(&images)
                .args(command)
                .assert()
                .code(1)
                .stderr(contains("spoiled.safetensors").and(contains("panicked").not()));
        }
    }
}

/// A safetensors file with `key` replaced by `value` in its header, and the length of the header corrected.
fn spoiled(model: &[u8], key: &str, value: &str) -> Vec<u8> {
    let length = u64::from_le_bytes(model[..8].try_into().unwrap()) as usize;
    let header = std::str::from_utf8(&model[8..8 + length]).unwrap();
    assert!(header.contains(key), "{header}");
    let header = header.replace(key, value);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&model[8 + length..]);
    bytes
}
