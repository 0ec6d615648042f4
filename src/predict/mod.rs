//! Asking a model: the one place that brings images, preprocessing, views, a device, and its memory together.
//!
//! [`Predictor`] answers for tensors, image files, images in memory, labeled batches, or an endless list of images.
//! [`Classifier`] adds the model file and the names of its classes. A new kind of answer is a variant of [`Output`].

mod classifier;
mod decoder;
mod output;
mod predictor;
mod stream;
mod views;

pub use classifier::{Classifier, Prediction, rank};
pub use output::Output;
pub use predictor::{LabeledAnswers, Predictor};
pub use stream::Asked;
pub use views::Views;

pub(crate) use decoder::image_tensor;

/// The message about logits that are NaN or infinite.
pub(crate) const NOT_FINITE: &str = "the model gives logits that are not finite (NaN or infinity), so there is no prediction; its weights are broken";

#[cfg(test)]
mod tests;
