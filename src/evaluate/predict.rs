//! A split of a data set through a model.

use anyhow::{Result, bail};
use burn::tensor::{Device, Tensor, TensorData};
use vitrine_datasets::{BadFile, Batch, Loader, Preprocessing};
use vitrine_models::VisionTransformer;

use super::Predictions;
use crate::flags::described;

/// What a model says of every readable image of a loader, in its order.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// What the logits say, and the true classes.
    pub predictions: Predictions,
    /// For each prediction, the index of its sample in the loader.
    pub indices: Vec<usize>,
    /// For each prediction, the key of its image's pixels, if the loader makes them.
    pub pixel_keys: Vec<u64>,
    /// Images that could not be read.
    pub bad: Vec<BadFile>,
}

/// Classifies every image of `loader` once, as it is.
///
/// # Errors
/// When no image can be read, or loading fails as a whole.
pub fn predict(
    model: &VisionTransformer,
    loader: &Loader,
    preprocessing: &Preprocessing,
    classes: usize,
    device: &Device,
) -> Result<Predicted> {
    predict_by(|images| model.forward(images), loader, preprocessing, classes, device)
}

/// Classifies every image of `loader` by a function from `[batch, channels, height, width]` to logits, `[batch, classes]`.
///
/// # Errors
/// As [`predict`].
pub(crate) fn predict_by(
    logits: impl Fn(Tensor<4>) -> Tensor<2>,
    loader: &Loader,
    preprocessing: &Preprocessing,
    classes: usize,
    device: &Device,
) -> Result<Predicted> {
    let mut predicted = Predicted {
        predictions: Predictions::new(classes),
        indices: Vec::new(),
        pixel_keys: Vec::new(),
        bad: Vec::new(),
    };
    for batch in loader.in_order() {
        let mut batch = batch?;
        predicted.bad.append(&mut batch.skipped);
        if batch.size == 0 {
            continue;
        }
        let logits = logits(images(&mut batch, preprocessing, device));
        let logits = logits.into_data().convert::<f32>();
        let values: Vec<f32> = logits.iter::<f32>().collect();
        predicted.predictions.push(&batch.labels, &values);
        predicted.indices.append(&mut batch.indices);
        predicted.pixel_keys.append(&mut batch.pixel_keys);
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

/// Takes a batch's images out of it, as a tensor on the device.
///
/// # Shapes
/// - output: `[batch, channels, height, width]`
pub(crate) fn images(batch: &mut Batch, preprocessing: &Preprocessing, device: &Device) -> Tensor<4> {
    let [height, width] = preprocessing.image_size;
    let shape = [batch.size, preprocessing.channels, height, width];
    Tensor::from_data(TensorData::new(std::mem::take(&mut batch.images), shape), device)
}
