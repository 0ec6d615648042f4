//! `vitrine train`: from images to a run folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use vitrine_datasets::{Dataset, Split, probe, survey};

use super::data::{self, DataArgs, check_val_fraction};
use super::{DeviceArgs, Status, ThreadArgs};
use crate::aliases;
use crate::bounds::{self, within};
use crate::device::FoundDevice;
use crate::hub;
use crate::memory::{self, Work};
use crate::output::{note, outln};
use crate::pretrained::{self, Pretrained};
use crate::report;
use crate::train::{
    AskedLength, BadFiles, Evidence, Outcome, Overrides, Plan, Progress, Resumption, RunConfig, RunData,
    RunFolder, Start, Trainer, clock, data_path, interrupt, resume,
};

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
    /// Weights to begin with: a model file, a run folder, another library's file or folder (see `vitrine import`), or
    /// hf:OWNER/NAME[@REVISION] of Hugging Face.
    #[arg(long, value_name = "FILE|DIR|hf:OWNER/NAME", conflicts_with = "model")]
    pretrained: Option<String>,
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
        "data", "model", "pretrained", "recipe", "image_size", "RecipeArgs", "max_file_size", "val_fraction", "seed", "output",
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
        let evidence = Evidence {
            info: &dataset.info,
            survey: &survey,
            train: dataset.train.len(),
            pretrained: pretrained.as_ref().map(|weights| (weights.name.as_str(), &weights.card)),
        };
        let plan = Plan::new(&self.overrides, &evidence)?;
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
            "data: {}, {} classes, {} training and {} validation images{}",
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
        let asked = AskedLength::from(self.overrides.length);
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
