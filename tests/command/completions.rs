//! Shell completions and manual pages, which packages install.

use predicates::prelude::*;
use predicates::str::contains;

use crate::support::{Images, vitrine};

#[test]
fn completions_are_printed_for_the_shell_that_is_named() {
    let images = Images::new();
    for (shell, mark) in [
        ("bash", "complete -F _vitrine"),
        ("zsh", "#compdef vitrine"),
        ("fish", "complete -c vitrine"),
        ("powershell", "Register-ArgumentCompleter"),
        ("elvish", "edit:completion:arg-completer[vitrine]"),
    ] {
        vitrine(&images)
            .args(["completions", shell])
            .assert()
            .success()
            .stdout(contains(mark).and(contains("train").and(contains("learning-rate"))));
    }
    vitrine(&images)
        .args(["completions", "csh"])
        .assert()
        .code(2)
        .stderr(contains("bash").and(contains("zsh")));
}

#[test]
fn manual_pages_are_written_to_a_new_folder() {
    let images = Images::new();
    vitrine(&images)
        .args(["man", "--output", "share/man1"])
        .assert()
        .success()
        .stdout(contains("vitrine-train.1"));
    let page = |name: &str| std::fs::read_to_string(images.path("share/man1").join(name)).unwrap();
    assert!(page("vitrine.1").contains("vitrine\\-train(1)"));
    assert!(page("vitrine-train.1").contains("\\-\\-learning\\-rate"));
    images.write("file", "no folder");
    vitrine(&images).args(["man", "--output", "file"]).assert().code(1).stderr(contains("--output file"));
}
