//! A run from its beginning to its report: what `vitrine train` and [`train`](crate::train()) do.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use vitrine_datasets::{Dataset, DecodeLimits, Split, probe, survey};

use crate::device::FoundDevice;
use crate::memory::{self, Work};
use crate::output::note;
use crate::pretrained::Pretrained;
use crate::report::{self, RunReport};
use crate::train::{
    AskedLength, BadFiles, Evidence, Outcome, Overrides, Plan, Progress, Resumption, RunConfig, RunData,
    RunFolder, Start, Trainer, data_path, resume,
};

/// Images that are looked at for their sizes and colors.
const SURVEYED: usize = 512;

/// Share of the training images that are kept for validation, where the data set has no validation split.
pub const VAL_FRACTION: f64 = 0.2;

/// What a new run is begun with.
pub struct NewRun<'a> {
    /// Name or path of the data set, as the user wrote it.
    pub data: &'a str,
    /// The data set, with the splits that it has.
    pub dataset: Dataset,
    /// Where named data sets are kept.
    pub data_dir: PathBuf,
    /// The most bytes of an image file, where it is not the usual number.
    pub max_file_size: Option<u64>,
    /// What was asked for.
    pub overrides: &'a Overrides,
    /// The weights that training begins with, and what the user called them.
    pub pretrained: Option<(String, Pretrained)>,
    /// Share of the training images that becomes the validation split, where there is none.
    pub val_fraction: f64,
    /// From which everything random comes.
    pub seed: u64,
    /// The run folder to make; the first free one in `runs` if left out.
    pub output: Option<&'a Path>,
}

/// A run that is ready to train: everything is decided, and its folder is there.
pub struct Run {
    config: RunConfig,
    folder: RunFolder,
    data: RunData,
    start: Start,
    bad_files: BadFiles,
}

/// A run that has come to its end, or to an interruption.
pub struct FinishedRun {
    /// How it ended.
    pub outcome: Outcome,
    /// What it was.
    pub config: RunConfig,
    /// Where its files are.
    pub folder: RunFolder,
    /// Where it stands.
    pub progress: Progress,
    /// The measured result; none after an interruption.
    pub report: Option<RunReport>,
}

/// What `resume` found.
pub enum Resumed {
    /// There is nothing left to do.
    Finished(Box<Progress>),
    /// It goes on.
    Ready(Box<Run>),
}

impl Run {
    /// Decides everything that was left open, checks that it can be done, and makes the run folder.
    ///
    /// # Errors
    /// When something asked for is not there or does not fit, too many images cannot be read, the memory does not suffice, or the
    /// folder cannot be made.
    pub fn begin(new: NewRun<'_>, device: &FoundDevice) -> Result<Self> {
        let (source, pretrained) = new.pretrained.unzip();
        let earlier = pretrained.as_ref().and_then(|weights| weights.card.trained_on.as_ref());
        let data = RunData::choose(new.dataset, new.data, (new.val_fraction, new.seed), earlier)?;
        let dataset = data.dataset();
        let limits = DecodeLimits::default().with_max_file_bytes(new.max_file_size);
        let survey = survey(&dataset.train, SURVEYED, &limits)?;
        let evidence = Evidence {
            info: &dataset.info,
            survey: &survey,
            train: dataset.train.len(),
            pretrained: pretrained.as_ref().map(|weights| (weights.name.as_str(), &weights.card)),
        };
        let plan = Plan::new(new.overrides, &evidence)?;
        let config = RunConfig {
            program: concat!("vitrine ", env!("CARGO_PKG_VERSION")).to_owned(),
            data: new.data.to_owned(),
            data_path: data_path(new.data),
            data_dir: std::path::absolute(new.data_dir)?,
            val_fraction: new.val_fraction,
            seed: new.seed,
            model_name: plan.model_name,
            pretrained: source,
            max_file_size: new.max_file_size,
            classes: dataset.info.classes.clone(),
            model: plan.model,
            preprocessing: plan.preprocessing,
            recipe: plan.recipe,
        };
        let start = pretrained.map_or(Ok(Start::Fresh), |weights| begin_with(weights, &config))?;
        memory::check(&config.model, Work::Training(&config.recipe, dataset.train.len()), device)?;
        let bad_files = judge_files(&dataset, &config)?;
        let folder = RunFolder::create(new.output, &config, &dataset.info.name)?;
        data.write(&folder).inspect_err(|_| folder.discard_unsaved())?;
        announce(&dataset, &plan.reasons, &config, &folder);
        Ok(Self { config, folder, data, start, bad_files })
    }

    /// Opens a run that was begun earlier. `asked` is its new length, where it says anything; `open` opens the data set that the
    /// configuration names.
    ///
    /// # Errors
    /// When there is no such run, it is in use, its images are gone, or it is longer already than what is asked for.
    pub fn resume(
        run: &Path,
        asked: AskedLength,
        device: &FoundDevice,
        open: impl FnOnce(&RunConfig) -> Result<Dataset>,
    ) -> Result<Resumed> {
        let (folder, config) = match resume(run, asked)? {
            Resumption::Unfinished(folder, config) => (folder, *config),
            Resumption::Finished(progress) => return Ok(Resumed::Finished(Box::new(progress))),
        };
        let data = RunData::reopen(open(&config)?, &config, &folder)?;
        let images = data.dataset().train.len();
        memory::check(&config.model, Work::Training(&config.recipe, images), device)?;
        if asked != AskedLength::default() {
            folder.write_length(&config.recipe)?;
        }
        let bad_files = BadFiles::default();
        Ok(Resumed::Ready(Box::new(Self { config, folder, data, start: Start::Resumed, bad_files })))
    }

    /// Trains to the end, or until the user stops it, and measures and reports the result.
    ///
    /// # Errors
    /// When training diverges, too many images cannot be read, or the disk refuses.
    pub fn train(self, device: &FoundDevice, threads: usize) -> Result<FinishedRun> {
        let Self { config, folder, data, start, bad_files } = self;
        for remark in &data.remarks {
            note!("{remark}");
        }
        let trained = Trainer::new(config.clone(), folder.clone(), &data, &device.device, threads, start)
            .and_then(|mut trainer| {
                trainer.set_bad_files(bad_files);
                Ok((trainer.run()?, trainer))
            });
        let (outcome, trainer) = trained.inspect_err(|_| folder.discard_unsaved())?;
        let progress = trainer.progress().clone();
        let bad_files = trainer.bad_files();
        drop(trainer);
        if outcome == Outcome::StoppedEarly {
            note!("stopped early: no better validation result for {} epochs", config.recipe.patience);
        }
        let report = match outcome {
            Outcome::Interrupted => None,
            Outcome::Finished | Outcome::StoppedEarly => Some(
                report::of_run(&folder, &config, &data.dataset(), &progress, device, bad_files)
                    .context("the finished run cannot be measured and reported")?,
            ),
        };
        Ok(FinishedRun { outcome, config, folder, progress, report })
    }
}

/// Says what was found and chosen.
fn announce(dataset: &Dataset, reasons: &[String], config: &RunConfig, folder: &RunFolder) {
    let test = match dataset.test.len() {
        0 => String::new(),
        images => format!(", {images} test images"),
    };
    note!(
        "data: {}, {} classes, {} training and {} validation images{test}",
        dataset.info.name,
        dataset.info.classes.len(),
        dataset.train.len(),
        dataset.val.len(),
    );
    for reason in reasons {
        note!("{reason}");
    }
    if let Some(freeze) = config.recipe.freeze {
        note!("{freeze}");
    }
    note!("run folder: {}", folder.path().display());
}

/// Looks at every file before anything is made of them, and refuses a data set of which too much cannot be read.
fn judge_files(dataset: &Dataset, config: &RunConfig) -> Result<BadFiles> {
    let mut bad_files = BadFiles::default();
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
    Ok(bad_files)
}

/// Pretrained weights for a run, and on standard error what was done to them.
fn begin_with(weights: Pretrained, config: &RunConfig) -> Result<Start> {
    if let Some(account) = &weights.account {
        for line in account.lines() {
            note!("{line}");
        }
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
