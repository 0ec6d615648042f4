//! A cache of decoded images for later epochs, within a number of bytes.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::{DatasetError, DecodeLimits, Decoded, Image, ImageSource};

/// Largest image to keep, in bytes. A few very large images would take the place of thousands of ordinary ones.
const LARGEST: u64 = 32 << 20;

/// Decoded images by the index of their sample. Images are added until the memory is used up, and never removed.
pub(super) struct Cache {
    slots: Vec<OnceLock<Arc<Image>>>,
    /// Bytes that are still free.
    free: AtomicU64,
}

impl Cache {
    /// An empty cache of at most `bytes` bytes, for a number of samples.
    pub(super) fn new(samples: usize, bytes: u64) -> Self {
        let slots = if bytes > 0 { samples } else { 0 };
        Self { slots: (0..slots).map(|_| OnceLock::new()).collect(), free: AtomicU64::new(bytes) }
    }

    /// The image of the sample `index`, from the cache or decoded from its source.
    ///
    /// # Errors
    ///
    /// If it cannot be decoded.
    pub(super) fn decode(
        &self,
        index: usize,
        source: &ImageSource,
        limits: &DecodeLimits,
    ) -> Result<CacheImage, DatasetError> {
        let Some(slot) = self.slots.get(index) else {
            return source.decode_for_use(limits).map(CacheImage::Owned);
        };
        if let Some(image) = slot.get() {
            return Ok(CacheImage::Shared(Arc::clone(image)));
        }
        let image = source.decode_for_use(limits)?;
        // Raw pixels are in memory anyway.
        let is_raw = matches!(source, ImageSource::Raw { .. } | ImageSource::Pixels { .. });
        let bytes = image.pixels.len() as u64;
        let take = |free: u64| free.checked_sub(bytes);
        if !is_raw
            && bytes <= LARGEST
            && self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
        {
            let image = Arc::new(image.into_image());
            let _ = slot.set(Arc::clone(&image));
            return Ok(CacheImage::Shared(image));
        }
        Ok(CacheImage::Owned(image))
    }
}

/// A decoded image that either is owned by the caller or shared with the cache.
pub(super) enum CacheImage {
    Owned(Decoded),
    Shared(Arc<Image>),
}

impl Deref for CacheImage {
    type Target = Image;

    fn deref(&self) -> &Image {
        match self {
            Self::Owned(image) => image,
            Self::Shared(image) => image,
        }
    }
}
