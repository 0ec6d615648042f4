//! A model file measured on a data set.

use std::path::Path;

use anyhow::{Result, bail};
use vitrine_datasets::{BadFile, Dataset, DecodeLimits, Loader, LoaderConfig};

use super::predict::predict_by;
use super::{Metrics, NOT_FINITE, Part, Selection, Views};
use crate::device::FoundDevice;
use crate::memory::{self, Work};
use crate::model_file;
use crate::output::note;

/// How a model is measured.
#[derive(Clone, Debug)]
pub struct EvaluationSettings {
    /// The part of the data set; see [`Selection::new`] for what is taken by default.
    pub part: Option<Part>,
    /// What of each image is classified.
    pub views: Views,
    /// Images per forward pass.
    pub batch_size: usize,
    /// Threads that decode.
    pub threads: usize,
    /// What an image may cost.
    pub limits: DecodeLimits,
}

/// How good a model is on some images.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// The figures.
    pub metrics: Metrics,
    /// What they were measured on.
    pub selection: Selection,
    /// Images that could not be read and are not counted.
    pub bad: Vec<BadFile>,
}

impl Evaluation {
    /// Measures the model of a file or run folder on the data set that `open` opens once the model is there, and that messages call
    /// `data`. Remarks go to standard error.
    ///
    /// # Errors
    /// When there is no model, it was trained without the views, it does not know the classes, nothing is left to measure, or its logits are not finite.
    pub fn new(
        model: &Path,
        data: &str,
        open: impl FnOnce() -> Result<Dataset>,
        settings: &EvaluationSettings,
        device: &FoundDevice,
    ) -> Result<Self> {
        let (card, model) = model_file::load(model, &device.device)?;
        settings.views.check(&card)?;
        let selection = Selection::new(open()?, data, settings.part, &card, &settings.limits)?;
        for remark in &selection.remarks {
            note!("{remark}");
        }
        let batch = selection.samples.len().min(settings.batch_size);
        memory::check(&card.model, Work::Inference(batch), device)?;
        let loader = LoaderConfig {
            batch_size: settings.batch_size,
            threads: settings.threads,
            limits: settings.limits,
            ..LoaderConfig::evaluation(&card.preprocessing, card.classes.len())
        };
        let loader = Loader::new(selection.samples.clone().into(), loader)?;
        let logits = |images| settings.views.logits(&model, images);
        let predicted = predict_by(logits, &loader, &card.preprocessing, card.classes.len(), &device.device)?;
        let broken = predicted.predictions.not_finite();
        if let Some(&first) = broken.first() {
            bail!(
                "{}: {NOT_FINITE} ({} of {} images)",
                selection.samples[predicted.indices[first]].source.name(),
                broken.len(),
                predicted.indices.len()
            );
        }
        let metrics = Metrics::compute(&predicted.predictions, &card.classes);
        Ok(Self { metrics, selection, bad: predicted.bad })
    }
}
