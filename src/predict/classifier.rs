//! The classifier: a model file with the names of its classes, ready to classify images.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use vitrine_datasets::{DecodeLimits, ImageSource};
use vitrine_models::VisionTransformer;

use super::{Output, Predictor, Views};
use crate::device::{self, FoundDevice};
use crate::model_file::{self, ModelCard};

/// A class of the model with its probability for an image.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The name of the class.
    pub label: String,
    /// The index of the class among the model's classes.
    pub index: usize,
    /// The probability, from 0 to 1: by the softmax, so that those of all classes sum to 1, or with several labels an
    /// image by the logistic function, for each class by itself.
    pub probability: f64,
}

/// The probability of each class of a model with this card. `logits` are finite and in the order of the card's classes.
pub fn probabilities(card: &ModelCard, logits: &[f32]) -> Vec<f64> {
    if card.multi_label { logistic(logits) } else { softmax(logits) }
}

/// The `top` most probable classes of a model with this card, the most probable first. `logits` are finite and in the
/// order of the card's classes.
pub fn rank(card: &ModelCard, logits: &[f32], top: usize) -> Vec<Prediction> {
    let classes = &card.classes;
    let probabilities = probabilities(card, logits);
    let mut ranked: Vec<(usize, f64)> = probabilities.into_iter().enumerate().collect();
    ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let named =
        |(index, probability): (usize, f64)| Prediction { label: classes[index].clone(), index, probability };
    ranked.into_iter().take(top).map(named).collect()
}

/// Probabilities of finite logits that are judged each by itself.
fn logistic(logits: &[f32]) -> Vec<f64> {
    logits.iter().map(|&logit| 1.0 / (1.0 + (-f64::from(logit)).exp())).collect()
}

/// Probabilities of finite logits of classes that exclude each other. The largest logit is subtracted first, so that large logits do not overflow.
fn softmax(logits: &[f32]) -> Vec<f64> {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let powers: Vec<f64> = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// A trained model: the card of its file and a predictor with its weights. [`load`](crate::load) makes one; threads may share it.
///
/// # Examples
///
/// ```no_run
/// use std::sync::Arc;
///
/// use vitrine::LoadOptions;
/// use vitrine_datasets::{Image, ImageSource};
///
/// vitrine::threads::set(None)?; // one thread for each physical core
/// let classifier = vitrine::load("runs/photos-hybrid_nano_patch16_128-1", &LoadOptions::default())?;
///
/// // An image in memory, as a file has it or as pixels; `name` is for messages.
/// let bytes = std::fs::read("cat.jpg")?;
/// let encoded = ImageSource::Encoded { name: "upload".to_owned(), bytes: bytes.into() };
/// let gray = Image { width: 2, height: 1, channels: 1, pixels: vec![0, 255] };
/// let pixels = ImageSource::Pixels { name: "camera".to_owned(), image: Arc::new(gray) };
///
/// // An image that cannot be read is an error of its own.
/// for predictions in classifier.predict_all(&[encoded, pixels], 3) {
///     match predictions {
///         Ok(best) => println!("{}: {:.1}%", best[0].label, 100.0 * best[0].probability),
///         Err(error) => println!("{error:#}"),
///     }
/// }
/// # Ok::<(), anyhow::Error>(())
/// ```
pub struct Classifier {
    card: ModelCard,
    predictor: Predictor,
    batch_size: usize,
}

/// The images that a classifier computes together unless it is told otherwise.
const BATCH_SIZE: usize = 16;

impl Classifier {
    /// A classifier for a model whose parameters are on `device`, with the views of each image that its card states.
    pub fn new(card: ModelCard, model: VisionTransformer, device: &FoundDevice) -> Self {
        let predictor =
            Predictor::new(model, card.preprocessing.clone(), device).with_views(Views::of(&card));
        Self { card, predictor, batch_size: BATCH_SIZE }
    }

    /// Loads a model file, or the best model of a run folder, onto the default device: a working GPU if the program was
    /// built with a backend for it, or else the CPU.
    ///
    /// # Errors
    /// If `path` holds no model of this program.
    pub fn load(path: &Path) -> Result<Self> {
        let (device, _) = device::select(None)?;
        Self::load_on(path, &device)
    }

    /// Loads a model file, or the best model of a run folder, onto a device of [`device::select`].
    ///
    /// # Errors
    /// If `path` holds no model of this program, or one without a classifier.
    pub fn load_on(path: &Path, device: &FoundDevice) -> Result<Self> {
        let loaded = Self::load_with_or_without_head(path, device)?;
        loaded.card.require_classifier(path.display())?;
        Ok(loaded)
    }

    /// [`Self::load_on`], also of models without a classifier, whose embeddings are the library's and whose logits mean
    /// nothing.
    ///
    /// # Errors
    /// If `path` holds no model of this program.
    pub fn load_with_or_without_head(path: &Path, device: &FoundDevice) -> Result<Self> {
        let (card, model) = model_file::load(path, &device.device)?;
        Ok(Self::new(card, model, device))
    }

    /// The same classifier with other limits on the size of images that are decoded.
    pub fn with_limits(self, limits: DecodeLimits) -> Self {
        Self { predictor: self.predictor.with_limits(limits), ..self }
    }

    /// The same classifier with other views of each image, such as test-time augmentation.
    ///
    /// # Errors
    /// If the model was trained without mirror images and a view is one.
    pub fn with_views(self, views: Views) -> Result<Self> {
        views.check(&self.card)?;
        Ok(Self { predictor: self.predictor.with_views(views), ..self })
    }

    /// The same classifier with another number of images that are computed together, at least 1; by default 16.
    pub fn with_batch_size(self, batch_size: usize) -> Self {
        Self { batch_size: batch_size.max(1), ..self }
    }

    /// The card of the model file.
    pub fn card(&self) -> &ModelCard {
        &self.card
    }

    /// The predictor, for embeddings, attention weights, and streams of images.
    pub fn predictor(&self) -> &Predictor {
        &self.predictor
    }

    /// The finite logits of each image, in the order of the class names. An image that cannot be read is an `Err` of
    /// its own, and does not affect the others.
    ///
    /// Images are decoded in parallel and classified in batches.
    pub fn classify(&self, images: &[ImageSource]) -> Vec<Result<Vec<f32>>> {
        self.ask(Output::Logits, images)
    }

    /// The embedding of each image, in the order given: what the head classifies, timm's
    /// `forward_head(x, pre_logits=True)`. It is that of the image itself, whatever the views. An image that cannot be read
    /// is an `Err` of its own, and does not affect the others.
    ///
    /// Images are decoded in parallel and computed in batches.
    ///
    /// # Shapes
    /// - output: `[dim]` for each image, of the model's
    ///   [`embedding_dim`](vitrine_models::ModelConfig::embedding_dim)
    pub fn embed(&self, images: &[ImageSource]) -> Vec<Result<Vec<f32>>> {
        self.ask(Output::Embedding, images)
    }

    fn ask(&self, output: Output, images: &[ImageSource]) -> Vec<Result<Vec<f32>>> {
        images.chunks(self.batch_size).flat_map(|batch| self.predictor.ask_images(output, batch)).collect()
    }

    /// The `top` most probable classes of each image, the most probable one first. An image that cannot be read is an `Err` of
    /// its own, and does not affect the others.
    pub fn predict_all(&self, images: &[ImageSource], top: usize) -> Vec<Result<Vec<Prediction>>> {
        let ranked = |logits: Result<Vec<f32>>| Ok(rank(&self.card, &logits?, top));
        self.classify(images).into_iter().map(ranked).collect()
    }

    /// All classes of one image file, the most probable one first.
    ///
    /// # Errors
    /// If the file cannot be read, or a logit is NaN or infinite.
    pub fn predict(&self, image: &Path) -> Result<Vec<Prediction>> {
        let image = ImageSource::File(image.to_owned());
        self.predict_all(&[image], self.card.classes.len()).pop().unwrap_or_else(|| Ok(Vec::new()))
    }
}
