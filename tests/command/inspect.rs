//! `inspect` of a data set: it names what `train` refuses and what it warns about, in the same words.

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::{Value, json};

use crate::support::{Images, TINY, vitrine};

/// What `inspect data --json` prints, whatever its exit status is.
fn inspected(images: &Images) -> Value {
    let output = vitrine(images).args(["inspect", "data", "--json"]).assert();
    serde_json::from_slice(&output.get_output().stdout).unwrap()
}

/// Asserts that `inspect` prints the table of classes and exactly these problems, with exit status 1, and that `train`
/// refuses the data set with the first of them as its error.
fn assert_refused(images: &Images, problems: &[&str]) {
    let output = vitrine(images).args(["inspect", "data"]).assert().code(1).stdout(contains("\nclass "));
    let message = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
    let printed: Vec<&str> = message.lines().filter_map(|line| line.strip_prefix("problem: ")).collect();
    assert_eq!(printed, problems, "{message}");
    assert_eq!(inspected(images)["problems"], json!(problems));
    images.write("tiny.toml", TINY);
    vitrine(images)
        .args(["train", "data", "--model", "tiny.toml", "--epochs", "1", "--output", "run"])
        .assert()
        .code(1)
        .stderr(contains(format!("error: {}\n", problems[0])));
}

#[test]
fn every_class_that_is_in_one_split_alone_is_a_problem() {
    let images = Images::new();
    for (split, shade) in [("train", 200), ("val", 150)] {
        images.fill(&format!("data/{split}/red"), [shade, 30, 30], 4);
        images.fill(&format!("data/{split}/blue"), [30, 30, shade], 4);
    }
    images.fill("data/train/dog", [90, 90, 90], 4);
    images.fill("data/val/fox", [120, 90, 90], 4);
    let way_out = "add images of it there, or remove the class, or correct its name";
    assert_refused(
        &images,
        &[
            &format!("data: the class 'dog' is in train but not in val: {way_out}"),
            &format!("data: the class 'fox' is in val but not in train: {way_out}"),
        ],
    );
}

#[test]
fn a_single_class_is_a_problem() {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 4);
    assert_refused(&images, &["data: has only one class, 'red': a classifier needs two or more"]);
}

#[test]
fn a_test_split_alone_is_a_problem() {
    let images = Images::new();
    images.fill("data/test/red", [200, 30, 30], 4);
    images.fill("data/test/blue", [30, 30, 200], 4);
    let problem = "data: has no training images: a data set needs a train split to train on (folders such as val, dev, and \
                   test-images count as other splits: rename one that is none)";
    assert_refused(&images, &[problem]);
}

#[test]
fn one_different_image_per_class_is_a_problem() {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 1);
    images.fill("data/blue", [30, 30, 200], 1);
    std::fs::copy(images.path("data/red/0.png"), images.path("data/red/copy.png")).unwrap();
    assert_refused(
        &images,
        &[
            "data: has one different image per class, so none can be kept for validation: add images or a val split",
        ],
    );
}

#[test]
fn a_validation_split_of_training_images_is_a_problem() {
    let images = Images::new();
    for split in ["train", "val"] {
        images.fill(&format!("data/{split}/red"), [200, 30, 30], 4);
        images.fill(&format!("data/{split}/blue"), [30, 30, 200], 4);
    }
    assert_refused(
        &images,
        &["data: every image of the validation split is also trained on: put other images there"],
    );
    vitrine(&images)
        .args(["inspect", "data"])
        .assert()
        .stderr(contains("warning: 8 validation and 0 test images are also trained on and do not count"));
}

#[test]
fn copies_are_warnings_and_named_within_a_split_too() {
    let images = Images::new();
    for (split, shade) in [("train", 200), ("val", 150)] {
        images.fill(&format!("data/{split}/red"), [shade, 30, 30], 8);
        images.fill(&format!("data/{split}/blue"), [30, 30, shade], 8);
    }
    let copy = |from: &str, to: &str| {
        std::fs::copy(images.path(&format!("data/{from}")), images.path(&format!("data/{to}"))).unwrap();
    };
    copy("train/red/0.png", "train/blue/copy.png");
    copy("train/red/1.png", "train/red/copy.png");
    let place = |path: &str| std::path::Path::new("data").join(path).display().to_string();
    let (blue, red) = (place("train/blue/copy.png"), place("train/red/0.png"));
    let warning = format!(
        "1 image is in two classes or more, so its labels contradict each other: {blue} (blue) = {red} (red)"
    );
    let within =
        format!("the same image (train, red): {}, {}", place("train/red/1.png"), place("train/red/copy.png"));
    vitrine(&images)
        .args(["inspect", "data"])
        .assert()
        .success()
        .stdout(
            contains(format!("the same image: {blue} (train, blue) = {red} (train, red)"))
                .and(contains(within)),
        )
        .stderr(contains(format!("warning: {warning}")).and(contains("problem").not()));
    let described = inspected(&images);
    assert_eq!(described["problems"], json!([]));
    let warnings = described["warnings"].as_array().unwrap();
    assert!(warnings.len() == 1 && warnings[0].as_str().unwrap().starts_with(&warning), "{warnings:?}");
    images.write("tiny.toml", TINY);
    vitrine(&images)
        .args(["train", "data", "--model", "tiny.toml", "--epochs", "1", "--output", "run"])
        .assert()
        .success()
        .stderr(contains(format!("warning: {}", warnings[0].as_str().unwrap())));
}

#[test]
fn a_folder_comes_before_the_preset_of_its_name() {
    let images = Images::new();
    let inspect = || vitrine(&images).args(["inspect", "vit_pico_patch4_32"]).assert().success();
    inspect().stdout(contains("embed_dim")).stderr(contains("means").not());
    images.fill("vit_pico_patch4_32/red", [200, 30, 30], 12);
    images.fill("vit_pico_patch4_32/blue", [30, 30, 200], 12);
    let told = "warning: vit_pico_patch4_32 means ./vit_pico_patch4_32 here";
    inspect().stdout(contains("\nclass ")).stderr(contains(told));
}

#[test]
fn groups_of_copies_that_do_harm_come_first_and_the_rest_is_counted() {
    let images = Images::new();
    images.fill("data/blue", [30, 30, 200], 25);
    images.fill("data/red", [200, 30, 30], 8);
    for number in 0..22 {
        let file = |name: String| images.path("data/blue").join(name);
        std::fs::copy(file(format!("{number}.png")), file(format!("copy-{number}.png"))).unwrap();
    }
    std::fs::copy(images.path("data/red/0.png"), images.path("data/blue/red.png")).unwrap();
    let output = vitrine(&images).args(["inspect", "data"]).assert().success();
    let text = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
    let groups: Vec<&str> = text.lines().filter(|line| line.starts_with("the same image")).collect();
    assert_eq!(groups.len(), 20, "{text}");
    assert!(groups[0].contains("red.png") && !groups[1].contains("red.png"), "{text}");
    assert!(text.contains("\nand 3 more, which --json lists\n"), "{text}");
}

#[test]
fn warnings_about_how_a_data_set_was_read_are_in_the_json_too() {
    let images = Images::prepared();
    std::fs::rename(images.path("data/red"), images.path("data/train_old")).unwrap();
    let described = inspected(&images);
    assert!(described["warnings"][0].as_str().unwrap().contains("train_old"), "{described}");
    // The other fields are those of the data set itself.
    assert_eq!(described["info"]["classes"], json!(["blue", "train_old"]));
}

/// Two classes with 24 training images and 8 validation images.
fn two_splits() -> Images {
    let images = Images::new();
    for (split, shade, count) in [("train", 200, 12), ("val", 150, 4)] {
        images.fill(&format!("data/{split}/red"), [shade, 30, 30], count);
        images.fill(&format!("data/{split}/blue"), [30, 30, shade], count);
    }
    images
}

/// Asserts what `inspect` and `train` say if one more image of each split of [`two_splits`] is unreadable.
fn assert_unreadable(images: &Images) {
    let described = inspected(images);
    let [problem, warning] = ["problems", "warnings"].map(|list| {
        let said = described[list].as_array().unwrap();
        assert_eq!(said.len(), 1, "{described}");
        said[0].as_str().unwrap()
    });
    assert!(problem.starts_with("1 of 9 validation images cannot be read"), "{problem}");
    assert!(warning.starts_with("1 of 25 training images cannot be read"), "{warning}");
    let says =
        |word: &str| contains(format!("{word}: {problem}\n")).and(contains(format!("warning: {warning}\n")));
    vitrine(images).args(["inspect", "data"]).assert().code(1).stderr(says("problem"));
    images.write("tiny.toml", TINY);
    vitrine(images)
        .args(["train", "data", "--model", "tiny.toml", "--epochs", "1", "--output", "run"])
        .assert()
        .code(1)
        .stderr(says("error"));
}

#[test]
fn unreadable_images_are_a_problem_or_a_warning_as_for_train() {
    let images = two_splits();
    for split in ["train", "val"] {
        // Other contents, as copies of training images would not be measured.
        images.write(&format!("data/{split}/red/broken.png"), &format!("no image for {split}"));
    }
    assert_unreadable(&images);
}

#[test]
fn images_that_only_decoding_shows_to_be_unreadable_count_too() {
    let images = two_splits();
    for split in ["train", "val"] {
        let whole = std::fs::read(images.path(&format!("data/{split}/red/0.png"))).unwrap();
        // The header is complete, and half of the pixels are missing.
        let half = &whole[..whole.len() / 2];
        std::fs::write(images.path(&format!("data/{split}/red/broken.png")), half).unwrap();
    }
    assert_unreadable(&images);
}

#[test]
fn warnings_about_files_that_are_left_out_are_in_the_json_too() {
    let images = Images::prepared();
    images.write("data/red/drawing.svg", "<svg/>");
    let described = inspected(&images);
    let warning = described["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("not supported and left out: 1 SVG"), "{described}");
    let text = vitrine(&images).args(["inspect", "data"]).assert().code(1);
    text.stderr(contains(format!("warning: {warning}\n")));
}

#[test]
fn equal_pixels_in_other_files_are_warnings_in_the_words_of_train() {
    let images = Images::new();
    for (split, shade) in [("train", 200), ("val", 150), ("test", 100)] {
        images.fill(&format!("data/{split}/red"), [shade, 30, 30], 4);
        images.fill(&format!("data/{split}/blue"), [30, 30, shade], 4);
    }
    assert_eq!(inspected(&images)["warnings"], json!([]));
    // Other bytes after the end of a PNG leave its pixels as they are.
    let saved_again = |from: &str, to: &str| {
        let mut bytes = std::fs::read(images.path(from)).unwrap();
        bytes.extend(b"saved again");
        std::fs::write(images.path(to), bytes).unwrap();
    };
    saved_again("data/train/red/0.png", "data/val/red/again.png");
    saved_again("data/train/red/1.png", "data/test/red/again.png");
    saved_again("data/train/red/2.png", "data/train/blue/again.png");
    // A copy of the file itself is what a run leaves out.
    std::fs::copy(images.path("data/train/blue/0.png"), images.path("data/val/blue/copy.png")).unwrap();
    let described = inspected(&images);
    let warnings: Vec<&str> =
        described["warnings"].as_array().unwrap().iter().map(|warning| warning.as_str().unwrap()).collect();
    let place = |path: &str| std::path::Path::new("data").join(path).display().to_string();
    let pair = |split: &str, number: u32| {
        let again = place(&format!("{split}/red/again.png"));
        format!("{again} = {}", place(&format!("train/red/{number}.png")))
    };
    let [of_bytes, of_val, contradiction, of_test] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(of_bytes.starts_with("1 validation and 0 test images are also trained on"), "{of_bytes}");
    assert!(of_val.starts_with("1 validation images have the same pixels as training images"), "{of_val}");
    assert!(of_val.contains(&pair("val", 0)), "{of_val}");
    assert!(of_test.starts_with("1 test images have the same pixels as training images"), "{of_test}");
    assert!(of_test.contains(&pair("test", 1)), "{of_test}");
    let without_names = "1 training images have the same pixels as others of another class";
    assert!(contradiction.starts_with(without_names), "{contradiction}");
    images.write("tiny.toml", TINY);
    let train = ["train", "data", "--model", "tiny.toml", "--epochs", "1", "--output", "run"];
    let output = vitrine(&images).args(train).assert().success();
    let message = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
    // Which of two training images comes first in an epoch is left to chance.
    for warning in [*of_bytes, *of_val, *of_test, without_names] {
        assert!(message.contains(&format!("warning: {warning}")), "{warning}: {message}");
    }
}
