//! Batches for a model: decoded and augmented in parallel ahead of their use, the same for any number of threads.

mod cache;
mod sampler;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rayon::prelude::*;

use self::cache::Cache;
use self::sampler::{Purpose, repeated, stream};
pub use self::sampler::{balanced_order, epoch_order};
use crate::{Augmentation, BadFile, DatasetError, DecodeLimits, Preprocessing, Sample};

/// How batches are made.
#[derive(Clone, Debug)]
pub struct LoaderConfig {
    /// Samples a batch; the last one of an epoch may be smaller.
    pub batch_size: usize,
    /// From which the order, the augmentation and the mixing come.
    pub seed: u64,
    /// Threads that decode and augment.
    pub threads: usize,
    /// Batches that may wait, in memory, for their use.
    pub prefetch: usize,
    /// What every image goes through.
    pub preprocessing: Preprocessing,
    /// What training adds; none for evaluation.
    pub augmentation: Option<Augmentation>,
    /// Share of the targets that is spread over all classes.
    pub label_smoothing: f64,
    /// Whether the epochs of training draw from all classes equally often, not every sample once.
    pub balanced_sampling: bool,
    /// By what the targets of a training image are multiplied, for each class; none leaves them as they are. Of a mixed image, each of
    /// its classes counts by its share.
    pub class_weights: Option<Vec<f32>>,
    /// Number of classes.
    pub classes: usize,
    /// What an image may cost.
    pub limits: DecodeLimits,
    /// Decoded images are kept for the next epoch up to this many bytes.
    pub cache_bytes: u64,
    /// Whether batches have [`pixel_keys`](Batch::pixel_keys).
    pub hash_pixels: bool,
}

impl LoaderConfig {
    /// Batches of 64 for measuring: in order, without augmentation, on all threads.
    pub fn evaluation(preprocessing: &Preprocessing, classes: usize) -> Self {
        Self {
            batch_size: 64,
            seed: 0,
            threads: rayon::current_num_threads(),
            prefetch: 4,
            preprocessing: preprocessing.clone(),
            augmentation: None,
            label_smoothing: 0.0,
            balanced_sampling: false,
            class_weights: None,
            classes,
            limits: DecodeLimits::default(),
            cache_bytes: 0,
            hash_pixels: false,
        }
    }
}

/// Some samples, ready for a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// `[size, channels, height, width]`, normalized.
    pub images: Vec<f32>,
    /// Number of samples; 0 where none of the batch could be read.
    pub size: usize,
    /// `[size, classes]`: smoothed and mixed, each row sums to 1, or to the weight of its image.
    pub targets: Vec<f32>,
    /// The class of each sample, before mixing.
    pub labels: Vec<usize>,
    /// The index of each sample.
    pub indices: Vec<usize>,
    /// A hash of the decoded image of each sample, before augmentation: of its size, channels, and pixels (XXH3, 64
    /// bits), so that two files with the same pixels have the same. Empty unless [`LoaderConfig::hash_pixels`] asks for
    /// it.
    pub pixel_keys: Vec<u64>,
    /// Samples of this batch that could not be read and are left out.
    pub skipped: Vec<BadFile>,
}

/// Makes batches of samples.
///
/// Every sample is used once an epoch, unless classes are balanced or the augmentation repeats samples. A sample that cannot be read is left out of its batch, which is then smaller,
/// and listed there; an epoch always has `samples / batch_size` batches, rounded up.
pub struct Loader(Arc<Shared>);

struct Shared {
    samples: Arc<[Sample]>,
    config: LoaderConfig,
    pool: rayon::ThreadPool,
    cache: Arc<Cache>,
}

impl Loader {
    /// A loader of `samples`; nothing is read yet.
    ///
    /// # Errors
    ///
    /// When the threads cannot be started.
    ///
    /// # Panics
    ///
    /// When `batch_size`, `threads` or `prefetch` is 0.
    pub fn new(samples: Arc<[Sample]>, config: LoaderConfig) -> Result<Self, DatasetError> {
        assert!(config.batch_size > 0 && config.threads > 0 && config.prefetch > 0, "at least one of each");
        let cache = Arc::new(Cache::new(samples.len(), config.cache_bytes));
        Self::with_cache(samples, config, cache)
    }

    /// A loader of the same samples that makes other batches of them. Decoded images that this one keeps are kept, as many as it was
    /// allowed to.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn reconfigured(&self, config: LoaderConfig) -> Result<Self, DatasetError> {
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
        Ok(Self(Arc::new(Shared { samples, config, pool, cache })))
    }

    /// How batches are made.
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

    /// Batches an epoch.
    pub fn batches(&self) -> usize {
        self.len().div_ceil(self.0.config.batch_size)
    }

    /// The batches of a training epoch from `first_batch` on: shuffled by seed and epoch, augmented by seed, epoch and
    /// sample (or draw, where classes are balanced), so that an epoch that is taken up again goes on with the batches it would have had.
    pub fn epoch(&self, epoch: usize, first_batch: usize) -> Batches {
        self.epoch_mixing(epoch, first_batch, usize::MAX)
    }

    /// The same, of which only the first `mixed` batches of the epoch are mixed.
    pub fn epoch_mixing(&self, epoch: usize, first_batch: usize, mixed: usize) -> Batches {
        let order = repeated(&self.0.order(epoch), self.0.repeats());
        Batches::start(Arc::clone(&self.0), order, Some(Epoch { number: epoch, mixed }), first_batch)
    }

    /// All samples in their own order, without augmentation.
    pub fn in_order(&self) -> Batches {
        Batches::start(Arc::clone(&self.0), (0..self.len()).collect(), None, 0)
    }
}

/// An epoch of training.
#[derive(Clone, Copy)]
struct Epoch {
    number: usize,
    /// So many batches, from the first on, may be mixed.
    mixed: usize,
}

/// A sample's time in an epoch of training.
#[derive(Clone, Copy)]
struct View {
    epoch: usize,
    /// How often it was there before, a moment ago.
    repeat: usize,
    /// The number of its random stream.
    stream: usize,
}

/// The batches of an epoch, made on a thread of their own while earlier ones are used.
pub struct Batches {
    receiver: Option<Receiver<Result<Batch, DatasetError>>>,
    producer: Option<JoinHandle<()>>,
}

impl Batches {
    fn start(shared: Arc<Shared>, order: Vec<usize>, epoch: Option<Epoch>, first_batch: usize) -> Self {
        let (sender, receiver) = sync_channel(shared.config.prefetch);
        let produce = move || shared.produce(&order, epoch, first_batch, &sender);
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
        // Without a receiver the producer's next send fails, and it ends.
        drop(self.receiver.take());
        if let Some(producer) = self.producer.take() {
            // Its panics were sent as errors.
            let _ = producer.join();
        }
    }
}

impl Shared {
    fn order(&self, epoch: usize) -> Vec<usize> {
        if self.config.balanced_sampling {
            let labels: Vec<usize> = self.samples.iter().map(|sample| sample.label).collect();
            balanced_order(&labels, self.config.seed, epoch)
        } else {
            epoch_order(self.samples.len(), self.config.seed, epoch)
        }
    }

    fn produce(
        &self,
        order: &[usize],
        epoch: Option<Epoch>,
        first_batch: usize,
        sender: &SyncSender<Result<Batch, DatasetError>>,
    ) {
        for (number, indices) in order.chunks(self.config.batch_size).enumerate().skip(first_batch) {
            let make = AssertUnwindSafe(|| self.pool.install(|| self.batch(indices, epoch, number)));
            let batch = catch_unwind(make).map_err(|_| DatasetError::Threads {
                problem: format!("batch {number} could not be made: a bug in the program"),
            });
            let failed = batch.is_err();
            if sender.send(batch).is_err() || failed {
                return;
            }
        }
    }

    /// How often a batch has each of its images.
    fn repeats(&self) -> usize {
        self.config.augmentation.as_ref().map_or(1, |augmentation| augmentation.repeats.max(1))
    }

    fn batch(&self, indices: &[usize], epoch: Option<Epoch>, number: usize) -> Batch {
        let repeat = |place: usize| (number * self.config.batch_size + place) % self.repeats();
        let view = |place: usize, index: usize| {
            // A sample that is drawn twice in an epoch is augmented in two ways.
            let draw = number * self.config.batch_size + place;
            let stream = if self.config.balanced_sampling { draw } else { index };
            epoch.map(|epoch| View { epoch: epoch.number, repeat: repeat(place), stream })
        };
        let values = self.config.preprocessing.values();
        let mut images = vec![0.0; indices.len() * values];
        let results: Vec<Result<Option<u64>, DatasetError>> = images
            .par_chunks_exact_mut(values)
            .zip(indices)
            .enumerate()
            .map(|(place, (slot, &index))| self.sample(index, view(place, index), slot))
            .collect();
        let mut batch = Batch {
            images,
            size: 0,
            targets: Vec::new(),
            labels: Vec::new(),
            indices: Vec::new(),
            pixel_keys: Vec::new(),
            skipped: Vec::new(),
        };
        for (place, (&index, result)) in indices.iter().zip(results).enumerate() {
            match result {
                Ok(pixel_key) => {
                    if batch.size < place {
                        batch.images.copy_within(place * values..(place + 1) * values, batch.size * values);
                    }
                    batch.size += 1;
                    batch.labels.push(self.samples[index].label);
                    batch.indices.push(index);
                    batch.pixel_keys.extend(pixel_key);
                }
                // Once is enough.
                Err(_) if epoch.is_some() && repeat(place) > 0 => {}
                Err(error) => batch.skipped.push(self.samples[index].source.as_bad_file(&error)),
            }
        }
        batch.images.truncate(batch.size * values);
        batch.targets = self.targets(&batch.labels);
        if let (Some(augmentation), Some(Epoch { number: epoch, mixed })) = (&self.config.augmentation, epoch)
            && number < mixed
        {
            let [height, width] = self.config.preprocessing.image_size;
            let shape = [batch.size, self.config.preprocessing.channels, height, width];
            let mut rng = stream(self.config.seed, Purpose::Batch, epoch, number);
            augmentation.mix(&mut batch.images, &mut batch.targets, shape, self.config.classes, &mut rng);
        }
        if let (Some(weights), Some(_)) = (&self.config.class_weights, epoch) {
            self.weigh(&mut batch.targets, weights);
        }
        batch
    }

    /// Decodes, augments and normalizes one sample into `slot`, `[channels, height, width]`. The key of its pixels, where
    /// that is wanted.
    fn sample(
        &self,
        index: usize,
        view: Option<View>,
        slot: &mut [f32],
    ) -> Result<Option<u64>, DatasetError> {
        let preprocessing = &self.config.preprocessing;
        let image = self.cache.decode(index, &self.samples[index].source, &self.config.limits)?;
        let pixel_key = self.config.hash_pixels.then(|| image.key());
        match (&self.config.augmentation, view) {
            (Some(augmentation), Some(View { epoch, repeat, stream: number })) => {
                let seed = self.config.seed;
                let purpose = if repeat == 0 { Purpose::Sample } else { Purpose::Repeat(repeat as u32) };
                let mut rng = stream(seed, purpose, epoch, number);
                let mut image = augmentation.apply(&image, preprocessing, &mut rng);
                augmentation.alternate(
                    &mut image,
                    epoch + repeat,
                    &mut stream(seed, Purpose::Flip, 0, index),
                );
                preprocessing.normalize(&image, slot);
                let [height, width] = preprocessing.image_size;
                augmentation.erase(slot, [preprocessing.channels, height, width], &mut rng);
            }
            _ => preprocessing.normalize(&preprocessing.resized(&image), slot),
        }
        Ok(pixel_key)
    }

    fn targets(&self, labels: &[usize]) -> Vec<f32> {
        let classes = self.config.classes;
        let smoothing = self.config.label_smoothing as f32;
        let mut targets = vec![smoothing / classes as f32; labels.len() * classes];
        for (row, &label) in targets.chunks_exact_mut(classes).zip(labels) {
            row[label] += 1.0 - smoothing;
        }
        targets
    }

    /// Multiplies each row by the weights of the classes that its image is of, by the share of each before smoothing.
    fn weigh(&self, targets: &mut [f32], weights: &[f32]) {
        let classes = self.config.classes;
        let smoothing = self.config.label_smoothing as f32;
        let spread = smoothing / classes as f32;
        for row in targets.chunks_exact_mut(classes) {
            let weighted: f32 =
                row.iter().zip(weights).map(|(target, weight)| (target - spread) * weight).sum();
            let weight = weighted / (1.0 - smoothing);
            row.iter_mut().for_each(|target| *target *= weight);
        }
    }
}
