//! Fuzz target: decodes arbitrary bytes as an image file, which must give an image within the limits or an error, never
//! a panic.
//!
//! Run in `datasets/`: `RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none images`. Use small files of each format as
//! the initial corpus.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vitrine_datasets::{DecodeLimits, ImageSource};

fuzz_target!(|content: &[u8]| {
    let limits = DecodeLimits { max_side: 1024, max_bytes: 1 << 22, max_file_bytes: 1 << 20 };
    // TGA has no signature and is recognized by the name.
    let name = if content.len() % 8 == 0 { "image.tga" } else { "image.png" };
    let source = ImageSource::Encoded { name: name.to_owned(), bytes: content.into() };
    let passes_probe = source.probe(&limits).is_ok();
    if let Ok(image) = source.decode(&limits) {
        assert!(passes_probe, "an image that can be decoded must pass the probe");
        assert!(image.width.max(image.height) <= limits.max_side);
        let bytes = image.width as usize * image.height as usize * usize::from(image.channels);
        assert_eq!(image.pixels.len(), bytes);
    }
});
