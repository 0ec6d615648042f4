//! Published backbones by their names: `--pretrained dinov2-small`.

use std::fs;
use std::path::Path;

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;

use crate::support::{Images, vitrine};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The folder of a published repository in the cache of [`cache_backbone`].
const REPOSITORY: &str = "hub/models--facebook--dinov2-small";

/// Puts a small model of this architecture into the cache, in place of the published one.
fn cache_backbone(images: &Images) {
    images.write(&format!("{REPOSITORY}/refs/main"), COMMIT);
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hf_dinov2");
    let snapshot = format!("{REPOSITORY}/snapshots/{COMMIT}");
    images.folder(&snapshot);
    for (from, to) in [("config.json", "config.json"), ("weights.safetensors", "model.safetensors")] {
        fs::copy(fixture.join(from), images.path(&snapshot).join(to)).unwrap();
    }
}

#[test]
fn a_name_stands_for_its_repository() {
    let images = Images::prepared();
    let train = |more: &[&str]| {
        vitrine(&images)
            .env("HF_HUB_CACHE", images.path("hub"))
            .args(["train", "data", "--pretrained", "dinov2-small", "--offline"])
            .args(more)
            .assert()
    };
    let by_hand = ["hf:facebook/dinov2-small", "not in the cache", "model.safetensors", "into a folder"];
    let refused = train(&[]).code(1);
    let told = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
    assert!(by_hand.iter().all(|part| told.contains(part)), "{told}");
    cache_backbone(&images);
    train(&["--freeze", "backbone", "--output", "fitted"]).success().stderr(contains("head: "));
    let config = fs::read_to_string(images.path("fitted/config.toml")).unwrap();
    let recorded = format!("pretrained = \"hf:facebook/dinov2-small@{COMMIT}\"");
    assert!(config.contains(&recorded), "{config}");
    // A folder of this name comes first.
    images.folder("dinov2-small");
    vitrine(&images)
        .args(["train", "data", "--pretrained", "dinov2-small"])
        .assert()
        .code(1)
        .stderr(contains("facebook").not());
}

#[test]
fn files_record_the_commit_of_a_repository_by_which_a_run_is_repeated() {
    let images = Images::prepared();
    cache_backbone(&images);
    let run = |arguments: &[&str]| {
        vitrine(&images)
            .env("HF_HUB_CACHE", images.path("hub"))
            .env("HF_HUB_OFFLINE", "1")
            .args(arguments)
            .assert()
    };
    let recorded = format!("hf:facebook/dinov2-small@{COMMIT}");
    let check_recorded = |file: &str| {
        let content = fs::read(images.path(file)).unwrap();
        assert!(String::from_utf8_lossy(&content).contains(&recorded), "{file} lacks {recorded}");
    };
    let fit = ["train", "data", "--pretrained", "dinov2-small", "--freeze", "backbone", "--threads", "1"];
    run(&[&fit[..], &["--output", "fitted"]].concat()).success();
    run(&["import", "dinov2-small", "--output", "imported.safetensors"]).success();
    run(&["embed", "dinov2-small", "data", "--output", "rows.npy"]).success();
    for file in ["fitted/config.toml", "fitted/model.safetensors", "imported.safetensors", "rows.paths.json"]
    {
        check_recorded(file);
    }
    // Earlier versions recorded no commit, which a repetition does.
    let config = fs::read_to_string(images.path("fitted/config.toml")).unwrap();
    images.write("earlier.toml", &config.replace(&recorded, "hf:facebook/dinov2-small"));
    run(&["train", "--config", "earlier.toml", "--output", "repeated"]).success();
    check_recorded("repeated/config.toml");
    // The branch moves on to a commit that is not in the cache.
    images.write(&format!("{REPOSITORY}/refs/main"), &"f".repeat(40));
    run(&[&fit[..], &["--output", "moved"]].concat()).code(1).stderr(contains("not in the cache"));
    run(&["train", "--config", "fitted", "--output", "again"]).success();
    check_recorded("again/config.toml");
}

#[test]
fn the_names_are_listed_and_mistyped_ones_are_corrected() {
    let images = Images::prepared();
    vitrine(&images)
        .arg("presets")
        .assert()
        .success()
        .stdout(contains("dinov2-small").and(contains("facebook/dinov2-small")).and(contains("apache-2.0")));
    for (name, part) in [("dinov2small", "did you mean dinov2-small?"), ("resnet", "vitrine presets")] {
        vitrine(&images)
            .args(["train", "data", "--pretrained", name])
            .assert()
            .code(1)
            .stderr(contains(name).and(contains(part)));
    }
}
