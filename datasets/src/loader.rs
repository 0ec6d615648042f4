//! Batches for a model: decoded and augmented in parallel ahead of their use, the same for any number of threads.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use rayon::prelude::*;

use crate::sampler::{Purpose, balanced_order, epoch_order, repeated, stream};
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
        let results: Vec<Result<(), DatasetError>> = images
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

    /// Decodes, augments and normalizes one sample into `slot`, `[channels, height, width]`.
    fn sample(&self, index: usize, view: Option<View>, slot: &mut [f32]) -> Result<(), DatasetError> {
        let preprocessing = &self.config.preprocessing;
        let image = self.cache.decode(index, &self.samples[index].source, &self.config.limits)?;
        match (&self.config.augmentation, view) {
            (Some(augmentation), Some(View { epoch, repeat, stream: number })) => {
                let seed = self.config.seed;
                let purpose = if repeat == 0 { Purpose::Sample } else { Purpose::Repeat(repeat as u32) };
                let mut rng = stream(seed, purpose, epoch, number);
                let image = image.with_channels(preprocessing.channels as u8);
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
                crop: Crop::Pad { pixels: 2, reflect: false },
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
    fn a_balanced_epoch_is_taken_up_again_and_augments_every_draw_anew() {
        let labels = [vec![0; 30], vec![1; 4]].concat();
        let samples: Arc<[Sample]> = samples(34, &[])
            .iter()
            .zip(&labels)
            .map(|(sample, &label)| Sample { label, ..sample.clone() })
            .collect();
        let plain = Augmentation { mixup: 0.0, cutmix: 0.0, ..config(1).augmentation.unwrap() };
        let loader = |threads| {
            let balanced = LoaderConfig {
                balanced_sampling: true,
                augmentation: Some(plain.clone()),
                ..config(threads)
            };
            Loader::new(Arc::clone(&samples), balanced).unwrap()
        };
        let batches = epoch(&loader(1), 2, 0);
        assert_eq!(batches.len(), loader(1).batches());
        assert_eq!(batches, epoch(&loader(3), 2, 0));
        for first in [1, 5, 8] {
            assert_eq!(batches[first..], epoch(&loader(2), 2, first));
        }
        let drawn: Vec<usize> = batches.iter().flat_map(|batch| batch.labels.clone()).collect();
        assert_eq!(drawn.iter().filter(|&&label| label == 1).count(), 17);
        // The four images of the small class come up four times each, and never alike.
        let views = |index: usize| -> Vec<Vec<f32>> {
            batches
                .iter()
                .flat_map(|batch| batch.indices.iter().zip(batch.images.chunks(192)))
                .filter(|(of, _)| **of == index)
                .map(|(_, values)| values.to_vec())
                .collect()
        };
        for index in 30..34 {
            let views = views(index);
            assert!(views.len() >= 4);
            assert!((1..views.len()).all(|other| views[other] != views[0]), "image {index}");
        }
        let (first, again) = (loader(1).in_order().next(), loader(1).in_order().next());
        assert_eq!(first.unwrap().unwrap().indices, [0, 1, 2, 3], "measuring balances nothing");
        assert!(again.is_some());
    }

    #[test]
    fn weights_multiply_rows_by_the_classes_that_an_image_is_of() {
        let weights = vec![0.5, 1.0, 4.0];
        let loader = |augmentation, class_weights| {
            let config = LoaderConfig { augmentation: Some(augmentation), class_weights, ..config(2) };
            Loader::new(samples(18, &[]), config).unwrap()
        };
        // Without mixing: the smoothed row times the weight of its label.
        let weighted = loader(Augmentation::none(), Some(weights.clone()));
        for batch in epoch(&weighted, 0, 0) {
            for (row, &label) in batch.targets.chunks(3).zip(&batch.labels) {
                for (class, target) in row.iter().enumerate() {
                    let smoothed = 0.1 / 3.0 + if class == label { 0.9 } else { 0.0 };
                    assert!((target - smoothed * weights[label]).abs() < 1e-5, "{row:?} of {label}");
                }
            }
        }
        let measured = weighted.in_order().map(Result::unwrap).flat_map(|batch| batch.targets);
        assert!((measured.sum::<f32>() - 18.0).abs() < 1e-4, "measuring has no weights");
        // With mixing: the same row, as long as its shares of the weights, so that its largest class stays the largest.
        let mixing = Augmentation { mixup: 1.0, cutmix: 1.0, ..Augmentation::none() };
        let (plain, weighted) = (loader(mixing.clone(), None), loader(mixing, Some(weights.clone())));
        let mut mixed = 0;
        for (plain, weighted) in epoch(&plain, 0, 0).into_iter().zip(epoch(&weighted, 0, 0)) {
            assert_eq!(plain.images, weighted.images);
            for (row, scaled) in plain.targets.chunks(3).zip(weighted.targets.chunks(3)) {
                let shares = row.iter().map(|target| (target - 0.1 / 3.0) / 0.9);
                mixed += usize::from(shares.clone().filter(|share| *share > 0.01).count() > 1);
                let weight: f32 = shares.zip(&weights).map(|(share, weight)| share * weight).sum();
                for (target, scaled) in row.iter().zip(scaled) {
                    assert!((target * weight - scaled).abs() < 1e-5, "{row:?} {scaled}");
                }
            }
        }
        assert!(mixed > 5, "{mixed}");
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

    /// An image of this loader without its normalization, and which it is.
    fn pixels(batch: &Batch, place: usize) -> (usize, Vec<u8>) {
        let values = &batch.images[place * 192..place * 192 + 64];
        (
            batch.indices[place],
            values.iter().map(|value| ((value * 0.25 + 0.5) * 255.0).round() as u8).collect(),
        )
    }

    #[test]
    fn flips_alternate_from_epoch_to_epoch() {
        let augmentation =
            Augmentation { horizontal_flip: 0.5, alternate_flips: true, ..Augmentation::none() };
        let config = LoaderConfig { augmentation: Some(augmentation), ..config(2) };
        let loader = Loader::new(samples(18, &[]), config).unwrap();
        let plain: Vec<Vec<u8>> = loader
            .in_order()
            .map(Result::unwrap)
            .flat_map(|batch| (0..batch.size).map(|place| pixels(&batch, place).1).collect::<Vec<_>>())
            .collect();
        let mirrored = |number| -> Vec<bool> {
            let mut mirrored = vec![false; 18];
            for batch in epoch(&loader, number, 0) {
                for (index, seen) in (0..batch.size).map(|place| pixels(&batch, place)) {
                    mirrored[index] = seen != plain[index];
                }
            }
            mirrored
        };
        let epochs = [0, 1, 2, 3].map(mirrored);
        for pair in epochs.windows(2) {
            assert!(pair[0].iter().zip(&pair[1]).all(|(now, then)| now != then), "{epochs:?}");
        }
        assert!(epochs[0].contains(&true) && epochs[0].contains(&false));
    }

    #[test]
    fn repeated_images_share_a_batch_and_are_augmented_anew() {
        let mut config = config(2);
        let augmentation = Augmentation {
            repeats: 3,
            crop: Crop::Pad { pixels: 4, reflect: false },
            ..Augmentation::none()
        };
        (config.batch_size, config.augmentation) = (6, Some(augmentation));
        let loader = Loader::new(samples(18, &[]), config.clone()).unwrap();
        let batches = epoch(&loader, 2, 0);
        assert_eq!(batches.iter().map(|batch| batch.size).collect::<Vec<_>>(), [6, 6, 6]);
        let mut differing = 0;
        for batch in &batches {
            let seen: Vec<_> = (0..6).map(|place| pixels(batch, place)).collect();
            for group in seen.chunks(3) {
                assert!(group.iter().all(|(index, _)| *index == group[0].0));
                differing += usize::from(group[0].1 != group[1].1 && group[1].1 != group[2].1);
            }
            assert_ne!(seen[0].0, seen[3].0);
        }
        assert!(differing >= 5, "{differing} of 6");
        assert_eq!(batches, epoch(&Loader::new(samples(18, &[]), config.clone()).unwrap(), 2, 0));
        assert_eq!(batches[2..], epoch(&loader, 2, 2));
        let broken = Loader::new(samples(18, &[batches[1].indices[0]]), config).unwrap();
        let skipped: usize = epoch(&broken, 2, 0).iter().map(|batch| batch.skipped.len()).sum();
        assert_eq!(skipped, 1, "an unreadable image counts once");
    }

    #[test]
    fn the_last_batches_are_not_mixed_and_the_others_as_before() {
        let loader = Loader::new(samples(18, &[]), config(2)).unwrap();
        let whole = epoch(&loader, 0, 0);
        let part: Vec<Batch> = loader.epoch_mixing(0, 1, 3).map(Result::unwrap).collect();
        assert_eq!(part[..2], whole[1..3]);
        for batch in &part[2..] {
            for (row, &label) in batch.targets.chunks(3).zip(&batch.labels) {
                assert!((row[label] - (0.9 + 0.1 / 3.0)).abs() < 1e-6, "{row:?}");
            }
        }
        let pure =
            |batch: &Batch| batch.targets.chunks(3).zip(&batch.labels).all(|(row, &label)| row[label] > 0.93);
        assert!(!whole.iter().all(pure), "some of them are mixed otherwise");
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
