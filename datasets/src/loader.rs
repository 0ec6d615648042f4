//! Batches for a model: decoded and augmented in parallel ahead of their use, the same for any number of threads.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use rayon::prelude::*;

use crate::sampler::{Purpose, epoch_order, stream};
use crate::{
    Augmentation, BadFile, DatasetError, DecodeLimits, Decoded, Image, ImageSource, Preprocessing, Sample,
};

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
    /// Number of classes.
    pub classes: usize,
    /// What an image may cost.
    pub limits: DecodeLimits,
    /// Decoded images are kept for the next epoch up to this many bytes.
    pub cache_bytes: u64,
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
            classes,
            limits: DecodeLimits::default(),
            cache_bytes: 0,
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
    /// `[size, classes]`: smoothed and mixed, each row sums to 1.
    pub targets: Vec<f32>,
    /// The class of each sample, before mixing.
    pub labels: Vec<usize>,
    /// The index of each sample.
    pub indices: Vec<usize>,
    /// Samples of this batch that could not be read and are left out.
    pub skipped: Vec<BadFile>,
}

/// Makes batches of samples.
///
/// Every sample is used once an epoch. A sample that cannot be read is left out of its batch, which is then smaller,
/// and listed there; an epoch always has `samples / batch_size` batches, rounded up.
pub struct Loader(Arc<Shared>);

struct Shared {
    samples: Arc<[Sample]>,
    config: LoaderConfig,
    pool: rayon::ThreadPool,
    cache: Cache,
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
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(config.threads)
            .thread_name(|index| format!("loader-{index}"))
            .build()
            .map_err(|error| DatasetError::Threads { problem: error.to_string() })?;
        let cache = Cache::new(samples.len(), config.cache_bytes);
        Ok(Self(Arc::new(Shared { samples, config, pool, cache })))
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
    /// sample, so that an epoch that is taken up again goes on with the batches it would have had.
    pub fn epoch(&self, epoch: usize, first_batch: usize) -> Batches {
        let order = epoch_order(self.len(), self.0.config.seed, epoch);
        Batches::start(Arc::clone(&self.0), order, Some(epoch), first_batch)
    }

    /// All samples in their own order, without augmentation.
    pub fn in_order(&self) -> Batches {
        Batches::start(Arc::clone(&self.0), (0..self.len()).collect(), None, 0)
    }
}

/// The batches of an epoch, made on a thread of their own while earlier ones are used.
pub struct Batches {
    receiver: Option<Receiver<Result<Batch, DatasetError>>>,
    producer: Option<JoinHandle<()>>,
}

impl Batches {
    fn start(shared: Arc<Shared>, order: Vec<usize>, epoch: Option<usize>, first_batch: usize) -> Self {
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
    fn produce(
        &self,
        order: &[usize],
        epoch: Option<usize>,
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

    fn batch(&self, indices: &[usize], epoch: Option<usize>, number: usize) -> Batch {
        let values = self.config.preprocessing.values();
        let mut images = vec![0.0; indices.len() * values];
        let results: Vec<Result<(), DatasetError>> = images
            .par_chunks_exact_mut(values)
            .zip(indices)
            .map(|(slot, &index)| self.sample(index, epoch, slot))
            .collect();
        let mut batch = Batch {
            images,
            size: 0,
            targets: Vec::new(),
            labels: Vec::new(),
            indices: Vec::new(),
            skipped: Vec::new(),
        };
        for (place, (&index, result)) in indices.iter().zip(results).enumerate() {
            match result {
                Ok(()) => {
                    if batch.size < place {
                        batch.images.copy_within(place * values..(place + 1) * values, batch.size * values);
                    }
                    batch.size += 1;
                    batch.labels.push(self.samples[index].label);
                    batch.indices.push(index);
                }
                Err(error) => batch.skipped.push(self.samples[index].source.as_bad_file(&error)),
            }
        }
        batch.images.truncate(batch.size * values);
        batch.targets = self.targets(&batch.labels);
        if let (Some(augmentation), Some(epoch)) = (&self.config.augmentation, epoch) {
            let [height, width] = self.config.preprocessing.image_size;
            let shape = [batch.size, self.config.preprocessing.channels, height, width];
            let mut rng = stream(self.config.seed, Purpose::Batch, epoch, number);
            augmentation.mix(&mut batch.images, &mut batch.targets, shape, self.config.classes, &mut rng);
        }
        batch
    }

    /// Decodes, augments and normalizes one sample into `slot`, `[channels, height, width]`.
    fn sample(&self, index: usize, epoch: Option<usize>, slot: &mut [f32]) -> Result<(), DatasetError> {
        let preprocessing = &self.config.preprocessing;
        let image = self.cache.decode(index, &self.samples[index].source, &self.config.limits)?;
        match (&self.config.augmentation, epoch) {
            (Some(augmentation), Some(epoch)) => {
                let mut rng = stream(self.config.seed, Purpose::Sample, epoch, index);
                let image = image.with_channels(preprocessing.channels as u8);
                let resize = |image: &Image| preprocessing.resized(image);
                let image = augmentation.apply(&image, preprocessing.image_size, &resize, &mut rng);
                preprocessing.normalize(&image, slot);
                let [height, width] = preprocessing.image_size;
                augmentation.erase(slot, [preprocessing.channels, height, width], &mut rng);
            }
            _ => preprocessing.normalize(&preprocessing.resized(&image), slot),
        }
        Ok(())
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
}

/// Decoded images, as many as fit.
struct Cache {
    slots: Vec<OnceLock<Arc<Image>>>,
    room: AtomicU64,
}

impl Cache {
    fn new(samples: usize, bytes: u64) -> Self {
        let slots = if bytes > 0 { samples } else { 0 };
        Self { slots: (0..slots).map(|_| OnceLock::new()).collect(), room: AtomicU64::new(bytes) }
    }

    fn decode(
        &self,
        index: usize,
        source: &ImageSource,
        limits: &DecodeLimits,
    ) -> Result<Kept, DatasetError> {
        let Some(slot) = self.slots.get(index) else { return source.decode_for_use(limits).map(Kept::Once) };
        if let Some(image) = slot.get() {
            return Ok(Kept::Always(Arc::clone(image)));
        }
        let image = source.decode_for_use(limits)?;
        // Raw pixels are in memory already.
        let is_raw = matches!(source, ImageSource::Raw { .. });
        let bytes = image.pixels.len() as u64;
        let take = |room: u64| room.checked_sub(bytes);
        if !is_raw && self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            let image = Arc::new(image.into_image());
            let _ = slot.set(Arc::clone(&image));
            return Ok(Kept::Always(image));
        }
        Ok(Kept::Once(image))
    }
}

/// A decoded image: for this use alone, or in the cache.
enum Kept {
    Once(Decoded),
    Always(Arc<Image>),
}

impl Deref for Kept {
    type Target = Image;

    fn deref(&self) -> &Image {
        match self {
            Self::Once(image) => image,
            Self::Always(image) => image,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Crop, Interpolation, ResizeRule};

    /// `count` gray images of 8 by 8 pixels; those at `broken` end before their data does.
    fn samples(count: usize, broken: &[usize]) -> Arc<[Sample]> {
        let buffer: Arc<[u8]> = (0..count * 64).map(|i| (i * 31 % 256) as u8).collect();
        (0..count)
            .map(|index| Sample {
                label: index % 3,
                source: ImageSource::Raw {
                    name: format!("image {index}"),
                    buffer: Arc::clone(&buffer),
                    offset: if broken.contains(&index) { buffer.len() - 10 } else { index * 64 },
                    width: 8,
                    height: 8,
                    channels: 1,
                },
            })
            .collect()
    }

    fn config(threads: usize) -> LoaderConfig {
        let preprocessing = Preprocessing {
            image_size: [8, 8],
            channels: 3,
            resize: ResizeRule::Squash,
            interpolation: Interpolation::Bicubic,
            mean: vec![0.5; 3],
            std: vec![0.25; 3],
            crop_rounding: Default::default(),
        };
        LoaderConfig {
            batch_size: 4,
            seed: 5,
            threads,
            augmentation: Some(Augmentation {
                crop: Crop::Pad { pixels: 2 },
                horizontal_flip: 0.5,
                random_erasing: 0.5,
                mixup: 0.8,
                cutmix: 1.0,
                ..Augmentation::none().with_jitter(0.3)
            }),
            label_smoothing: 0.1,
            ..LoaderConfig::evaluation(&preprocessing, 3)
        }
    }

    fn epoch(loader: &Loader, epoch: usize, first: usize) -> Vec<Batch> {
        loader.epoch(epoch, first).map(Result::unwrap).collect()
    }

    #[test]
    fn batches_depend_on_seed_and_epoch_and_not_on_threads_or_cache() {
        let loader = |threads, cache_bytes| {
            Loader::new(samples(18, &[]), LoaderConfig { cache_bytes, ..config(threads) }).unwrap()
        };
        let first = epoch(&loader(1, 0), 3, 0);
        assert_eq!(first.iter().map(|batch| batch.size).collect::<Vec<_>>(), [4, 4, 4, 4, 2]);
        let shared = loader(4, 1 << 20);
        assert_eq!(first, epoch(&shared, 3, 0));
        assert_eq!(first, epoch(&shared, 3, 0), "the second time from the cache");
        assert_ne!(first, epoch(&shared, 4, 0));
        let mut indices: Vec<usize> = first.iter().flat_map(|batch| batch.indices.clone()).collect();
        indices.sort_unstable();
        assert_eq!(indices, (0..18).collect::<Vec<_>>(), "every sample once");
    }

    #[test]
    fn an_epoch_taken_up_again_goes_on_with_the_same_batches() {
        let loader = Loader::new(samples(18, &[]), config(2)).unwrap();
        assert_eq!(epoch(&loader, 1, 0)[3..], epoch(&loader, 1, 3));
    }

    #[test]
    fn what_cannot_be_read_is_left_out_and_named_once() {
        let loader = Loader::new(samples(9, &[0, 5]), config(2)).unwrap();
        let batches = epoch(&loader, 0, 0);
        assert_eq!(batches.len(), loader.batches());
        assert_eq!(batches.iter().map(|batch| batch.size).sum::<usize>(), 7);
        let mut names: Vec<String> =
            batches.iter().flat_map(|batch| batch.skipped.iter().map(|bad| bad.name.clone())).collect();
        names.sort();
        assert_eq!(names, ["image 0", "image 5"]);
        // What remains is what it would be without the broken ones.
        let whole = Loader::new(samples(9, &[]), config(2)).unwrap();
        let value = |loader: &Loader, index: usize| {
            let batch =
                loader.in_order().map(Result::unwrap).find(|batch| batch.indices.contains(&index)).unwrap();
            let place = batch.indices.iter().position(|&i| i == index).unwrap();
            batch.images[place * 192..(place + 1) * 192].to_vec()
        };
        for index in [1, 2, 4, 8] {
            assert_eq!(value(&loader, index), value(&whole, index));
        }
    }

    #[test]
    fn evaluation_changes_nothing_and_keeps_the_order() {
        let loader =
            Loader::new(samples(6, &[]), LoaderConfig { label_smoothing: 0.0, ..config(2) }).unwrap();
        let batches: Vec<Batch> = loader.in_order().map(Result::unwrap).collect();
        assert_eq!(batches[1].indices, [4, 5]);
        assert_eq!(batches[0].targets[..6], [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
        assert_eq!(batches[0].images[1], (31.0 / 255.0 - 0.5) / 0.25);
    }

    #[test]
    fn targets_are_smoothed_and_sum_to_one() {
        let loader = Loader::new(samples(5, &[]), config(1)).unwrap();
        for batch in loader.epoch(0, 0).map(Result::unwrap) {
            for row in batch.targets.chunks(3) {
                assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{row:?}");
                assert!(row.iter().all(|&share| share >= 0.1 / 3.0 - 1e-6));
            }
        }
    }

    #[test]
    fn a_loader_that_is_dropped_early_stops() {
        let loader = Loader::new(samples(4000, &[]), config(2)).unwrap();
        let mut batches = loader.epoch(0, 0);
        assert!(batches.next().is_some());
        drop(batches);
        drop(loader);
    }
}
