//! Import, export, and training with other libraries' weights, mostly through the command line.

#![allow(clippy::unwrap_used)]

mod export;
#[path = "../support/reference.rs"]
mod reference;
mod refused;
mod training;

use std::path::Path;

use assert_cmd::Command;
use burn::tensor::Device;
use reference::fixture;
use vitrine::import::{self, Options};
use vitrine_models::weights::{NamedTensor, from_timm, to_timm};

fn vitrine() -> Command {
    let mut command = Command::cargo_bin("vitrine").unwrap();
    // Not the cache of the user who runs the tests.
    command.env("VITRINE_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    command.env("NO_COLOR", "1").timeout(std::time::Duration::from_secs(300));
    command
}

fn load(path: &Path) -> import::Imported {
    import::load(path, &Options::default()).unwrap_or_else(|error| panic!("{error:#}"))
}

fn sorted(mut tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

fn export_command(model: &Path, layout: &str, output: &Path) -> assert_cmd::assert::Assert {
    vitrine().arg("export").arg(model).args(["--layout", layout, "--output"]).arg(output).assert()
}

/// Writes an image of 40 by 30 pixels.
fn draw_image(path: &Path) {
    let pixels: Vec<u8> = (0..40 * 30 * 3).map(|value| (value * 7 % 256) as u8).collect();
    image::save_buffer(path, &pixels, 40, 30, image::ColorType::Rgb8).unwrap();
}

#[test]
fn import_classify_and_export_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.safetensors");
    let names = folder.path().join("names.txt");
    let text: Vec<String> = (0..10).map(|class| format!("thing {class}")).collect();
    std::fs::write(&names, text.join("\n")).unwrap();
    let import = |dtype: &str| {
        vitrine()
            .arg("import")
            .arg(fixture("timm_vit").join("weights.pth"))
            .args(["--dtype", dtype, "--classes"])
            .arg(&names)
            .arg("--output")
            .arg(&model)
            .assert()
            .success()
    };
    let told = String::from_utf8(import("f32").get_output().stderr.clone()).unwrap();
    assert!(told.contains("layout: timm") && told.contains("tensors: 32 used, 0 not needed"), "{told}");
    let whole = std::fs::metadata(&model).unwrap().len();
    let image = folder.path().join("image.png");
    draw_image(&image);
    let logits = |model: &Path| -> Vec<f64> {
        let output = vitrine()
            .args(["classify", "--format", "jsonl", "--logits"])
            .arg(model)
            .arg(&image)
            .output()
            .unwrap();
        let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(line["predictions"][0]["label"].as_str().unwrap().starts_with("thing"));
        line["logits"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let expected = logits(&model);
    import("bf16");
    assert!(std::fs::metadata(&model).unwrap().len() < whole * 6 / 10);
    for (half, full) in logits(&model).iter().zip(&expected) {
        assert!((half - full).abs() < 0.1, "{half} for {full}");
    }
    let exported = folder.path().join("hf");
    export_command(&model, "hugging-face", &exported).success();
    for name in ["config.json", "preprocessor_config.json", "model.safetensors"] {
        assert!(exported.join(name).is_file(), "{name}");
    }
    // The folder is no longer empty.
    export_command(&model, "hugging-face", &exported)
        .failure()
        .stderr(predicates::str::contains("not empty"));
}

#[test]
fn a_model_returns_the_tensors_that_it_was_built_from() {
    let imported = load(&fixture("hf_swin").join("weights.safetensors"));
    let tensors = imported.tensors.clone();
    let fresh = imported.card.model.init(&Device::default()).unwrap();
    assert_eq!(sorted(to_timm(&from_timm(fresh, tensors.clone()).unwrap())), sorted(tensors));
}

#[test]
fn backbones_give_the_features_of_their_library() {
    let device = Device::default();
    for case in ["hf_dinov2", "hf_dinov2_registers", "hf_siglip"] {
        let io = reference::arrays(case, "io.safetensors");
        let imported = load(&fixture(case).join("weights.safetensors"));
        assert!(!imported.has_head, "{case}");
        let model = imported.model(&device).unwrap();
        let features = model.features(reference::tensor::<4>(&io["input"], &device));
        reference::assert_close(case, &reference::values(features), &io["features"].values, 1e-4);
    }
}
