//! `train --log-format json`: standard error as one JSON object per line, with the numbers that the run's files hold.

use std::process::Output;

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use crate::support::{Images, vitrine};

const TRAIN: [&str; 9] =
    ["train", "data", "--model", "tiny.toml", "--batch-size", "8", "--threads", "1", "--output"];

/// Runs `vitrine` with JSON messages.
fn json(images: &Images, arguments: &[&str]) -> Output {
    vitrine(images).args(arguments).args(["--log-format", "json"]).output().unwrap()
}

/// Trains for three epochs into `run`, with JSON messages.
fn trained(images: &Images, run: &str) -> Output {
    json(images, &[&TRAIN[..], &[run, "--epochs", "3"]].concat())
}

/// The events on standard error. Every line must be an object that names its event.
fn events(output: &Output) -> Vec<Value> {
    let text = str::from_utf8(&output.stderr).unwrap();
    let parsed = text.lines().map(|line| {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(event.is_object() && event["event"].is_string(), "{line}");
        event
    });
    parsed.collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().unwrap()).collect()
}

/// The events of one kind.
fn of_kind<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["event"] == kind).collect()
}

/// The only event of a kind.
fn only<'a>(events: &'a [Value], kind: &str) -> &'a Value {
    let found = of_kind(events, kind);
    assert_eq!(found.len(), 1, "{kind}: {events:#?}");
    found[0]
}

/// Compares an `epoch_end` event with a row of `metrics.csv`: every column is a key, and every value the same.
fn assert_same(end: &Value, columns: &csv::StringRecord, row: &csv::StringRecord) {
    for (column, written) in columns.iter().zip(row) {
        match &end[column] {
            Value::Number(number) => {
                let (logged, written): (f64, f64) = (number.as_f64().unwrap(), written.parse().unwrap());
                // serde_json reads a number to within its last bit.
                assert!((logged - written).abs() <= 1e-14 * written.abs(), "{column}: {written} and {end}");
            }
            Value::Bool(flag) => assert_eq!(flag.to_string(), written, "{column}: {end}"),
            Value::Null => {
                assert!(end.get(column).is_some() && written.is_empty(), "{column} is {written}: {end}");
            }
            other => panic!("{column} is {other}"),
        }
    }
}

#[test]
fn a_run_is_a_sequence_of_objects_with_the_numbers_of_its_files() {
    let images = Images::prepared();
    let output = trained(&images, "run");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let events = events(&output);

    let data = only(&events, "data");
    let numbers = ["classes", "training", "validation", "test"].map(|key| data[key].as_u64().unwrap());
    assert_eq!((data["name"].as_str(), numbers[0], numbers[3]), (Some("data"), 2, 0), "{data}");
    let splits = std::fs::read_to_string(images.path("run/images.csv")).unwrap();
    let listed = |split: &str| splits.lines().filter(|line| line.contains(split)).count() as u64;
    assert_eq!([numbers[1], numbers[2]], [listed(",train,"), listed(",val,")], "{data}");

    let choices = of_kind(&events, "choice");
    assert!(!choices.is_empty(), "the recipe is left to the program");
    assert!(choices.iter().all(|choice| choice["message"].as_str().is_some_and(|text| !text.is_empty())));
    assert_eq!(only(&events, "run_folder")["path"], "run");
    let result = only(&events, "result");
    assert!(result["caveats"].is_array() && result["split"].is_string(), "{result}");
    assert!(result["top1"].as_f64().is_some_and(|top1| (0.0..=1.0).contains(&top1)), "{result}");
    let printed = str::from_utf8(&output.stdout).unwrap();
    assert!(printed.starts_with(result["message"].as_str().unwrap()), "{printed} {result}");

    let mut metrics = csv::Reader::from_path(images.path("run/metrics.csv")).unwrap();
    let columns = metrics.headers().unwrap().clone();
    let rows: Vec<_> = metrics.records().map(Result::unwrap).collect();
    let ends = of_kind(&events, "epoch_end");
    assert_eq!((ends.len(), rows.len()), (3, 3));
    for (end, row) in ends.iter().zip(&rows) {
        assert_same(end, &columns, row);
        assert_eq!((&end["epochs"], &end["metric"]), (&3.into(), &"accuracy".into()), "{end}");
        assert!(end["best"].is_boolean(), "{end}");
    }
    assert_eq!(ends[0]["best"], true, "the first epoch has nothing before it");
}

#[test]
fn events_come_in_the_order_of_the_run_and_without_progress() {
    let images = Images::prepared();
    let output = trained(&images, "run");
    let events = events(&output);
    let mut order = kinds(&events);
    order.dedup();
    let told: Vec<&str> = order
        .into_iter()
        .filter(|kind| !["notice", "warning", "not_learning", "flips"].contains(kind))
        .collect();
    assert_eq!(told, ["data", "choice", "run_folder", "epoch_end", "views", "result"]);
    for progress in ["epoch_start", "step", "updates_end", "download_progress"] {
        assert!(of_kind(&events, progress).is_empty(), "{progress} has no place in a log");
    }
}

#[test]
fn a_run_of_which_the_length_alone_is_stated_says_what_to_expect() {
    let images = Images::new();
    // Stripes across or down, in so much noise that a linear classifier mistakes some.
    for (class, down) in [("across", false), ("down", true)] {
        images.folder(&format!("data/{class}"));
        for number in 0..80u32 {
            let mut state = number * 2 + u32::from(down) + 1;
            let image = image::GrayImage::from_fn(16, 16, |x, y| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let stripe = if down { x } else { y } % 4 < 2;
                image::Luma([(state >> 24) as u8 / 2 + if stripe { 40 } else { 0 } + 40])
            });
            image.save(images.path(&format!("data/{class}/{number}.png"))).unwrap();
        }
    }
    let output = json(&images, &["train", "data", "--epochs", "30", "--threads", "2", "--output", "run"]);
    let events = events(&output);
    let expectation = only(&events, "expectation");
    let linear = expectation["linear_top1"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&linear) && expectation["epochs"] == 30.0, "{expectation}");
    assert!(expectation["message"].as_str().unwrap().starts_with("expected accuracy: "), "{expectation}");
    // All of them, or none if no measured run has had such images.
    let bounds = ["low", "top1", "high"].map(|key| expectation[key].as_f64());
    assert!(
        bounds.iter().all(Option::is_none) || bounds.is_sorted_by(|a, b| a.is_some() && a < b),
        "{expectation}"
    );
}

#[test]
fn text_messages_hold_no_json_and_standard_output_is_the_same_in_both_formats() {
    let images = Images::prepared();
    let as_json = trained(&images, "json/run");
    let as_text = vitrine(&images).args(TRAIN).args(["text/run", "--epochs", "3"]).output().unwrap();
    assert!(as_text.status.success() && as_json.status.success());
    let messages = str::from_utf8(&as_text.stderr).unwrap();
    for line in messages.lines() {
        assert!(serde_json::from_str::<Value>(line).is_err(), "JSON in a text log: {line}");
    }
    assert!(messages.contains("data: data, 2 classes") && messages.contains("epoch 3/3"), "{messages}");
    // The duration differs from run to run.
    let printed = |output: &Output, folder: &str| -> Vec<String> {
        let text = str::from_utf8(&output.stdout).unwrap().replace(&format!("{folder}/run"), "run");
        let untimed = |line: &str| match line.split_once(", after ") {
            Some((before, after)) => {
                let caveats = after.split_once(';').map_or("", |(_, caveats)| caveats);
                format!("{before};{caveats}")
            }
            None => line.to_owned(),
        };
        text.lines().map(untimed).collect()
    };
    let lines = printed(&as_json, "json");
    assert_eq!(lines, printed(&as_text, "text"));
    assert_eq!(lines[1..], ["model: run/model.safetensors", "report: run/report.html"]);
}

#[test]
fn an_unreadable_image_is_a_warning_that_names_it() {
    let images = Images::prepared();
    images.write("data/red/broken.png", "no image");
    let arguments = [&TRAIN[..], &["run", "--epochs", "1", "--bad-file-limit", "0.5"]].concat();
    let output = json(&images, &arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let events = events(&output);
    let unreadable = only(&events, "unreadable_images");
    assert_eq!(unreadable["unreadable"], 1, "{unreadable}");
    let data = only(&events, "data");
    let size = if unreadable["split"] == "train" { &data["training"] } else { &data["validation"] };
    assert_eq!(&unreadable["images"], size, "{unreadable} {data}");
    let first = &unreadable["first"];
    assert!(first["name"].as_str().unwrap().ends_with("broken.png"), "{unreadable}");
    assert!(!first["message"].as_str().unwrap().is_empty(), "{unreadable}");
}

#[test]
fn wrong_usage_that_the_parser_cannot_see_is_an_error_object() {
    let images = Images::prepared();
    for (arguments, option) in [
        (&["train", "data", "--data-dir", "elsewhere"][..], "--data-dir"),
        (&["train", "data", "--model", "tiny.toml", "--image-size", "7"], "--image-size 7"),
        (&["train", "data", "--folds", "40"], "--folds"),
    ] {
        let output = json(&images, arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let events = events(&output);
        let message = only(&events, "error")["message"].as_str().unwrap();
        assert!(message.contains(option), "{message}");
        assert_eq!(kinds(&events).last(), Some(&"error"));
        assert!(output.stdout.is_empty());
    }
    assert!(!images.path("runs").exists(), "no run began");
}

#[test]
fn wrong_usage_that_the_parser_finds_is_an_event_too() {
    let images = Images::prepared();
    let output = json(&images, &["train", "data", "--epochs", "-1"]);
    assert_eq!(output.status.code(), Some(2));
    let events = events(&output);
    let message = only(&events, "error")["message"].as_str().unwrap();
    assert!(message.starts_with("invalid value '-1' for '--epochs"), "{message}");
    assert_eq!(events.len(), 1);
    vitrine(&images)
        .args(["train", "data", "--log-format", "yaml"])
        .assert()
        .code(2)
        .stderr(contains("yaml").and(contains("json")));
}

#[test]
fn a_failing_run_ends_with_an_error_object() {
    let images = Images::prepared();
    let output = json(&images, &["train", "nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(only(&events(&output), "error")["message"].as_str().unwrap().contains("nowhere"));

    let mut arguments = TRAIN.map(|argument| if argument == "8" { "1" } else { argument }).to_vec();
    arguments.extend(["run", "--epochs", "1", "--learning-rate", "1", "--weight-decay", "1e6"]);
    let output = json(&images, &arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let events = events(&output);
    let message = only(&events, "error")["message"].as_str().unwrap();
    assert!(message.contains("training diverged") && message.contains("--learning-rate"), "{message}");
    assert_eq!(kinds(&events).last(), Some(&"error"));
    assert!(of_kind(&events, "result").is_empty() && output.stdout.is_empty());
    assert_eq!(only(&events, "run_folder")["path"], "run", "the run had begun");
}

#[test]
fn a_resumed_and_a_repeated_run_are_logged_too() {
    let images = Images::prepared();
    assert!(trained(&images, "run").status.success());
    let resumed = json(&images, &["train", "--resume", "run", "--threads", "1", "--epochs", "5"]);
    assert_eq!(resumed.status.code(), Some(0), "{resumed:?}");
    let resumed = events(&resumed);
    let epochs: Vec<_> =
        of_kind(&resumed, "epoch_end").iter().map(|end| end["epoch"].as_u64().unwrap()).collect();
    assert_eq!(epochs, [4, 5], "only the epochs of this session");
    only(&resumed, "result");
    assert!(of_kind(&resumed, "data").is_empty() && of_kind(&resumed, "run_folder").is_empty());

    let finished = json(&images, &["train", "--resume", "run", "--threads", "1"]);
    assert_eq!(finished.status.code(), Some(0));
    let finished = events(&finished);
    assert!(only(&finished, "notice")["message"].as_str().unwrap().contains("run is finished: 5 epochs"));

    let repeated = json(&images, &["train", "--config", "run", "--output", "again"]);
    assert_eq!(repeated.status.code(), Some(0), "{repeated:?}");
    let repeated = events(&repeated);
    assert_eq!(only(&repeated, "run_folder")["path"], "again");
    assert_eq!(of_kind(&repeated, "epoch_end").len(), 5);
}

#[test]
fn the_runs_of_a_series_are_told_apart() {
    let images = Images::prepared();
    let arguments = [&TRAIN[..], &["folds", "--folds", "2", "--epochs", "1"]].concat();
    let output = json(&images, &arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let events = events(&output);
    let members: Vec<_> = of_kind(&events, "series_run")
        .iter()
        .map(|run| (run["number"].as_u64(), run["runs"].as_u64(), run["name"].as_str()))
        .collect();
    assert_eq!(members, [(Some(1), Some(2), Some("fold-1")), (Some(2), Some(2), Some("fold-2"))]);
    let told: Vec<&str> = kinds(&events)
        .into_iter()
        .filter(|kind| ["series_run", "epoch_end", "result"].contains(kind))
        .collect();
    let each = ["series_run", "epoch_end", "result"];
    assert_eq!(told, [each, each].concat());
    assert!(str::from_utf8(&output.stdout).unwrap().contains("mean"), "the table is on standard output");
}

#[test]
fn only_train_has_a_log_format() {
    let images = Images::new();
    for arguments in
        [&["evaluate", "run", "data"][..], &["classify", "run", "a.png"], &["inspect", "data"], &["devices"]]
    {
        let output = json(&images, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let message = str::from_utf8(&output.stderr).unwrap();
        assert!(message.contains("--log-format"), "{message}");
    }
}
