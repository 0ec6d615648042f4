//! Models with smaller weights: `vitrine quantize`.

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;

use crate::support::{Images, vitrine};

/// The header of a safetensors file.
fn header(file: &[u8]) -> Value {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    serde_json::from_slice(&file[8..8 + length]).unwrap()
}

#[test]
fn a_model_of_bytes_is_smaller_and_answers_as_the_model_does() {
    let images = Images::trained();
    vitrine(&images)
        .args(["quantize", "run", "--output", "small.safetensors", "--calibration", "data"])
        .assert()
        .success()
        .stdout(
            contains("with weights of 8 bits").and(contains("100.0%")).and(contains("small.safetensors")),
        );
    let [file, whole] =
        ["small.safetensors", "run/model.safetensors"].map(|name| std::fs::read(images.path(name)).unwrap());
    assert!(file.len() < whole.len());
    let header = header(&file);
    for (name, shape) in [("attn.qkv", 48), ("attn.proj", 16), ("mlp.fc1", 64), ("mlp.fc2", 16)] {
        let name = format!("blocks.0.{name}.weight");
        assert_eq!(header[&name]["dtype"], "I8", "{name}");
        assert_eq!(header[format!("{name}_scale")]["shape"], Value::from(vec![shape]), "{name}");
    }
    assert_eq!(header["head.weight"]["dtype"], "F32");
    let card: Value = serde_json::from_str(header["__metadata__"]["vitrine"].as_str().unwrap()).unwrap();
    assert_eq!((&card["format"], &card["int8"]), (&4.into(), &true.into()), "earlier programs refuse it");

    let classified = |model: &str| -> Vec<Value> {
        let output =
            vitrine(&images).args(["classify", model, "data", "--format", "jsonl", "--logits"]).assert();
        let text = String::from_utf8(output.success().get_output().stdout.clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    for (bytes, exact) in classified("small.safetensors").iter().zip(&classified("run")) {
        assert_eq!(bytes["predictions"][0]["label"], exact["predictions"][0]["label"]);
        let [bytes, exact] = [bytes, exact].map(|of| of["logits"][0].as_f64().unwrap());
        assert!(bytes != exact && (bytes - exact).abs() < 0.1 * exact.abs().max(1.0), "{bytes}, {exact}");
    }
    // The other commands take it as any other model.
    for arguments in [
        "evaluate small.safetensors data --split all",
        "explain small.safetensors data/red/0.png --output maps",
        "embed small.safetensors data --output rows.npy",
        "inspect small.safetensors",
        "export small.safetensors --layout onnx --output small.onnx",
        "train data --pretrained small.safetensors --freeze backbone --output fitted",
    ] {
        vitrine(&images).args(arguments.split(' ')).assert().success();
    }
}

#[test]
fn weights_of_sixteen_bits_are_smaller_and_widened_when_read() {
    let images = Images::trained();
    for (dtype, stored) in [("f16", "F16"), ("bf16", "BF16")] {
        let file = format!("{dtype}.safetensors");
        vitrine(&images)
            .args(["quantize", "run", "--dtype", dtype, "--output", &file, "--calibration", "data"])
            .assert()
            .success()
            .stdout(contains("100.0% with weights of 16 bits, 100.0% without"));
        let [bytes, whole] =
            [file.as_str(), "run/model.safetensors"].map(|name| std::fs::read(images.path(name)).unwrap());
        let header = header(&bytes);
        assert!(bytes.len() < whole.len(), "{} and {} bytes", bytes.len(), whole.len());
        for name in ["blocks.0.attn.qkv.weight", "head.weight"] {
            assert_eq!(header[name]["dtype"], stored, "{name}");
        }
        vitrine(&images)
            .args(["classify", &file, "data/red/0.png"])
            .assert()
            .success()
            .stdout(contains("red"));
    }
}

#[test]
fn what_has_no_effect_or_cannot_be_meant_is_refused() {
    let images = Images::trained();
    vitrine(&images)
        .args(["quantize", "run", "--output", "small.safetensors"])
        .assert()
        .success()
        .stderr(contains("--calibration DATA measures it"));
    images.write("labels.csv", "path,label\ndata/red/0.png,red\n");
    let cases: [(&str, i32, &str); 9] = [
        ("quantize run --output labels.csv --calibration labels.csv", 2, "was not written by such a command"),
        ("quantize small.safetensors --output again.safetensors", 2, "eight bits already"),
        ("quantize small.safetensors --dtype f16 --output again.safetensors", 2, "eight bits already"),
        ("bench --model small.safetensors --int8 --inference-only --steps 1", 2, "--int8 has no effect"),
        ("quantize run --output run/model.safetensors", 2, "belongs to a run"),
        ("quantize run --output nowhere/small.safetensors", 2, "no such folder"),
        ("quantize run --output a.safetensors --batch-size 8", 2, "--calibration"),
        ("quantize run --output a.safetensors --max-file-size 1M", 2, "--max-file-size has no effect"),
        ("quantize run --output a.safetensors --calibration nowhere", 1, "nowhere"),
    ];
    for (arguments, status, word) in cases {
        vitrine(&images).args(arguments.split(' ')).assert().code(status).stderr(contains(word));
    }
    assert!(!images.path("a.safetensors").exists() && !images.path("again.safetensors").exists());
}
