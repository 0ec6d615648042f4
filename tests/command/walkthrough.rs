//! One model from training to use: `train`, `evaluate`, `classify`, and `inspect` on the same folder, and `train
//! --resume`.

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use crate::support::{Images, vitrine};

#[test]
fn train_then_evaluate_classify_inspect_and_resume() {
    let images = Images::trained();
    for file in ["config.toml", "metrics.csv", "model.safetensors", "report.html", "last/current"] {
        assert!(images.path(&format!("run/{file}")).is_file(), "{file}");
    }
    let metrics = std::fs::read_to_string(images.path("run/metrics.csv")).unwrap();
    assert!(metrics.starts_with(
        "epoch,step,seconds,learning_rate,train_loss,train_top1,val_loss,val_top1,images_per_second,val_macro_f1,val_balanced_accuracy,kept,val_mean_average_precision\n"
    ));
    assert_eq!(metrics.lines().count(), 13);
    let results = std::fs::read(images.path("run/metrics.json")).unwrap();
    let results: Value = serde_json::from_slice(&results).unwrap();
    let evaluated = evaluated(&images);
    for (key, value) in results["val"].as_object().unwrap() {
        assert_eq!(value, &evaluated[key], "metrics.json equals the output of `evaluate --json`: {key}");
    }
    assert!(results["val"]["macro_f1"].is_number(), "{results}");
    assert_eq!(results.as_object().unwrap().len(), 1, "there is no test split");
    evaluate(&images);
    classify(&images);
    vitrine(&images).args(["inspect", "run"]).assert().success().stdout(contains("embed_dim = 16"));
    let data = vitrine(&images).args(["inspect", "data", "--json"]).assert().success();
    let data: Value = serde_json::from_slice(&data.get_output().stdout).unwrap();
    assert_eq!(data["info"]["classes"], serde_json::json!(["blue", "red"]));
    vitrine(&images)
        .args(["train", "--resume", "run", "--epochs", "13"])
        .assert()
        .success()
        .stderr(contains("epoch 13/13").and(contains("epoch 12/12").not()));
}

#[test]
fn images_that_were_moved_are_found_at_the_place_that_is_given() {
    let images = Images::trained();
    let place = |name: &str| std::path::absolute(images.path(name)).unwrap();
    std::fs::rename(images.path("data"), images.path("moved")).unwrap();
    let train = |arguments: &[&str]| vitrine(&images).arg("train").args(arguments).assert();
    train(&["--resume", "run", "--epochs", "13"]).code(2).stderr(contains("give their new place as DATA"));
    images.write("other/red/0.png", "");
    train(&["--resume", "run", "--epochs", "13", "other"]).failure();
    let config = || std::fs::read_to_string(images.path("run/config.toml")).unwrap();
    assert!(config().contains("\ndata = \"data\"\n"), "a place without the images changes nothing");
    train(&["--resume", "run", "--epochs", "13", "moved"]).success().stderr(contains("epoch 13/13"));
    let path = format!("data_path = {:?}", place("moved"));
    assert!(config().contains("\ndata = \"moved\"\n") && config().contains(&path), "{}", config());
    train(&["--resume", "run", "--epochs", "14"]).success().stderr(contains("epoch 14/14"));
    std::fs::rename(images.path("moved"), images.path("again")).unwrap();
    let repeat = ["--config", "run", "again", "--output", "second"];
    train(&repeat).success().stdout(contains("model: second"));
}

#[test]
fn a_series_whose_images_were_moved_goes_on_at_the_place_that_is_given() {
    let images = Images::trained();
    let train = |arguments: &[&str]| vitrine(&images).arg("train").args(arguments).assert();
    let model = ["--model", "tiny.toml", "--epochs", "1", "--seeds", "2", "--output", "series"];
    train(&[&["data"][..], &model].concat()).success();
    // As after a crash before the second run: the first is done.
    std::fs::remove_dir_all(images.path("series/seed-1")).unwrap();
    std::fs::rename(images.path("data"), images.path("moved")).unwrap();
    train(&["--resume", "series"]).code(2).stderr(contains("give their new place as DATA"));
    train(&["--resume", "series", "moved"]).success().stdout(contains("seed-1"));
    let plan = std::fs::read_to_string(images.path("series/series.toml")).unwrap();
    assert!(plan.contains("data = \"moved\""), "{plan}");
}

/// The output of `evaluate --json` for the run.
fn evaluated(images: &Images) -> Value {
    // With as many threads as the training had: with others, the last bits may differ.
    let evaluate = ["evaluate", "run", "data", "--threads", "1", "--json"];
    let output = vitrine(images).args(evaluate).assert().success();
    serde_json::from_slice(&output.get_output().stdout).unwrap()
}

fn evaluate(images: &Images) {
    let result = evaluated(images);
    assert_eq!(result["top1"], 1.0, "{result}");
    assert_eq!(result["confusion"].as_array().unwrap().len(), 2);
    assert_eq!(result["per_class"][0]["label"], "blue");
    for key in ["samples", "loss", "top5", "macro_f1", "ece"] {
        assert!(result[key].is_number(), "{key}");
    }
    vitrine(images)
        .args(["evaluate", "run", "data", "--split", "test"])
        .assert()
        .code(2)
        .stderr(contains("--split test"));
}

fn classify(images: &Images) {
    let run = |arguments: &[&str]| {
        let output =
            vitrine(images).args(["classify", "run/model.safetensors"]).args(arguments).assert().success();
        String::from_utf8(output.get_output().stdout.clone()).unwrap()
    };
    let text = run(&["data/red/0.png", "data/blue/3.png", "--top", "2"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("data/red/0.png: red "), "{text}");
    assert!(lines[1].starts_with("data/blue/3.png: blue ") && lines[1].contains("%, red "), "{text}");
    // Folders and globs give the same lines, and the batch size changes nothing.
    let folder = run(&["data/red", "--format", "jsonl", "--logits", "--batch-size", "5"]);
    assert_eq!(folder, run(&["data/red/*.png", "--format", "jsonl", "--logits", "--batch-size", "5"]));
    assert_eq!(folder.lines().count(), 12);
    images.folder("data/rest");
    // A pattern may match folders (empty ones, too), whose images count once, also where it matches these as well.
    assert_eq!(folder, run(&["data/re*", "--format", "jsonl", "--logits", "--batch-size", "5"]));
    assert_eq!(folder, run(&["data/**/red/*", "--format", "jsonl", "--logits", "--batch-size", "5"]));
    std::fs::remove_dir(images.path("data/rest")).unwrap();
    let first: Value = serde_json::from_str(folder.lines().next().unwrap()).unwrap();
    assert_eq!(first["path"], "data/red/0.png");
    assert_eq!(first["predictions"][0]["label"], "red");
    assert_eq!(first["predictions"][0]["index"], 1);
    assert_eq!(first["logits"].as_array().unwrap().len(), 2);
    // Paths on standard input may be separated by zero bytes, and results are printed before the list ends.
    let zeros = vitrine(images)
        .args(["classify", "run", "-0", "-", "--format", "jsonl", "--logits"])
        .write_stdin("data/red/0.png\0data/red/1.png\0")
        .assert()
        .success();
    let zeros = String::from_utf8(zeros.get_output().stdout.clone()).unwrap();
    assert!(folder.starts_with(&zeros) && zeros.lines().count() == 2, "{zeros}");
    answered_while_the_list_is_open(images);
    vitrine(images)
        .args(["classify", "run", "-", "--format", "csv", "--top", "1", "--threshold", "1"])
        .write_stdin("data/red/0.png\ndata/red/1.png\n")
        .assert()
        .success()
        .stdout(contains("path,rank,label,index,probability\n").and(contains("data/red/1.png,1,unknown,1,")));
    images.write("broken.png", "this is text");
    vitrine(images)
        .args(["classify", "run", "data/red/0.png", "broken.png", "nowhere.png", "data/red/1.png"])
        .assert()
        .code(1)
        .stdout(contains("data/red/1.png: red"))
        .stderr(contains("broken.png").and(contains("nowhere.png")));
}

/// Writes one path, reads its result, and only then writes the next one: `classify` must not wait for a full batch.
fn answered_while_the_list_is_open(images: &Images) {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("vitrine"))
        .current_dir(images.path("."))
        .args(["classify", "run", "-", "--batch-size", "64"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut list = child.stdin.take().unwrap();
    let mut results = BufReader::new(child.stdout.take().unwrap());
    for path in ["data/red/0.png", "data/blue/0.png"] {
        writeln!(list, "{path}").unwrap();
        let mut line = String::new();
        results.read_line(&mut line).unwrap();
        assert!(line.starts_with(path), "{line}");
    }
    drop(list);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_model_of_stages_and_windows_is_trained_saved_and_used() {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 8);
    images.fill("data/blue", [30, 30, 200], 8);
    images.write(
        "swin.toml",
        "image_size = 16\npatch_size = 2\nembed_dim = 16\ndepth = [2, 2]\nnum_heads = [2, 4]\nclass_token = false\n\
         pool = \"mean\"\nposition = \"none\"\nmixers = [{ window = 3 }, { shifted_window = 3 }]\n\
         [attention]\nscore = \"cosine\"\nrelative_position = \"continuous\"\n\
         [channel_attention]\nkind = \"squeeze_excitation\"\nreduction = 4\n",
    );
    vitrine(&images)
        .args(["train", "data", "--model", "swin.toml", "--epochs", "3", "--output", "run"])
        .assert()
        .success();
    vitrine(&images).args(["evaluate", "run", "data", "--json"]).assert().success();
    vitrine(&images)
        .args(["classify", "run", "data/red/0.png"])
        .assert()
        .success()
        .stdout(contains("data/red/0.png: "));
    vitrine(&images)
        .args(["inspect", "run"])
        .assert()
        .success()
        .stdout(contains("multiply-adds per image").and(contains("depth = [2, 2]")));
    vitrine(&images)
        .args(["inspect", "swin_tiny_patch4_window7_224", "--image-size", "448", "--json"])
        .assert()
        .success()
        .stdout(contains("\"multiply_adds\"").and(contains("\"image_size\":448")));
}
