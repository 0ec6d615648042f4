//! Whitening of the first convolution of a residual tokenizer (Jordan 2024, section 3.2, after Page 2018, 'How to Train Your
//! ResNet'): its kernels start as the directions in which patches of the training images vary most, scaled to variance 1, and
//! as the negatives of these. What the other layers see is thus hardly correlated from the first step. Unlike in these
//! publications, the kernels are trained further.

use std::time::{Duration, Instant};

use anyhow::Result;
use vitrine_datasets::{Loader, LoaderConfig};
use vitrine_models::VisionTransformer;
use vitrine_models::weights::{self, NamedTensor};

use crate::eigenvectors::leading;
use crate::events::{Event, EventSink};
use crate::run_folder::RunConfig;
use crate::text::count;

/// The name of the kernels in model files.
const KERNELS: &str = "patch_embed.stem.weight";
/// The most images whose patches are measured.
const IMAGES: usize = 256;
/// The number of patches of a row of an image, about.
const PATCHES: usize = 32;
/// What is added to the variance of each direction, so that directions that hardly vary are not amplified to noise.
const REGULARIZATION: f64 = 5e-4;
/// The least number of images that are read at once: of large ones few, so that it is soon known how long all take.
const BATCH: usize = 16;
/// How long reading the images takes at least if the user is told what it is for.
const LONG: Duration = Duration::from_secs(1);

/// The model with whitened kernels, for a part of the training images. They are read as training reads them, from the cache of its
/// loader or into it, so that large ones are scaled down first. A model of no residual tokenizer, or images of which none can be
/// read, leave it as it is.
///
/// # Errors
/// When the threads that decode images cannot be started.
pub(super) fn whitened(
    model: VisionTransformer,
    training: &Loader,
    config: &RunConfig,
    events: &dyn EventSink,
) -> Result<VisionTransformer> {
    let mut tensors = weights::to_timm(&model);
    let Some(kernels) = tensors.iter_mut().find(|tensor| tensor.name == KERNELS) else { return Ok(model) };
    let every = training.len().div_ceil(IMAGES).max(1);
    let part: Vec<usize> = (0..training.len()).step_by(every).collect();
    // Of full size in every phase of the run.
    let loader = training.reconfigured(LoaderConfig {
        batch_size: training.config().threads.max(BATCH),
        preprocessing: config.preprocessing.clone(),
        ..training.config().clone()
    })?;
    let side = kernels.shape[2];
    let Some(covariance) = covariance(&loader, part, side, events)? else { return Ok(model) };
    set(kernels, &covariance);
    Ok(weights::from_timm(model, tensors)?)
}

/// Replaces kernels of `[out, in, side, side]` by as many leading eigenvectors of the matrix as there are or as half of them hold, and
/// then by their negatives. The rest stays.
fn set(kernels: &mut NamedTensor, covariance: &[f64]) {
    let length: usize = kernels.shape[1..].iter().product();
    let pairs = leading(covariance, length, kernels.shape[0] / 2);
    let signs = [1.0, -1.0];
    let directions = signs.into_iter().flat_map(|sign| pairs.iter().map(move |pair| (sign, pair)));
    for (kernel, (sign, pair)) in kernels.values.chunks_exact_mut(length).zip(directions) {
        let scale = sign / (pair.value.max(0.0) + REGULARIZATION).sqrt();
        kernel.iter_mut().zip(&pair.vector).for_each(|(weight, entry)| *weight = (scale * entry) as f32);
    }
}

/// The means of the products of two elements of a patch, `[patch, patch]`, where a patch of the images with these indices is
/// `[channels, side, side]`; `None` without any.
///
/// # Errors
/// When a batch cannot be loaded.
fn covariance(
    loader: &Loader,
    part: Vec<usize>,
    side: usize,
    events: &dyn EventSink,
) -> Result<Option<Vec<f64>>> {
    let preprocessing = &loader.config().preprocessing;
    let ([height, width], channels) = (preprocessing.image_size, preprocessing.channels);
    let length = channels * side * side;
    let mut sums = vec![0.0; length * length];
    let mut patches = 0usize;
    let steps = |length: usize| (0..(length + 1).saturating_sub(side)).step_by((length / PATCHES).max(1));
    let mut patch = Vec::with_capacity(length);
    let (begun, images) = (Instant::now(), part.len());
    let batches = images.div_ceil(loader.config().batch_size);
    for (number, batch) in loader.part(part).enumerate() {
        if number == 0 && takes_long(begun.elapsed(), batches) {
            let images = count(images, "training image");
            events.emit(Event::notice(format!("the first convolution is whitened on {images}")));
        }
        for image in batch?.images.chunks_exact(channels * height * width) {
            for (top, left) in steps(height).flat_map(|top| steps(width).map(move |left| (top, left))) {
                patch.clear();
                let rows =
                    (0..channels).flat_map(|channel| (0..side).map(move |row| channel * height + top + row));
                patch.extend(
                    rows.flat_map(|row| &image[row * width + left..][..side]).map(|&value| f64::from(value)),
                );
                add_products(&mut sums, &patch);
                patches += 1;
            }
        }
    }
    sums.iter_mut().for_each(|sum| *sum /= patches as f64);
    Ok((patches > 0).then_some(sums))
}

/// Whether so many batches, of which the first one took `first`, take so long that the user should know why.
fn takes_long(first: Duration, batches: usize) -> bool {
    first.mul_f64(batches as f64) > LONG
}

/// Adds the products of all pairs of elements.
fn add_products(sums: &mut [f64], patch: &[f64]) {
    for (sums, factor) in sums.chunks_exact_mut(patch.len()).zip(patch) {
        sums.iter_mut().zip(patch).for_each(|(sum, value)| *sum += factor * value);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::Device;
    use vitrine_datasets::{Augmentation, Batch, ImageSource, Sample};
    use vitrine_models::{ModelConfig, Tokenizer};

    use super::*;
    use crate::events::Quiet;
    use crate::run_folder::testing;
    use crate::train::loaders::in_order;

    /// The configuration of a model with a residual tokenizer.
    fn config() -> RunConfig {
        let config = testing::config(&["a", "b"]);
        let model = ModelConfig { tokenizer: Tokenizer::Residual { width: 8, stride: 1 }, ..config.model };
        RunConfig { model, ..config }
    }

    /// A training loader of images of this size.
    fn loader(images: Vec<Sample>, config: &RunConfig, side: usize) -> Loader {
        let mut preprocessing = config.preprocessing.clone();
        preprocessing.image_size = [side, side];
        let loading = in_order(config, &preprocessing, 2);
        Loader::new(images.into(), LoaderConfig { augmentation: Some(Augmentation::none()), ..loading })
            .unwrap()
    }

    fn kernels(model: &VisionTransformer) -> Vec<f32> {
        weights::to_timm(model).into_iter().find(|tensor| tensor.name == KERNELS).unwrap().values
    }

    #[test]
    fn kernels_are_scaled_directions_then_their_negatives_and_the_rest_stays() {
        // Independent elements with variances of 9 to 1.
        let covariance: Vec<f64> =
            (0..81).map(|place| if place % 10 == 0 { 9.0 - (place / 10) as f64 } else { 0.0 }).collect();
        let kernels = |count: usize| {
            let mut kernels = NamedTensor {
                name: KERNELS.to_owned(),
                shape: vec![count, 1, 3, 3],
                values: vec![7.0; 9 * count],
            };
            set(&mut kernels, &covariance);
            kernels.values
        };
        let expected = |rank: usize, place: usize| {
            let scale = 1.0 / (9.0 - rank as f32 + REGULARIZATION as f32).sqrt();
            if rank == place { scale } else { 0.0 }
        };
        let assert_pairs = |values: &[f32], pairs: usize| {
            for (rank, place) in (0..pairs).flat_map(|rank| (0..9).map(move |place| (rank, place))) {
                let [kernel, negative] = [rank, pairs + rank].map(|kernel| values[9 * kernel + place]);
                assert!((kernel - expected(rank, place)).abs() < 1e-5, "{rank} {place}: {kernel}");
                assert_eq!(kernel, -negative);
            }
        };
        assert_pairs(&kernels(8), 4);
        let more = kernels(24);
        assert_pairs(&more, 9);
        assert!(more[9 * 18..].iter().all(|&weight| weight == 7.0));
    }

    #[test]
    fn what_the_next_layer_sees_has_variance_one_and_is_not_correlated() {
        let config = config();
        assert_whitened(&config, 3);
        for stride in [2, 4] {
            let model = config.model.clone().with_stride(stride);
            assert_whitened(
                &RunConfig {
                    model: ModelConfig { image_size: config.model.image_size, ..model },
                    ..config.clone()
                },
                stride,
            );
        }
        // An image smaller than a kernel has no patch.
        let images = || testing::drawn([12, 1, 1]).train;
        let tiny = loader(images(), &config, 2);
        assert_eq!(super::covariance(&tiny, (0..12).collect(), 3, &Quiet).unwrap(), None);
        let plain = testing::config(&["a", "b"]).model.init(&Device::default()).unwrap();
        let same = whitened(plain.clone(), &loader(Vec::new(), &config, 16), &config, &Quiet).unwrap();
        assert_eq!(weights::to_timm(&same), weights::to_timm(&plain));
    }

    /// Compares the covariance of what kernels of this side, whitened, leave of images with that of independent numbers.
    fn assert_whitened(config: &RunConfig, side: usize) {
        let images = || testing::drawn([12, 1, 1]).train;
        let fresh = config.model.init(&Device::default()).unwrap();
        let training = loader(images(), config, 16);
        let model = whitened(fresh.clone(), &training, config, &Quiet).unwrap();
        let covariance = covariance(&training, (0..12).collect(), side, &Quiet).unwrap().unwrap();
        let length = 3 * side * side;
        let along = |a: &[f32], b: &[f32]| -> f64 {
            let products = covariance.chunks_exact(length).zip(a).map(|(row, &factor)| {
                f64::from(factor)
                    * row.iter().zip(b).map(|(entry, &other)| entry * f64::from(other)).sum::<f64>()
            });
            products.sum()
        };
        let values = kernels(&model);
        let kernel = |index: usize| &values[length * index..][..length];
        // Two directions, then their negatives.
        for (a, b, expected) in [(0, 0, 1.0), (1, 1, 1.0), (0, 1, 0.0), (0, 2, -1.0)] {
            let found = along(kernel(a), kernel(b));
            assert!((found - expected).abs() < 0.05, "{a} {b}: {found}");
        }
        assert_ne!(values, kernels(&fresh));
    }

    #[test]
    fn images_are_decoded_once_for_whitening_and_training_and_have_their_full_size_in_every_phase() {
        let config = config();
        let folder = tempfile::tempdir().unwrap();
        testing::photos(folder.path(), 0, 5);
        let images = || -> Vec<Sample> {
            let path = |number: usize| folder.path().join(format!("{number}.png"));
            (0..5)
                .map(|number| Sample { labels: 0usize.into(), source: ImageSource::File(path(number)) })
                .collect()
        };
        let fresh = config.model.init(&Device::default()).unwrap();
        let [small, whole] = [8, 16].map(|side| loader(images(), &config, side));
        let [by_small, by_whole] =
            [&small, &whole].map(|training| whitened(fresh.clone(), training, &config, &Quiet).unwrap());
        assert_eq!(kernels(&by_small), kernels(&by_whole));
        assert_ne!(kernels(&by_whole), kernels(&fresh));
        folder.close().unwrap();
        let epoch: Vec<Batch> = whole.epoch(0, 0).map(Result::unwrap).collect();
        assert_eq!(epoch.iter().map(|batch| batch.size).sum::<usize>(), 5, "the files are gone");
        assert_eq!(epoch[0].pixel_keys.len(), 5);
    }

    #[test]
    fn images_that_take_more_than_a_second_take_long() {
        let at = |milliseconds, batches| takes_long(Duration::from_millis(milliseconds), batches);
        assert_eq!([at(60, 16), at(70, 16), at(1001, 1), at(2000, 0)], [false, true, true, false]);
    }
}
