//! `vitrine train`: from images to a run folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use super::data::{DataArgs, check_val_fraction};
use super::{DeviceArgs, Status, ThreadArgs};
use crate::aliases;
use crate::bounds::{self, within};
use crate::device::FoundDevice;
use crate::hub;
use crate::output::{note, outln};
use crate::pretrained;
use crate::run::{FinishedRun, NewRun, Resumed, Run, VAL_FRACTION};
use crate::train::{AskedLength, Overrides, Progress, RunConfig, clock, interrupt};

/// Train a classifier on a data set.
///
/// DATA is shapes (drawn by the program), mnist, fashion-mnist, cifar10, cifar100, a folder with one folder per class
/// (or with train/, val/ and test/ of that kind), a folder of IDX or CIFAR files, a manifest (.csv, .tsv, .jsonl with
/// path and label) or an archive (.tar, .tar.gz, .zip).
#[derive(Args)]
#[command(after_help = "Examples:\n  vitrine train\n  vitrine train photos/ --time 30m\n  \
    vitrine train --resume runs/photos-vit_pico_patch8_96-1")]
pub(super) struct Train {
    /// Data set: a name or a path.
    #[arg(value_name = "DATA", default_value = "shapes")]
    data: String,
    #[command(flatten)]
    overrides: Overrides,
    /// Weights to start from: a model file, a run folder, another library's file or folder (see `vitrine import`), or
    /// hf:OWNER/NAME[@REVISION] on Hugging Face.
    #[arg(long, value_name = "FILE|DIR|hf:OWNER/NAME", conflicts_with = "model")]
    pretrained: Option<String>,
    /// Share of the training images kept for validation if the data set has no validation split; by default 0.2.
    /// Images are chosen by content, so adding or removing some does not move the others.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = within(bounds::PART), aliases = aliases::VAL_FRACTION)]
    val_fraction: Option<f64>,
    /// Random seed.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    seed: u64,
    /// Run folder to create; by default the first unused runs/DATA-MODEL-N.
    #[arg(long, value_name = "DIR", aliases = aliases::OUTPUT)]
    output: Option<PathBuf>,
    /// Continue an interrupted run. --epochs or --time (for the whole run) makes it longer, even if it is finished.
    #[arg(long, value_name = "RUN", conflicts_with_all = [
        "data", "model", "pretrained", "recipe", "image_size", "max_file_size", "val_fraction", "seed", "output",
    ])]
    resume: Option<PathBuf>,
    #[command(flatten)]
    data_args: DataArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

impl Train {
    pub(super) fn run(&self) -> Result<Status> {
        let threads = self.threads.apply()?;
        let device = self.device.select()?;
        interrupt::listen()?;
        let run = match &self.resume {
            Some(run) => match self.resumed(run, &device)? {
                Resumed::Ready(run) => *run,
                Resumed::Finished(progress) => {
                    note!("{}", finished(run, &progress));
                    return Ok(Status::Done);
                }
            },
            None => self.begun(&device)?,
        };
        conclude(&run.train(&device, threads)?)
    }

    fn begun(&self, device: &FoundDevice) -> Result<Run> {
        let fetches = self.pretrained.as_ref().is_some_and(|source| hub::is_repository(source));
        self.data_args.check(&self.data, fetches)?;
        let dataset = self.data_args.open(&self.data)?;
        check_val_fraction(self.val_fraction, &dataset.info)?;
        let open = |source: &String| -> Result<_> {
            let weights = pretrained::open(source, self.data_args.offline);
            Ok((source.clone(), weights.with_context(|| format!("--pretrained {source}"))?))
        };
        let new = NewRun {
            data: &self.data,
            dataset,
            data_dir: self.data_args.folder(),
            max_file_size: self.data_args.file_size.max_file_size,
            overrides: &self.overrides,
            pretrained: self.pretrained.as_ref().map(open).transpose()?,
            val_fraction: self.val_fraction.unwrap_or(VAL_FRACTION),
            seed: self.seed,
            output: self.output.as_deref(),
        };
        Run::begin(new, device)
    }

    fn resumed(&self, run: &Path, device: &FoundDevice) -> Result<Resumed> {
        Run::resume(run, AskedLength::from(self.overrides.length), device, |config| {
            self.data_args.check(&config.data, false)?;
            let mut data_args = self.data_args.or(config.data_dir.clone());
            data_args.file_size.max_file_size = config.max_file_size;
            data_args.open(&found(config))
        })
    }
}

/// Prints how a run ended.
fn conclude(run: &FinishedRun) -> Result<Status> {
    let Some(report) = &run.report else {
        note!("stopped and saved; resume with: vitrine train --resume {}", run.folder.path().display());
        return Ok(Status::Partial);
    };
    let seconds = run.progress.history.last().map_or(0.0, |row| row.seconds);
    let verdicts: String = report.verdicts.iter().map(|verdict| format!("; {}", verdict.name())).collect();
    outln!("{}, after {}{verdicts}", report.line, clock(seconds))?;
    for verdict in &report.verdicts {
        note!("{verdict}");
    }
    outln!("model: {}", run.folder.model().display())?;
    outln!("report: {}", run.folder.report().display())?;
    Ok(Status::Done)
}

/// The data set of a run: where it was when the run began, or else as it was named then, from here.
fn found(config: &RunConfig) -> String {
    match &config.data_path {
        Some(path) if path.exists() || !Path::new(&config.data).exists() => path.display().to_string(),
        _ => config.data.clone(),
    }
}

/// What is said of a run that has come to its end.
fn finished(run: &Path, progress: &Progress) -> String {
    format!(
        "{} is finished: {} epochs in {}; to train longer, use --epochs above {} or a total --time above {}",
        run.display(),
        progress.epoch,
        clock(progress.seconds),
        progress.length.epochs.unwrap_or(progress.epoch),
        clock(progress.seconds)
    )
}
