//! Files that a command would replace: nothing of the user's is lost.

use predicates::str::contains;

use crate::support::{Images, vitrine};

#[test]
fn files_of_runs_and_files_of_others_are_not_replaced() {
    let images = Images::trained();
    let run = |command: &str| vitrine(&images).args(command.split(' ')).assert();
    run("quantize run --output small.safetensors").success();
    run("embed run data --output rows.safetensors").success();
    for name in ["notes.txt", "settings.json", "list.csv", "other.paths.json", "others.onnx"] {
        images.write(name, "[1]");
    }
    std::fs::copy(images.path("run/model.safetensors"), images.path("cats.safetensors")).unwrap();
    run("export run --layout timm --output exported.safetensors").success();
    for (command, word) in [
        ("quantize small.safetensors --dtype f16 --output run/model.safetensors", "belongs to a run"),
        ("export small.safetensors --layout onnx --output run/config.toml", ".onnx"),
        ("export small.safetensors --layout timm --output run/model.safetensors", "belongs to a run"),
        ("import small.safetensors --output run/model.safetensors", "belongs to a run"),
        ("embed small.safetensors data --output run/images.csv", "belongs to a run"),
        ("embed small.safetensors data --format jsonl --output run/trained_on.json", "belongs to a run"),
        ("embed small.safetensors data --output rows.npy --html run/report.html", "belongs to a run"),
        ("classify small.safetensors data --format csv --output run/metrics.csv", "belongs to a run"),
        ("export run --layout timm --output rows.safetensors", "was not written by such a command"),
        ("quantize run --output rows.safetensors", "was not written by such a command"),
        ("embed run data --format csv --output notes.txt", "only files whose names end in .csv"),
        ("embed run data --format jsonl --output settings.json", "only files whose names end in .jsonl"),
        ("embed run data --format csv --output rows.npy", "its name says npy"),
        ("embed run data --output other.npy", "other.paths.json"),
        ("embed run data --output exported.safetensors", "the weights of a model"),
        ("embed run data --output cats.safetensors", "the weights of a model"),
        ("quantize run --output cats.safetensors", "this is a trained model"),
        ("import exported.safetensors --output cats.safetensors", "this is a trained model"),
        ("export run --layout onnx --output others.onnx", "was not written by such a command"),
        ("export run --layout timm --output s3://bucket/model", "object stores"),
        ("train data --output s3://bucket/run", "kept on the disk"),
        ("train data --folds 3 --output run", "not empty"),
        ("train data --output data/run", "inside the data set"),
        ("explain run data --output data/looked", "among the images of data"),
        ("explain run da* --output data/looked", "among the images of da*"),
        ("explain run data/**/*.png --output data/looked", "among the images of data/**/*.png"),
    ] {
        run(command).code(2).stderr(contains(word));
    }
    for name in ["notes.txt", "settings.json", "list.csv", "other.paths.json", "others.onnx"] {
        assert_eq!(std::fs::read_to_string(images.path(name)).unwrap(), "[1]", "{name}");
    }
    for name in ["s3:", "data/looked"] {
        assert!(!images.path(name).exists(), "{name}");
    }
    run("classify run data/red/0.png").success();
    // What the same command wrote before is replaced.
    for command in [
        "quantize run --output small.safetensors",
        "embed run data --output rows.safetensors",
        "embed run data --output rows.npy",
        "embed run data --output rows.npy",
        "export run --layout timm --output exported.safetensors",
        "export run --layout onnx --output ours.onnx",
        "export run --layout onnx --output ours.onnx",
    ] {
        run(command).success();
    }
}

#[test]
fn results_of_nothing_replace_no_earlier_ones() {
    let images = Images::trained();
    let run = |command: &str| vitrine(&images).args(command.split(' ')).assert();
    run("classify run data --format csv --output results.csv").success();
    let results = std::fs::read(images.path("results.csv")).unwrap();
    run("classify run nowhere --format csv --output results.csv")
        .code(1)
        .stderr(contains("no image could be read"));
    // As from a command that lists images and has found none.
    vitrine(&images)
        .args("classify run - --format csv --output results.csv".split(' '))
        .write_stdin("")
        .assert()
        .code(1)
        .stderr(contains("no image could be read"));
    assert!(std::fs::read(images.path("results.csv")).unwrap() == results);
}

#[test]
fn a_dash_is_no_name_of_an_output() {
    let images = Images::trained();
    let printed = "leave --output out to print the results to standard output";
    let not_printed = "this is not printed to standard output";
    let no_folder = "a run is not printed to standard output";
    for (command, word) in [
        ("classify run data --output -", printed),
        ("classify run data --shard 0/2 --output -", printed),
        ("embed run data --output -", printed),
        ("embed run data --format csv --output -", printed),
        ("embed run data --html -", not_printed),
        ("similar run data/red/0.png --in data --html -", not_printed),
        ("explain run data --output -", not_printed),
        ("export run --layout timm --output -", not_printed),
        ("import run/model.safetensors --output -", not_printed),
        ("quantize run --output -", not_printed),
        ("train data --output -", no_folder),
        ("train data --seeds 2 --output -", no_folder),
        ("train --config run --output -", no_folder),
        ("man --output -", not_printed),
    ] {
        vitrine(&images).args(command.split(' ')).assert().code(2).stderr(contains(word));
    }
    assert!(!images.path("-").exists());
}

/// In the folder /proc, nobody can create files.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_cannot_be_written_is_found_before_anything_is_computed() {
    use predicates::prelude::PredicateBooleanExt;

    let images = Images::trained();
    images.write("broken.png", "no image");
    for command in [
        "embed run broken.png --output /proc/rows.npy",
        "embed run broken.png --output /proc/rows.safetensors",
        "embed run broken.png --html /proc/map.html",
        "similar run broken.png --in data --html /proc/similar.html",
        "classify run broken.png --format csv --output /proc/rows.csv",
    ] {
        vitrine(&images)
            .args(command.split(' '))
            .assert()
            .code(1)
            .stderr(contains("/proc/").and(contains("cannot be written")).and(contains("broken.png").not()));
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_is_no_place_for_a_file() {
    use std::os::unix::fs::FileTypeExt;

    let images = Images::trained();
    let pipe = images.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for command in ["classify run data --output pipe", "embed run data --format csv --output pipe"] {
        vitrine(&images).args(command.split(' ')).assert().code(2).stderr(contains("a device or a pipe"));
    }
    assert!(std::fs::metadata(pipe).unwrap().file_type().is_fifo());
}
