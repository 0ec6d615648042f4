//! Files in a data set that are not plain images: broken, linked, too large, or of a format that is not supported.

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use crate::support::{Images, TINY, vitrine};

#[test]
fn broken_images_are_named_and_their_number_is_limited() {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 10);
    images.fill("data/blue", [30, 30, 200], 10);
    images.write("data/red/text.png", "this is text");
    images.write("tiny.toml", TINY);
    let train = ["train", "data", "--model", "tiny.toml", "--epochs", "1", "--output"];
    for (limit, also) in [("0", 0), ("0.01", 4)] {
        for number in 0..also {
            images.write(&format!("data/red/text{number}.png"), "this is text");
        }
        vitrine(&images)
            .args(train)
            .args(["strict", "--bad-file-limit", limit])
            .assert()
            .code(1)
            .stderr(contains("text.png").and(contains("--bad-file-limit")));
        assert!(!images.path("strict").exists(), "images are checked before a run folder is made");
    }
    vitrine(&images)
        .args(train)
        .args(["lenient", "--bad-file-limit", "0.9"])
        .assert()
        .success()
        .stderr(contains("text.png"));
    vitrine(&images).args(["inspect", "data"]).assert().code(1).stdout(contains("text.png"));
}

#[cfg(unix)]
#[test]
fn a_path_with_a_line_break_is_the_same_in_csv_and_json() {
    let images = Images::trained();
    let name = "new\nline.png";
    std::fs::copy(images.path("data/red/0.png"), images.path(name)).unwrap();
    for command in ["classify", "embed"] {
        let rows = |format| {
            let output = vitrine(&images).args([command, "run", name, "--format", format]).assert().success();
            String::from_utf8(output.get_output().stdout.clone()).unwrap()
        };
        let table = rows("csv");
        let row = csv::Reader::from_reader(table.as_bytes()).records().next().unwrap().unwrap();
        let line: Value = serde_json::from_str(rows("jsonl").lines().next().unwrap()).unwrap();
        assert_eq!((&row[0], line["path"].as_str()), (name, Some(name)), "{command}");
    }
}

#[test]
fn a_pattern_finds_hidden_files_and_folders_only_where_it_names_them() {
    let images = Images::trained();
    // As macOS leaves them next to files on drives of other systems.
    images.write("data/red/._0.png", "no image");
    images.fill("data/red/.thumbs", [200, 30, 30], 2);
    let classified = |pattern: &str| {
        let output = vitrine(&images).args(["classify", "run", pattern]).assert().success();
        String::from_utf8(output.get_output().stdout.clone()).unwrap().lines().count()
    };
    for (pattern, count) in [
        ("data/red/*.png", 12),
        ("data/red/*", 12),
        ("data/**/*.png", 24),
        ("data/*/.thumbs/*.png", 2),
        ("data/red/.th*", 2),
    ] {
        assert_eq!(classified(pattern), count, "{pattern}");
    }
    let named = vitrine(&images).args(["classify", "run", "data/red/.*.png"]).assert();
    named.code(1).stderr(contains("data/red/._0.png: "));
}

#[cfg(target_os = "linux")]
#[test]
fn a_pattern_finds_files_whose_names_are_not_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let images = Images::trained();
    let name = std::ffi::OsStr::from_bytes(b"cl\xe9.png");
    std::fs::rename(images.path("data/red/3.png"), images.path("data/red").join(name)).unwrap();
    vitrine(&images)
        .args(["classify", "run", "data/red/c*.png"])
        .assert()
        .success()
        .stdout(contains(r"data/red/cl\xE9.png: red"));
    let pattern = std::ffi::OsStr::from_bytes(b"data/red/cl\xe9*");
    let output = vitrine(&images).args(["classify", "run"]).arg(pattern).assert().code(1);
    output.stderr(contains("no such file or folder, and a pattern must be UTF-8"));
}

#[test]
fn unreadable_validation_images_are_counted_and_limited() {
    let images = Images::new();
    // Each split has its own shade, so that no image is in two splits.
    for (split, shade) in [("train", 200), ("val", 190), ("test", 180)] {
        images.fill(&format!("data/{split}/red"), [shade, 30, 30], 10);
        images.fill(&format!("data/{split}/blue"), [30, 30, shade], 10);
    }
    images.write("tiny.toml", TINY);
    images.write("data/val/red/3.png", "this is text");
    let train = ["train", "data", "--model", "tiny.toml", "--epochs", "1", "--output"];
    let warning = "1 of 20 validation images cannot be read";
    vitrine(&images)
        .args(train)
        .arg("run")
        .assert()
        .success()
        .stderr(contains(warning).count(1).and(contains("3.png")).and(contains("19 are measured")));
    for number in 0..8 {
        images.write(&format!("data/test/blue/{number}.png"), "this is text");
    }
    vitrine(&images)
        .args(train)
        .arg("other")
        .assert()
        .code(1)
        .stderr(contains("8 of 20 test images cannot be read"));
}

/// Links, circular and dangling ones among them, formats that are not supported, and files that are not images.
#[cfg(unix)]
#[test]
fn every_file_that_is_left_out_is_reported() {
    use std::os::unix::fs::symlink;
    let images = Images::trained();
    images.fill("elsewhere", [200, 30, 30], 1);
    symlink(images.path("elsewhere/0.png"), images.path("data/red/linked.png")).unwrap();
    symlink(images.path("data"), images.path("data/red/circle")).unwrap();
    symlink("nowhere.png", images.path("data/red/dangling.png")).unwrap();
    std::fs::copy(images.path("data/red/0.png"), images.path("data/red/n0001")).unwrap();
    images.write("data/red/notes.txt", "hello");
    images.write("data/red/photo.heic", "");
    let named = contains("circle").and(contains("dangling.png")).and(contains("1 HEIC"));
    vitrine(&images)
        .args(["inspect", "data"])
        .assert()
        .code(1)
        .stdout(named.and(contains("not images: 1 (data/red/notes.txt)")));
    vitrine(&images)
        .args(["classify", "run", "data/red", "--top", "1"])
        .assert()
        .code(1)
        .stdout(contains("data/red/linked.png: ").and(contains("data/red/n0001: ")))
        .stderr(
            contains("photo.heic: HEIC images are not supported")
                .and(contains("circle"))
                .and(contains("dangling.png"))
                .and(contains("not images: 1 (data/red/notes.txt)")),
        );
    vitrine(&images)
        .args(["evaluate", "run", "data", "--split", "all"])
        .assert()
        .code(1)
        .stdout(contains("top-1"))
        .stderr(contains("1 HEIC"));
    vitrine(&images)
        .args(["train", "data", "--model", "tiny.toml", "--epochs", "1", "--output", "again"])
        .args(["--bad-file-limit", "0.5"])
        .assert()
        .success()
        .stderr(contains("1 HEIC").and(contains("circle")).and(contains("cannot be read")));
}

#[test]
fn files_that_are_left_out_count_for_the_split_that_is_measured() {
    let images = Images::new();
    images.write("tiny.toml", TINY);
    for (split, shade) in [("train", 200), ("val", 150), ("test", 100)] {
        images.fill(&format!("data/{split}/red"), [shade, 30, 30], 4);
        images.fill(&format!("data/{split}/blue"), [30, 30, shade], 4);
    }
    images.write("data/train/red/photo.heic", "");
    vitrine(&images)
        .args(["train", "data", "--model", "tiny.toml", "--epochs", "1", "--output", "run"])
        .assert()
        .success();
    let evaluate = |split: &[&str]| {
        vitrine(&images).args(["evaluate", "run", "data"]).args(split).assert().stderr(contains("HEIC"))
    };
    evaluate(&[]).success();
    evaluate(&["--split", "val"]).success();
    evaluate(&["--split", "train"]).code(1);
    evaluate(&["--split", "all"]).code(1);
    images.write("data/test/red/photo.heic", "");
    evaluate(&[]).code(1);
    evaluate(&["--split", "val"]).success();
}

#[cfg(unix)]
#[test]
fn devices_and_large_files_are_refused_by_name() {
    let images = Images::trained();
    vitrine(&images)
        .args(["classify", "run", "/dev/zero", "data/red/0.png", "--format", "jsonl"])
        .assert()
        .code(1)
        .stdout(contains("data/red/0.png").and(contains("\"error\"")))
        .stderr(contains("/dev/zero").and(contains("a device")));
    for (size, status) in [("1K", 0), ("10", 1)] {
        vitrine(&images)
            .args(["classify", "run", "data/red/0.png", "--max-file-size", size])
            .assert()
            .code(status);
    }
    vitrine(&images)
        .args(["train", "data", "--max-file-size", "10"])
        .assert()
        .code(1)
        .stderr(contains("more than the limit of 10"));
    vitrine(&images).args(["classify", "run", "x.png", "--max-file-size", "huge"]).assert().code(2);
}

#[test]
fn a_folder_takes_precedence_over_a_data_set_of_its_name_and_splits_have_other_spellings() {
    let images = Images::new();
    for folder in ["Training", "Testing"] {
        images.fill(&format!("cifar10/{folder}/red"), [200, 30, 30], 6);
        images.fill(&format!("cifar10/{folder}/blue"), [30, 30, 200], 6);
    }
    let output = vitrine(&images)
        .args(["inspect", "cifar10", "--json"])
        .assert()
        .stderr(contains("cifar10 means the folder ./cifar10"));
    let data: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(data["info"]["classes"], serde_json::json!(["blue", "red"]));
    assert_eq!(data["splits"][2]["samples"], 12);
}
