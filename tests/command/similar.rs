//! `vitrine similar`: what it finds in a folder and in a file of embeddings, and what it refuses.

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use crate::support::{Images, vitrine};

/// The objects that a command prints.
fn found(images: &Images, arguments: &str) -> Vec<Value> {
    let output = vitrine(images).args(arguments.split(' ')).assert().success().get_output().stdout.clone();
    String::from_utf8(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn similar_images_are_of_the_same_color_and_never_the_image_itself() {
    let images = Images::trained();
    let found = found(
        &images,
        "similar run data/red/0.png ./data/../data/blue/4.png --in data --top 3 --format jsonl",
    );
    assert_eq!(found.len(), 2);
    for (found, color) in found.iter().zip(["red", "blue"]) {
        let similar = found["similar"].as_array().unwrap();
        assert_eq!(similar.len(), 3);
        let mut last = 1.0;
        for entry in similar {
            let (path, similarity) = (entry["path"].as_str().unwrap(), entry["similarity"].as_f64().unwrap());
            assert!(path.contains(color) && similarity <= last, "{found}");
            assert!(!path.ends_with("red/0.png") && !path.ends_with("blue/4.png"), "{found}");
            last = similarity;
        }
    }
    vitrine(&images)
        .args(["similar", "run", "data/red/0.png", "--in", "data", "--html", "similar.html"])
        .assert()
        .success()
        .stdout(
            contains("data/red/0.png:\n  0.")
                .or(contains("data/red/0.png:\n  1."))
                .and(contains("data/red/")),
        )
        .stderr(contains("page: similar.html"));
    let page = std::fs::read_to_string(images.path("similar.html")).unwrap();
    assert_eq!(page.matches("<img").count(), 6);
    assert!(!page.contains("http") && !page.contains("<script"));
}

#[test]
fn a_file_of_embeddings_finds_what_its_folder_does() {
    let images = Images::trained();
    for name in ["rows.npy", "rows.safetensors", "UPPER.NPY"] {
        for normalize in [&[][..], &["--normalize"]] {
            vitrine(&images)
                .args(["embed", "run", "data", "--output", name])
                .args(normalize)
                .assert()
                .success();
            let of = |place: &str| {
                let found =
                    found(&images, &format!("similar run data/red/0.png --in {place} --format jsonl"));
                let similar = found[0]["similar"].as_array().unwrap().clone();
                similar.iter().map(|entry| entry["similarity"].as_f64().unwrap()).collect::<Vec<f64>>()
            };
            for (a, b) in of("data").iter().zip(of(name)) {
                assert!((a - b).abs() < 1e-5, "{name}: {a} {b}");
            }
        }
    }
}

#[test]
fn embeddings_are_whitened_unless_that_is_unwanted_or_images_are_few() {
    let images = Images::trained();
    let of = |arguments: &str| {
        let found = found(&images, &format!("similar run data/red/0.png --top 9 --format jsonl {arguments}"));
        found[0]["similar"].as_array().unwrap().clone()
    };
    let usual = of("--in data");
    assert_eq!(usual, of("--in data --similarity whitened"));
    assert_ne!(usual, of("--in data --similarity cosine"));
    assert_eq!(of("--in data/red"), of("--in data/red --similarity cosine"));
    vitrine(&images)
        .args(["similar", "run", "data/red/0.png", "--in", "data/red", "--similarity", "whitened"])
        .assert()
        .code(1)
        .stderr(contains("data/red has 12 images").and(contains("--similarity cosine")));
}

/// In a folder of halves, black and white, what lies where tells them apart.
#[test]
fn layouts_find_the_same_things_in_the_same_places() {
    let images = Images::trained();
    std::fs::create_dir_all(images.path("halves")).unwrap();
    // Left or upper half white, with a corner that differs in each of 12 images of a kind.
    for index in 0..24u8 {
        let pixel = |x: u32, y: u32| {
            let is_white = if index % 2 == 0 { x < 16 } else { y < 16 };
            let own = if x >= 28 && y >= 28 { 10 * (index / 2) } else { 0 };
            image::Rgb([if is_white { 255 } else { own }; 3])
        };
        let name = format!("halves/{}{index}.png", ["left", "upper"][usize::from(index % 2)]);
        image::RgbImage::from_fn(32, 32, pixel).save(images.path(&name)).unwrap();
    }
    let query = "similar run halves/left4.png --in halves --similarity layout";
    let similar = found(&images, &format!("{query} --top 11 --format jsonl"))[0]["similar"].clone();
    let similar = similar.as_array().unwrap();
    assert!(similar.iter().all(|found| found["path"].as_str().unwrap().contains("left")), "{similar:?}");
    std::fs::copy(images.path("halves/left4.png"), images.path("halves/copy.png")).unwrap();
    let similar = found(&images, &format!("{query} --top 1 --format jsonl"))[0]["similar"][0].clone();
    assert_eq!(similar["path"], "halves/copy.png");
    assert!(similar["similarity"].as_f64().unwrap() > 0.999, "{similar}");

    vitrine(&images).args(["embed", "run", "halves", "--output", "rows.npy"]).assert().success();
    let refused = |place: &str| {
        vitrine(&images)
            .args(["similar", "run", "halves/left4.png", "--in", place, "--similarity", "layout"])
            .assert()
    };
    refused("rows.npy").code(2).stderr(contains("--similarity layout: files of embeddings do not say"));
    refused("data/red").code(1).stderr(contains("--similarity layout: data/red has 12 images"));
}

#[test]
fn a_file_of_embeddings_knows_its_images_in_another_folder() {
    let images = Images::trained();
    let [inner, outer] = ["inner", "outer"].map(|name| images.path(name));
    std::fs::create_dir_all(&inner).unwrap();
    std::fs::create_dir_all(&outer).unwrap();
    for output in ["rows.npy", "inner/rows.safetensors"] {
        vitrine(&images).args(["embed", "run", "data", "--output", output]).assert().success();
        let output = vitrine(&images)
            .current_dir(&outer)
            .args(["similar", "../run", "../data/red/0.png", "--top", "40", "--format", "jsonl"])
            .args(["--in", &format!("../{output}"), "--html", "similar.html"])
            .assert()
            .success();
        let found: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
        let similar = found["similar"].as_array().unwrap();
        assert_eq!(similar.len(), 23, "all images but the image itself: {found}");
        assert!(similar.iter().all(|found| found["path"] != "data/red/0.png"));
        let page = std::fs::read_to_string(outer.join("similar.html")).unwrap();
        assert_eq!(page.matches("<img").count(), 24);
    }
}

#[test]
fn an_image_of_an_archive_is_not_compared_with_itself_however_the_archive_is_named() {
    let images = Images::trained();
    let mut archive = tar::Builder::new(std::fs::File::create(images.path("data.tar")).unwrap());
    for path in ["red/0.png", "red/1.png", "blue/0.png", "blue/1.png"] {
        archive.append_path_with_name(images.path(&format!("data/{path}")), path).unwrap();
    }
    archive.into_inner().unwrap();
    std::fs::create_dir(images.path("outer")).unwrap();
    vitrine(&images).args(["embed", "run", "data.tar", "--output", "rows.npy"]).assert().success();
    for (folder, arguments) in [
        ("", "similar run data.tar --in rows.npy --format jsonl"),
        ("", "similar run ./data.tar --in rows.npy --format jsonl"),
        ("outer", "similar ../run ../data.tar --in ../rows.npy --format jsonl"),
    ] {
        let output = vitrine(&images).current_dir(images.path(folder)).args(arguments.split(' ')).assert();
        let text = String::from_utf8(output.success().get_output().stdout.clone()).unwrap();
        for line in text.lines() {
            let found: Value = serde_json::from_str(line).unwrap();
            let path = found["path"].as_str().unwrap();
            let similar = found["similar"].as_array().unwrap();
            assert_eq!(similar.len(), 3, "all images but the image itself: {found}");
            assert!(similar.iter().all(|other| !path.ends_with(other["path"].as_str().unwrap())), "{found}");
        }
        assert_eq!(text.lines().count(), 4);
    }
}

#[test]
fn embeddings_of_another_model_and_other_files_are_refused() {
    let images = Images::trained();
    vitrine(&images).args(["embed", "run", "data", "--output", "rows.npy"]).assert().success();
    vitrine(&images)
        .args(["train", "data", "--model", "tiny.toml", "--epochs", "1", "--seed", "3", "--output", "other"])
        .assert()
        .success();
    vitrine(&images)
        .args(["similar", "other", "data/red/0.png", "--in", "rows.npy"])
        .assert()
        .code(2)
        .stderr(
            contains("of another model: run").and(contains("vitrine embed other FOLDER --output rows.npy")),
        );
    let mut narrow = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    narrow
        .extend(format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (24, 1), }").bytes());
    narrow.extend([0; 24 * 4]);
    std::fs::write(images.path("rows.npy"), narrow).unwrap();
    vitrine(&images)
        .args(["similar", "run", "data/red/0.png", "--in", "rows.npy"])
        .assert()
        .code(1)
        .stderr(contains("a row has 1 values, and an embedding of the model 16"));
    std::fs::remove_file(images.path("rows.paths.json")).unwrap();
    let cases: [(&str, i32, &[&str]); 4] = [
        ("similar run data/red/0.png --in rows.npy", 1, &["rows.paths.json", "no such file"]),
        ("similar run data/red/0.png --in tiny.toml", 2, &["--in tiny.toml", "folder"]),
        ("similar run data/red/0.png --in nowhere", 1, &["--in nowhere", "no such"]),
        ("similar run data/red/0.png --in run/model.safetensors", 1, &["not a file of embeddings"]),
    ];
    for (arguments, status, words) in cases {
        let assert = vitrine(&images).args(arguments.split(' ')).assert().code(status);
        let message = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(words.iter().all(|word| message.contains(word)), "{arguments}: {message}");
    }
}

#[test]
fn an_unreadable_image_does_not_stop_the_others() {
    let images = Images::trained();
    images.write("broken.png", "no image");
    vitrine(&images)
        .args(["similar", "run", "broken.png", "data/red/0.png", "--in", "data", "--format", "jsonl"])
        .assert()
        .code(1)
        .stdout(
            contains("\"path\":\"data/red/0.png\",\"similar\"")
                .and(contains("\"path\":\"broken.png\",\"error\"")),
        )
        .stderr(contains("broken.png"));
}

#[test]
fn a_folder_without_images_has_nothing_similar() {
    let images = Images::trained();
    images.folder("empty");
    for more in [&[][..], &["--html", "similar.html"]] {
        vitrine(&images)
            .args(["similar", "run", "data/red/0.png", "--in", "empty"])
            .args(more)
            .assert()
            .code(1)
            .stdout("")
            .stderr(contains("--in empty").and(contains("no image")));
    }
    assert!(!images.path("similar.html").exists());
}

#[test]
fn an_empty_list_is_no_error_but_has_no_page() {
    let images = Images::trained();
    let ask = |arguments: &[&str]| {
        vitrine(&images)
            .args(["similar", "run", "-", "--in", "data"])
            .args(arguments)
            .write_stdin("")
            .assert()
    };
    ask(&[]).success().stdout("");
    ask(&["--html", "similar.html"]).code(1).stderr(contains("no page is written"));
    assert!(!images.path("similar.html").exists());
}

#[test]
fn no_file_of_the_user_is_replaced_by_a_page_or_by_embeddings() {
    let images = Images::trained();
    for (copy, of) in [("own.png", "data/red/0.png"), ("other.safetensors", "run/model.safetensors")] {
        std::fs::copy(images.path(of), images.path(copy)).unwrap();
    }
    vitrine(&images).args(["embed", "run", "data", "--output", "rows.npy"]).assert().success();
    let before = |name: &str| std::fs::read(images.path(name)).unwrap();
    for (arguments, file, message) in [
        ("similar run own.png --in data --html own.png", "own.png", "one of the inputs"),
        (
            "similar run data/red/0.png --in data --html run/model.safetensors",
            "run/model.safetensors",
            "the model itself",
        ),
        (
            "similar run data/red/0.png --in rows.npy --html rows.npy",
            "rows.npy",
            "only files whose names end in .html",
        ),
        ("similar run data/red/0.png --in data --html nowhere/a.html", "rows.npy", "no such folder"),
        ("embed run own.png --output own.png --format csv", "own.png", "one of the inputs"),
        ("embed run data --html own.png", "own.png", "only files whose names end in .html"),
        (
            "embed run data --output data/red/1.png --format csv",
            "data/red/1.png",
            "only files whose names end in .csv",
        ),
        ("embed run data --output other.safetensors", "other.safetensors", "the weights of a model"),
    ] {
        let content = before(file);
        vitrine(&images).args(arguments.split(' ')).assert().failure().stderr(contains(message));
        assert_eq!(before(file), content, "{arguments}");
    }
    vitrine(&images).args(["embed", "run", "data", "--output", "rows.npy"]).assert().success();
}
