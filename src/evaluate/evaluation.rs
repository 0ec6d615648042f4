//! Evaluation of a model on a data set.

use anyhow::{Result, bail};
use vitrine_datasets::{BadFile, Dataset, DecodeLimits};
use vitrine_models::VisionTransformer;

use super::{Metrics, Part, Selection, predict};
use crate::events::Event;
use crate::model_file::ModelCard;
use crate::predict::{NOT_FINITE, Predictor, Views};
use crate::runtime::Runtime;

/// The settings of an evaluation.
#[derive(Clone, Debug)]
pub struct EvaluationSettings {
    /// The part of the data set that is measured; see [`Selection::new`] for the default.
    pub part: Option<Part>,
    /// The views of each image over which predictions are averaged; `None` for those that the model file states.
    pub views: Option<Views>,
    /// Images per forward pass.
    pub batch_size: usize,
    /// The limits on the size of an image that is decoded.
    pub limits: DecodeLimits,
}

/// The metrics of a model on a selection of images.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// The metrics.
    pub metrics: Metrics,
    /// The images that were measured.
    pub selection: Selection,
    /// The views of each image over which predictions were averaged.
    pub views: Views,
    /// Images that could not be read, which the metrics leave out.
    pub bad: Vec<BadFile>,
}

impl Evaluation {
    /// Measures a model with a classifier, whose parameters are on the device of `runtime`, on a data set, whose name in
    /// messages is `data`.
    ///
    /// # Errors
    /// If the data set cannot be opened, the model does not suit the views, the model lacks a class of the data set, no image
    /// is left to measure, the memory does not suffice, or a logit is NaN or infinite.
    pub fn new(
        (card, model): (ModelCard, VisionTransformer),
        data: &str,
        open: impl FnOnce() -> Result<Dataset>,
        settings: &EvaluationSettings,
        runtime: Runtime<'_>,
    ) -> Result<Self> {
        let Runtime { device, threads, events, .. } = runtime;
        let views = settings.views.unwrap_or_else(|| Views::of(&card));
        let doubt = views.check(&card)?;
        let dataset = open()?;
        let selection = Selection::new(dataset, data, settings.part, &card, &settings.limits)?;
        for remark in selection.remarks.iter().map(String::as_str).chain(doubt) {
            events.emit(Event::notice(remark));
        }
        let predictor = Predictor::new(model, card.preprocessing, device)
            .with_limits(settings.limits)
            .with_multi_label(card.multi_label)
            .with_views(views);
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
        Ok(Self { metrics, selection, views, bad: predicted.bad })
    }
}
