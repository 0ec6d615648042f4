//! Files that a command would replace: nothing of the user's is lost.

use predicates::str::contains;

use crate::support::{Images, vitrine};

#[test]
fn files_of_runs_and_files_of_others_are_not_replaced() {
    let images = Images::trained();
    let run = |command: &str| vitrine(&images).args(command.split(' ')).assert();
    run("quantize run --output small.safetensors").success();
    run("embed run data --output rows.safetensors").success();
    for name in ["notes.txt", "settings.json", "list.csv", "other.paths.json"] {
        images.write(name, "[1]");
    }
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
    ] {
        run(command).code(2).stderr(contains(word));
    }
    for name in ["notes.txt", "settings.json", "list.csv", "other.paths.json"] {
        assert_eq!(std::fs::read_to_string(images.path(name)).unwrap(), "[1]", "{name}");
    }
    run("classify run data/red/0.png").success();
    // What the same command wrote before is replaced.
    for command in [
        "quantize run --output small.safetensors",
        "embed run data --output rows.safetensors",
        "embed run data --output rows.npy",
        "embed run data --output rows.npy",
        "export run --layout timm --output exported.safetensors",
        "export run --layout timm --output exported.safetensors",
    ] {
        run(command).success();
    }
}
