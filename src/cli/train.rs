//! `vitrine train`: from images to a run folder.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Args, Command};
use vitrine_datasets::{Dataset, Fold};

use super::data::{DataArgs, check_folds, check_val_fraction};
use super::{DeviceArgs, Status, ThreadArgs};
use crate::aliases;
use crate::bounds::{self, within};
use crate::device::FoundDevice;
use crate::hub;
use crate::output::{note, out, outln};
use crate::pretrained::{self, Pretrained};
use crate::recipe::LengthArgs;
use crate::run::{Earlier, FinishedRun, NewRun, PlannedRun, Resumed, Run};
use crate::series::{Kind, Series, Sources};
use crate::train::{AskedLength, Overrides, Progress, RunConfig, clock, interrupt};
use crate::usage::usage;

/// Train a classifier on a data set.
///
/// DATA is shapes (drawn by the program), mnist, fashion-mnist, cifar10, cifar100, a folder with one folder per class
/// (or with train/, val/ and test/ of that kind), a folder of IDX or CIFAR files, a manifest (.csv, .tsv, .jsonl with
/// path and label) or an archive (.tar, .tar.gz, .zip).
#[derive(Args)]
#[command(after_help = "Examples:\n  vitrine train\n  vitrine train photos/ --time 30m\n  \
    vitrine train --resume runs/photos-hybrid_patch8_64-1\n  \
    vitrine train --config runs/photos-hybrid_patch8_64-1\n  vitrine train photos/ --folds 5")]
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
    /// Share of the training images kept for validation if the data set has no validation split; by default 0.2, or 0.1 if it has a
    /// test split. Images are chosen by content, so adding or removing some does not move the others.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = within(bounds::PART), aliases = aliases::VAL_FRACTION)]
    val_fraction: Option<f64>,
    /// Random seed.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    seed: u64,
    /// Train N runs with the seeds --seed, --seed + 1, ..., and print their mean and standard deviation. All have the same
    /// architecture, recipe and validation images, those of the first seed.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = within(bounds::RUNS), conflicts_with = "folds")]
    seeds: Option<usize>,
    /// Cross-validate: split the training images into K parts, class by class, train K runs that each keep another part for
    /// validation, and print their mean and standard deviation. Images with the same content are in the same part.
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = within(bounds::RUNS), conflicts_with = "val_fraction")]
    folds: Option<usize>,
    /// Run folder to create; by default the first unused runs/DATA-MODEL-N. With --seeds or --folds, each run has a folder in it.
    #[arg(long, value_name = "DIR", aliases = aliases::OUTPUT)]
    output: Option<PathBuf>,
    /// Repeat a run bit for bit: a run folder or its config.toml, which says everything. Only --output, --device, --threads and
    /// --data-dir may be stated beside it.
    #[arg(long, value_name = "RUN")]
    config: Option<PathBuf>,
    /// Continue an interrupted run, or the runs of --seeds and --folds. --epochs or --time (for the whole run) makes it longer, even if it is finished.
    #[arg(long, value_name = "RUN", conflicts_with_all = [
        "data", "model", "pretrained", "recipe", "image_size", "resize", "max_file_size", "val_fraction", "seed", "output",
        "seeds", "folds",
    ])]
    resume: Option<PathBuf>,
    #[command(flatten)]
    data_args: DataArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// What may be stated beside `--config`.
const BESIDE_CONFIG: [&str; 5] = ["config", "output", "device", "threads", "data_dir"];

/// Makes every other option conflict with `--config`.
pub(super) fn with_conflicts(train: Command) -> Command {
    train.mut_args(|argument| {
        let is_free = BESIDE_CONFIG.contains(&argument.get_id().as_str());
        if is_free { argument } else { argument.conflicts_with("config") }
    })
}

impl Train {
    pub(super) fn run(&self) -> Result<Status> {
        let earlier = self.config.as_deref().map(Earlier::open).transpose()?;
        let series = self.resume.as_deref().map_or(Ok(None), Series::open)?;
        // The bits depend on the number of threads: what is repeated has that of the first time.
        let before = earlier.as_ref().map(|earlier| &earlier.config).or(series.as_ref().map(Series::config));
        let before = before.and_then(|config| config.origin.threads);
        let threads = ThreadArgs { threads: self.threads.threads.or(before) }.apply()?;
        let device = self.device.select()?;
        interrupt::listen()?;
        if let Some(series) = series {
            return self.series(&series, None, &device, threads);
        }
        let run = match (&self.resume, &earlier) {
            (Some(run), _) => match self.resumed(run, &device)? {
                Resumed::Ready(run) => *run,
                Resumed::Finished(progress) => {
                    note!("{}", finished(run, &progress));
                    return Ok(Status::Done);
                }
            },
            (None, Some(earlier)) => self.repeated(earlier, &device, threads)?,
            (None, None) => {
                let planned = self.planned(&device, threads)?;
                if let Some(several) = self.several() {
                    let (series, first) = Series::begin(several, planned, self.output.as_deref(), &device)?;
                    return self.series(&series, Some(first), &device, threads);
                }
                Run::begin(planned, self.output.as_deref(), &device)?
            }
        };
        conclude(&run.train(&device, threads)?)
    }

    /// Whether several runs are asked for, and how many.
    fn several(&self) -> Option<(Kind, usize)> {
        let seeds = self.seeds.map(|runs| (Kind::Seeds, runs));
        seeds.or(self.folds.map(|runs| (Kind::Folds, runs)))
    }

    /// Trains what is left of several runs.
    fn series(
        &self,
        series: &Series,
        first: Option<Run>,
        device: &FoundDevice,
        threads: usize,
    ) -> Result<Status> {
        let folder = series.folder().display();
        if first.is_none() && self.overrides.length != LengthArgs::default() {
            usage!("--resume {folder}: a series of runs keeps its length: leave --epochs and --time out");
        }
        let sources = Sources {
            dataset: &|config| self.dataset_of(config, config.pretrained.is_some()),
            pretrained: &|config| self.pretrained_of(config),
        };
        let Some(summary) = series.train(first, &sources, device, threads)? else {
            note!("stopped and saved; go on with: vitrine train --resume {folder}");
            return Ok(Status::Partial);
        };
        out!("{}", summary.table())?;
        outln!("summary: {}", series.summary().display())?;
        Ok(Status::Done)
    }

    fn planned(&self, device: &FoundDevice, threads: usize) -> Result<PlannedRun> {
        let begun = Instant::now();
        let fetches = self.pretrained.as_ref().is_some_and(|source| hub::is_repository(source));
        self.data_args.check(&self.data, fetches)?;
        let dataset = self.data_args.open(&self.data)?;
        check_val_fraction(self.val_fraction, &dataset.info)?;
        check_folds(self.folds, &dataset.info)?;
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
            val_fraction: self.val_fraction,
            seed: self.seed,
            fold: self.folds.map(|of| Fold { number: 1, of }),
            threads,
            begun,
        };
        PlannedRun::new(new, device)
    }

    fn repeated(&self, earlier: &Earlier, device: &FoundDevice, threads: usize) -> Result<Run> {
        for difference in earlier.differences(&device.name, threads) {
            note!("{difference}");
        }
        let (dataset, pretrained) =
            (self.dataset_of(&earlier.config, false)?, self.pretrained_of(&earlier.config)?);
        let planned = PlannedRun::again(earlier.repetition(dataset, pretrained), &device.name, threads)?;
        Run::begin(planned, self.output.as_deref(), device)
    }

    fn resumed(&self, run: &Path, device: &FoundDevice) -> Result<Resumed> {
        Run::resume(run, AskedLength::from(self.overrides.length), device, |config| {
            self.dataset_of(config, false)
        })
    }

    /// The data set of a run that was begun before; `fetches` tells whether its weights are opened, too.
    fn dataset_of(&self, config: &RunConfig, fetches: bool) -> Result<Dataset> {
        self.data_args.check(&config.data, fetches)?;
        let mut data_args = self.data_args.or(config.data_dir.clone());
        data_args.file_size.max_file_size = config.max_file_size;
        data_args.open(&config.data_now())
    }

    /// The weights that it began with.
    fn pretrained_of(&self, config: &RunConfig) -> Result<Option<Pretrained>> {
        let open = |source: String| -> Result<_> {
            let weights = pretrained::open(&source, self.data_args.offline);
            weights.with_context(|| format!("--pretrained {source}"))
        };
        config.pretrained_now().map(open).transpose()
    }
}

/// Prints how a run ended.
fn conclude(run: &FinishedRun) -> Result<Status> {
    let Some(report) = &run.report else {
        note!("stopped and saved; resume with: vitrine train --resume {}", run.folder.path().display());
        return Ok(Status::Partial);
    };
    let seconds = run.progress.history.last().map_or(0.0, |row| row.seconds);
    let caveats: String = report.caveats.iter().map(|caveat| format!("; {}", caveat.name())).collect();
    outln!("{}, after {}{caveats}", report.line, clock(seconds))?;
    for caveat in &report.caveats {
        note!("{caveat}");
    }
    outln!("model: {}", run.folder.model().display())?;
    outln!("report: {}", run.folder.report().display())?;
    Ok(Status::Done)
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
