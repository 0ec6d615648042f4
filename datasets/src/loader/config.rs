//! Settings of a loader: batch size, random seed, threads, preprocessing, augmentation, and memory.

use crate::{Augmentation, DecodeLimits, Preprocessing};

/// How a [`Loader`](crate::Loader) makes batches.
#[derive(Clone, Debug)]
pub struct LoaderConfig {
    /// Samples per batch, at least 1; the last batch of an epoch may be smaller.
    pub batch_size: usize,
    /// Seed of the order, the augmentation, and the mixing.
    pub seed: u64,
    /// Threads that decode and augment, at least 1.
    pub threads: usize,
    /// Finished batches that wait in memory until the model takes them, at least 1.
    pub prefetch: usize,
    /// The resizing and normalization of every image.
    pub preprocessing: Preprocessing,
    /// The augmentation of training images; `None` for evaluation.
    pub augmentation: Option<Augmentation>,
    /// Label smoothing: the share of each target that is spread evenly over all classes, or with several labels an image
    /// over the presence and the absence of each class.
    pub label_smoothing: f64,
    /// Whether a sample has any number of classes, and not exactly one. Excludes balanced sampling and class weights.
    pub multi_label: bool,
    /// Whether training epochs draw from all classes equally often, instead of taking every sample once.
    pub balanced_sampling: bool,
    /// A weight per class, by which the targets of its training images are multiplied; `None` leaves targets
    /// unweighted. The target of a mixed image is multiplied by the mean of its classes' weights, weighted by their
    /// shares.
    pub class_weights: Option<Vec<f32>>,
    /// Number of classes.
    pub classes: usize,
    /// Limits of size and memory for decoding an image.
    pub limits: DecodeLimits,
    /// Bytes of decoded images to keep in memory for later epochs. Without augmentation, they are kept in the size of the
    /// model's input.
    pub cache_bytes: u64,
    /// Large images are scaled down before augmentation, so far that their shorter side keeps this many pixels, which takes far
    /// less memory and time; `None` augments them in their own size. Has no effect without augmentation.
    pub reduce_to: Option<u32>,
    /// Whether to fill [`Batch::pixel_keys`](crate::Batch::pixel_keys).
    pub hash_pixels: bool,
}

impl LoaderConfig {
    /// Settings for evaluation: batches of 64, no augmentation, and as many threads as rayon's current thread pool has.
    pub fn evaluation(preprocessing: &Preprocessing, classes: usize) -> Self {
        Self {
            batch_size: 64,
            seed: 0,
            threads: rayon::current_num_threads(),
            prefetch: 4,
            preprocessing: preprocessing.clone(),
            augmentation: None,
            label_smoothing: 0.0,
            multi_label: false,
            balanced_sampling: false,
            class_weights: None,
            classes,
            limits: DecodeLimits::default(),
            cache_bytes: 0,
            reduce_to: None,
            hash_pixels: false,
        }
    }
}
