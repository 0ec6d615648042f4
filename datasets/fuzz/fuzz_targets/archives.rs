//! Fuzz target: opens arbitrary bytes as an archive, which must give a data set or an error, never a panic, within the
//! memory limits.
//!
//! Run in `datasets/`: `RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none archives -- -rss_limit_mb=1024`. The first
//! byte of the input chooses the format, and the rest is the archive. Use a few small archives, each after such a byte,
//! as the initial corpus.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use vitrine_datasets::{DecodeLimits, Inventory, OpenOptions, Split, open};

fuzz_target!(|input: &[u8]| {
    let Some((format, content)) = input.split_first() else { return };
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a temporary folder can be created"));
    let name = ["data.tar", "data.tar.gz", "data.zip"][usize::from(*format) % 3];
    let path = folder.path().join(name);
    std::fs::write(&path, content).expect("the file can be written");
    let options = OpenOptions { max_file_bytes: 1 << 16, download: false, ..OpenOptions::default() };
    if let Ok(dataset) = open(&path.to_string_lossy(), &options) {
        let count: usize = Split::ALL.map(|split| dataset.split(split).len()).iter().sum();
        // Reads and probes every image.
        let inventory = Inventory::of(dataset, &DecodeLimits::default());
        assert_eq!(inventory.images.len(), count);
        assert!(inventory.images.iter().flat_map(|image| image.sample.labels.iter()).all(|label| *label < inventory.info.classes.len()));
    }
});
