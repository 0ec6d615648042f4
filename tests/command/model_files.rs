//! Model files that are damaged, contradict themselves, overflow, or try to write to the terminal.

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use crate::support::{Images, TINY, vitrine};

/// The trained model with all values of one tensor replaced, and one class renamed.
fn changed_model(images: &Images, tensor: &str, value: f32, class: [&str; 2]) -> Vec<u8> {
    let file = std::fs::read(images.path("run/model.safetensors")).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let mut data = file[8 + length..].to_vec();
    let [begin, end] = [0, 1].map(|end| header[tensor]["data_offsets"][end].as_u64().unwrap() as usize);
    data[begin..end].chunks_exact_mut(4).for_each(|bytes| bytes.copy_from_slice(&value.to_le_bytes()));
    let mut card: Value = serde_json::from_str(header["__metadata__"]["vitrine"].as_str().unwrap()).unwrap();
    for name in card["classes"].as_array_mut().unwrap().iter_mut().filter(|name| *name == class[0]) {
        *name = class[1].into();
    }
    header["__metadata__"]["vitrine"] = card.to_string().into();
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

#[test]
fn logits_that_are_not_finite_are_errors_and_class_names_are_escaped() {
    let images = Images::trained();
    let model = changed_model(&images, "head.weight", f32::MAX, ["red", "red"]);
    std::fs::write(images.path("overflows.safetensors"), model).unwrap();
    for format in ["text", "jsonl", "csv"] {
        let assert = vitrine(&images)
            .args([
                "classify",
                "overflows.safetensors",
                "data/red/0.png",
                "--threshold",
                "0.5",
                "--format",
                format,
            ])
            .assert()
            .code(1)
            .stderr(contains("data/red/0.png").and(contains("not finite")));
        let text = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
        match format {
            "text" => assert_eq!(text, ""),
            "csv" => assert_eq!(text, "path,rank,label,index,probability\n"),
            _ => {
                let line: Value = serde_json::from_str(&text).unwrap();
                assert!(line["error"].as_str().unwrap().contains("not finite"), "{text}");
                assert!(line.get("predictions").is_none(), "{text}");
            }
        }
    }
    vitrine(&images)
        .args(["evaluate", "overflows.safetensors", "data", "--json"])
        .assert()
        .code(1)
        .stdout("")
        .stderr(contains("data/blue/").and(contains("not finite")));
    let escape = "\u{1b}[31mred\u{9b}2J";
    let model = changed_model(&images, "head.bias", 0.0, ["red", escape]);
    std::fs::write(images.path("escapes.safetensors"), model).unwrap();
    let output = |arguments: &[&str]| {
        let output = vitrine(&images).args(arguments).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let red = "data/red/0.png";
    for arguments in [
        &["classify", "escapes.safetensors", red][..],
        &["inspect", "escapes.safetensors"],
        &["evaluate", "escapes.safetensors", "data"],
    ] {
        let text = output(arguments);
        assert!(!text.contains(['\u{1b}', '\u{9b}']), "{arguments:?}: {text:?}");
        assert!(text.to_lowercase().contains("\\u001b[31mred"), "{arguments:?}: {text:?}");
    }
    // Programs get the exact names.
    let csv = output(&["classify", "escapes.safetensors", red, "--format", "csv"]);
    assert!(csv.contains(&format!(",{escape},")), "{csv:?}");
    let json: Value =
        serde_json::from_str(&output(&["classify", "escapes.safetensors", red, "--format", "jsonl"]))
            .unwrap();
    assert_eq!(json["predictions"].as_array().unwrap().iter().filter(|p| p["label"] == escape).count(), 1);
}

#[test]
fn inspect_checks_tensors_against_the_description_and_accepts_architecture_files() {
    let images = Images::trained();
    let model = std::fs::read(images.path("run/model.safetensors")).unwrap();
    let text = String::from_utf8_lossy(&model).into_owned();
    assert!(text.contains(r#"\"embed_dim\":16"#), "the description is JSON in JSON");
    let place = model.windows(14).position(|window| window == br#"embed_dim\":16"#).unwrap();
    let mut wrong = model.clone();
    wrong[place + 12..place + 14].copy_from_slice(b"32");
    std::fs::write(images.path("wrong.safetensors"), wrong).unwrap();
    vitrine(&images)
        .args(["inspect", "wrong.safetensors"])
        .assert()
        .code(1)
        .stdout("")
        .stderr(contains("wrong.safetensors").and(contains("shape")));
    vitrine(&images)
        .args(["inspect", "tiny.toml", "--image-size", "32"])
        .assert()
        .success()
        .stdout(contains("multiply-adds per image").and(contains("image_size = 32")));
    images.write("recipe.toml", "epochs = 3\n");
    vitrine(&images).args(["inspect", "recipe.toml"]).assert().code(1).stderr(contains("recipe.toml"));
}

#[test]
fn two_classes_with_the_same_name_are_refused() {
    let images = Images::trained();
    let config = std::fs::read_to_string(images.path("run/config.toml")).unwrap();
    assert!(config.contains("\"blue\""));
    images.write("run/config.toml", &config.replace("\"blue\"", "\"red\""));
    vitrine(&images)
        .args(["train", "--resume", "run", "--epochs", "13"])
        .assert()
        .code(1)
        .stderr(contains("config.toml").and(contains("two classes")));
    let model = std::fs::read(images.path("run/model.safetensors")).unwrap();
    let name = br#"\"blue\""#;
    let place = model.windows(name.len()).position(|window| window == name).unwrap();
    let mut same = model;
    same[place..place + name.len()].copy_from_slice(br#"\"red\" "#);
    std::fs::write(images.path("same.safetensors"), same).unwrap();
    vitrine(&images)
        .args(["classify", "same.safetensors", "data"])
        .assert()
        .code(1)
        .stderr(contains("same.safetensors").and(contains("two classes are called `red`")));
}

#[test]
fn model_files_that_are_cut_short_or_newer_are_refused() {
    let images = Images::trained();
    let model = std::fs::read(images.path("run/model.safetensors")).unwrap();
    for length in [4, 100, model.len() / 2, model.len() - 1] {
        std::fs::write(images.path("cut.safetensors"), &model[..length]).unwrap();
        vitrine(&images)
            .args(["classify", "cut.safetensors", "data"])
            .assert()
            .code(1)
            .stderr(contains("cut.safetensors").and(contains("panicked").not()));
    }
    let version = br#"\"format\":1"#;
    let place = model.windows(version.len()).position(|window| window == version).unwrap();
    let mut newer = model.clone();
    newer[place + version.len() - 1] = b'9';
    std::fs::write(images.path("newer.safetensors"), newer).unwrap();
    vitrine(&images)
        .args(["classify", "newer.safetensors", "data"])
        .assert()
        .code(1)
        .stderr(contains("newer vitrine"));
}

#[test]
fn a_model_keeps_the_edges_that_its_architecture_named_as_a_file() {
    let images = Images::prepared();
    images
        .write("models/graph.toml", &format!("{TINY}mixers = [\"adjacency\"]\nadjacency = \"edges.csv\"\n"));
    let train = || {
        let mut train = vitrine(&images);
        train.args(["train", "data", "--model", "models/graph.toml", "--epochs", "2", "--output", "graph"]);
        train
    };
    train().assert().failure().stderr(contains("edges.csv").and(contains("graph.toml")));
    images.write("models/edges.csv", "from,to\n0,1\n3,2\n");
    train().assert().success();
    std::fs::remove_dir_all(images.path("models")).unwrap();
    vitrine(&images).args(["classify", "graph", "data/red/0.png"]).assert().success();
    vitrine(&images).args(["train", "--resume", "graph", "--epochs", "3"]).assert().success();
}
