//! The explainer: a trained model on a device with autodiff, and the maps of images.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::tensor::Tensor;
use rayon::prelude::*;
use vitrine_datasets::{DatasetError, DecodeLimits, Image, ImageSource, Interpolation};
use vitrine_models::{ModelConfig, VisionTransformer};

use super::{Map, Method, overlay};
use crate::device::FoundDevice;
use crate::memory::{self, Work};
use crate::model_file::{self, ModelCard};
use crate::predict::{NOT_FINITE, Prediction, Views, image_tensor, rank, unless_panicked};

/// A trained model that is asked what it looked at.
pub struct Explainer {
    card: ModelCard,
    /// On a device with autodiff, without parameters that get a gradient, and in the mode of inference.
    model: VisionTransformer,
    device: FoundDevice,
    limits: DecodeLimits,
}

/// What is asked about each image.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The methods, each of which suits the model ([`Method::check`]).
    pub methods: Vec<Method>,
    /// The index of the class that the maps are about; by default the one that the model predicts for the image.
    pub class: Option<usize>,
    /// The block whose attention [`Method::Attention`] shows, from 0.
    pub block: usize,
    /// Whether [`Method::Attention`] and [`Method::Pooling`] have one layer per head, and not their mean.
    pub heads: bool,
}

/// What a model looked at in one image.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The image as the model sees it: resized, cropped, or padded.
    pub image: Image,
    /// The most probable class.
    pub predicted: Prediction,
    /// The class that the maps are about.
    pub class: Prediction,
    /// A map for each method, in the order asked.
    pub maps: Vec<Map>,
}

impl Explanation {
    /// The first layer of a map, drawn over the image in RGB, with `side` pixels on the longer side.
    pub fn overlay(&self, map: &Map, side: u32) -> Image {
        let Image { width, height, .. } = self.image;
        let scaled = |length: u32| (length * side / width.max(height)).max(1);
        let image = self.image.with_channels(3).resize(scaled(width), scaled(height), Interpolation::Bicubic);
        overlay::drawn(&image, &map.values[..map.rows * map.columns], [map.rows, map.columns])
    }
}

impl Explainer {
    /// Loads a model file, or the best model of a run folder, onto a device of [`crate::device::select`].
    ///
    /// # Errors
    /// If `path` holds no model of this program, or one without a classifier.
    pub fn load(path: &Path, device: &FoundDevice) -> Result<Self> {
        let with_autodiff = device.device.clone().autodiff();
        let (card, model) = model_file::load_as(path, &with_autodiff, ModelConfig::deterministic)?;
        card.require_classifier(path.display())?;
        Ok(Self::new(card, model, device))
    }

    /// An explainer of a model whose parameters are on `device` with autodiff. The model has no dropout
    /// ([`vitrine_models::ModelConfig::deterministic`]).
    pub fn new(card: ModelCard, model: VisionTransformer, device: &FoundDevice) -> Self {
        Self { card, model: model.freeze(), device: device.clone(), limits: DecodeLimits::default() }
    }

    /// The same explainer with other limits on the size of images that are decoded.
    pub fn with_limits(self, limits: DecodeLimits) -> Self {
        Self { limits, ..self }
    }

    /// The card of the model file.
    pub fn card(&self) -> &ModelCard {
        &self.card
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
        memory::check(self.model.config(), Work::Explaining(batch_size), &self.device)
    }

    /// The largest batch, of at most `wanted` images, that fits the memory; `None` if not even one image does.
    pub fn largest_batch(&self, wanted: usize) -> Option<usize> {
        memory::largest_batch(self.model.config(), wanted, Work::Explaining, &self.device)
    }

    /// What the model looked at in each image, in the order given. Images are decoded in parallel, and are one batch. An
    /// image that cannot be read, or for which the model gives a value that is NaN or infinite, is an `Err` of its own.
    pub fn explain(&self, images: &[ImageSource], asked: &Asked) -> Vec<Result<Explanation>> {
        let resized: Vec<Result<Image>> = images.par_iter().map(|image| self.decode(image)).collect();
        let readable: Vec<&Image> = resized.iter().filter_map(|image| image.as_ref().ok()).collect();
        let mut explained =
            if readable.is_empty() { Vec::new() } else { self.answer(&readable, asked) }.into_iter();
        let answer = |image: Result<Image>| {
            let image = image?;
            let (predicted, class, maps) = explained.next().context("an answer is missing")??;
            Ok(Explanation { image, predicted, class, maps })
        };
        resized.into_iter().map(answer).collect()
    }

    /// The image in the size and with the channels of the model's input.
    fn decode(&self, image: &ImageSource) -> Result<Image> {
        let decode = || {
            let decoded = image.decode_for_use(&self.limits)?;
            Ok(self.card.preprocessing.resized(&decoded))
        };
        unless_panicked(decode).map_err(|error: DatasetError| error.into())
    }

    /// The predicted class, the explained class, and the maps of each image.
    fn answer(&self, images: &[&Image], asked: &Asked) -> Vec<Result<(Prediction, Prediction, Vec<Map>)>> {
        let input = self.input(images);
        // The class is the answer of `classify`; the maps are those of the image itself.
        let views = Views::of(&self.card);
        let logits = values(views.average(input.clone(), |input| self.model.forward(input)));
        let logits: Vec<&[f32]> = logits.chunks_exact(self.card.classes.len()).collect();
        let ranked: Vec<Vec<Prediction>> =
            logits.iter().map(|logits| rank(&self.card, logits, logits.len())).collect();
        let classes: Vec<usize> =
            ranked.iter().map(|ranked| asked.class.unwrap_or(ranked[0].index)).collect();
        let by_method: Vec<Vec<Map>> =
            asked.methods.iter().map(|&method| self.maps(method, &input, &classes, asked)).collect();
        let answer = |(index, ranked): (usize, Vec<Prediction>)| {
            let maps: Vec<Map> = by_method.iter().map(|maps| maps[index].clone()).collect();
            let mut all = logits[index].iter().chain(maps.iter().flat_map(|map| &map.values));
            ensure!(all.all(|value| value.is_finite()), "{NOT_FINITE}");
            let class = ranked.iter().find(|prediction| prediction.index == classes[index]);
            Ok((ranked[0].clone(), class.context("the model has no such class")?.clone(), maps))
        };
        ranked.into_iter().enumerate().map(answer).collect()
    }

    /// The model's input for resized images: `[images, channels, height, width]`.
    fn input(&self, images: &[&Image]) -> Tensor<4> {
        let preprocessing = &self.card.preprocessing;
        let mut pixels = vec![0.0; images.len() * preprocessing.values()];
        for (slot, image) in pixels.chunks_exact_mut(preprocessing.values()).zip(images) {
            preprocessing.normalize(image, slot);
        }
        image_tensor(pixels, images.len(), preprocessing, &self.device.device.clone().autodiff())
    }

    /// The maps of a method, one for each image.
    fn maps(&self, method: Method, input: &Tensor<4>, classes: &[usize], asked: &Asked) -> Vec<Map> {
        let (model, input) = (&self.model, input.clone());
        let suits = "the caller has checked that the method suits the model";
        let heads =
            |heads: Tensor<4>| self.split(method, if asked.heads { heads } else { heads.mean_dim(1) });
        let one = |map: Tensor<3>| self.split(method, map.unsqueeze_dim(1));
        match method {
            Method::Attention => heads(model.attention_map(input, asked.block).expect(suits)),
            Method::Rollout => one(model.rollout(input).expect(suits)),
            Method::GradientAttention => one(model.gradient_attention(input, classes).expect(suits)),
            Method::Pooling => heads(model.pooling_map(input, classes).expect(suits)),
            Method::GradCam => one(model.grad_cam(input, classes)),
            Method::PatchLogits => patch_logits(&self.split(method, model.patch_logits(input)), classes),
        }
    }

    /// The maps of a batch: `[batch, layers, rows, columns]`.
    fn split(&self, method: Method, maps: Tensor<4>) -> Vec<Map> {
        let [_, layers, rows, columns] = maps.dims();
        let is_about_class = method.is_about_class(&self.model);
        let of_image = |values: &[f32]| {
            let (values, classes) = (values.to_vec(), Vec::new());
            Map { method, is_about_class, rows, columns, values, classes }
        };
        values(maps).chunks_exact(layers * rows * columns).map(of_image).collect()
    }
}

/// The layer of each image's class, and the class with the largest logit at each patch, from maps with a layer per class.
fn patch_logits(of_all_classes: &[Map], classes: &[usize]) -> Vec<Map> {
    let of_class = |(map, &class): (&Map, &usize)| {
        let layers: Vec<&[f32]> = map.layers().collect();
        let best = |patch: usize| {
            let of_patch = layers.iter().map(|layer| layer[patch]).enumerate();
            of_patch.max_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(class, _)| class)
        };
        let best = (0..map.rows * map.columns).map(best).collect();
        Map { values: layers[class].to_vec(), classes: best, ..*map }
    };
    of_all_classes.iter().zip(classes).map(of_class).collect()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().iter::<f32>().collect()
}
