//! `vitrine embed`: the files and lines it writes, and what it refuses.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

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
fn a_file_names_the_model_that_was_asked_and_not_one_that_took_its_place() {
    let images = Images::trained();
    let model = images.path("model.safetensors");
    std::fs::copy(images.path("run/model.safetensors"), &model).unwrap();
    let asked = vitrine::model_file::checksum(std::slice::from_ref(&model)).unwrap();
    for output in ["rows.npy", "rows.safetensors"] {
        std::fs::copy(images.path("run/model.safetensors"), &model).unwrap();
        let mut process = Command::new(assert_cmd::cargo::cargo_bin("vitrine"))
            .current_dir(images.path(""))
            .args(["embed", "model.safetensors", "-", "--threads", "1", "--output", output])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut paths = process.stdin.take().unwrap();
        paths.write_all(b"missing.png\n").unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap());
        // The model is loaded before an image is looked for.
        let mut line = String::new();
        while !line.contains("missing.png") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "the command has ended");
        }
        std::fs::remove_file(&model).unwrap();
        paths.write_all(b"data/red/0.png\n").unwrap();
        drop(paths);
        assert_eq!(process.wait().unwrap().code(), Some(1), "an image is missing");
        let stored = vitrine::embed::StoredEmbeddings::load(&images.path(output)).unwrap();
        assert_eq!((stored.embeddings.len(), stored.description.model_sha256), (1, asked.clone()));
    }
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

/// The header of a safetensors file, which has the paths, has a limit; a control character takes seven bytes of it.
#[cfg(target_os = "linux")]
#[test]
fn paths_that_are_too_long_for_a_safetensors_file_are_refused_before_any_image_is_read() {
    let images = Images::trained();
    let level = format!("/{}", "\u{1}".repeat(250));
    let folder = images.path(&format!("long{}", level.repeat(14)));
    std::fs::create_dir_all(&folder).unwrap();
    for index in 0..4200 {
        std::fs::write(folder.join(format!("{}{index}.png", "\u{1}".repeat(200))), "").unwrap();
    }
    vitrine(&images)
        .args(["embed", "run", "long", "--output", "rows.safetensors"])
        .assert()
        .code(1)
        .stderr(contains("rows.safetensors: the paths of").and(contains("write a .npy file")));
}

#[test]
fn outputs_that_cannot_be_meant_are_refused_before_anything_is_computed() {
    let images = Images::trained();
    let cases: [(&str, i32, &[&str]); 9] = [
        ("embed run data --format npy", 2, &["--output"]),
        ("embed run data --output rows", 2, &["--output rows", "--format"]),
        ("embed run data --output nowhere/rows.npy", 2, &["nowhere/rows.npy", "no such folder"]),
        ("embed run data --output data", 2, &["--output data", "a folder"]),
        ("embed run data --output a.npy --html a.npy", 2, &["--output and --html", "same file"]),
        ("embed run data --output ./a.npy --html data/../a.npy", 2, &["--output and --html", "same file"]),
        (
            "embed run data --output a.npy --html ./a.paths.json",
            2,
            &["a.paths.json", "the paths of the rows"],
        ),
        ("embed run data --html data", 2, &["--html data", "a folder"]),
        ("embed run data --output run/model.safetensors", 2, &["the model itself"]),
    ];
    for (arguments, status, words) in cases {
        let assert = vitrine(&images).args(arguments.split(' ')).assert().code(status);
        let message = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(words.iter().all(|word| message.contains(word)), "{arguments}: {message}");
    }
}

/// A tar archive of these files, each with its name.
fn tar(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, content) in files {
        let mut header = [0u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[136..147].copy_from_slice(b"00000000000");
        header[148..156].copy_from_slice(b"        ");
        header[156] = b'0';
        header[257..262].copy_from_slice(b"ustar");
        header[263..265].copy_from_slice(b"00");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        archive.extend_from_slice(&header);
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

fn paths(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["path"].as_str().unwrap()).collect()
}

fn assert_same_embeddings(found: &[Value], expected: &[Value]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let mut pairs = vector(found).into_iter().zip(vector(expected));
        assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-4), "{found} instead of {expected}");
    }
}

#[test]
fn a_manifest_and_an_archive_stand_for_their_images_with_their_classes() {
    let images = Images::trained();
    images.write(
        "photos.csv",
        "path,label,split\ndata/red/7.png,warm,test\ndata/blue/2.png,arctic,train\ndata/red/1.png,warm,val\n\
         data/blue/0.png,arctic,train\n",
    );
    let files = ["data/blue/2.png", "data/blue/0.png", "data/red/1.png", "data/red/7.png"];
    let mut expected = lines(&images, &[&["embed", "run"], &files[..]].concat());
    let found = lines(&images, &["embed", "run", "photos.csv", "--format", "jsonl", "--html", "map.html"]);
    assert_eq!(paths(&found), files, "the splits follow each other");
    assert_same_embeddings(&found, &expected);
    let map = |name: &str| std::fs::read_to_string(images.path(name)).unwrap();
    let page = map("map.html");
    for part in ["colored by class", "warm", "arctic"] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!((page.matches("class=\"point ").count(), page.matches("<image").count()), (4, 4));

    let content =
        |file: &'static str| (file.strip_prefix("data/").unwrap(), std::fs::read(images.path(file)).unwrap());
    std::fs::write(images.path("photos.tar"), tar(&files.map(content))).unwrap();
    let found =
        lines(&images, &["embed", "run", "photos.tar", "--format", "jsonl", "--html", "archive.html"]);
    expected.sort_by_key(|row| row["path"].to_string());
    assert_eq!(paths(&found)[0], "photos.tar/blue/0.png");
    assert_same_embeddings(&found, &expected);
    let page = map("archive.html");
    assert!(page.contains("colored by class") && page.matches("<image").count() == 4, "images of archives");

    // A missing image has no row, and the rows after it keep their own classes.
    images.write("gaps.csv", "path,label\nnone.png,arctic\ndata/red/1.png,warm\ndata/red/7.png,warm\n");
    vitrine(&images)
        .args(["embed", "run", "gaps.csv", "--output", "rows.npy", "--html", "gaps.html"])
        .assert()
        .code(1)
        .stdout(contains("2 images"))
        .stderr(contains("none.png").and(contains("1 of 3 images could not be read and has no row")));
    let page = map("gaps.html");
    assert!(page.contains("warm") && !page.contains("arctic"));
}

#[test]
fn names_and_folders_of_idx_files_are_data_sets_and_folders_of_images_are_not() {
    let images = Images::trained();
    vitrine(&images)
        .args(["embed", "run", "shapes", "--batch-size", "500", "--output", "shapes.npy"])
        .assert()
        .success()
        .stdout(contains("14000 images"));
    assert!(npy(&images, "shapes.npy").0.contains("(14000, 16)"));
    let beside: Value =
        serde_json::from_slice(&std::fs::read(images.path("shapes.paths.json")).unwrap()).unwrap();
    assert_eq!(beside["paths"][0], "circle 0000000000000000");
    vitrine(&images)
        .args(["embed", "run", "shapes", "--label-separator", ","])
        .assert()
        .code(2)
        .stderr(contains("--label-separator"));
    images.fill("shapes/round", [10, 200, 10], 2);
    assert_eq!(
        paths(&lines(&images, &["embed", "run", "shapes"])),
        ["shapes/round/0.png", "shapes/round/1.png"]
    );

    let header =
        |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<u8>>();
    let pixels: Vec<u8> = (0..3 * 16 * 16).map(|place| (place % 251) as u8).collect();
    images.folder("digits");
    let write = |name: &str, content: [Vec<u8>; 2]| {
        std::fs::write(images.path("digits").join(name), content.concat()).unwrap();
    };
    write("train-images-idx3-ubyte", [header(&[0x803, 3, 16, 16]), pixels]);
    write("train-labels-idx1-ubyte", [header(&[0x801, 3]), vec![1, 0, 1]]);
    let rows = lines(&images, &["embed", "run", "digits"]);
    let names = [0, 1, 2].map(|place| format!("digits/train-images-idx3-ubyte#{place}"));
    assert_eq!(paths(&rows), names);
    assert!(rows.iter().all(|row| vector(row).len() == DIM));
}

#[test]
fn the_options_of_data_sets_need_one() {
    let images = Images::trained();
    images.write("photos.csv", "path,label\ndata/red/1.png,warm\ndata/blue/1.png,arctic\n");
    images.write("photos.zip", "PK");
    images.write("arrays.jsonl", "{\"path\":\"data/red/1.png\",\"label\":[\"warm\"]}\n");
    let cases: [(&str, &[&str]); 8] = [
        ("embed run -0 photos.csv", &["-0", "only works with the path -"]),
        ("embed run photos.zip --label-separator |", &["photos.zip", "no effect", "(--label-separator)"]),
        ("embed run data --label-separator |", &["--label-separator has no effect"]),
        ("embed run arrays.jsonl --label-separator |", &["arrays.jsonl", "arrays", "(--label-separator)"]),
        ("embed run data --data-dir elsewhere", &["--data-dir has no effect for data"]),
        ("embed run photos.csv --offline", &["--offline has no effect for photos.csv"]),
        ("embed run data --offline", &["--offline has no effect"]),
        ("embed run photos.csv --output photos.csv", &["one of the inputs"]),
    ];
    for (arguments, words) in cases {
        let assert = vitrine(&images).args(arguments.split(' ')).assert().code(2);
        let message = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(words.iter().all(|word| message.contains(word)), "{arguments}: {message}");
    }
    // Among other paths, as a shell's pattern gives them, a manifest is a file that is no image.
    let mixed = vitrine(&images).args(["embed", "run", "data/red/0.png", "photos.csv"]).assert().code(1);
    let output = mixed.get_output();
    assert!(String::from_utf8_lossy(&output.stdout).contains("data/red/0.png"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("photos.csv"));
}
