//! Fuzz target for files of weights: arbitrary bytes give an error or a model, never a panic, and take no more memory
//! than four times the file's size.
//!
//! Run it with `cargo +nightly fuzz run weights`, or on a stable toolchain `RUSTC_BOOTSTRAP=1 cargo fuzz run
//! --sanitizer none weights`. The files of `tests/fixtures` make a good initial corpus.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use vitrine::import::{self, Options};
use vitrine::weights_file;

fuzz_target!(|content: &[u8]| {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder for temporary files"));
    let path = folder.path().join("weights");
    std::fs::write(&path, content).expect("the folder takes a file");
    if let Ok(file) = weights_file::open(&path) {
        for tensor in &file.tensors {
            if let Ok(read) = tensor.read() {
                assert_eq!(read.values.len(), read.shape.iter().product::<usize>());
                assert!(read.values.len() <= 4 * content.len());
            }
        }
    }
    // The import would also read a `config.json` in the folder, but there is none.
    let _ = import::load(&path, &Options::default());
});
