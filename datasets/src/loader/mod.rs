//! Batches for a model, decoded and augmented in parallel ahead of their use. The number of threads changes no value.

mod cache;
mod config;
mod pipeline;
mod sampler;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use self::cache::Cache;
pub use self::config::LoaderConfig;
pub use self::pipeline::Batch;
use self::pipeline::{Epoch, Pipeline};
pub use self::sampler::{balanced_order, epoch_order};
use crate::{DatasetError, Sample};

/// Makes batches of samples.
///
/// An epoch takes every sample once, unless classes are balanced or the augmentation repeats samples. A sample that
/// cannot be read is missing from its batch and listed in [`Batch::skipped`]; an epoch always has `samples /
/// batch_size` batches, rounded up.
pub struct Loader(Arc<Pipeline>);

impl Loader {
    /// A loader of `samples`; reads nothing yet.
    ///
    /// # Errors
    ///
    /// If the threads cannot be started.
    ///
    /// # Panics
    ///
    /// If `batch_size`, `threads`, or `prefetch` is 0, or `multi_label` is combined with `balanced_sampling` or
    /// `class_weights`.
    pub fn new(samples: Arc<[Sample]>, config: LoaderConfig) -> Result<Self, DatasetError> {
        assert!(
            config.batch_size > 0 && config.threads > 0 && config.prefetch > 0,
            "`batch_size`, `threads`, and `prefetch` must be at least 1"
        );
        assert!(
            !config.multi_label || !config.balanced_sampling && config.class_weights.is_none(),
            "balanced sampling and class weights need one label a sample"
        );
        let cache = Arc::new(Cache::new(samples.len(), config.cache_bytes));
        Self::with_cache(samples, config, cache)
    }

    /// A loader of the same samples with other settings. It shares this loader's cache of decoded images, whose size
    /// stays the same.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    ///
    /// # Panics
    ///
    /// If what is kept of an image would be another: with other `reduce_to`, with augmentation in place of none or none in its
    /// place, or without augmentation with other preprocessing.
    pub fn reconfigured(&self, config: LoaderConfig) -> Result<Self, DatasetError> {
        let kept = |config: &LoaderConfig| match &config.augmentation {
            Some(_) => (config.reduce_to, None),
            None => (None, Some(config.preprocessing.clone())),
        };
        assert!(kept(&config) == kept(self.config()), "the cache holds other images");
        Self::with_cache(Arc::clone(&self.0.samples), config, Arc::clone(&self.0.cache))
    }

    fn with_cache(
        samples: Arc<[Sample]>,
        config: LoaderConfig,
        cache: Arc<Cache>,
    ) -> Result<Self, DatasetError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(config.threads)
            .thread_name(|index| format!("loader-{index}"))
            .build()
            .map_err(|error| DatasetError::Threads { problem: error.to_string() })?;
        Ok(Self(Arc::new(Pipeline { samples, config, pool, cache })))
    }

    /// The settings.
    pub fn config(&self) -> &LoaderConfig {
        &self.0.config
    }

    /// The samples.
    pub fn samples(&self) -> &[Sample] {
        &self.0.samples
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.0.samples.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.0.samples.is_empty()
    }

    /// Batches per epoch.
    pub fn batches(&self) -> usize {
        self.len().div_ceil(self.0.config.batch_size)
    }

    /// The batches of a training epoch from `first_batch` on.
    ///
    /// Seed and epoch decide the order; seed, epoch, and sample (or draw, if classes are balanced) decide the
    /// augmentation. An interrupted epoch therefore continues with exactly the batches it would have had.
    pub fn epoch(&self, epoch: usize, first_batch: usize) -> Batches {
        self.epoch_mixing(epoch, first_batch, usize::MAX)
    }

    /// As [`Self::epoch`], but mixup and CutMix apply only to the first `mixed` batches of the epoch.
    pub fn epoch_mixing(&self, epoch: usize, first_batch: usize, mixed: usize) -> Batches {
        let order = self.0.order(epoch);
        Batches::start(Arc::clone(&self.0), order, Some(Epoch { number: epoch, mixed }), first_batch)
    }

    /// All samples in their own order, without augmentation.
    pub fn in_order(&self) -> Batches {
        self.part((0..self.len()).collect())
    }

    /// The samples with these indices, in this order, without augmentation. They share the cache with those of epochs.
    pub fn part(&self, indices: Vec<usize>) -> Batches {
        Batches::start(Arc::clone(&self.0), indices, None, 0)
    }
}

/// The batches of an epoch. A thread makes them while earlier ones are in use.
pub struct Batches {
    receiver: Option<Receiver<Result<Batch, DatasetError>>>,
    producer: Option<JoinHandle<()>>,
}

impl Batches {
    fn start(pipeline: Arc<Pipeline>, order: Vec<usize>, epoch: Option<Epoch>, first_batch: usize) -> Self {
        let (sender, receiver) = sync_channel(pipeline.config.prefetch);
        let produce = move || pipeline.produce(&order, epoch, first_batch, &sender);
        let producer = std::thread::Builder::new().name("loader".to_owned()).spawn(produce).ok();
        Self { receiver: Some(receiver), producer }
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.producer.is_none() {
            self.receiver.take()?;
            return Some(Err(DatasetError::Threads {
                problem: "the system cannot start more threads".to_owned(),
            }));
        }
        self.receiver.as_ref()?.recv().ok()
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        // Without a receiver, the producer's next send fails, and its thread ends.
        drop(self.receiver.take());
        if let Some(producer) = self.producer.take() {
            // A panic while a batch was made has already been sent as an error.
            let _ = producer.join();
        }
    }
}
