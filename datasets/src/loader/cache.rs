//! A cache of decoded images for later epochs, within a number of bytes.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::{DatasetError, DecodeLimits, Decoded, Image, ImageSource};

/// Largest image to keep, in bytes. A few very large images would take the place of thousands of ordinary ones.
const LARGEST: u64 = 32 << 20;

/// Decoded images by the index of their sample. Images are added until the memory is used up, and never removed.
pub(super) struct Cache {
    slots: Vec<OnceLock<Kept>>,
    /// Bytes that are still free.
    free: AtomicU64,
}

/// An image in the cache.
struct Kept {
    image: Arc<Image>,
    /// The hash of the decoded pixels, if it was asked for.
    key: Option<u64>,
    /// Whether the image is a smaller one in place of the decoded one.
    is_smaller: bool,
}

/// An image, and the hash of its decoded pixels if that was asked for.
pub(super) struct Found {
    pub(super) image: CacheImage,
    pub(super) key: Option<u64>,
}

impl Cache {
    /// An empty cache of at most `bytes` bytes, for a number of samples.
    pub(super) fn new(samples: usize, bytes: u64) -> Self {
        let slots = if bytes > 0 { samples } else { 0 };
        Self { slots: (0..slots).map(|_| OnceLock::new()).collect(), free: AtomicU64::new(bytes) }
    }

    /// The image of the sample `index`, from the cache or decoded from its source, or the smaller one that `smaller` makes in
    /// its place. It must be the same function at every call.
    ///
    /// # Errors
    ///
    /// If it cannot be decoded.
    pub(super) fn find(
        &self,
        index: usize,
        source: &ImageSource,
        limits: &DecodeLimits,
        wants_key: bool,
        smaller: impl FnOnce(&Image) -> Option<Image>,
    ) -> Result<Found, DatasetError> {
        if let Some(found) =
            self.slots.get(index).and_then(OnceLock::get).and_then(|kept| kept.found(wants_key))
        {
            return Ok(found);
        }
        let decoded = source.decode_for_use(limits)?;
        let key = wants_key.then(|| decoded.key());
        let (image, is_smaller) = match smaller(&decoded) {
            Some(image) => (Decoded::small(image), true),
            None => (decoded, false),
        };
        // Raw pixels are in memory anyway.
        let is_raw = !is_smaller && matches!(source, ImageSource::Raw { .. } | ImageSource::Pixels { .. });
        let bytes = image.pixels.len() as u64;
        let take = |free: u64| free.checked_sub(bytes);
        let image = match self.slots.get(index).filter(|slot| slot.get().is_none()) {
            Some(slot)
                if !is_raw
                    && bytes <= LARGEST
                    && self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() =>
            {
                let image = Arc::new(image.into_image());
                if slot.set(Kept { image: Arc::clone(&image), key, is_smaller }).is_err() {
                    // Another thread has decoded the same image meanwhile.
                    self.free.fetch_add(bytes, Ordering::Relaxed);
                }
                CacheImage::Shared(image)
            }
            _ => CacheImage::Owned(image),
        };
        Ok(Found { image, key })
    }
}

impl Kept {
    /// The image with what is asked for; `None` if that is not known, because the decoded pixels are gone.
    fn found(&self, wants_key: bool) -> Option<Found> {
        let key = match (wants_key, self.is_smaller) {
            (false, _) => None,
            (true, true) => Some(self.key?),
            (true, false) => Some(self.key.unwrap_or_else(|| self.image.key())),
        };
        Some(Found { image: CacheImage::Shared(Arc::clone(&self.image)), key })
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
