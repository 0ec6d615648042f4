//! One batch from its samples: decode, augment, normalize, and erase each image, then mix and weight the batch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use rayon::prelude::*;

use super::cache::{Cache, Found};
use super::config::LoaderConfig;
use super::sampler::{Purpose, balanced_order, epoch_order, repeated, stream};
use crate::{BadFile, DatasetError, Image, Labels, Sample};

/// A batch of samples: the input of a model and the targets.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Normalized images, `[size, channels, height, width]`.
    pub images: Vec<f32>,
    /// Number of samples; 0 if none of the batch could be read.
    pub size: usize,
    /// Smoothed and mixed targets, `[size, classes]`. Each row sums to 1, or to the weight of its image; with several
    /// labels an image, each value is the probability of a class by itself.
    pub targets: Vec<f32>,
    /// The classes of each sample, before mixing.
    pub labels: Vec<Labels>,
    /// The index of each sample among the loader's samples.
    pub indices: Vec<usize>,
    /// A hash (XXH3, 64 bits) of each decoded image's size, channels, and pixels before augmentation, which is equal
    /// for files of different formats that hold the same pixels. Empty unless [`LoaderConfig::hash_pixels`] is set.
    pub pixel_keys: Vec<u64>,
    /// Samples that could not be read and are missing from this batch.
    pub skipped: Vec<BadFile>,
}

/// An epoch of training.
#[derive(Clone, Copy)]
pub(super) struct Epoch {
    pub(super) number: usize,
    /// Only batches before this one are mixed.
    pub(super) mixed: usize,
}

/// One appearance of a sample in a training epoch: the numbers that select its random stream.
#[derive(Clone, Copy)]
struct Appearance {
    epoch: usize,
    /// How many copies of the sample the epoch has had directly before this one, with repeated augmentation.
    repeat: usize,
    /// The sample's index, or with balanced sampling the number of the draw.
    stream: usize,
}

/// The samples, settings, thread pool, and cache from which batches are made, shared by the loader and the threads that
/// make its batches.
pub(super) struct Pipeline {
    pub(super) samples: Arc<[Sample]>,
    pub(super) config: LoaderConfig,
    pub(super) pool: rayon::ThreadPool,
    pub(super) cache: Arc<Cache>,
}

impl Pipeline {
    /// The indices of an epoch's samples in their order, with the copies of repeated augmentation.
    pub(super) fn order(&self, epoch: usize) -> Vec<usize> {
        let order = if self.config.balanced_sampling {
            let labels: Vec<usize> = self.samples.iter().filter_map(|sample| sample.labels.only()).collect();
            balanced_order(&labels, self.config.seed, epoch)
        } else {
            epoch_order(self.samples.len(), self.config.seed, epoch)
        };
        repeated(&order, self.repeats())
    }

    /// Makes the batches of `order` from `first_batch` on and sends them, until all are sent, the receiver is gone, or
    /// one has failed. `epoch` is `None` for evaluation.
    pub(super) fn produce(
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

    /// Batch `number` of an epoch, or of an evaluation.
    fn batch(&self, indices: &[usize], epoch: Option<Epoch>, number: usize) -> Batch {
        let values = self.config.preprocessing.values();
        let first = number * self.config.batch_size;
        let appearances: Vec<Option<Appearance>> = indices
            .iter()
            .enumerate()
            .map(|(place, &index)| epoch.map(|epoch| self.appearance(epoch.number, first + place, index)))
            .collect();
        let mut images = vec![0.0; indices.len() * values];
        let results: Vec<Result<Option<u64>, DatasetError>> = images
            .par_chunks_exact_mut(values)
            .zip(indices)
            .zip(&appearances)
            .map(|((slot, &index), &appearance)| self.sample(index, appearance, slot))
            .collect();
        let mut batch = self.without_failures(images, indices, &appearances, results);
        batch.targets = self.targets(&batch.labels);
        if let Some(epoch) = epoch {
            self.mix(&mut batch, epoch, number);
            if let Some(weights) = &self.config.class_weights {
                self.weigh(&mut batch.targets, weights);
            }
        }
        batch
    }

    /// How the sample `index` appears as the draw number `draw` of an epoch.
    fn appearance(&self, epoch: usize, draw: usize, index: usize) -> Appearance {
        // With balanced sampling, an epoch may draw a sample several times, and each draw is augmented differently.
        let stream = if self.config.balanced_sampling { draw } else { index };
        Appearance { epoch, repeat: draw % self.repeats(), stream }
    }

    /// The batch of the samples that could be read: their images moved together, the others listed as skipped. Targets
    /// are left empty.
    fn without_failures(
        &self,
        images: Vec<f32>,
        indices: &[usize],
        appearances: &[Option<Appearance>],
        results: Vec<Result<Option<u64>, DatasetError>>,
    ) -> Batch {
        let values = self.config.preprocessing.values();
        let (targets, labels, kept, pixel_keys, skipped) = (vec![], vec![], vec![], vec![], vec![]);
        let mut batch = Batch { images, size: 0, targets, labels, indices: kept, pixel_keys, skipped };
        for (place, (&index, result)) in indices.iter().zip(results).enumerate() {
            match result {
                Ok(pixel_key) => {
                    if batch.size < place {
                        batch.images.copy_within(place * values..(place + 1) * values, batch.size * values);
                    }
                    batch.size += 1;
                    batch.labels.push(self.samples[index].labels.clone());
                    batch.indices.push(index);
                    batch.pixel_keys.extend(pixel_key);
                }
                // The first copy of a repeated sample has been listed already.
                Err(_) if appearances[place].is_some_and(|appearance| appearance.repeat > 0) => {}
                Err(error) => batch.skipped.push(self.samples[index].source.as_bad_file(&error)),
            }
        }
        batch.images.truncate(batch.size * values);
        batch
    }

    /// Applies mixup and CutMix, if this batch of the epoch is to be mixed.
    fn mix(&self, batch: &mut Batch, epoch: Epoch, number: usize) {
        let Some(augmentation) = self.config.augmentation.as_ref().filter(|_| number < epoch.mixed) else {
            return;
        };
        let [height, width] = self.config.preprocessing.image_size;
        let shape = [batch.size, self.config.preprocessing.channels, height, width];
        let mut rng = stream(self.config.seed, Purpose::Batch, epoch.number, number);
        augmentation.mix(&mut batch.images, &mut batch.targets, shape, self.config.classes, &mut rng);
    }

    /// Decodes, augments, normalizes, and erases one sample into `slot`, `[channels, height, width]`. Returns the hash
    /// of its decoded pixels if [`LoaderConfig::hash_pixels`] is set. `appearance` is `None` for evaluation.
    fn sample(
        &self,
        index: usize,
        appearance: Option<Appearance>,
        slot: &mut [f32],
    ) -> Result<Option<u64>, DatasetError> {
        let preprocessing = &self.config.preprocessing;
        let LoaderConfig { augmentation, reduce_to, hash_pixels, limits, .. } = &self.config;
        let smaller = |image: &Image| match augmentation {
            Some(_) => reduce_to.and_then(|side| image.reduced(side)),
            None => Some(preprocessing.resized(image)),
        };
        let source = &self.samples[index].source;
        let Found { image, key } = self.cache.find(index, source, limits, *hash_pixels, smaller)?;
        match (augmentation, appearance) {
            (Some(augmentation), Some(Appearance { epoch, repeat, stream: number })) => {
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
            (Some(_), None) => preprocessing.normalize(&preprocessing.resized(&image), slot),
            (None, _) => preprocessing.normalize(&image, slot),
        }
        Ok(key)
    }

    /// Smoothed targets, `[labels, classes]`: one-hot, or with several labels an image multi-hot, whose values are moved
    /// towards one half.
    fn targets(&self, labels: &[Labels]) -> Vec<f32> {
        let classes = self.config.classes;
        let smoothing = self.config.label_smoothing as f32;
        let alternatives = if self.config.multi_label { 2 } else { classes };
        let mut targets = vec![smoothing / alternatives as f32; labels.len() * classes];
        for (row, labels) in targets.chunks_exact_mut(classes).zip(labels) {
            labels.iter().for_each(|&label| row[label] += 1.0 - smoothing);
        }
        targets
    }

    /// Multiplies each row of targets by the mean weight of its image's classes, weighted by their shares before
    /// smoothing.
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
