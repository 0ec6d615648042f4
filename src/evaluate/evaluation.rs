//! A model file measured on a data set.

use std::path::Path;

use anyhow::{Result, bail};
use vitrine_datasets::{BadFile, Dataset, DecodeLimits};

use super::{Metrics, Part, Selection, predict};
use crate::events::Event;
use crate::model_file;
use crate::predict::{NOT_FINITE, Predictor, Views};
use crate::runtime::Runtime;

/// How a model is measured.
#[derive(Clone, Debug)]
pub struct EvaluationSettings {
    /// The part of the data set; see [`Selection::new`] for what is taken by default.
    pub part: Option<Part>,
    /// What of each image is classified.
    pub views: Views,
    /// Images per forward pass.
    pub batch_size: usize,
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
    /// `data`.
    ///
    /// # Errors
    /// When there is no model, it was trained without the views, it does not know the classes, nothing is left to measure, or its logits are not finite.
    pub fn new(
        model: &Path,
        data: &str,
        open: impl FnOnce() -> Result<Dataset>,
        settings: &EvaluationSettings,
        runtime: Runtime<'_>,
    ) -> Result<Self> {
        let Runtime { device, threads, events } = runtime;
        let (card, model) = model_file::load(model, &device.device)?;
        let doubt = settings.views.check(&card)?;
        let selection = Selection::new(open()?, data, settings.part, &card, &settings.limits)?;
        for remark in selection.remarks.iter().map(String::as_str).chain(doubt) {
            events.emit(Event::notice(remark));
        }
        let predictor = Predictor::new(model, card.preprocessing, device)
            .with_limits(settings.limits)
            .with_views(settings.views);
        let batch = selection.samples.len().min(settings.batch_size);
        events.emit_warning(predictor.check_memory(batch)?);
        let loader = predictor.loader(selection.samples.clone().into(), settings.batch_size, threads)?;
        let predicted = predict(&predictor, &loader)?;
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
