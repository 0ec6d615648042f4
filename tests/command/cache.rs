//! `vitrine cache`: the kept features are listed, limited, and deleted.

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;

use crate::support::{Images, vitrine};

#[test]
fn features_are_listed_limited_and_deleted() {
    let images = Images::trained();
    let cache = |more: &[&str]| vitrine(&images).arg("cache").args(more).assert().success();
    cache(&[]).stdout(contains("no features"));
    let fit = |weights: &str, output: &str, more: &[&str]| {
        vitrine(&images)
            .args(["train", "data", "--pretrained", weights, "--freeze", "backbone", "--output", output])
            .args(more)
            .assert()
    };
    fit("run", "first", &[]).success();
    cache(&[]).stdout(contains("24 images").and(contains("run: plain")).and(contains("--clear")));
    vitrine(&images)
        .args(["train", "data", "--model", "tiny.toml", "--epochs", "1", "--seed", "5", "--output", "other"])
        .assert()
        .success();
    // The features of the first backbone make room for those of the second.
    fit("other", "second", &["--cache-limit", "1K"])
        .success()
        .stderr(contains("features: 21 images computed").and(contains("--cache-limit allows more")));
    cache(&[]).stdout(contains("other: plain").and(contains("run: plain").not()));
    cache(&["--clear"]).stdout(contains("deleted"));
    cache(&["--clear"]).stdout(contains("no features"));
    assert!(images.path("cache/features").read_dir().unwrap().next().is_none());
    fit("run", "none", &["--cache-limit", "1K", "--no-cache"]).code(2).stderr(contains("--no-cache"));
    fit("run", "none", &["--cache-limit", "1K", "--epochs", "1"])
        .code(2)
        .stderr(contains("--cache-limit has no effect"));
}

#[test]
fn features_of_mirror_images_do_not_displace_those_of_the_same_images() {
    let images = Images::trained();
    let fit = |output: &str| {
        let weights = ["--pretrained", "run", "--freeze", "backbone", "--flips", "--cache-limit", "1K"];
        vitrine(&images)
            .args(["train", "data", "--output", output])
            .args(weights)
            .assert()
            .success()
            .stderr(contains("--cache-limit allows more").not())
    };
    fit("first").stderr(contains("features: 24 images computed, 0 from the cache").count(2));
    fit("second").stderr(contains("features: 0 images computed, 24 from the cache").count(2));
}
