//! Inference: computes the logits or embeddings of images, from decoding to the finished vectors.
//!
//! A [`Predictor`] takes tensors, image files, images in memory, labeled batches, or an endless stream of images. A
//! [`Classifier`] adds the model file and the class names. Each kind of answer is a variant of [`Output`].

mod classifier;
mod decoder;
mod output;
mod predictor;
mod stream;
mod views;

pub use classifier::{Classifier, Prediction, probabilities, rank};
pub use output::Output;
pub use predictor::{LabeledAnswers, Predictor};
pub use stream::Asked;
pub use views::Views;

pub(crate) use decoder::{image_tensor, unless_panicked};

/// The error message for logits that are NaN or infinite.
pub(crate) const NOT_FINITE: &str = "the model gives logits that are not finite (NaN or infinity), so there is no prediction; its weights are broken";

#[cfg(test)]
mod tests;
