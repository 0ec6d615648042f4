//! Images of several labels each: a manifest with a separator, from training to use, and its wrong usage.

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use crate::support::{Images, TINY, vitrine};

/// 64 images of which the left half is red or blue, and the right half green or black: any of the colors, or none.
fn scenes() -> Images {
    let images = Images::new();
    let mut manifest = "path,label,split\n".to_owned();
    images.folder("scenes");
    images.write("tiny.toml", TINY);
    for number in 0..64u8 {
        let (has_red, has_green) = (number % 2 == 0, number / 2 % 2 == 0);
        let picture = image::RgbImage::from_fn(16, 16, |x, _| {
            image::Rgb(match (x < 8, has_red, has_green) {
                (true, true, _) => [220 - number, 10, 10],
                (false, _, true) => [10, 220 - number, 10],
                _ => [10, 10, 20 + number],
            })
        });
        picture.save(images.path(&format!("scenes/{number}.png"))).unwrap();
        let labels: Vec<&str> = [("red", has_red), ("green", has_green)]
            .iter()
            .filter(|(_, has)| *has)
            .map(|(name, _)| *name)
            .collect();
        let split = if number % 8 < 4 { "train" } else { "val" };
        manifest += &format!("scenes/{number}.png,{},{split}\n", labels.join("|"));
    }
    images.write("manifest.csv", &manifest);
    images
}

#[test]
fn several_labels_an_image_from_training_to_use() {
    let images = scenes();
    vitrine(&images)
        .args(["train", "manifest.csv", "--label-separator", "|", "--model", "tiny.toml", "--epochs", "12"])
        .args([
            "--batch-size",
            "8",
            "--learning-rate",
            "0.01",
            "--threads",
            "1",
            "--no-flips",
            "--output",
            "run",
        ])
        .assert()
        .success()
        .stderr(contains("several labels an image").and(contains("mean average precision")))
        .stdout(contains("mean average precision 1.000 (chance 0.500)"));
    let config = std::fs::read_to_string(images.path("run/config.toml")).unwrap();
    for line in ["label_separator = \"|\"", "multi_label = true", "metric = \"mean-average-precision\""] {
        assert!(config.contains(line), "{line}: {config}");
    }
    let report = std::fs::read_to_string(images.path("run/report.html")).unwrap();
    assert!(report.contains("Average precision") && !report.contains("Most confused pairs"));
    let evaluate = ["evaluate", "run", "manifest.csv", "--label-separator", "|", "--threads", "1", "--json"];
    let output = vitrine(&images).args(evaluate).assert().success();
    let result: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    let manifest = std::fs::read_to_string(images.path("manifest.csv")).unwrap();
    let labeled: Vec<&str> = manifest.lines().filter(|line| !line.contains(",,")).collect();
    images.write("labeled.csv", &labeled.join("\n"));
    vitrine(&images)
        .args(["evaluate", "run", "labeled.csv"])
        .assert()
        .code(1)
        .stderr(contains("is unknown to the model").and(contains("--label-separator '|'")));
    let results: Value =
        serde_json::from_slice(&std::fs::read(images.path("run/metrics.json")).unwrap()).unwrap();
    for key in ["mean_average_precision", "micro_f1", "exact_match", "top1", "loss", "per_class"] {
        assert_eq!(result[key], results["val"][key], "{key}");
    }
    assert_eq!((&result["exact_match"], result.get("confusion")), (&1.0.into(), None));
    let classify = |options: &[&str]| {
        let files = ["classify", "run", "scenes/0.png", "scenes/1.png", "scenes/3.png"];
        let output = vitrine(&images).args(files).args(options).assert().success();
        String::from_utf8(output.get_output().stdout.clone()).unwrap()
    };
    let lines = classify(&[]);
    let lines: Vec<&str> = lines.lines().collect();
    assert!(lines[0].contains("red") && lines[0].contains("green"), "{lines:?}");
    assert!(lines[1].contains("green") && !lines[1].contains("red"), "{lines:?}");
    assert_eq!(lines[2], "scenes/3.png: none");
    assert!(classify(&["--threshold", "0"]).lines().all(|line| line.contains("red")));
    vitrine(&images)
        .args(["train", "--resume", "run", "--epochs", "13"])
        .assert()
        .success()
        .stderr(contains("epoch 13/13"));
    vitrine(&images)
        .args(["explain", "run", "scenes/0.png", "--class", "red", "--output", "maps"])
        .assert()
        .success();
}

#[test]
fn options_that_do_not_suit_the_labels_are_refused() {
    let images = scenes();
    let refused = |arguments: &[&str], message: &str| {
        vitrine(&images).arg("train").args(arguments).assert().code(2).stderr(contains(message.to_owned()));
    };
    let separated = ["manifest.csv", "--label-separator", "|"];
    refused(&[&separated[..], &["--class-weights"]].concat(), "--class-weights needs one label");
    refused(&[&separated[..], &["--balanced-sampling"]].concat(), "--balanced-sampling needs one label");
    refused(&["shapes", "--label-separator", ","], "--label-separator");
    refused(&["shapes", "--metric", "mean-average-precision"], "needs images of several labels");
    refused(&["manifest.csv", "--label-separator", "||"], "--label-separator");
}

#[test]
fn a_model_of_one_label_an_image_does_not_measure_several() {
    let images = Images::trained();
    images.write("list.jsonl", r#"{"path": "data/red/0.png", "label": ["red", "blue"]}"#);
    vitrine(&images)
        .args(["evaluate", "run", "list.jsonl"])
        .assert()
        .code(1)
        .stderr(contains("several labels each"));
}
