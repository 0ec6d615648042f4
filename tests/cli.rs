//! What a user sees: train, evaluate, classify in a temporary folder, and every wrong input.

#![allow(clippy::unwrap_used)]

mod support;

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use support::{Images, TINY, vitrine};

/// A folder with two classes, and a run trained on it.
fn trained() -> Images {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 12);
    images.fill("data/blue", [30, 30, 200], 12);
    images.write("tiny.toml", TINY);
    vitrine(&images)
        .args([
            "train",
            "data",
            "--model",
            "tiny.toml",
            "--epochs",
            "12",
            "--batch-size",
            "8",
            "--output",
            "run",
        ])
        .args(["--learning-rate", "0.01", "--threads", "1"])
        .assert()
        .success()
        .stderr(contains("epoch 12/12"))
        .stdout(contains("report.html"));
    images
}

#[test]
fn train_then_evaluate_classify_inspect_and_resume() {
    let images = trained();
    for file in ["config.toml", "metrics.csv", "model.safetensors", "report.html", "last/current"] {
        assert!(images.path(&format!("run/{file}")).is_file(), "{file}");
    }
    let metrics = std::fs::read_to_string(images.path("run/metrics.csv")).unwrap();
    assert!(metrics.starts_with(
        "epoch,step,seconds,learning_rate,train_loss,train_top1,val_loss,val_top1,images_per_second,val_macro_f1,val_balanced_accuracy,kept\n"
    ));
    assert_eq!(metrics.lines().count(), 13);
    let results = std::fs::read(images.path("run/metrics.json")).unwrap();
    let results: Value = serde_json::from_slice(&results).unwrap();
    let evaluated = evaluated(&images);
    for (key, value) in results["val"].as_object().unwrap() {
        assert_eq!(value, &evaluated[key], "the form and the figures of `evaluate --json`: {key}");
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

/// What `evaluate --json` says of the run.
fn evaluated(images: &Images) -> Value {
    let output = vitrine(images).args(["evaluate", "run", "data", "--json"]).assert().success();
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
        .code(1)
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
    // Folders, globs and a list on standard input give the same lines, whatever the batch.
    let folder = run(&["data/red", "--format", "jsonl", "--logits", "--batch-size", "5"]);
    assert_eq!(folder, run(&["data/red/*.png", "--format", "jsonl", "--logits", "--batch-size", "5"]));
    assert_eq!(folder.lines().count(), 12);
    let first: Value = serde_json::from_str(folder.lines().next().unwrap()).unwrap();
    assert_eq!(first["path"], "data/red/0.png");
    assert_eq!(first["predictions"][0]["label"], "red");
    assert_eq!(first["predictions"][0]["index"], 1);
    assert_eq!(first["logits"].as_array().unwrap().len(), 2);
    // A list may be separated by zeros, and one path alone is answered while the list is still open.
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

/// Writes one path, reads its result, and only then writes the next one: less than a batch is not waited for.
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

/// The trained model with one tensor's values replaced and a class renamed.
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
fn logits_that_are_not_finite_are_errors_and_class_names_do_not_reach_the_terminal() {
    let images = trained();
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
        &["classify", "escapes.safetensors", red, "--format", "csv"],
        &["inspect", "escapes.safetensors"],
        &["evaluate", "escapes.safetensors", "data"],
    ] {
        let text = output(arguments);
        assert!(!text.contains(['\u{1b}', '\u{9b}']), "{arguments:?}: {text:?}");
        assert!(text.to_lowercase().contains("\\u001b[31mred"), "{arguments:?}: {text:?}");
    }
    let json: Value =
        serde_json::from_str(&output(&["classify", "escapes.safetensors", red, "--format", "jsonl"]))
            .unwrap();
    assert_eq!(json["predictions"].as_array().unwrap().iter().filter(|p| p["label"] == escape).count(), 1);
}

#[test]
fn inspect_checks_tensors_against_the_description_and_reads_architecture_files() {
    let images = trained();
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

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_is_no_fault() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("vitrine"))
        .arg("presets")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!message.contains("panicked"), "{message}");
}

/// One wrong input: the arguments, the exit status, and words the message must have.
#[test]
fn wrong_inputs_name_their_cause() {
    let images = Images::new();
    images.fill("good/red", [200, 30, 30], 6);
    images.fill("good/blue", [30, 30, 200], 6);
    images.fill("single/red", [200, 30, 30], 6);
    images.fill("lopsided/train/red", [200, 30, 30], 6);
    images.fill("lopsided/train/blue", [30, 30, 200], 6);
    images.fill("lopsided/val/red", [200, 30, 30], 6);
    images.folder("empty");
    images.write("tiny.toml", TINY);
    images.write("unknown_key.toml", &format!("{TINY}\nheads = 3"));
    images.write("recipe.toml", "learning_rat = 0.1");
    images.write("bad_recipe.toml", "warmup = 2.0");
    images.write("mix.toml", "[augmentation]\nmix_probability = 0.5");
    images.write("both.toml", "[augmentation]\ntrivial_augment = true\nauto_augment = \"cifar10\"");
    images.write("full/file", "in the way");
    images.write("text.safetensors", "this is no model");
    let train = ["train", "good", "--model", "tiny.toml"];
    let with = |more: &[&'static str]| [&train[..], more].concat();
    let cases: Vec<(Vec<&str>, i32, &[&str])> = vec![
        (vec!["train", "nowhere"], 1, &["nowhere", "shapes"]),
        (vec!["train", "empty"], 1, &["empty"]),
        (vec!["inspect", "good", "--image-size", "32"], 2, &["--image-size", "good"]),
        (vec!["inspect", "vit_tiny_patch16_224", "--image-size", "33"], 2, &["--image-size", "patch_size"]),
        (vec!["train", "single"], 1, &["single", "red"]),
        (vec!["train", "lopsided"], 1, &["blue"]),
        (vec!["train", "good", "--model", "vit_huge"], 2, &["vit_huge", "vitrine presets"]),
        (vec!["train", "good", "--model", "nowhere.toml"], 1, &["nowhere.toml"]),
        (vec!["train", "good", "--model", "unknown_key.toml"], 1, &["unknown_key.toml", "heads"]),
        (with(&["--recipe", "recipe.toml"]), 1, &["recipe.toml", "learning_rat"]),
        (with(&["--recipe", "bad_recipe.toml"]), 1, &["warmup", "at least 0 and below 1"]),
        (with(&["--recipe", "both.toml"]), 1, &["both.toml", "auto_augment", "only one of"]),
        (with(&["--recipe", "secret"]), 2, &["secret", "short"]),
        (with(&["--image-size", "15"]), 2, &["image_size", "patch_size"]),
        (with(&["--output", "full"]), 1, &["full", "not empty"]),
        (with(&["--device", "abacus"]), 2, &["abacus", "flex"]),
        (with(&["--learning-rate", "-1"]), 2, &["--learning-rate", "-1", "above 0 and at most 1"]),
        (with(&["--learning-rate", "7"]), 2, &["--learning-rate", "7"]),
        (with(&["--lr", "nan"]), 2, &["--learning-rate", "nan"]),
        (with(&["--weight-decay", "-0.1"]), 2, &["--weight-decay", "at least 0"]),
        (with(&["--layer-decay", "0"]), 2, &["--layer-decay", "above 0"]),
        (with(&["--optimizer", "sgd"]), 2, &["--optimizer", "adamw", "muon"]),
        (with(&["--bad-file-limit", "1.1"]), 2, &["--bad-file-limit", "at most 1"]),
        (with(&["--patience", "0"]), 2, &["--patience", "at least 1"]),
        (with(&["--image-size", "1000000000"]), 2, &["--image-size", "at most"]),
        (with(&["--recipe", "shrot"]), 2, &["did you mean short?"]),
        (with(&["--device", "wgup:0"]), 2, &["--device", "did you mean wgpu?"]),
        (with(&["--device", "flex:one"]), 2, &["--device", "not a device number"]),
        (with(&["--time", "0s"]), 2, &["--time", "above 0"]),
        (vec!["train", "good", "--model", "vit_tiny_patch16"], 2, &["did you mean vit_tiny_patch16_224?"]),
        (vec!["bench", "--steps", "0"], 2, &["--steps"]),
        (vec!["classify", "good", "good", "--top", "0"], 2, &["--top", "at least 1"]),
        (vec!["classify", "good", "good", "--threshold", "2"], 2, &["--threshold", "at most 1"]),
        (vec!["classify", "good", "good", "--batch-size", "-3"], 2, &["--batch-size", "at least 1"]),
        (vec!["classify", "good", "good", "--logits"], 2, &["--logits", "jsonl"]),
        (vec!["evaluate", "good", "good", "--batch-size", "99999999"], 2, &["--batch-size", "at most"]),
        (vec!["evaluate", "good", "good", "--split", "most"], 2, &["--split", "train, val, test or all"]),
        (with(&["--epochs", "0"]), 2, &["--epochs", "at least 1"]),
        (with(&["--epochs", "-1"]), 2, &["--epochs", "-1", "at least 1"]),
        (with(&["--batch-size", "0"]), 2, &["--batch-size", "at least 1"]),
        (with(&["--time", "soon"]), 2, &["--time", "30m"]),
        (with(&["--val-fraction", "1.5"]), 2, &["1.5"]),
        (with(&["--flag"]), 2, &["--flag"]),
        (vec!["train", "--resume", "good"], 1, &["good", "not a run folder"]),
        (vec!["train", "--resume", "nowhere"], 1, &["nowhere"]),
        (vec!["train", "--resume", "good", "--seed", "1"], 2, &["--seed"]),
        (vec!["evaluate", "nowhere", "good"], 1, &["nowhere"]),
        (vec!["evaluate", "text.safetensors", "good"], 1, &["text.safetensors"]),
        (vec!["classify", "text.safetensors", "good"], 1, &["text.safetensors"]),
        (vec!["classify", "empty", "good"], 1, &["empty", "model.safetensors"]),
        (vec!["classify", "text.safetensors"], 2, &["PATH"]),
        (vec!["inspect", "nowhere"], 1, &["nowhere"]),
        (vec!["bench", "--model", "vit_huge"], 2, &["vit_huge"]),
        (vec!["paint"], 2, &["paint"]),
        // Options without effect.
        (with(&["--mirror", "https://example.org"]), 2, &["--mirror has no effect for good"]),
        (with(&["--mirror", "example.org"]), 2, &["--mirror", "https://"]),
        (with(&["--data-dir", "somewhere"]), 2, &["--data-dir has no effect for good"]),
        (vec!["train", "--data-dir", "somewhere"], 2, &["--data-dir has no effect for shapes"]),
        (
            vec!["train", "shapes", "--val-fraction", "0.1"],
            2,
            &["--val-fraction 0.1 has no effect", "shapes"],
        ),
        (with(&["--offline"]), 2, &["--offline has no effect"]),
        (with(&["--patience", "5", "--epochs", "5"]), 2, &["--patience 5 has no effect"]),
        (with(&["--recipe", "mix.toml"]), 1, &["mix_probability", "no effect"]),
        (vec!["train", "good", "--freeze", "backbone"], 2, &["--pretrained"]),
        (vec!["inspect", "tiny.toml", "--val-fraction", "0.1"], 2, &["--val-fraction has no effect"]),
        (vec!["inspect", "tiny.toml", "--data-dir", "x"], 2, &["--data-dir has no effect"]),
        (
            vec!["import", "text.safetensors", "--output", "m.safetensors", "--offline"],
            2,
            &["--offline has no effect"],
        ),
        (vec!["classify", "good", "good", "-0"], 2, &["-0", "only works with the path -"]),
        (vec!["classify", "good", "-", "-"], 2, &["give it only once"]),
    ];
    for (arguments, status, words) in cases {
        let assert = vitrine(&images).args(&arguments).assert();
        let output = assert.get_output();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {message}");
        assert!(!message.contains("panicked"), "{arguments:?}: {message}");
        for word in words {
            assert!(message.contains(word), "{arguments:?} should mention `{word}`: {message}");
        }
    }
    assert!(!images.path("runs").exists(), "a refused run leaves no folder behind");
}

#[test]
fn usual_spellings_of_options_are_taken() {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 4);
    images.fill("data/blue", [30, 30, 200], 4);
    images.write("tiny.toml", TINY);
    vitrine(&images)
        .args([
            "train",
            "data",
            "--arch",
            "tiny.toml",
            "--epochs",
            "1",
            "--bs",
            "4",
            "--lr",
            "0.01",
            "--wd",
            "0.1",
        ])
        .args(["--imgsz", "24", "--val-split", "0.5", "--out", "run", "--jobs", "1"])
        // The environment is there for every command and no option.
        .env("VITRINE_DATA", "elsewhere")
        .env("VITRINE_MIRROR", "https://example.org")
        .assert()
        .success();
    let config = std::fs::read_to_string(images.path("run/config.toml")).unwrap();
    let lines = [
        "batch_size = 4",
        "learning_rate = 0.01",
        "weight_decay = 0.1",
        "image_size = 24",
        "val_fraction = 0.5",
    ];
    for line in lines.iter().chain(&["/elsewhere\""]) {
        assert!(config.contains(line), "{line}: {config}");
    }
    vitrine(&images)
        .args(["train", "data", "--learningrate", "0.1"])
        .assert()
        .code(2)
        .stderr(contains("--learning-rate"));
    let shown = vitrine(&images).args(["train", "--help"]).assert().success();
    let help = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
    assert!(!help.contains("--imgsz"), "one name is shown: {help}");
}

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
        assert!(!images.path("strict").exists(), "judged before there is a run folder");
    }
    vitrine(&images)
        .args(train)
        .args(["lenient", "--bad-file-limit", "0.9"])
        .assert()
        .success()
        .stderr(contains("text.png"));
    vitrine(&images).args(["inspect", "data"]).assert().code(1).stdout(contains("text.png"));
}

#[test]
fn unreadable_validation_images_are_counted_and_limited() {
    let images = Images::new();
    // No image is in two splits.
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

/// What lies in the folders of people: links, formats that are not read, files that are no images.
#[cfg(unix)]
#[test]
fn nothing_in_a_folder_is_left_out_in_silence() {
    use std::os::unix::fs::symlink;
    let images = trained();
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
        .args(["train", "data", "--model", "tiny.toml", "--epochs", "1", "--output", "again"])
        .args(["--bad-file-limit", "0.5"])
        .assert()
        .success()
        .stderr(contains("1 HEIC").and(contains("circle")).and(contains("cannot be read")));
}

#[cfg(unix)]
#[test]
fn devices_and_large_files_are_refused_by_name() {
    let images = trained();
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
            .code(status)
            .stderr(contains("(--max-file-size)").count(status as usize));
    }
    vitrine(&images)
        .args(["train", "data", "--max-file-size", "10"])
        .assert()
        .code(1)
        .stderr(contains("more than the limit of 10 bytes (--max-file-size)"));
    vitrine(&images)
        .args(["inspect", "data", "--max-file-size", "10"])
        .assert()
        .code(1)
        .stdout(contains("more than the limit of 10 bytes"))
        .stderr(contains("--max-file-size sets"));
    vitrine(&images).args(["classify", "run", "x.png", "--max-file-size", "huge"]).assert().code(2);
}

#[test]
fn a_folder_named_like_a_data_set_is_taken_and_splits_may_be_spelled_otherwise() {
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

#[test]
fn two_classes_of_one_name_are_refused() {
    let images = trained();
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
    let images = trained();
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
fn every_command_shows_an_example() {
    let images = Images::new();
    for command in
        ["train", "evaluate", "classify", "inspect", "import", "export", "presets", "devices", "bench"]
    {
        vitrine(&images)
            .args([command, "--help"])
            .assert()
            .success()
            .stdout(contains("Example").and(contains(format!("vitrine {command}"))));
    }
    vitrine(&images)
        .arg("presets")
        .assert()
        .success()
        .stdout(contains("vit_tiny_patch16_224").and(contains("5717416")))
        .stdout(contains("swin-small-data").and(contains("source: Lee")).and(contains("expected: 94.53%")));
    vitrine(&images).arg("devices").assert().success().stdout(contains("flex").and(contains("(default)")));
}

#[test]
fn what_presets_shows_is_a_file_to_train_with() {
    let images = Images::prepared();
    let show = |name: &str, file: &str| {
        let shown = vitrine(&images).args(["presets", "--show", name]).assert().success();
        let text = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
        assert!(
            text.starts_with("# The ") && text.contains(&format!("vitrine presets --show {name}")),
            "{text}"
        );
        images.write(file, &text);
    };
    show("cct", "recipe.toml");
    show("vit_pico_patch4_28", "model.toml");
    let recipe = std::fs::read_to_string(images.path("recipe.toml")).unwrap();
    images.write("recipe.toml", &recipe.replace("epochs = 310", "epochs = 1"));
    vitrine(&images)
        .args(["train", "data", "--recipe", "recipe.toml", "--model", "model.toml", "--output", "run"])
        .assert()
        .success()
        .stderr(contains("epoch 1/1"));
    let config = std::fs::read_to_string(images.path("run/config.toml")).unwrap();
    assert!(config.contains("learning_rate = 0.00055") && config.contains("num_classes = 2"), "{config}");
    assert!(!config.contains("purpose"), "{config}");
    vitrine(&images)
        .args(["presets", "--show", "swin-small"])
        .assert()
        .code(2)
        .stderr(contains("--show swin-small").and(contains("vitrine presets")));
}

#[test]
fn the_variable_of_amx_is_checked() {
    let images = Images::new();
    let bench = || {
        let mut command = vitrine(&images);
        command.args(["bench", "--model", "vit_pico_patch4_32", "--batch-size", "1", "--steps", "1"]);
        command
    };
    bench().env("VITRINE_AMX", "off").assert().success();
    bench()
        .env("VITRINE_AMX", "0")
        .assert()
        .code(2)
        .stderr(contains("VITRINE_AMX is \"0\"").and(contains("off")));
}

#[test]
fn bench_reports_every_figure() {
    let images = Images::new();
    let output = vitrine(&images)
        .args(["bench", "--model", "vit_pico_patch4_32", "--batch-size", "2", "--steps", "1", "--json"])
        .assert()
        .success();
    let figures: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    for phase in ["train", "infer", "infer_batch1"] {
        assert_eq!(figures["step_ms"][phase].as_array().map(Vec::len), Some(1), "{phase}: {figures}");
    }
    for key in ["batch_size", "train_images_per_second", "infer_images_per_second", "latency_ms_batch1"] {
        assert!(figures[key].as_f64().unwrap() > 0.0, "{key}: {figures}");
    }
    for key in ["model", "device"] {
        assert!(figures[key].is_string(), "{key}");
    }
}
