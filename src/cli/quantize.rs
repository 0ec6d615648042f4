//! `vitrine quantize`: a model file with weights of eight bits.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use indicatif::DecimalBytes;
use vitrine_models::{ModelConfig, VisionTransformer};

use super::console::Log;
use super::data::DataArgs;
use super::{DeviceArgs, Status, ThreadArgs};
use crate::bounds;
use crate::cli::aliases;
use crate::cli::output::{note, outln};
use crate::cli::output_file;
use crate::cli::within::within;
use crate::evaluate::{Evaluation, EvaluationSettings, percent};
use crate::events::Quiet;
use crate::files::same_file;
use crate::flags::described;
use crate::hub;
use crate::model_file::{self, ModelCard};
use crate::named_model::{self, NamedModel};
use crate::runtime::Runtime;
use crate::text::printable;
use crate::usage::usage;
use crate::weights_file::{self, Precision};

/// Write a model with weights of eight bits: up to a quarter of the size, and faster on CPUs that multiply bytes (AVX512-VNNI, AMX).
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vitrine quantize runs/photos-hybrid_nano_patch8_64-1 --output photos8.safetensors --calibration photos/\n  \
    vitrine classify photos8.safetensors new-photos/"
)]
pub(super) struct Quantize {
    /// Model file or run folder; also another library's weights (a file or folder), hf:OWNER/NAME[@REVISION] on Hugging Face, or
    /// the name of a published backbone (`vitrine presets`).
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Model file to write.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Data set, as `vitrine train` takes it, on which both models are measured, to say what accuracy the bytes cost: on the images that
    /// `vitrine evaluate` measures. The model file does not depend on it, because each image has its own range of activations.
    #[arg(long, value_name = "DATA")]
    calibration: Option<String>,
    /// Images per forward pass of the measurement.
    #[arg(long, value_name = "N", default_value_t = 64, requires = "calibration", allow_negative_numbers = true, value_parser = within(bounds::BATCH_SIZE), aliases = aliases::BATCH_SIZE)]
    batch_size: usize,
    #[command(flatten)]
    data_args: DataArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

impl Quantize {
    pub(super) fn run(&self) -> Result<Status> {
        let threads = self.threads.apply()?;
        output_file::check_place("--output", &self.output)?;
        self.check_options()?;
        let log = Log::text();
        let device = self.device.select(&log)?;
        let runtime = Runtime { device: &device, threads, events: &log, cache: None };
        let (offline, change) = (self.data_args.offline, ModelConfig::clone);
        let NamedModel { card, model, files, .. } =
            named_model::load(&self.model, offline, &device.device, change, &log)?;
        self.check(&card, &files)?;
        let (of_bytes, rounded) = (card.clone().with_int8(), model.clone().quantized());
        let cost = match &self.calibration {
            Some(data) => self.cost(data, [(card, model), (of_bytes.clone(), rounded.clone())], runtime)?,
            None => Status::Done,
        };
        model_file::save(&self.output, &of_bytes, &rounded, Precision::F32)?;
        let size = |path: &Path| path.metadata().map_or(0, |about| about.len());
        outln!(
            "model: {} ({}, from {})",
            self.output.display(),
            DecimalBytes(size(&self.output)),
            DecimalBytes(files.iter().map(|file| size(file)).sum())
        )?;
        if self.calibration.is_none() {
            note!("what accuracy the bytes cost is not measured: --calibration DATA measures it");
        }
        Ok(cost)
    }

    /// Refuses options without effect.
    fn check_options(&self) -> Result<()> {
        let fetches = self.model.to_str().is_some_and(hub::is_repository);
        if let Some(data) = &self.calibration {
            return self.data_args.check(data, fetches);
        }
        let of_data = [
            ("--label-separator", self.data_args.label_separator.is_some()),
            ("--max-file-size", self.data_args.file_size.max_file_size.is_some()),
        ];
        if let Some((option, _)) = of_data.into_iter().find(|(_, is_given)| *is_given) {
            usage!("{option} has no effect without --calibration: leave it out");
        }
        self.data_args.check(&self.model.display().to_string(), fetches)
    }

    /// Refuses what cannot be meant.
    fn check(&self, card: &ModelCard, files: &[PathBuf]) -> Result<()> {
        if files.iter().any(|file| same_file(&self.output, file)) {
            usage!("--output {}: this is the model itself", self.output.display());
        }
        let is_model = || weights_file::open(&self.output).is_ok_and(|file| ModelCard::is_in(&file.metadata));
        if self.output.exists() && !is_model() {
            usage!(
                "--output {}: this file exists, and is no model; choose another name",
                self.output.display()
            );
        }
        if card.int8 {
            usage!("{}: its weights have eight bits already", self.model.display());
        }
        if self.calibration.is_some() {
            card.require_classifier(self.model.display())?;
        }
        Ok(())
    }

    /// Measures both models, and prints what the bytes cost.
    fn cost(
        &self,
        data: &str,
        models: [(ModelCard, VisionTransformer); 2],
        runtime: Runtime<'_>,
    ) -> Result<Status> {
        let settings = EvaluationSettings {
            part: None,
            views: None,
            batch_size: self.batch_size,
            limits: self.data_args.file_size.limits(),
        };
        let open = || self.data_args.open(data, runtime.events);
        let [exact, rounded] = models;
        let exact = Evaluation::new(exact, data, open, &settings, runtime)?;
        // What there is to say about the data has been said.
        let silent = Runtime { events: &Quiet, ..runtime };
        let rounded = Evaluation::new(rounded, data, open, &settings, silent)?;
        outln!("{}", printable(&exact.selection.title))?;
        outln!(
            "top-1 {} with weights of 8 bits, {} with those of 32; loss {:.4} and {:.4}",
            percent(rounded.metrics.top1),
            percent(exact.metrics.top1),
            rounded.metrics.loss,
            exact.metrics.loss
        )?;
        if let [Some(of_bytes), Some(whole)] = [&rounded, &exact].map(|of| of.metrics.multi_label.as_ref()) {
            outln!(
                "mean average precision {:.4} and {:.4}",
                of_bytes.mean_average_precision,
                whole.mean_average_precision
            )?;
        }
        for bad in &exact.bad {
            note!("error: {}", described(bad));
        }
        Ok(if exact.bad.is_empty() { Status::Done } else { Status::Partial })
    }
}
