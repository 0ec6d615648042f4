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
}

#[test]
fn what_has_no_effect_or_no_operator_is_refused() {
    let images = Images::trained();
    let export = |arguments: &[&str]| vitrine(&images).args(["export", "run"]).args(arguments).assert();
    export(&["--layout", "onnx", "--output", "model.safetensors"])
        .code(1)
        .stderr(contains("needs a .onnx file"));
    export(&["--layout", "timm", "--output", "timm.safetensors", "--with-preprocessing"])
        .code(2)
        .stderr(contains("only for --layout onnx"));
    assert!(!images.path("model.onnx").exists());
}
