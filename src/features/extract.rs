//! Computing the features of images that the cache lacks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use vitrine_datasets::{BadFile, ContentKey, LoaderConfig, Sample};

use super::FeatureCache;
use crate::events::{Event, EventSink};
use crate::predict::{LabeledAnswers, NOT_FINITE, Output, Predictor};

/// Features are written when they take this many bytes...
const WRITE_BYTES: usize = 32 << 20;
/// ... or when the last ones were written this long ago, so that a program that is killed has few to compute again.
const WRITE_AFTER: Duration = Duration::from_secs(20);

/// Computes features of images with a model, or takes them from a cache.
pub struct Extractor<'a> {
    /// The model with its preprocessing.
    pub predictor: &'a Predictor,
    /// The features that were computed before; `None` to compute all.
    pub cache: Option<FeatureCache<'a>>,
    /// Images per batch.
    pub batch_size: usize,
    /// Threads that decode images.
    pub threads: usize,
    /// Receives the progress.
    pub events: &'a dyn EventSink,
}

/// The features of images in their order, without those that cannot be read.
#[derive(Clone, Debug, Default)]
pub struct Features {
    /// `[images, width]`, row by row.
    pub values: Vec<f32>,
    /// For each row, the index of its image.
    pub indices: Vec<usize>,
    /// For each row, a hash of the image's decoded pixels.
    pub pixel_keys: Vec<u64>,
    /// The images that cannot be read.
    pub bad: Vec<BadFile>,
    /// Number of images whose features were computed, and not taken from the cache.
    pub computed: usize,
}

impl Extractor<'_> {
    /// The features of `samples`, whose content keys are `keys`. `None` if `is_stopped` says to stop; what was computed until
    /// then is in the cache.
    ///
    /// # Errors
    /// If the images cannot be loaded, or a feature is NaN or infinite.
    ///
    /// # Panics
    /// If there is not one key for each sample.
    pub fn features(
        &mut self,
        (samples, keys): (&[Sample], &[ContentKey]),
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Features>> {
        assert_eq!(samples.len(), keys.len(), "a key for each sample");
        let is_known =
            |index: &usize| self.cache.as_ref().is_some_and(|cache| cache.get(keys[*index]).is_some());
        let missing: Vec<usize> = (0..samples.len()).filter(|index| !is_known(index)).collect();
        let Some(new) = self.compute((samples, keys), &missing, is_stopped)? else { return Ok(None) };
        Ok(Some(self.joined(keys, new)))
    }

    /// Computes the features of the samples at `missing`, and adds them to the cache.
    fn compute(
        &mut self,
        (samples, keys): (&[Sample], &[ContentKey]),
        missing: &[usize],
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Features>> {
        let mut new = Features::default();
        if missing.is_empty() {
            return Ok(Some(new));
        }
        self.events.emit(Event::FeaturesStart { images: missing.len() });
        let images: Arc<[Sample]> = missing.iter().map(|&index| samples[index].clone()).collect();
        let loader = self.predictor.loader(images, self.batch_size, self.threads)?;
        let loader = loader.reconfigured(LoaderConfig { hash_pixels: true, ..loader.config().clone() })?;
        let (mut stopped, mut written) = (false, Instant::now());
        for answers in self.predictor.ask_labeled(Output::Embedding, &loader) {
            let LabeledAnswers { values, indices, pixel_keys, mut bad, .. } = answers?;
            ensure!(values.iter().all(|value| value.is_finite()), "{NOT_FINITE}");
            self.events.emit(Event::FeaturesProgress { images: indices.len() + bad.len() });
            let indices: Vec<usize> = indices.iter().map(|&index| missing[index]).collect();
            if let Some(cache) = &mut self.cache {
                add(cache, keys, (&indices, &pixel_keys, &values));
                if cache.unwritten() >= WRITE_BYTES || written.elapsed() >= WRITE_AFTER {
                    cache.write();
                    written = Instant::now();
                }
            }
            if new.values.is_empty() {
                // Without it, the vector would double as it grows.
                let width = self.predictor.model().config().embedding_dim();
                new.values.reserve_exact(missing.len() * width);
            }
            new.values.extend(values);
            new.indices.extend(indices);
            new.pixel_keys.extend(pixel_keys);
            new.bad.append(&mut bad);
            stopped = is_stopped();
            if stopped {
                break;
            }
        }
        if let Some(cache) = &mut self.cache {
            cache.write();
        }
        self.events.emit(Event::FeaturesEnd);
        Ok((!stopped).then_some(new))
    }

    /// The features from the cache and the new ones, in the order of the images.
    fn joined(&self, keys: &[ContentKey], new: Features) -> Features {
        let width = self.predictor.model().config().embedding_dim();
        let mut all = Features { bad: new.bad, computed: new.indices.len(), ..Features::default() };
        all.values.reserve_exact(keys.len() * width);
        let mut rows =
            new.indices.iter().zip(&new.pixel_keys).zip(new.values.chunks_exact(width.max(1))).peekable();
        for (index, key) in keys.iter().enumerate() {
            let computed =
                rows.next_if(|((next, _), _)| **next == index).map(|((_, pixels), row)| (*pixels, row));
            // A copy of an unreadable image cannot be in the cache, as keys are of the content.
            let kept = || self.cache.as_ref()?.get(*key);
            if let Some((pixel_key, row)) = computed.or_else(kept) {
                all.values.extend_from_slice(row);
                all.indices.push(index);
                all.pixel_keys.push(pixel_key);
            }
        }
        all
    }
}

/// Adds the features of a batch to the cache: for each row the index of its image and the hash of its pixels.
fn add(
    cache: &mut FeatureCache<'_>,
    keys: &[ContentKey],
    (indices, pixel_keys, values): (&[usize], &[u64], &[f32]),
) {
    let width = values.len() / indices.len().max(1);
    let rows = values.chunks_exact(width.max(1));
    for ((&index, &pixel_key), features) in indices.iter().zip(pixel_keys).zip(rows) {
        cache.add(keys[index], pixel_key, features);
    }
}
