//! A program in C gets the answers of the library.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

#[path = "../../testing/mod.rs"]
mod testing;

use std::path::Path;
use std::process::Command;

use testing::{Prepared, libraries};

#[test]
fn a_c_program_gets_the_same_numbers_and_errors_and_frees_its_memory() {
    let prepared = Prepared::new(100);
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = prepared.path("program");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let compiled = Command::new(compiler)
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_DEFAULT_SOURCE", "-o"])
        .arg(&program)
        .arg(here.join("tests/program.c"))
        .arg("-I")
        .arg(here.join("include"))
        .arg("-L")
        .arg(libraries())
        .args(["-lvitrine_c", "-lpthread"])
        .status()
        .unwrap();
    assert!(compiled.success());
    let done = Command::new(program)
        .arg(prepared.path("model.safetensors"))
        .args(&prepared.images)
        .env("LD_LIBRARY_PATH", libraries())
        .env("DYLD_LIBRARY_PATH", libraries())
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let printed = String::from_utf8(done.stdout).unwrap();
    let lines = |name: &'static str| {
        printed.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix(' '))
    };
    assert_eq!(lines("version").collect::<Vec<_>>(), [env!("CARGO_PKG_VERSION")]);
    let classes: Vec<String> = (0..7).map(|class| format!("kind {class}")).collect();
    assert_eq!(lines("class").collect::<Vec<_>>(), classes);
    for (name, expected) in [("logits", &prepared.logits), ("embedding", &prepared.embeddings)] {
        let rows: Vec<Vec<f32>> =
            lines(name).map(|line| line.split(' ').map(hexadecimal).collect()).collect();
        assert_eq!(&rows, expected, "{name}");
    }
}

/// The value of a number as C's `%a` prints it, such as `-0x1.8p+3`.
fn hexadecimal(text: &str) -> f32 {
    let (sign, text) = text.strip_prefix('-').map_or((1.0, text), |text| (-1.0, text));
    let (digits, exponent) = text.strip_prefix("0x").unwrap().split_once('p').unwrap();
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let value = u64::from_str_radix(&format!("{whole}{fraction}"), 16).unwrap() as f64;
    let exponent: i32 = exponent.parse().unwrap();
    (sign * value * 2f64.powi(exponent - 4 * fraction.len() as i32)) as f32
}
