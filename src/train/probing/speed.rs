//! The speed of a backbone on the images of a run.

use std::time::Instant;

use anyhow::Result;
use vitrine_datasets::epoch_order;
use vitrine_models::VisionTransformer;

use super::images::SplitImages;
use crate::predict::{LabeledAnswers, Output, Predictor};
use crate::run_folder::RunConfig;
use crate::runtime::Runtime;
use crate::seed::{Stream, stream};

/// Images of a batch by which the speed of the backbone is measured, and the number of these batches.
const MEASURED_BATCH: usize = 8;
const MEASURED_BATCHES: usize = 3;

/// Images per second that are read, decoded, and passed through the backbone, from a few training images.
///
/// # Errors
/// When the loader or the device fails.
pub(in crate::train) fn measured_speed(
    images: &SplitImages,
    model: &VisionTransformer,
    config: &RunConfig,
    runtime: Runtime<'_>,
) -> Result<f64> {
    let predictor = Predictor::new(model.clone(), config.preprocessing.clone(), runtime.device)
        .with_limits(config.limits());
    let batch = predictor.largest_batch(MEASURED_BATCH.min(config.recipe.batch_size));
    let order = epoch_order(images.samples.len(), stream(config.seed, Stream::Measuring, 2), 0);
    let some = order.into_iter().take(MEASURED_BATCHES * batch);
    let loader = predictor.loader(
        some.map(|index| images.samples[index].clone()).collect(),
        batch,
        runtime.threads,
    )?;
    let mut since = Instant::now();
    let (mut measured, mut answered) = (0, 0);
    for (place, answers) in predictor.ask_labeled(Output::Embedding, &loader).enumerate() {
        let LabeledAnswers { indices, bad, .. } = answers?;
        answered = indices.len() + bad.len();
        measured += answered;
        if place == 0 && loader.batches() > 1 {
            // The first batch allocates memory, and waits for the first images.
            (since, measured) = (Instant::now(), 0);
        }
    }
    Ok(measured.max(answered).max(1) as f64 / since.elapsed().as_secs_f64().max(1e-9))
}
