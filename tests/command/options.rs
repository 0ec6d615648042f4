//! Options and commands that need no trained model: other spellings, help, `presets`, `devices`, `bench`, and
//! VITRINE_AMX.

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use crate::support::{Images, TINY, vitrine};

#[test]
fn spellings_of_other_programs_are_accepted() {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 4);
    images.fill("data/blue", [30, 30, 200], 4);
    images.write("tiny.toml", TINY);
    vitrine(&images)
        .args([
            "train",
            "data",
            "--arch",
            "tiny.toml",
            "--epochs",
            "1",
            "--bs",
            "4",
            "--lr",
            "0.01",
            "--wd",
            "0.1",
        ])
        .args(["--imgsz", "24", "--val-split", "0.5", "--out", "run", "--jobs", "1"])
        // Unlike options, variables without effect are no error, because they are set for all commands.
        .env("VITRINE_DATA", "elsewhere")
        .env("VITRINE_MIRROR", "https://example.org")
        .assert()
        .success();
    let config = std::fs::read_to_string(images.path("run/config.toml")).unwrap();
    let lines = [
        "batch_size = 4",
        "learning_rate = 0.01",
        "weight_decay = 0.1",
        "image_size = 24",
        "val_fraction = 0.5",
    ];
    for line in lines.iter().chain(&["/elsewhere\""]) {
        assert!(config.contains(line), "{line}: {config}");
    }
    vitrine(&images)
        .args(["train", "data", "--learningrate", "0.1"])
        .assert()
        .code(2)
        .stderr(contains("--learning-rate"));
    let shown = vitrine(&images).args(["train", "--help"]).assert().success();
    let help = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
    assert!(!help.contains("--imgsz"), "the help shows one name per option: {help}");
}

#[test]
fn every_command_shows_an_example() {
    let images = Images::new();
    let commands = [
        "train", "evaluate", "classify", "explain", "embed", "similar", "inspect", "import", "export",
        "presets", "devices", "bench", "quantize", "cache", "worker",
    ];
    for command in commands.into_iter().chain(["completions", "man"]) {
        vitrine(&images)
            .args([command, "--help"])
            .assert()
            .success()
            .stdout(contains("Example").and(contains(format!("vitrine {command}"))));
    }
    vitrine(&images)
        .arg("presets")
        .assert()
        .success()
        .stdout(contains("vit_tiny_patch16_224").and(contains("5717416")))
        .stdout(contains("swin-small-data").and(contains("source: Lee")).and(contains("expected: 94.53%")));
    vitrine(&images).arg("devices").assert().success().stdout(contains("flex").and(contains("(default)")));
}

#[test]
fn presets_prints_files_that_train_reads() {
    let images = Images::prepared();
    let show = |name: &str, file: &str| {
        let shown = vitrine(&images).args(["presets", "--show", name]).assert().success();
        let text = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
        assert!(
            text.starts_with("# The ") && text.contains(&format!("vitrine presets --show {name}")),
            "{text}"
        );
        images.write(file, &text);
    };
    show("cct", "recipe.toml");
    show("vit_pico_patch4_28", "model.toml");
    let recipe = std::fs::read_to_string(images.path("recipe.toml")).unwrap();
    images.write("recipe.toml", &recipe.replace("epochs = 310", "epochs = 1"));
    vitrine(&images)
        .args(["train", "data", "--recipe", "recipe.toml", "--model", "model.toml", "--output", "run"])
        .assert()
        .success()
        .stderr(contains("epoch 1/1"));
    let config = std::fs::read_to_string(images.path("run/config.toml")).unwrap();
    assert!(config.contains("learning_rate = 0.00055") && config.contains("num_classes = 2"), "{config}");
    assert!(!config.contains("purpose"), "{config}");
    vitrine(&images)
        .args(["presets", "--show", "swin-small"])
        .assert()
        .code(2)
        .stderr(contains("--show swin-small").and(contains("vitrine presets")));
}

#[test]
fn an_unknown_value_of_vitrine_amx_is_refused() {
    let images = Images::new();
    let bench = || {
        let mut command = vitrine(&images);
        command.args(["bench", "--model", "vit_pico_patch4_32", "--batch-size", "1", "--steps", "1"]);
        command
    };
    bench().env("VITRINE_AMX", "off").assert().success();
    bench()
        .env("VITRINE_AMX", "0")
        .assert()
        .code(2)
        .stderr(contains("VITRINE_AMX is \"0\"").and(contains("off")));
}

#[test]
fn bench_reports_every_figure() {
    let images = Images::new();
    let output = vitrine(&images)
        .args(["bench", "--model", "vit_pico_patch4_32", "--batch-size", "2", "--steps", "1", "--json"])
        .assert()
        .success();
    let figures: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    for phase in ["train", "infer", "infer_batch1"] {
        assert_eq!(figures["step_ms"][phase].as_array().map(Vec::len), Some(1), "{phase}: {figures}");
    }
    for key in [
        "batch_size",
        "parameters",
        "train_images_per_second",
        "infer_images_per_second",
        "latency_ms_batch1",
    ] {
        assert!(figures[key].as_f64().unwrap() > 0.0, "{key}: {figures}");
    }
    for key in ["model", "device"] {
        assert!(figures[key].is_string(), "{key}");
    }
}

#[test]
fn bench_measures_a_trained_model_and_names_what_it_does_not_find() {
    let images = Images::trained();
    let bench = |model: &str| {
        let arguments = ["bench", "--model", model, "--batch-size", "2", "--steps", "1", "--json"];
        vitrine(&images).args(arguments).assert()
    };
    let output = bench("run").success();
    let figures: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(figures["model"], "run");
    assert!(figures["train_images_per_second"].as_f64().unwrap() > 0.0, "{figures}");
    let output = vitrine(&images)
        .args(["bench", "--model", "run", "--inference-only", "--batch-size", "2", "--steps", "1", "--json"])
        .assert()
        .success();
    let figures: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert!(figures.get("train_images_per_second").is_none() && figures["step_ms"].get("train").is_none());
    assert!(figures["infer_images_per_second"].as_f64().unwrap() > 0.0, "{figures}");
    // A folder comes before the preset of its name.
    std::fs::rename(images.path("run"), images.path("vit_pico_patch4_32")).unwrap();
    let output = bench("vit_pico_patch4_32").success().stderr(contains("means ./vit_pico_patch4_32 here"));
    let of_folder: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(of_folder["parameters"], figures["parameters"]);
    bench("vit_pico_patch4_3").code(2).stderr(contains("vit_pico_patch4_32"));
    bench("data/red/0.png").code(1).stderr(contains("data/red/0.png"));
}
