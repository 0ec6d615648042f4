//! The predictions of a model for the images of a loader.

use anyhow::{Result, bail};
use vitrine_datasets::{BadFile, Loader};

use super::Predictions;
use crate::flags::described;
use crate::predict::{LabeledAnswers, Output, Predictor};

/// The predictions for every readable image of a loader, in its order.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// The predictions with the true classes.
    pub predictions: Predictions,
    /// For each prediction, the index of its sample in the loader.
    pub indices: Vec<usize>,
    /// For each prediction, a hash of the image's decoded pixels; empty unless the loader computes them.
    pub pixel_keys: Vec<u64>,
    /// Images that cannot be read.
    pub bad: Vec<BadFile>,
}

/// Classifies every image of `loader` once.
///
/// # Errors
/// If no image can be read, or the loader fails.
pub fn predict(predictor: &Predictor, loader: &Loader) -> Result<Predicted> {
    let classes = predictor.model().config().num_classes;
    let mut predicted = Predicted {
        predictions: match loader.config().multi_label {
            true => Predictions::multi_label(classes),
            false => Predictions::new(classes),
        },
        indices: Vec::new(),
        pixel_keys: Vec::new(),
        bad: Vec::new(),
    };
    for answers in predictor.ask_labeled(Output::Logits, loader) {
        let LabeledAnswers { values, labels, mut indices, mut pixel_keys, mut bad } = answers?;
        predicted.predictions.push_labels(labels, &values);
        predicted.indices.append(&mut indices);
        predicted.pixel_keys.append(&mut pixel_keys);
        predicted.bad.append(&mut bad);
    }
    if predicted.predictions.is_empty() {
        match predicted.bad.first() {
            Some(first) => {
                bail!("none of the images can be read, the first one being {}", described(first))
            }
            None => bail!("there are no images to evaluate"),
        }
    }
    Ok(predicted)
}
