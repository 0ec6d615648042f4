//! `vitrine embed`: the files and lines it writes, and what it refuses.

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use crate::support::{Images, vitrine};

/// The width of an embedding of the architecture `TINY`.
const DIM: usize = 16;

fn lines(images: &Images, arguments: &[&str]) -> Vec<Value> {
    let output = vitrine(images).args(arguments).assert().success().get_output().stdout.clone();
    let text = String::from_utf8(output).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn vector(line: &Value) -> Vec<f32> {
    line["embedding"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect()
}

/// The values of a NumPy file after its header of 128 bytes.
fn npy(images: &Images, name: &str) -> (String, Vec<f32>) {
    let bytes = std::fs::read(images.path(name)).unwrap();
    let values = bytes[128..].chunks(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect();
    (String::from_utf8_lossy(&bytes[10..128]).into_owned(), values)
}

#[test]
fn all_formats_hold_the_same_rows_in_the_order_of_the_input() {
    let images = Images::trained();
    let inputs = ["data/red/3.png", "data/blue", "data/red/*.png"];
    let rows = lines(&images, &[&["embed", "run"], &inputs[..]].concat());
    assert_eq!(rows.len(), 1 + 12 + 12);
    assert_eq!(rows[0]["path"], "data/red/3.png");
    assert!(rows.iter().all(|row| vector(row).len() == DIM));
    let write = |file: &str| {
        let arguments = [&["embed", "run"], &inputs[..], &["--output", file]].concat();
        vitrine(&images).args(arguments).assert().success().stdout(contains(file).and(contains("25 images")));
    };
    write("rows.npy");
    let (header, values) = npy(&images, "rows.npy");
    assert!(header.contains("'<f4'") && header.contains("(25, 16)"), "{header}");
    let expected: Vec<f32> = rows.iter().flat_map(vector).collect();
    assert_eq!(values, expected);
    let beside: Value =
        serde_json::from_slice(&std::fs::read(images.path("rows.paths.json")).unwrap()).unwrap();
    let paths: Vec<&Value> = rows.iter().map(|row| &row["path"]).collect();
    assert_eq!(beside["paths"].as_array().unwrap().iter().collect::<Vec<_>>(), paths);
    assert_eq!(beside["model_sha256"].as_str().unwrap().len(), 64);
    write("rows.safetensors");
    let bytes = std::fs::read(images.path("rows.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor("embeddings").unwrap();
    assert_eq!(
        (tensor.shape(), tensor.data()),
        (&[25, DIM][..], &std::fs::read(images.path("rows.npy")).unwrap()[128..])
    );
    write("rows.csv");
    let table = std::fs::read_to_string(images.path("rows.csv")).unwrap();
    assert!(table.starts_with("path,e0,e1,") && table.lines().nth(1).unwrap().starts_with("data/red/3.png,"));
    let first = table.lines().nth(1).unwrap().split(',').skip(1).map(|value| value.parse::<f32>().unwrap());
    assert_eq!(first.collect::<Vec<_>>(), vector(&rows[0]));
    write("rows.jsonl");
    assert_eq!(std::fs::read_to_string(images.path("rows.jsonl")).unwrap().lines().count(), 25);
}

#[test]
fn paths_come_from_standard_input_and_rows_are_scaled_to_length_one() {
    let images = Images::trained();
    let output = vitrine(&images)
        .args(["embed", "run", "-0", "-", "--normalize"])
        .write_stdin("data/red/1.png\0data/blue/2.png\0")
        .assert()
        .success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert_eq!(text.lines().count(), 2);
    for line in text.lines() {
        let row = vector(&serde_json::from_str(line).unwrap());
        let length: f32 = row.iter().map(|value| value * value).sum::<f32>().sqrt();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
}

#[test]
fn an_unreadable_image_is_named_and_has_no_row() {
    let images = Images::trained();
    images.write("data/red/5.png", "no image");
    vitrine(&images)
        .args(["embed", "run", "data", "--output", "rows.npy", "--html", "map.html"])
        .assert()
        .code(1)
        .stdout(contains("23 images"))
        .stderr(contains("data/red/5.png").and(contains("1 of 24 images could not be read and has no row")));
    assert!(npy(&images, "rows.npy").0.contains("(23, 16)"));
    let page = std::fs::read_to_string(images.path("map.html")).unwrap();
    assert_eq!(page.matches("class=\"point ").count(), 23);
    assert!(page.contains("data:image/") && page.contains("blue") && !page.contains("<script"));
    let lines = vitrine(&images).args(["embed", "run", "data/red/5.png"]).assert().code(1);
    lines.stdout(contains("{\"path\":\"data/red/5.png\",\"error\":"));
    vitrine(&images)
        .args(["embed", "run", "data/red/5.png", "--output", "none.npy"])
        .assert()
        .code(1)
        .stderr(contains("nothing is written"));
    assert!(!images.path("none.npy").exists());
}

#[test]
fn a_map_alone_prints_no_lines() {
    let images = Images::trained();
    vitrine(&images)
        .args(["embed", "run", "data", "--html", "map.html"])
        .assert()
        .success()
        .stdout("")
        .stderr(contains("map: map.html"));
}

#[test]
fn outputs_that_cannot_be_meant_are_refused_before_anything_is_computed() {
    let images = Images::trained();
    let cases: [(&str, i32, &[&str]); 7] = [
        ("embed run data --format npy", 2, &["--output"]),
        ("embed run data --output rows", 2, &["--output rows", "--format"]),
        ("embed run data --output nowhere/rows.npy", 2, &["nowhere/rows.npy", "no such folder"]),
        ("embed run data --output data", 2, &["--output data", "a folder"]),
        ("embed run data --output a.npy --html a.npy", 2, &["--output and --html", "same file"]),
        ("embed run data --html data", 2, &["--html data", "a folder"]),
        ("embed run data --output run/model.safetensors", 2, &["the model itself"]),
    ];
    for (arguments, status, words) in cases {
        let assert = vitrine(&images).args(arguments.split(' ')).assert().code(status);
        let message = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(words.iter().all(|word| message.contains(word)), "{arguments}: {message}");
    }
}
