//! Files of weights made of anything: an error or a model, never a panic, and no more memory than the file is worth.
//!
//! `cargo +nightly fuzz run weights`, or on a stable toolchain
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none weights`; begin with the files of `tests/fixtures` as the corpus.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use vitrine::import::{self, Options};
use vitrine::weights_file;

fuzz_target!(|content: &[u8]| {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder for temporary files"));
    let path = folder.path().join("weights");
    std::fs::write(&path, content).expect("a file in it");
    if let Ok(file) = weights_file::open(&path) {
        for entry in &file.entries {
            if let Ok(tensor) = entry.read() {
                assert_eq!(tensor.values.len(), tensor.shape.iter().product::<usize>());
                assert!(tensor.values.len() <= 4 * content.len());
            }
        }
    }
    // A configuration next to it would be found: there is none.
    let _ = import::load(&path, &Options::default());
});
