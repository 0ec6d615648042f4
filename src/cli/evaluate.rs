//! `vitrine evaluate`: the metrics of a model on a data set.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use vitrine_models::ModelConfig;

use super::console::Log;
use super::data::DataArgs;
use super::views::ViewArgs;
use super::{DeviceArgs, Status, ThreadArgs};
use crate::bounds;
use crate::cli::aliases;
use crate::cli::output::{note, outln};
use crate::cli::within::within;
use crate::evaluate::{Evaluation, EvaluationSettings, Metrics, Part, Selection, table};
use crate::flags::described;
use crate::hub;
use crate::named_model::{self, NamedModel};
use crate::predict::Views;
use crate::runtime::Runtime;
use crate::text::printable;

/// Measure a model on a data set: on images that it was not trained on, unless --split says otherwise.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vitrine evaluate runs/mnist-vit_pico_patch4_28-1 mnist --split test\n  \
    vitrine evaluate runs/photos-hybrid_nano_patch16_128-1 other-photos/"
)]
pub(super) struct Evaluate {
    /// Model file or run folder; also another library's weights (a file or folder), hf:OWNER/NAME[@REVISION] on Hugging Face, or
    /// the name of a published backbone (`vitrine presets`).
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Data set: a name or a path, as `vitrine train` takes it.
    #[arg(value_name = "DATA")]
    data: String,
    /// Split to measure: train, val, test, or all. By default test if there is one, else val, else everything, without
    /// the images the model was trained on.
    #[arg(long, value_name = "SPLIT", value_parser = Part::from_str)]
    split: Option<Part>,
    /// Print one JSON object. It has the confusion matrix as `confusion` (rows true, columns predicted), or with more
    /// than 1000 classes as `confusion_cells`, a list of [true, predicted, count] without zeros.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    views: ViewArgs,
    /// Images per forward pass.
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true, value_parser = within(bounds::BATCH_SIZE), aliases = aliases::BATCH_SIZE)]
    batch_size: usize,
    #[command(flatten)]
    data_args: DataArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

impl Evaluate {
    pub(super) fn run(&self) -> Result<Status> {
        let threads = self.threads.apply()?;
        let log = Log::text();
        let device = self.device.select(&log)?;
        let open = || {
            let fetches = self.model.to_str().is_some_and(hub::is_repository);
            self.data_args.check(&self.data, fetches)?;
            self.data_args.open(&self.data, &log)
        };
        let settings = EvaluationSettings {
            part: self.split,
            views: self.views.stated(),
            batch_size: self.batch_size,
            limits: self.data_args.file_size.limits(),
        };
        let runtime = Runtime { device: &device, threads, events: &log, cache: None, workers: None };
        // First, so that no data is downloaded for a model that does not exist.
        let (offline, change) = (self.data_args.offline, ModelConfig::clone);
        let named = named_model::load(&self.model, offline, &device.device, change, &log)?;
        named.warn_of_head(&log);
        let NamedModel { card, model, .. } = named;
        card.require_classifier(self.model.display())?;
        let Evaluation { metrics, selection, views, bad } =
            Evaluation::new((card, model), &self.data, open, &settings, runtime)?;
        if self.json {
            outln!("{}", serde_json::to_string(&Measured::new(&metrics, &selection, views))?)?;
        } else {
            let unreadable = match bad.len() {
                0 => String::new(),
                unread => format!("; {unread} of them cannot be read"),
            };
            outln!("{}{}{unreadable}\n", printable(&selection.title), views.described())?;
            outln!("{}", table(&metrics))?;
        }
        for bad in &bad {
            note!("error: {}", described(bad));
        }
        Ok(if bad.is_empty() && !selection.is_incomplete { Status::Done } else { Status::Partial })
    }
}

/// The object that `--json` prints.
#[derive(Serialize)]
struct Measured<'a> {
    #[serde(flatten)]
    metrics: &'a Metrics,
    /// The measured split: train, val, test, or all.
    split: String,
    /// Number of images of the split that were left out.
    left_out: usize,
    /// Number of measured images that the model was trained on; null if the model file does not state these images.
    trained_on: Option<usize>,
    /// Whether the logits were averaged over several views of each image; left out if they were not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tta: bool,
    /// Number of these views; left out for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    views: Option<usize>,
}

impl<'a> Measured<'a> {
    fn new(metrics: &'a Metrics, selection: &Selection, views: Views) -> Self {
        let Selection { part, left_out, trained_on, .. } = selection;
        let tta = views != Views::One;
        Self {
            metrics,
            split: part.to_string(),
            left_out: *left_out,
            trained_on: *trained_on,
            tta,
            views: tta.then(|| views.list().len()),
        }
    }
}
