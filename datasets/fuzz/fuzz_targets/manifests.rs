//! Fuzz target: opens arbitrary bytes as a manifest, which must give a data set or an error that names the manifest,
//! never a panic.
//!
//! Run in `datasets/`: `RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none manifests`. The first byte of the input
//! chooses the format, and the rest is the manifest.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use vitrine_datasets::{OpenOptions, Split, open};

fuzz_target!(|input: &[u8]| {
    let Some((format, content)) = input.split_first() else { return };
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        for name in ["a.png", "b.png", "c", "d"] {
            std::fs::write(folder.path().join(name), name).expect("the file can be written");
        }
        folder
    });
    let name = ["list.csv", "list.tsv", "list.jsonl"][usize::from(*format) % 3];
    let path = folder.path().join(name);
    std::fs::write(&path, content).expect("the file can be written");
    match open(&path.to_string_lossy(), &OpenOptions { download: false, ..OpenOptions::default() }) {
        Ok(dataset) => {
            for sample in Split::ALL.into_iter().flat_map(|split| dataset.split(split)) {
                assert!(sample.labels.iter().all(|label| *label < dataset.info.classes.len()));
            }
        }
        Err(error) => assert!(error.to_string().contains("list."), "{error}"),
    }
});
