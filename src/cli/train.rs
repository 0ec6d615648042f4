//! `vitrine train`: from pictures to a run folder.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use vitrine_datasets::{Dataset, Split, probe, survey};

use super::data::{self, DataArgs, check_val_fraction};
use super::{DeviceArgs, Status, ThreadArgs, aliases};
use crate::bounds::{self, within};
use crate::device::FoundDevice;
use crate::hub;
use crate::memory::{self, Work};
use crate::output::{note, outln};
use crate::pretrained::{self, Pretrained};
use crate::report;
use crate::train::{
    AskedLength, BadFiles, Freeze, Outcome, Plan, Progress, Resumption, RunConfig, RunData, RunFolder, Start,
    Trainer, Wishes, clock, data_path, interrupt, plan, resume,
};

/// Train a classifier on a data set.
///
/// DATA is shapes (drawn by the program), mnist, fashion-mnist, cifar10, cifar100, a folder with one folder a class
/// (or with train/, val/ and test/ of that kind), a folder of IDX or CIFAR files, a manifest (.csv, .tsv, .jsonl with
/// path and label) or an archive (.tar, .tar.gz, .zip).
#[derive(Args)]
#[command(after_help = "Examples:\n  vitrine train\n  vitrine train photos/ --time 30m\n  \
    vitrine train --resume runs/photos-vit_pico_patch8_96-1")]
pub(super) struct Train {
    /// Data set: a name or a path.
    #[arg(value_name = "DATA", default_value = "shapes")]
    data: String,
    /// Architecture: a preset's name (see `vitrine presets`) or a TOML file; by default chosen from the data.
    #[arg(long, value_name = "NAME|FILE", aliases = aliases::MODEL)]
    model: Option<String>,
    /// Weights to begin with: a model file, a run folder, another library's file or folder (see `vitrine import`), or
    /// hf:OWNER/NAME[@REVISION] of Hugging Face.
    #[arg(long, value_name = "FILE|DIR|hf:OWNER/NAME", conflicts_with = "model")]
    pretrained: Option<String>,
    /// Keep a part of the pretrained model as it is: backbone (all but the head, a linear probe), or a number of blocks
    /// from the input on.
    #[arg(long, value_name = "backbone|N", requires = "pretrained")]
    freeze: Option<Freeze>,
    /// Factor by which the learning rate falls with every block from the head towards the input.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = within(bounds::FACTOR))]
    layer_decay: Option<f64>,
    /// Recipe: plain, short, long, fine-tune or a TOML file; by default chosen from the data.
    #[arg(long, value_name = "NAME|FILE")]
    recipe: Option<String>,
    /// Passes over the training pictures.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = within(bounds::EPOCHS), alias = "epoch")]
    epochs: Option<usize>,
    /// Length of the run, such as 90s, 30m or 2h; the learning rate follows the clock. A run by the clock cannot be
    /// repeated bit for bit.
    #[arg(long, value_name = "TIME", value_parser = time)]
    time: Option<Duration>,
    /// Pictures a step.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = within(bounds::BATCH_SIZE), aliases = aliases::BATCH_SIZE)]
    batch_size: Option<usize>,
    /// The highest learning rate.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = within(bounds::LEARNING_RATE), alias = "lr")]
    learning_rate: Option<f64>,
    /// Weight decay.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = within(bounds::NOT_NEGATIVE), alias = "wd")]
    weight_decay: Option<f64>,
    /// Side of the input in pixels.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = within(bounds::IMAGE_SIZE), aliases = aliases::IMAGE_SIZE)]
    image_size: Option<usize>,
    /// Stop after this many epochs without a better validation result.
    #[arg(long, value_name = "EPOCHS", allow_negative_numbers = true, value_parser = within(bounds::EPOCHS))]
    patience: Option<usize>,
    /// Share of unreadable images of a split above which the run fails; a few pass in any case, none with 0.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = within(bounds::SHARE))]
    bad_file_limit: Option<f64>,
    /// Compute each block again in the backward pass instead of keeping what it computed: less memory, a third more work.
    #[arg(long)]
    gradient_checkpointing: bool,
    /// Share of the training images kept for validation, where the data set has no validation split; by default 0.2.
    /// Each is chosen by its content, so that adding or removing images moves no other.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = within(bounds::PART), aliases = aliases::VAL_FRACTION)]
    val_fraction: Option<f64>,
    /// From which everything random comes.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    seed: u64,
    /// Run folder to make; by default the first free runs/DATA-MODEL-N.
    #[arg(long, value_name = "DIR", aliases = aliases::OUTPUT)]
    output: Option<PathBuf>,
    /// Go on with an interrupted run; --epochs or --time, that of the whole run, lengthens it, a finished one too.
    #[arg(long, value_name = "RUN", conflicts_with_all = [
        "data", "model", "pretrained", "freeze", "layer_decay", "recipe", "batch_size", "learning_rate", "weight_decay", "image_size", "patience",
        "bad_file_limit", "max_file_size", "gradient_checkpointing", "val_fraction", "seed", "output",
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
        let mut bad_files = BadFiles::default();
        let (config, folder, data, start) = match &self.resume {
            Some(run) => match self.resumed(run, &device)? {
                Some(begun) => begun,
                None => return Ok(Status::Done),
            },
            None => self.begun(&device, &mut bad_files)?,
        };
        for remark in &data.remarks {
            note!("{remark}");
        }
        let trained = Trainer::new(config.clone(), folder.clone(), &data, &device.device, threads, start)
            .and_then(|mut trainer| {
                trainer.set_bad_files(bad_files);
                Ok((trainer.run()?, trainer))
            });
        let (outcome, trainer) = trained.inspect_err(|_| folder.discard_unsaved())?;
        let dataset = data.dataset();
        self.conclude(outcome, &trainer, &Concluded { config, folder, dataset, device })
    }

    /// A new run: everything decided, its folder made.
    fn begun(
        &self,
        device: &FoundDevice,
        bad_files: &mut BadFiles,
    ) -> Result<(RunConfig, RunFolder, RunData, Start)> {
        let fetches = self.pretrained.as_ref().is_some_and(|source| hub::is_repository(source));
        self.data_args.check(&self.data, fetches)?;
        let val_fraction = self.val_fraction.unwrap_or(data::VAL_FRACTION);
        let data = self.data_args.open(&self.data)?;
        check_val_fraction(self.val_fraction, &data.info)?;
        let pretrained = self
            .pretrained
            .as_ref()
            .map(|source| {
                pretrained::open(source, self.data_args.offline)
                    .with_context(|| format!("--pretrained {source}"))
            })
            .transpose()?;
        let earlier = pretrained.as_ref().and_then(|weights| weights.card.trained_on.as_ref());
        let data = RunData::choose(data, &self.data, (val_fraction, self.seed), earlier)?;
        let dataset = data.dataset();
        let survey = survey(&dataset.train, 512, &self.data_args.file_size.limits())?;
        let facts = plan::Facts {
            info: &dataset.info,
            survey: &survey,
            train: dataset.train.len(),
            pretrained: pretrained.as_ref().map(|weights| (weights.name.as_str(), &weights.card)),
        };
        let plan = Plan::new(&self.wishes(), &facts)?;
        let config = RunConfig {
            program: concat!("vitrine ", env!("CARGO_PKG_VERSION")).to_owned(),
            data: self.data.clone(),
            data_path: data_path(&self.data),
            data_dir: std::path::absolute(self.data_args.folder())?,
            val_fraction,
            seed: self.seed,
            model_name: plan.model_name,
            pretrained: self.pretrained.clone(),
            max_file_size: self.data_args.file_size.max_file_size,
            classes: dataset.info.classes.clone(),
            model: plan.model,
            preprocessing: plan.preprocessing,
            recipe: plan.recipe,
        };
        let start = match pretrained {
            Some(weights) => begin_with(weights, &config)?,
            None => Start::Fresh,
        };
        memory::check(&config.model, Work::Training(&config.recipe, dataset.train.len()), device)?;
        judge_files(&dataset, &config, bad_files)?;
        let folder = RunFolder::create(self.output.as_deref(), &config, &dataset.info.name)?;
        data.write(&folder).inspect_err(|_| folder.discard_unsaved())?;
        note!(
            "data: {}, {} classes, {} training and {} validation pictures{}",
            dataset.info.name,
            dataset.info.classes.len(),
            dataset.train.len(),
            dataset.val.len(),
            if dataset.test.is_empty() {
                String::new()
            } else {
                format!(", {} for the test", dataset.test.len())
            },
        );
        for reason in &plan.reasons {
            note!("{reason}");
        }
        if let Some(freeze) = config.recipe.freeze {
            note!("{freeze}");
        }
        note!("run folder: {}", folder.path().display());
        Ok((config, folder, data, start))
    }

    /// A run that was begun earlier; none where nothing is left of it to do.
    fn resumed(
        &self,
        run: &Path,
        device: &FoundDevice,
    ) -> Result<Option<(RunConfig, RunFolder, RunData, Start)>> {
        let asked = AskedLength { epochs: self.epochs, seconds: self.time.map(|time| time.as_secs_f64()) };
        let (folder, config) = match resume(run, asked)? {
            Resumption::Unfinished(folder, config) => (folder, *config),
            Resumption::Finished(progress) => {
                note!("{}", finished(run, &progress));
                return Ok(None);
            }
        };
        self.data_args.check(&config.data, false)?;
        let mut data_args = self.data_args.or(config.data_dir.clone());
        data_args.file_size.max_file_size = config.max_file_size;
        let data = RunData::reopen(data_args.open(&found(&config))?, &config, &folder)?;
        let images = data.dataset().train.len();
        memory::check(&config.model, Work::Training(&config.recipe, images), device)?;
        if asked != AskedLength::default() {
            folder.write_config(&config)?;
        }
        Ok(Some((config, folder, data, Start::Resumed)))
    }

    fn wishes(&self) -> Wishes {
        Wishes {
            model: self.model.clone(),
            freeze: self.freeze,
            layer_decay: self.layer_decay,
            recipe: self.recipe.clone(),
            image_size: self.image_size,
            epochs: self.epochs,
            time_seconds: self.time.map(|time| time.as_secs_f64()),
            batch_size: self.batch_size,
            learning_rate: self.learning_rate,
            weight_decay: self.weight_decay,
            patience: self.patience,
            bad_file_limit: self.bad_file_limit,
            gradient_checkpointing: self.gradient_checkpointing,
        }
    }

    fn conclude(&self, outcome: Outcome, trainer: &Trainer, run: &Concluded) -> Result<Status> {
        let path = run.folder.path().display();
        if outcome == Outcome::Interrupted {
            note!("stopped and saved; go on with: vitrine train --resume {path}");
            return Ok(Status::Partial);
        }
        if outcome == Outcome::StoppedEarly {
            note!("stopped early: no better validation result for {} epochs", run.config.recipe.patience);
        }
        let report = report::of_run(
            &run.folder,
            &run.config,
            &run.dataset,
            trainer.progress(),
            &run.device,
            trainer.bad_files(),
        )
        .context("the finished run cannot be measured and reported")?;
        let seconds = trainer.progress().history.last().map_or(0.0, |row| row.seconds);
        let verdicts: String =
            report.verdicts.iter().map(|verdict| format!("; {}", verdict.name())).collect();
        outln!("{}, after {}{verdicts}", report.line, clock(seconds))?;
        for verdict in &report.verdicts {
            note!("{verdict}");
        }
        outln!("model: {}", run.folder.model().display())?;
        outln!("report: {}", run.folder.report().display())?;
        Ok(Status::Done)
    }
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
        "{} is finished: {} epochs in {}; lengthen it with --epochs N, more than {}, or with --time T, more than {} in all",
        run.display(),
        progress.epoch,
        clock(progress.seconds),
        progress.length.epochs.unwrap_or(progress.epoch),
        clock(progress.seconds)
    )
}

/// Looks at every file before anything is made of them, and refuses a data set of which too much cannot be read.
fn judge_files(dataset: &Dataset, config: &RunConfig, bad_files: &mut BadFiles) -> Result<()> {
    for split in Split::ALL {
        let samples = dataset.split(split);
        let mut bad = probe(samples, &config.limits());
        let mut total = samples.len();
        if split == Split::Train {
            // What could not even be listed belongs to no split that is known.
            bad.extend(dataset.left_out.unreadable.iter().cloned());
            total += dataset.left_out.unreadable.len();
        }
        bad_files.judge(config.recipe.bad_file_limit, split, &bad, total)?;
    }
    Ok(())
}

/// Pretrained weights for a run, and on standard error what was done to them.
fn begin_with(weights: Pretrained, config: &RunConfig) -> Result<Start> {
    if let Some(account) = &weights.account {
        super::import::tell(account);
    }
    let adaptation = weights.adapted(&config.model, &config.classes)?;
    for change in &adaptation.changes {
        note!("{change}");
    }
    if adaptation.new_head {
        note!("a new head for {} classes", config.classes.len());
    }
    Ok(Start::Pretrained(adaptation.tensors))
}

/// What the end of a run is told from.
struct Concluded {
    config: RunConfig,
    folder: RunFolder,
    dataset: Dataset,
    device: FoundDevice,
}

fn time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if !bounds::SECONDS.contain(time.as_secs_f64()) => {
            Err(format!("it must be a number of seconds {}", bounds::SECONDS))
        }
        Ok(time) => Ok(time),
        Err(error) => Err(format!("{error}; write 90s, 30m or 2h")),
    }
}
