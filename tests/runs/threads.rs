//! The message of a resumed run whose number of threads differs.

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;

use crate::support::{Images, TINY, vitrine};

#[test]
fn a_resumed_run_says_that_its_number_of_threads_differs() {
    let images = Images::new();
    images.fill("data/red", [200, 0, 0], 10);
    images.fill("data/blue", [0, 0, 200], 10);
    images.write("tiny.toml", TINY);
    let train = |arguments: &[&str]| vitrine(&images).arg("train").args(arguments).assert().success();
    train(&["data", "--model", "tiny.toml", "--epochs", "1", "--threads", "1", "--output", "run"])
        .stderr(contains("so far").not());
    train(&["--resume", "run", "--epochs", "2", "--threads", "2"])
        .stderr(contains("1 threads so far and now uses 2").and(contains("--threads 1")));
    // Without the option, as many as before.
    train(&["--resume", "run", "--epochs", "3"]).stderr(contains("so far").not());
    train(&["--resume", "run", "--epochs", "4", "--threads", "1"]).stderr(contains("2 threads so far"));
    train(&["--resume", "run", "--epochs", "5"]).stderr(contains("so far").not());
}
