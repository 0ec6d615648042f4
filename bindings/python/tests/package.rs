//! The Python package gets the answers of the library.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

#[path = "../../testing/mod.rs"]
mod testing;

use std::path::Path;
use std::process::Command;

use testing::{Prepared, libraries};

#[test]
#[ignore = "needs Python with numpy"]
fn the_package_gives_the_same_numbers_and_errors() {
    let prepared = Prepared::new(100);
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = prepared.path("packages/vitrine");
    std::fs::create_dir_all(&package).unwrap();
    std::fs::copy(here.join("python/vitrine/__init__.py"), package.join("__init__.py")).unwrap();
    let library = format!("{}vitrine_python{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    std::fs::copy(libraries().join(library), package.join("_vitrine.abi3.so")).unwrap();
    let expected = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "images": prepared.images,
        "logits": prepared.logits,
        "embeddings": prepared.embeddings,
    });
    std::fs::write(prepared.path("expected.json"), expected.to_string()).unwrap();
    let mut paths = vec![prepared.path("packages")];
    paths.extend(std::env::var_os("PYTHONPATH").iter().flat_map(std::env::split_paths));
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let status = Command::new(python)
        .arg(here.join("tests/check_package.py"))
        .arg(prepared.path(""))
        .env("PYTHONPATH", std::env::join_paths(paths).unwrap())
        .status()
        .unwrap();
    assert!(status.success());
}
