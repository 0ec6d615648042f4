//! Decoded images that are kept from epoch to epoch.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::{DatasetError, DecodeLimits, Decoded, Image, ImageSource};

/// The most bytes of an image that is kept: a few giants would take the memory of thousands of usual ones.
const LARGEST: u64 = 32 << 20;

/// Decoded images, as many as fit.
pub(super) struct Cache {
    slots: Vec<OnceLock<Arc<Image>>>,
    room: AtomicU64,
}

impl Cache {
    /// Room for so many bytes of images.
    pub(super) fn new(samples: usize, bytes: u64) -> Self {
        let slots = if bytes > 0 { samples } else { 0 };
        Self { slots: (0..slots).map(|_| OnceLock::new()).collect(), room: AtomicU64::new(bytes) }
    }

    /// A sample, from the cache or its source.
    ///
    /// # Errors
    ///
    /// When it cannot be decoded.
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
        // Raw pixels are in memory already.
        let is_raw = matches!(source, ImageSource::Raw { .. });
        let bytes = image.pixels.len() as u64;
        let take = |room: u64| room.checked_sub(bytes);
        if !is_raw
            && bytes <= LARGEST
            && self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
        {
            let image = Arc::new(image.into_image());
            let _ = slot.set(Arc::clone(&image));
            return Ok(CacheImage::Shared(image));
        }
        Ok(CacheImage::Owned(image))
    }
}

/// A decoded image: for this use alone, or in the cache.
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
