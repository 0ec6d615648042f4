//! Image files made of anything: an error or an image within the limits, never a panic.
//!
//! In `datasets/`: `RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none images`; begin with small files of each format as
//! the corpus.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vitrine_datasets::{DecodeLimits, ImageSource};

fuzz_target!(|content: &[u8]| {
    let limits = DecodeLimits { max_side: 1024, max_bytes: 1 << 22, max_file_bytes: 1 << 20 };
    let name = if content.len() % 8 == 0 { "image.tga" } else { "image.png" };
    let source = ImageSource::Encoded { name: name.to_owned(), bytes: content.into() };
    let is_fine = source.probe(&limits).is_ok();
    if let Ok(image) = source.decode(&limits) {
        assert!(is_fine, "what can be decoded passes the probe");
        assert!(image.width.max(image.height) <= limits.max_side);
        let bytes = image.width as usize * image.height as usize * usize::from(image.channels);
        assert_eq!(image.pixels.len(), bytes);
    }
});
