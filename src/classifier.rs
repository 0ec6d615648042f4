//! A model file in use: images in, logits out.

use std::path::Path;

use anyhow::{Result, ensure};
use burn::tensor::{Device, Tensor, TensorData};
use rayon::prelude::*;
use serde::Serialize;
use vitrine_datasets::{DatasetError, DecodeLimits, ImageSource};
use vitrine_models::VisionTransformer;

use crate::evaluate::{NOT_FINITE, Views};
use crate::model_file::{self, ModelCard};

/// A class that an image may be of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The name of the class.
    pub label: String,
    /// Its place among the model's classes.
    pub index: usize,
    /// By the softmax of the logits: 0 to 1, all classes together 1.
    pub probability: f64,
}

/// The `top` most probable classes, best first, by finite logits in the order of `classes`.
pub fn rank(classes: &[String], logits: &[f32], top: usize) -> Vec<Prediction> {
    let mut ranked: Vec<(usize, f64)> = softmax(logits).into_iter().enumerate().collect();
    ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let named =
        |(index, probability): (usize, f64)| Prediction { label: classes[index].clone(), index, probability };
    ranked.into_iter().take(top).map(named).collect()
}

/// Probabilities of finite logits, computed so that large ones do not overflow.
fn softmax(logits: &[f32]) -> Vec<f64> {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let powers: Vec<f64> = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// A trained model with everything that using it takes.
pub struct Classifier {
    card: ModelCard,
    model: VisionTransformer,
    device: Device,
    limits: DecodeLimits,
    views: Views,
}

impl Classifier {
    /// A model on the device where its parameters are.
    pub fn new(card: ModelCard, model: VisionTransformer, device: &Device) -> Self {
        Self { card, model, device: device.clone(), limits: DecodeLimits::default(), views: Views::One }
    }

    /// Reads a model file or the best model of a run folder.
    ///
    /// # Errors
    /// When `path` holds no model of this program.
    pub fn load(path: &Path, device: &Device) -> Result<Self> {
        let (card, model) = model_file::load(path, device)?;
        Ok(Self::new(card, model, device))
    }

    /// The same with other limits to what an image may cost.
    pub fn with_limits(self, limits: DecodeLimits) -> Self {
        Self { limits, ..self }
    }

    /// The same with other views of each image, such as test-time augmentation.
    ///
    /// # Errors
    /// When the model was trained without them.
    pub fn with_views(self, views: Views) -> Result<Self> {
        views.check(&self.card)?;
        Ok(Self { views, ..self })
    }

    /// What the file says about itself.
    pub fn card(&self) -> &ModelCard {
        &self.card
    }

    /// The model.
    pub fn model(&self) -> &VisionTransformer {
        &self.model
    }

    /// The logits of each image, in the order of the class names and all of them finite, or why there are none: it
    /// cannot be read, or the model gives NaN or infinity.
    ///
    /// Images are decoded in parallel and classified as one batch.
    pub fn classify(&self, images: &[ImageSource]) -> Vec<Result<Vec<f32>>> {
        let preprocessing = &self.card.preprocessing;
        let decoded: Vec<Result<Vec<f32>, DatasetError>> = images
            .par_iter()
            .map(|image| Ok(preprocessing.apply(&*image.decode_for_use(&self.limits)?)))
            .collect();
        let values: Vec<f32> = decoded.iter().flatten().flatten().copied().collect();
        let readable = decoded.iter().filter(|result| result.is_ok()).count();
        let mut logits = self.logits(values, readable).into_iter();
        let outcome = |decoded: Result<Vec<f32>, DatasetError>| {
            decoded?;
            finite(logits.next().unwrap_or_default())
        };
        decoded.into_iter().map(outcome).collect()
    }

    /// All classes of one image file, the most probable one first.
    ///
    /// # Errors
    /// When the file cannot be read, or the model gives NaN or infinity.
    pub fn predict(&self, image: &Path) -> Result<Vec<Prediction>> {
        let logits =
            self.classify(&[ImageSource::File(image.to_owned())]).pop().unwrap_or_else(|| Ok(Vec::new()))?;
        Ok(rank(&self.card.classes, &logits, logits.len()))
    }

    fn logits(&self, values: Vec<f32>, count: usize) -> Vec<Vec<f32>> {
        if count == 0 {
            return Vec::new();
        }
        let preprocessing = &self.card.preprocessing;
        let [height, width] = preprocessing.image_size;
        let data = TensorData::new(values, [count, preprocessing.channels, height, width]);
        let images = Tensor::from_data(data, &self.device);
        let logits = self.views.logits(&self.model, images).into_data();
        let logits: Vec<f32> = logits.iter::<f32>().collect();
        logits.chunks_exact(self.card.classes.len()).map(<[f32]>::to_vec).collect()
    }
}

/// Logits that say something: neither an order nor a probability exists where one is NaN or infinite.
///
/// # Errors
/// Says that the model is at fault.
fn finite(logits: Vec<f32>) -> Result<Vec<f32>> {
    ensure!(logits.iter().all(|logit| logit.is_finite()), "{NOT_FINITE}");
    Ok(logits)
}
