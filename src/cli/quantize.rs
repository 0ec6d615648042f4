//! `vitrine quantize`: a model file with weights of eight or 16 bits.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
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
use crate::events::{EventSink, Quiet};
use crate::files::{self, Unfinished, same_file};
use crate::flags::described;
use crate::hub;
use crate::model_file::{self, ModelCard};
use crate::named_model::{self, NamedModel};
use crate::runtime::Runtime;
use crate::text::printable;
use crate::usage::usage;
use crate::weights_file::Precision;

/// Write a model file with smaller weights: of eight bits, which are faster, too, on CPUs that multiply bytes (AVX512-VNNI, AMX), or of 16.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vitrine quantize runs/photos-hybrid_nano_patch16_128-1 --output photos8.safetensors --calibration photos/\n  \
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
    /// How the weights are stored.
    #[arg(long, value_enum, default_value_t = Dtype::Int8)]
    dtype: Dtype,
    /// Data set, as `vitrine train` takes it, on which both models are measured, to say what accuracy the smaller weights cost: on the
    /// images that `vitrine evaluate` measures. The model file does not depend on it: activations of eight bits have a range for each token
    /// or image.
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

/// The number format of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Dtype {
    /// 8 bits and a scale for each output channel; the products are of 8 bits, too, where the CPU has them.
    Int8,
    /// 16 bits, 11 of them significant; weights above 65,504 are refused. Products are of 32 bits.
    F16,
    /// 16 bits, 8 of them significant, with the range of f32. Products are of 32 bits.
    Bf16,
}

impl Dtype {
    fn bits(self) -> usize {
        match self {
            Self::Int8 => 8,
            Self::F16 | Self::Bf16 => 16,
        }
    }

    /// Writes the model in this format.
    fn save(self, path: &Path, card: ModelCard, model: VisionTransformer) -> Result<()> {
        match self {
            Self::Int8 => model_file::save(path, &card.with_int8(), &model.quantized(), Precision::F32),
            Self::F16 => model_file::save(path, &card, &model, Precision::F16),
            Self::Bf16 => model_file::save(path, &card, &model, Precision::Bf16),
        }
    }
}

impl Quantize {
    pub(super) fn run(&self) -> Result<Status> {
        let threads = self.threads.apply()?;
        output_file::check_model("--output", &self.output)?;
        self.check_options()?;
        let log = Log::text();
        let device = self.device.select(&log)?;
        let runtime = Runtime { device: &device, threads, events: &log, cache: None, workers: None };
        let load = |path: &Path, events: &dyn EventSink| {
            let offline = self.data_args.offline;
            named_model::load(path, offline, &device.device, ModelConfig::clone, events)
        };
        let NamedModel { card, model, files, .. } = load(&self.model, &log)?;
        self.check(&card, &files)?;
        if self.dtype == Dtype::Int8 && !vitrine_kernels::multiplies_bytes(&device.device) {
            note!("this device has no products of bytes: here, the model is smaller, but not faster");
        }
        let exact = self.measure((card.clone(), model.clone()), runtime)?;
        // The file gets its name when it was measured.
        let folder = tempfile::tempdir_in(files::folder_of(&self.output))
            .with_context(|| format!("--output {}: cannot be written", self.output.display()))?;
        let _unfinished = Unfinished::note(folder.path());
        let file = folder.path().join("model.safetensors");
        self.dtype.save(&file, card, model)?;
        let status = match exact {
            Some(exact) => {
                let written = load(&file, &Quiet)?;
                // What there is to say about the data has been said.
                let smaller =
                    self.measure((written.card, written.model), Runtime { events: &Quiet, ..runtime })?;
                self.compare(&smaller.expect("measured as the other"), &exact)?
            }
            None => {
                note!(
                    "what accuracy the smaller weights cost is not measured: --calibration DATA measures it"
                );
                Status::Done
            }
        };
        files::replace(&file, &self.output)?;
        let size = |path: &Path| path.metadata().map_or(0, |about| about.len());
        outln!(
            "model: {} ({}, from {})",
            self.output.display(),
            DecimalBytes(size(&self.output)),
            DecimalBytes(files.iter().map(|file| size(file)).sum())
        )?;
        Ok(status)
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
        if card.int8 {
            usage!("{}: its weights have eight bits already", self.model.display());
        }
        if self.calibration.is_some() {
            card.require_classifier(self.model.display())?;
        }
        Ok(())
    }

    /// The evaluation of a model on the data that was asked for, if any.
    fn measure(
        &self,
        model: (ModelCard, VisionTransformer),
        runtime: Runtime<'_>,
    ) -> Result<Option<Evaluation>> {
        let Some(data) = &self.calibration else { return Ok(None) };
        let settings = EvaluationSettings {
            part: None,
            views: None,
            batch_size: self.batch_size,
            limits: self.data_args.file_size.limits(),
        };
        let open = || self.data_args.open(data, runtime.events);
        Evaluation::new(model, data, open, &settings, runtime).map(Some)
    }

    /// Prints what the smaller weights cost.
    fn compare(&self, smaller: &Evaluation, exact: &Evaluation) -> Result<Status> {
        outln!("{}", printable(&exact.selection.title))?;
        outln!(
            "top-1 {} with weights of {} bits, {} without; loss {:.4} and {:.4}",
            percent(smaller.metrics.top1),
            self.dtype.bits(),
            percent(exact.metrics.top1),
            smaller.metrics.loss,
            exact.metrics.loss
        )?;
        if let [Some(smaller), Some(exact)] = [smaller, exact].map(|of| of.metrics.multi_label.as_ref()) {
            outln!(
                "mean average precision {:.4} and {:.4}",
                smaller.mean_average_precision,
                exact.mean_average_precision
            )?;
        }
        for bad in &exact.bad {
            note!("error: {}", described(bad));
        }
        Ok(if exact.bad.is_empty() && !exact.selection.is_incomplete {
            Status::Done
        } else {
            Status::Partial
        })
    }
}
