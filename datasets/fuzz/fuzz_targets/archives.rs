//! Archives made of anything: an error or a data set, never a panic, and no more memory than the limits allow.
//!
//! In `datasets/`: `RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none archives -- -rss_limit_mb=1024`. The first byte
//! chooses the format; begin with a few small archives behind such a byte as the corpus.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use vitrine_datasets::{DecodeLimits, OpenOptions, Split, open, probe};

fuzz_target!(|input: &[u8]| {
    let Some((format, content)) = input.split_first() else { return };
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder for temporary files"));
    let name = ["data.tar", "data.tar.gz", "data.zip"][usize::from(*format) % 3];
    let path = folder.path().join(name);
    std::fs::write(&path, content).expect("a file in it");
    let options = OpenOptions { max_file_bytes: 1 << 16, download: false, ..OpenOptions::default() };
    if let Ok(dataset) = open(&path.to_string_lossy(), &options) {
        for split in Split::ALL {
            let samples = dataset.split(split);
            assert!(probe(samples, &DecodeLimits::default()).len() <= samples.len());
            assert!(samples.iter().all(|sample| sample.label < dataset.info.classes.len()));
        }
    }
});
