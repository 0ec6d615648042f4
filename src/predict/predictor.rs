//! The predictor: a model with the preprocessing, device, views, and limits that inference needs.

use std::sync::Arc;

use anyhow::{Result, ensure};
use burn::tensor::Tensor;
use vitrine_datasets::{
    BadFile, DatasetError, DecodeLimits, ImageSource, Labels, Loader, LoaderConfig, Preprocessing, Sample,
};
use vitrine_models::VisionTransformer;

use super::decoder::{Decoded, Decoder, image_tensor};
use super::{NOT_FINITE, Output, Views};
use crate::device::FoundDevice;
use crate::memory::{self, Work};

/// A model with its preprocessing and device, the views of each image, and the limits on the size of decoded images.
pub struct Predictor {
    model: VisionTransformer,
    pub(super) decoder: Decoder,
    device: FoundDevice,
    views: Views,
    multi_label: bool,
}

/// The answers to one batch of labeled images.
pub struct LabeledAnswers {
    /// The answers, row by row: `[images, width of an answer]`. They may be NaN or infinite.
    pub values: Vec<f32>,
    /// The classes of each image.
    pub labels: Vec<Labels>,
    /// The index of each image in the loader.
    pub indices: Vec<usize>,
    /// A hash of each image's decoded pixels; empty unless the loader computes them.
    pub pixel_keys: Vec<u64>,
    /// The images of the batch that cannot be read and therefore have no answer.
    pub bad: Vec<BadFile>,
}

impl Predictor {
    /// A predictor for a model whose parameters are on `device`, with the default limits and one view of each image.
    pub fn new(model: VisionTransformer, preprocessing: Preprocessing, device: &FoundDevice) -> Self {
        let decoder = Decoder { preprocessing, limits: DecodeLimits::default() };
        Self { model: model.packed(), decoder, device: device.clone(), views: Views::One, multi_label: false }
    }

    /// The same predictor with other limits on the size of images that are decoded.
    pub fn with_limits(self, limits: DecodeLimits) -> Self {
        Self { decoder: Decoder { limits, ..self.decoder }, ..self }
    }

    /// The same predictor with other views of each image. [`Views::check`] tells whether the model suits them.
    pub fn with_views(self, views: Views) -> Self {
        Self { views, ..self }
    }

    /// The views of each image.
    pub fn views(&self) -> Views {
        self.views
    }

    /// Changes the views of each image.
    pub(crate) fn set_views(&mut self, views: Views) {
        self.views = views;
    }

    /// The same predictor, whose loaders give images of several labels each if `multi_label` is set.
    pub fn with_multi_label(self, multi_label: bool) -> Self {
        Self { multi_label, ..self }
    }

    /// The preprocessing of images.
    pub fn preprocessing(&self) -> &Preprocessing {
        &self.decoder.preprocessing
    }

    /// The device that computes.
    pub fn device(&self) -> &FoundDevice {
        &self.device
    }

    /// The model.
    pub fn model(&self) -> &VisionTransformer {
        &self.model
    }

    /// Checks that batches of this size fit the memory. Returns a warning if they may not.
    ///
    /// # Errors
    /// If they clearly do not fit.
    pub fn check_memory(&self, batch_size: usize) -> Result<Option<String>> {
        memory::check(self.model.config(), Work::Inference(batch_size), &self.device)
    }

    /// The largest batch, of at most `wanted` images, that fits the memory; at least 1.
    pub fn largest_batch(&self, wanted: usize) -> usize {
        memory::largest_batch(self.model.config(), wanted, Work::Inference, &self.device).unwrap_or(1)
    }

    /// Batches of labeled images for [`Self::ask_labeled`], in the order of the samples, decoded by `threads` threads
    /// while the model computes.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn loader(&self, samples: Arc<[Sample]>, batch_size: usize, threads: usize) -> Result<Loader> {
        let config = LoaderConfig {
            batch_size,
            threads,
            limits: self.decoder.limits,
            multi_label: self.multi_label,
            ..LoaderConfig::evaluation(&self.decoder.preprocessing, self.model.config().num_classes)
        };
        Ok(Loader::new(samples, config)?)
    }

    /// The answers for preprocessed images: logits averaged over the views of each image, and embeddings and layouts of one image: of
    /// the mirror image if that is the only view, or else of the image itself.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, width of an answer]`, see [`Output`]
    pub fn ask(&self, output: Output, images: Tensor<4>) -> Tensor<2> {
        let views = match output {
            Output::Embedding | Output::Layout if self.views != Views::MirrorImage => Views::One,
            Output::Logits | Output::Embedding | Output::Layout => self.views,
        };
        output.compute(&self.model, views, images)
    }

    /// The attention weights of every block for preprocessed images. They are those of the image itself, whatever the
    /// views.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: for each block `[batch, heads, tokens, tokens]`, if its attention is over all tokens; see
    ///   [`TokenMixer`](vitrine_models::attention::TokenMixer) for other kinds
    pub fn attention(&self, images: Tensor<4>) -> Vec<Tensor<4>> {
        self.model.forward_with_weights(images).1
    }

    /// The answer for each image, in the order given: one batch, decoded in parallel.
    ///
    /// An image that cannot be read, or whose answer is NaN or infinite, is an `Err` of its own and does not affect the
    /// others.
    pub fn ask_images(&self, output: Output, images: &[ImageSource]) -> Vec<Result<Vec<f32>>> {
        self.ask_decoded(output, self.decoder.decode(images))
    }

    /// The answers for the batches of a loader, which comes from [`Self::loader`] or has the same preprocessing. The
    /// next images are decoded while the model computes.
    pub fn ask_labeled(
        &self,
        output: Output,
        loader: &Loader,
    ) -> impl Iterator<Item = Result<LabeledAnswers>> {
        loader.in_order().map(move |batch| {
            let batch = batch?;
            let values = match batch.size {
                0 => Vec::new(),
                size => self.compute(output, batch.images, size),
            };
            let (labels, indices, pixel_keys) = (batch.labels, batch.indices, batch.pixel_keys);
            Ok(LabeledAnswers { values, labels, indices, pixel_keys, bad: batch.skipped })
        })
    }

    /// The answer or the error for each image of a decoded batch, in order.
    pub(super) fn ask_decoded(&self, output: Output, decoded: Decoded) -> Vec<Result<Vec<f32>>> {
        let Decoded { values, readable, outcomes } = decoded;
        let answers = if readable == 0 { Vec::new() } else { self.compute(output, values, readable) };
        let width = answers.len() / readable.max(1);
        let mut answers = answers.chunks_exact(width.max(1)).map(<[f32]>::to_vec);
        let answer = |outcome: Result<(), DatasetError>| {
            outcome?;
            check_finite(answers.next().unwrap_or_default())
        };
        outcomes.into_iter().map(answer).collect()
    }

    /// The answers for `count` preprocessed images, row by row.
    fn compute(&self, output: Output, images: Vec<f32>, count: usize) -> Vec<f32> {
        let images = image_tensor(images, count, &self.decoder.preprocessing, &self.device.device);
        self.ask(output, images).into_data().convert::<f32>().iter::<f32>().collect()
    }
}

/// Checks that an answer is finite, since logits with NaN or infinity have neither a ranking nor probabilities.
///
/// # Errors
/// If a value is NaN or infinite.
fn check_finite(answer: Vec<f32>) -> Result<Vec<f32>> {
    ensure!(answer.iter().all(|value| value.is_finite()), "{NOT_FINITE}");
    Ok(answer)
}
