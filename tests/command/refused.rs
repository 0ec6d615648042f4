//! Options, variables, and files whose values make no sense for the data are errors that name them and the allowed
//! values.

use predicates::prelude::*;
use predicates::str::contains;

use crate::support::{Images, TINY, vitrine};

#[test]
fn a_model_for_another_number_of_classes_is_refused() {
    let images = Images::prepared();
    let train = |classes: &str, output: &str| {
        images.write("model.toml", &format!("{TINY}num_classes = {classes}\n"));
        vitrine(&images)
            .args(["train", "data", "--model", "model.toml", "--epochs", "1", "--output", output])
            .assert()
    };
    train("5", "run")
        .code(1)
        .stderr(contains("model.toml").and(contains("`num_classes` is 5")).and(contains("2 classes")));
    assert!(!images.path("run").exists());
    train("2", "run").success();
}

#[test]
fn numbers_out_of_range_are_refused_with_the_range() {
    let images = Images::prepared();
    for (option, value, allowed) in [
        ("--seed", "-1", "at least 0 and at most 9223372036854775807"),
        ("--threads", "-1", "at least 1 and at most 1024"),
        ("--threads", "2000", "at least 1 and at most 1024"),
        ("--weight-decay", "1e9", "at most 1000000"),
    ] {
        vitrine(&images)
            .args(["train", "data", option, value])
            .assert()
            .code(2)
            .stderr(contains(option).and(contains(value)).and(contains(allowed)));
    }
    for (line, key) in [
        ("mixup = 1e30", "mixup"),
        ("cutmix = 11.0", "cutmix"),
        ("brightness = 99.0", "brightness"),
        ("contrast = 1e9", "contrast"),
    ] {
        images.write("recipe.toml", &format!("[augmentation]\n{line}\n"));
        vitrine(&images)
            .args(["train", "data", "--recipe", "recipe.toml"])
            .assert()
            .code(1)
            .stderr(contains("recipe.toml").and(contains(key)).and(contains("from 0 to 10")));
    }
    images.write("model.toml", &TINY.replace("depth = 1", "depth = \"two\""));
    vitrine(&images)
        .args(["train", "data", "--model", "model.toml"])
        .assert()
        .code(1)
        .stderr(contains("depth").and(contains("a whole number, such as 12, or one per stage")));
    assert!(!images.path("runs").exists());
}

#[test]
fn more_folds_than_images_to_hold_out_are_refused_before_the_first_run() {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 3);
    images.fill("data/blue", [30, 30, 200], 1);
    images.write("tiny.toml", TINY);
    let folds = |folds: &str| {
        vitrine(&images)
            .args(["train", "data", "--model", "tiny.toml", "--epochs", "1"])
            .args(["--folds", folds, "--output", "cv"])
            .assert()
    };
    folds("5").code(2).stderr(
        contains("5 folds are too many: data has only 3")
            .and(contains("'blue' 1, 'red' 3"))
            .and(contains("3 folds at most"))
            .and(contains("(--folds)")),
    );
    assert!(!images.path("cv").exists());
    folds("3")
        .success()
        .stderr(contains("1 classes have fewer different images than there are folds").and(contains("blue")));
}

#[test]
fn folds_that_pretrained_weights_were_trained_on_are_refused_before_the_first_run() {
    let images = Images::prepared();
    let train = |more: &[&str]| vitrine(&images).args(["train", "data", "--epochs", "1"]).args(more).assert();
    train(&["--model", "tiny.toml", "--output", "first"]).success();
    // Each fold holds out one image, and the weights were trained on most of these.
    train(&["--pretrained", "first", "--folds", "24", "--output", "cv"]).code(2).stderr(
        contains("--folds 24: every image of fold")
            .and(contains("the weights of --pretrained were trained on")),
    );
    assert!(!images.path("cv").exists());
}

#[test]
fn too_many_threads_in_rayon_num_threads_are_refused() {
    let images = Images::prepared();
    for command in [&["train", "data"][..], &["inspect", "data"], &["bench", "--steps", "1"]] {
        vitrine(&images)
            .args(command)
            .env("RAYON_NUM_THREADS", "100000")
            .assert()
            .code(2)
            .stderr(contains("RAYON_NUM_THREADS is 100000").and(contains("at most 1024")));
    }
}

#[test]
fn download_options_are_refused_for_a_folder_with_the_name_of_a_data_set() {
    let images = Images::prepared();
    std::fs::rename(images.path("data"), images.path("mnist")).unwrap();
    vitrine(&images)
        .args(["inspect", "mnist", "--offline"])
        .assert()
        .code(2)
        .stderr(contains("--offline has no effect"));
    vitrine(&images).args(["inspect", "mnist"]).assert().success();
}

#[test]
fn channel_means_and_deviations_must_be_in_range_and_one_per_channel() {
    let images = Images::prepared();
    let weights = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/timm_vit/weights.safetensors");
    for (option, value, part) in [
        ("--mean", "5,5,5", "at least 0 and at most 1"),
        ("--std", "0,1,1", "above 0 and at most 1"),
        ("--mean", "0.5,0.5", "2 values for a model of 3 channels"),
        ("--std", "0.5", "1 values for a model of 3 channels"),
    ] {
        vitrine(&images)
            .args(["import", weights, "--heads", "3", "--image-size", "32", "--output", "m.safetensors"])
            .args([option, value])
            .assert()
            .code(2)
            .stderr(contains(option).and(contains(part)));
    }
    assert!(!images.path("m.safetensors").exists());
}

#[test]
fn empty_weight_files_are_named() {
    let images = Images::prepared();
    for name in ["empty.pth", "empty.safetensors"] {
        images.write(name, "");
        for command in [&["import", name, "--output", "m.safetensors"][..], &["classify", name, "data"]] {
            vitrine(&images).args(command).assert().code(1).stderr(contains(name).and(contains("is empty")));
        }
    }
}

#[cfg(not(any(feature = "wgpu", feature = "cuda", feature = "rocm")))]
#[test]
fn a_device_of_the_environment_is_refused_by_the_name_of_the_variable() {
    let images = Images::new();
    let bench = |device: &str, arguments: &[&str]| {
        let command = ["bench", "--model", "vit_pico_patch4_32", "--steps", "1", "--batch-size", "1"];
        vitrine(&images).args(command).args(arguments).env("VITRINE_DEVICE", device).assert()
    };
    let refused = |arguments: &[&str], expected: &str| {
        let command = bench("gpu", arguments).code(1);
        let stderr = String::from_utf8_lossy(&command.get_output().stderr).into_owned();
        assert!(stderr.contains(expected), "{stderr}");
    };
    refused(&[], "VITRINE_DEVICE: --device gpu");
    refused(&["--device", "gpu"], "error: --device gpu");
    bench("tpu", &[]).code(2).stderr(contains("VITRINE_DEVICE: --device tpu"));
    bench("", &[]).success();
}
