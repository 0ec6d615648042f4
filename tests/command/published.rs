//! Published backbones by their names: `--pretrained dinov2-small`.

use std::fs;
use std::path::Path;

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;

use crate::support::{Images, vitrine};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

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
    // A small model of this architecture in place of the published one.
    let repository = "hub/models--facebook--dinov2-small";
    images.write(&format!("{repository}/refs/main"), COMMIT);
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hf_dinov2");
    let snapshot = format!("{repository}/snapshots/{COMMIT}");
    images.folder(&snapshot);
    for (from, to) in [("config.json", "config.json"), ("weights.safetensors", "model.safetensors")] {
        fs::copy(fixture.join(from), images.path(&snapshot).join(to)).unwrap();
    }
    train(&["--freeze", "backbone", "--output", "fitted"]).success().stderr(contains("head: "));
    let config = fs::read_to_string(images.path("fitted/config.toml")).unwrap();
    assert!(config.contains("pretrained = \"hf:facebook/dinov2-small\""), "{config}");
    // A folder of this name comes first.
    images.folder("dinov2-small");
    vitrine(&images)
        .args(["train", "data", "--pretrained", "dinov2-small"])
        .assert()
        .code(1)
        .stderr(contains("facebook").not());
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
