//! `vitrine export --layout onnx`. What the files compute is compared in `tests/onnx.rs`.

use predicates::prelude::*;
use predicates::str::contains;

use crate::support::{Images, vitrine};

#[test]
fn a_file_names_its_input_output_classes_and_operator_set() {
    let images = Images::trained();
    let export = |output: &str, more: &[&str]| {
        let mut command = vitrine(&images);
        command.args(["export", "run", "--layout", "onnx", "--output", output]).args(more);
        command.assert().success().stdout(format!("wrote {output}\n"))
    };
    export("model.onnx", &[])
        .stderr(contains("[batch, 3, 16, 16] in float32").and(contains("InferenceSession")));
    export("half.onnx", &["--dtype", "bf16"]);
    export("photos.onnx", &["--with-preprocessing"]).stderr(contains("[batch, height, width, 3] in uint8"));
    let bytes = |name: &str| std::fs::read(images.path(name)).unwrap();
    let holds = |file: &[u8], text: &str| file.windows(text.len()).any(|part| part == text.as_bytes());
    let file = bytes("model.onnx");
    for text in ["images", "logits", "batch", "[\"blue\",\"red\"]", "blocks.0.attn.qkv.weight"] {
        assert!(holds(&file, text), "{text}");
    }
    assert!(bytes("half.onnx").len() < file.len() * 3 / 4);
    assert!(holds(&bytes("photos.onnx"), "Resize") && !holds(&file, "Resize"));
    vitrine(&images)
        .args(["import", "model.onnx", "--output", "imported.safetensors"])
        .assert()
        .code(1)
        .stderr(contains("model.onnx: this is an ONNX file"));
}

#[test]
fn what_has_no_effect_or_no_operator_is_refused() {
    let images = Images::trained();
    let export = |arguments: &[&str]| vitrine(&images).args(["export", "run"]).args(arguments).assert();
    export(&["--layout", "onnx", "--output", "model.safetensors"])
        .code(2)
        .stderr(contains("needs a .onnx file"));
    export(&["--layout", "timm", "--output", "timm.safetensors", "--with-preprocessing"])
        .code(2)
        .stderr(contains("only for --layout onnx"));
    assert!(!images.path("model.onnx").exists());
}

#[test]
fn another_librarys_weights_are_evaluated_and_exported() {
    let images = Images::trained();
    let run = |arguments: &[&str]| vitrine(&images).args(arguments).assert();
    let timm = ["export", "run", "--layout", "timm", "--output", "timm"];
    run(&timm).success();
    let measured = |model: &str| {
        let done = run(&["evaluate", model, "data", "--split", "all", "--json"]).success();
        let text = String::from_utf8(done.get_output().stdout.clone()).unwrap();
        let measured: serde_json::Value = serde_json::from_str(&text).unwrap();
        (measured["top1"].clone(), measured["confusion"].clone())
    };
    assert_eq!(measured("timm"), measured("run"));
    run(&["export", "timm", "--layout", "onnx", "--output", "timm.onnx"]).success();
    run(&["export", "run", "--layout", "onnx", "--output", "run.onnx"]).success();
    let bytes = |name: &str| std::fs::read(images.path(name)).unwrap();
    assert_eq!(bytes("timm.onnx").len(), bytes("run.onnx").len());
    // What is not downloaded has no use for the option.
    run(&["evaluate", "run", "data", "--offline"]).code(2).stderr(contains("--offline has no effect"));
    run(&["evaluate", "hf:nobody/nothing", "data", "--offline"])
        .code(1)
        .stderr(contains("nobody/nothing").and(contains("--offline has no effect").not()));
    run(&["evaluate", "none", "data"]).code(1).stderr(contains("none"));
}
