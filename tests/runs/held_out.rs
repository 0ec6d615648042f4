//! `evaluate` never measures on images that the model was trained on, even if files were added, moved, or renamed; and a resumed
//! run needs the images that it began with.

use std::collections::BTreeMap;
use std::fs;

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use crate::support::{Images, TINY, vitrine};

/// Trains for one epoch on `data` into the run folder `run`, and returns standard error and standard output.
fn train(images: &Images, data: &str, run: &str, more: &[&str]) -> (String, String) {
    images.write("tiny.toml", TINY);
    let assert = vitrine(images)
        .args(["train", data, "--epochs", "1", "--batch-size", "8", "--threads", "1", "--output", run])
        .args(if more.contains(&"--pretrained") { &[][..] } else { &["--model", "tiny.toml"] })
        .args(more)
        .assert()
        .success();
    let output = assert.get_output();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stderr), text(&output.stdout))
}

/// Standard output of `evaluate --json`, parsed, and its standard error.
fn evaluate(images: &Images, arguments: &[&str]) -> (Value, String) {
    let assert = vitrine(images).args(["evaluate", "run"]).args(arguments).arg("--json").assert().success();
    let output = assert.get_output();
    (serde_json::from_slice(&output.stdout).unwrap(), String::from_utf8(output.stderr.clone()).unwrap())
}

/// The first line that `evaluate` prints.
fn title(images: &Images, arguments: &[&str]) -> String {
    let assert = vitrine(images).args(["evaluate", "run"]).args(arguments).assert().success();
    String::from_utf8(assert.get_output().stdout.clone())
        .unwrap()
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// The paths in the image list of a run, by split.
fn listed(images: &Images, run: &str) -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(images.path(run).join("images.csv")).unwrap();
    assert!(text.starts_with("path,label,split,key,unreadable\n"), "{text}");
    let mut listed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        listed.entry(cells[2].to_owned()).or_default().push(cells[0].to_owned());
    }
    listed
}

/// A folder of two classes of 35 images each.
fn folder(images: &Images, name: &str) {
    images.fill(&format!("{name}/red"), [200, 30, 30], 35);
    images.fill(&format!("{name}/blue"), [30, 30, 200], 35);
}

#[test]
fn a_new_file_moves_no_training_image_into_validation() {
    let images = Images::new();
    folder(&images, "data");
    train(&images, "data", "run", &[]);
    let before = listed(&images, "run");
    let (result, _) = evaluate(&images, &["data"]);
    assert_eq!(result["samples"], before["val"].len());
    assert_eq!((&result["split"], &result["trained_on"]), (&"val".into(), &0.into()));
    assert_eq!(result["left_out"], before["train"].len());
    // Of the training images, none is left out, though the other part is not among them.
    let (trained, _) = evaluate(&images, &["data", "--split", "train"]);
    assert_eq!((&trained["samples"], &trained["left_out"]), (&before["train"].len().into(), &0.into()));
    let (_, last_line) = train(&images, "data", "again", &[]);
    assert!(last_line.contains(&format!("{} images", before["val"].len())), "{last_line}");
    images.fill("new", [90, 90, 90], 1);
    fs::rename(images.path("new/0.png"), images.path("data/blue/00.png")).unwrap();
    train(&images, "data", "more", &[]);
    let after = listed(&images, "more");
    for split in ["train", "val"] {
        assert!(before[split].iter().all(|path| after[split].contains(path)), "{split}: {after:?}");
    }
    // The model was not trained on the new image, so `evaluate` measures it, too, and says so.
    let (more, message) = evaluate(&images, &["data"]);
    assert_eq!(more["samples"].as_u64().unwrap(), result["samples"].as_u64().unwrap() + 1);
    assert!(message.contains("70 images then, 71 now"), "{message}");
}

#[test]
fn a_folder_that_was_moved_and_renamed_is_measured_as_before() {
    let images = Images::new();
    folder(&images, "data");
    train(&images, "data", "run", &[]);
    let (before, message) = evaluate(&images, &["data"]);
    assert_eq!(message, "");
    fs::rename(images.path("data"), images.path("elsewhere")).unwrap();
    for index in 0..35 {
        let file = |name: String| images.path("elsewhere/red").join(name);
        fs::rename(file(format!("{index}.png")), file(format!("photo {index:03}.png"))).unwrap();
    }
    let (after, message) = evaluate(&images, &["elsewhere"]);
    assert_eq!(message, "");
    for key in ["samples", "split", "left_out", "top1", "confusion"] {
        assert_eq!(before[key], after[key], "{key}");
    }
}

#[test]
fn an_image_with_another_label_is_not_called_another_image() {
    let images = Images::new();
    folder(&images, "data");
    train(&images, "data", "run", &[]);
    fs::rename(images.path("data/red/0.png"), images.path("data/blue/red.png")).unwrap();
    let (_, message) = evaluate(&images, &["data"]);
    assert!(message.contains("as many images, 70, but other images or other labels"), "{message}");
}

#[test]
fn another_folder_is_measured_as_a_whole_and_split_all_measures_everything() {
    let images = Images::new();
    folder(&images, "data");
    train(&images, "data", "run", &[]);
    images.fill("other/red", [150, 60, 30], 20);
    let (result, message) = evaluate(&images, &["other"]);
    assert_eq!(
        (&result["samples"], &result["split"], &result["left_out"]),
        (&20.into(), &"all".into(), &0.into())
    );
    assert_eq!(message, "");
    assert_eq!(title(&images, &["other"]), "all 20 images of other; the model was trained on none of them");
    let trained = listed(&images, "run")["train"].len();
    let (all, message) = evaluate(&images, &["data", "--split", "all"]);
    assert_eq!((&all["samples"], &all["trained_on"]), (&70.into(), &trained.into()));
    assert!(message.contains(&format!("trained on {trained} of these 70 images")), "{message}");
    let (seen, _) = evaluate(&images, &["data", "--split", "train"]);
    assert_eq!((&seen["samples"], &seen["trained_on"]), (&trained.into(), &trained.into()));
    for (split, part) in [("val", "--split all"), ("train", "--split all"), ("test", "no such split")] {
        vitrine(&images)
            .args(["evaluate", "run", "other", "--split", split])
            .assert()
            .code(2)
            .stderr(contains("other").and(contains(part)));
    }
    vitrine(&images)
        .args(["evaluate", "run", "other", "--split", "holdout"])
        .assert()
        .code(2)
        .stderr(contains("train, val, test or all"));
}

#[test]
fn copies_of_training_images_are_left_out_of_other_splits() {
    let images = Images::new();
    for split in ["train", "val", "test"] {
        let shade = split.len() as u8;
        images.fill(&format!("data/{split}/red"), [200 + shade, 30, 30], 12);
        images.fill(&format!("data/{split}/blue"), [30, 30 + 7 * shade, 200], 12);
    }
    // Shades depend on the length of the split's name, so that no image is in two splits.
    let copy = |from: &str, to: &str| fs::copy(images.path(from), images.path(to)).map(|_| ()).unwrap();
    copy("data/train/red/1.png", "data/test/red/leak.png");
    copy("data/train/red/2.png", "data/test/red/other.png");
    copy("data/train/blue/1.png", "data/val/blue/leak.png");
    let (message, last_line) = train(&images, "data", "run", &[]);
    assert!(message.contains("1 validation and 2 test images are also trained on"), "{message}");
    assert!(
        message.contains("data/val/blue/leak.png") && message.contains("data/test/red/other.png"),
        "{message}"
    );
    assert!(message.contains("24 training and 24 validation images, 24 test images"), "{message}");
    assert!(last_line.contains("24 images"), "{last_line}");
    let (result, message) = evaluate(&images, &["data"]);
    assert_eq!(
        (&result["samples"], &result["split"], &result["left_out"]),
        (&24.into(), &"test".into(), &2.into())
    );
    assert!(message.contains("leak.png") && !message.contains("data set is not the one"), "{message}");
    let (result, _) = evaluate(&images, &["data", "--split", "val"]);
    assert_eq!((&result["samples"], &result["left_out"]), (&24.into(), &1.into()));
    vitrine(&images).args(["train", "--resume", "run", "--epochs", "2"]).assert().success();
}

#[test]
fn training_images_of_pretrained_weights_are_left_out_too() {
    let images = Images::new();
    folder(&images, "data");
    train(&images, "data", "first", &[]);
    let first = listed(&images, "first");
    // The same seed holds out the same images. With another seed, some of the held-out images were trained on before.
    let (message, _) = train(&images, "data", "same", &["--pretrained", "first"]);
    assert!(!message.contains("warning"), "{message}");
    let (message, _) = train(&images, "data", "run", &["--pretrained", "first", "--seed", "1"]);
    assert!(message.contains("also trained on"), "{message}");
    let run = listed(&images, "run");
    assert!(run["val"].iter().all(|path| first["val"].contains(path)), "{run:?}");
    let (result, _) = evaluate(&images, &["data"]);
    assert_eq!(result["samples"], run["val"].len());
}

#[test]
fn a_test_split_alone_is_measured_and_inspected_but_not_trained_on() {
    let images = Images::new();
    folder(&images, "data");
    train(&images, "data", "run", &[]);
    images.fill("published/test/red", [180, 40, 30], 5);
    images.fill("published/test/blue", [30, 40, 180], 6);
    images.write(
        "list.csv",
        "path,label,split\npublished/test/red/0.png,red,test\npublished/test/red/1.png,red,test\n",
    );
    for (data, count) in [("published", 11), ("list.csv", 2)] {
        let (result, _) = evaluate(&images, &[data]);
        assert_eq!((&result["samples"], &result["split"]), (&count.into(), &"test".into()), "{data}");
        let inspected = vitrine(&images).args(["inspect", data, "--json"]).assert().code(1);
        let inspected: Value = serde_json::from_slice(&inspected.get_output().stdout).unwrap();
        assert_eq!(inspected["splits"][2]["samples"], count, "{data}");
        assert_eq!(inspected["mean"].as_array().unwrap().len(), 3, "{data}");
        let problem = inspected["problems"][0].as_str().unwrap();
        assert!(problem.contains("no training images"), "{data}: {problem}");
        vitrine(&images)
            .args(["train", data, "--output", "none"])
            .assert()
            .code(1)
            .stderr(contains(data).and(contains("no training images")));
        assert!(!images.path("none").exists());
    }
}

#[test]
fn a_resumed_run_uses_its_first_images_or_names_the_missing_ones() {
    let images = Images::new();
    folder(&images, "data");
    for run in ["whole", "run"] {
        train(&images, "data", run, &[]);
    }
    let resume = |run: &str, epochs: &str| {
        let mut command = vitrine(&images);
        command.args(["train", "--resume", run, "--epochs", epochs, "--threads", "1"]);
        command
    };
    resume("whole", "2").assert().success().stderr(contains("warning").not());
    // New images do not change the resumed run, even if they are of a new class.
    images.fill("data/green", [30, 200, 30], 4);
    images.fill("new", [90, 90, 90], 1);
    fs::rename(images.path("new/0.png"), images.path("data/blue/00.png")).unwrap();
    resume("run", "2")
        .assert()
        .success()
        .stderr(contains("5 images of data are new").and(contains("blue/00.png")));
    let losses = |run: &str| {
        let text = fs::read_to_string(images.path(run).join("metrics.csv")).unwrap();
        let last = text.lines().last().unwrap().to_owned();
        last.split(',').skip(3).take(5).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(losses("run"), losses("whole"));
    // A renamed image is found by its content. A changed or removed image is an error.
    fs::rename(images.path("data/red/3.png"), images.path("data/red/three.png")).unwrap();
    resume("run", "3").assert().success();
    fs::remove_file(images.path("data/red/4.png")).unwrap();
    fs::copy(images.path("data/blue/00.png"), images.path("data/red/5.png")).unwrap();
    resume("run", "4")
        .assert()
        .code(1)
        .stderr(contains("1 have changed (data/red/5.png)").and(contains("1 are gone (data/red/4.png)")))
        .stderr(contains("--pretrained run"));
    fs::remove_file(images.path("run/images.csv")).unwrap();
    resume("run", "4").assert().code(1).stderr(contains("images.csv").and(contains("--pretrained run")));
}

#[test]
fn a_model_file_without_a_list_of_images_is_measured_with_a_warning() {
    let images = Images::new();
    folder(&images, "data");
    train(&images, "data", "run", &[]);
    vitrine(&images)
        .args(["inspect", "run"])
        .assert()
        .success()
        .stdout(contains("[trained_on]").and(contains("keys").not()));
    let file = images.path("run/model.safetensors");
    let bytes = fs::read(&file).unwrap();
    // Imitates a model file of an earlier version, which has no list, by giving the key of the list another name.
    let name = br#"\"trained_on\""#;
    let place = bytes.windows(name.len()).position(|window| window == name).unwrap();
    let renamed = [&bytes[..place], br#"\"held_earli\""#, &bytes[place + name.len()..]];
    fs::write(&file, renamed.concat()).unwrap();
    let (result, message) = evaluate(&images, &["data"]);
    assert_eq!(
        (&result["samples"], &result["split"], &result["trained_on"]),
        (&70.into(), &"all".into(), &Value::Null)
    );
    assert!(message.contains("an earlier version"), "{message}");
    assert!(title(&images, &["data"]).contains("does not say what it was trained on"));
}

/// Saves the pixels of an image in a file with other bytes.
fn save_again(images: &Images, from: &str, to: &str) {
    use image::codecs::png::{CompressionType, FilterType, PngEncoder};
    let pixels = image::open(images.path(from)).unwrap();
    let mut bytes = Vec::new();
    pixels
        .write_with_encoder(PngEncoder::new_with_quality(
            &mut bytes,
            CompressionType::Best,
            FilterType::NoFilter,
        ))
        .unwrap();
    assert_ne!(bytes, fs::read(images.path(from)).unwrap());
    fs::write(images.path(to), bytes).unwrap();
}

#[test]
fn equal_pixels_in_other_files_are_named_after_the_first_epoch() {
    let images = Images::new();
    for split in ["train", "val"] {
        images.fill(&format!("data/{split}/red"), [200, 30, 30], if split == "train" { 8 } else { 0 });
        images.fill(&format!("data/{split}/blue"), [30, 30, 200], if split == "train" { 8 } else { 0 });
    }
    images.fill("more", [120, 90, 30], 4);
    for (name, class) in [("0", "red"), ("1", "blue")] {
        fs::rename(
            images.path(&format!("more/{name}.png")),
            images.path(&format!("data/val/{class}/{name}.png")),
        )
        .unwrap();
    }
    let (stderr, _) = train(&images, "data", "run", &[]);
    assert!(!stderr.contains("same pixels"), "{stderr}");
    save_again(&images, "data/train/red/3.png", "data/val/red/again.png");
    save_again(&images, "data/train/red/5.png", "data/train/blue/again.png");
    let (stderr, _) = train(&images, "data", "other", &[]);
    let named = ["1 validation images have the same pixels", "data/val/red/again.png = data/train/red/3.png"];
    let contradicting = ["1 training images have the same pixels as others of another class", "5.png"];
    for part in named.into_iter().chain(contradicting) {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}

#[test]
fn test_images_with_the_pixels_of_training_images_are_named_when_they_are_measured() {
    let images = Images::new();
    for split in ["train", "val", "test"] {
        let shade = split.len() as u8;
        images.fill(&format!("data/{split}/red"), [200 + shade, 30, 30], 8);
        images.fill(&format!("data/{split}/blue"), [30, 30 + 7 * shade, 200], 8);
    }
    save_again(&images, "data/train/red/3.png", "data/test/red/again.png");
    let assert_named = |stderr: &str| {
        let named = ["1 test images have the same pixels", "data/test/red/again.png = data/train/red/3.png"];
        for part in named {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
        assert!(!stderr.contains("validation images have the same pixels"), "{stderr}");
    };
    assert_named(&train(&images, "data", "run", &[]).0);
    // As are those that equal images of a probe, or of a head that is fitted.
    assert_named(&train(&images, "data", "probed", &["--pretrained", "run"]).0);
    let fit = ["train", "data", "--pretrained", "run", "--freeze", "backbone", "--output", "fitted"];
    let fitted = vitrine(&images).args(fit).args(["--threads", "1"]).assert().success();
    assert_named(&String::from_utf8(fitted.get_output().stderr.clone()).unwrap());
}
