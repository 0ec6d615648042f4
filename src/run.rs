//! A run from its beginning to its report: what `vitrine train` and [`train`](crate::train()) do.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use vitrine_datasets::{ClassSizes, Dataset, DecodeLimits, Fold, Split, survey};
use vitrine_models::weights::NamedTensor;

use crate::device::FoundDevice;
use crate::memory::{self, Work};
use crate::output::note;
use crate::pretrained::{self, Pretrained};
use crate::recipe::Recipe;
use crate::report::{self, RunReport};
use crate::train::{
    AskedLength, BadFiles, Budget, Evidence, HoldOut, Origin, Outcome, Overrides, Plan, Progress, Purpose,
    Resources, Resumption, RunConfig, RunData, RunFolder, Start, Trainer, data_path, resume,
    weights_checksum,
};

mod repeat;

pub use repeat::{Earlier, Repetition};

/// What writes runs.
const PROGRAM: &str = concat!("vitrine ", env!("CARGO_PKG_VERSION"));

/// Images that are looked at for their sizes and colors.
const SURVEYED: usize = 512;

/// Share of the training images that is kept for validation where nobody stated one and the data set has no validation split: a
/// fifth, or a tenth where a test split measures the model in the end and validation only chooses the epoch.
pub fn default_val_fraction(dataset: &Dataset) -> f64 {
    if dataset.test.is_empty() { 0.2 } else { 0.1 }
}

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
    /// The weights that training begins with.
    pub pretrained: Option<Pretrained>,
    /// Share of the training images that becomes the validation split, where there is none; see [`default_val_fraction`].
    pub val_fraction: Option<f64>,
    /// From which everything random comes.
    pub seed: u64,
    /// The part of the training images that becomes the validation split instead, where the run is one of several on parts in turn.
    pub fold: Option<Fold>,
    /// Threads that will compute.
    pub threads: usize,
    /// When it was begun: its time counts from then on, the choice of everything included.
    pub begun: Instant,
}

/// A run of which everything is decided, before its folder is made.
pub struct PlannedRun {
    config: RunConfig,
    data: RunData,
    start: Start,
    /// What was chosen and why, one choice per line.
    reasons: Vec<String>,
    begun: Instant,
}

/// A run that is ready to train: everything is decided, and its folder is there.
pub struct Run {
    config: RunConfig,
    folder: RunFolder,
    data: RunData,
    start: Start,
    bad_files: BadFiles,
    begun: Instant,
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

impl PlannedRun {
    /// Decides everything that was left open.
    ///
    /// # Errors
    /// When something asked for is not there or does not fit.
    pub fn new(new: NewRun<'_>, device: &FoundDevice) -> Result<Self> {
        let pretrained = new.pretrained;
        let source = pretrained.as_ref().map(|weights| weights.source.clone());
        let earlier = pretrained.as_ref().and_then(|weights| weights.card.trained_on.as_ref());
        let val_fraction = new.val_fraction.unwrap_or_else(|| default_val_fraction(&new.dataset));
        let hold_out = HoldOut { fraction: val_fraction, seed: new.seed, fold: new.fold };
        let limits = DecodeLimits::default().with_max_file_bytes(new.max_file_size);
        let data = RunData::choose(new.dataset, new.data, hold_out, earlier, &limits)?;
        let dataset = data.dataset();
        let survey = survey(&dataset.train, SURVEYED, &limits)?;
        let mut evidence = Evidence {
            info: &dataset.info,
            survey: &survey,
            train: dataset.train.len(),
            class_sizes: &ClassSizes::of(&dataset.train, dataset.info.classes.len()),
            pretrained: pretrained.as_ref().map(|weights| (weights.name.as_str(), &weights.card)),
            budget: None,
        };
        evidence.budget = Budget::of_run(new.overrides, &evidence, device)?;
        let plan = Plan::new(new.overrides, &evidence)?;
        let mut config = RunConfig {
            program: PROGRAM.to_owned(),
            data: new.data.to_owned(),
            data_path: data_path(new.data),
            data_dir: std::path::absolute(new.data_dir)?,
            val_fraction,
            seed: new.seed,
            split_seed: None,
            fold: new.fold,
            model_name: plan.model_name,
            pretrained_path: source.as_deref().and_then(data_path),
            pretrained: source,
            lengthened: false,
            max_file_size: new.max_file_size,
            classes: dataset.info.classes.clone(),
            model: plan.model,
            preprocessing: plan.preprocessing,
            recipe: plan.recipe,
            origin: Origin {
                threads: Some(new.threads),
                device: Some(device.name.clone()),
                weights: None,
                images: data.trained_on.splits.clone(),
            },
        };
        let start = pretrained.map_or(Ok(Start::Fresh), |weights| begin_with(weights, &config))?;
        if let Start::Pretrained(tensors) = &start {
            config.origin.weights = Some(weights_checksum(tensors));
        }
        Ok(Self { config, data, start, reasons: plan.reasons, begun: new.begun })
    }

    /// What was decided.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// What the data set is called.
    pub fn data_name(&self) -> String {
        self.data.dataset().info.name
    }
}

impl Run {
    /// Checks that what was planned can be done, and makes the run folder `output`, or the first free one in `runs`.
    ///
    /// # Errors
    /// When too many images cannot be read, the memory does not suffice, or the folder cannot be made.
    pub fn begin(planned: PlannedRun, output: Option<&Path>, device: &FoundDevice) -> Result<Self> {
        let PlannedRun { config, data, start, reasons, begun } = planned;
        let dataset = data.dataset();
        memory::check(&config.model, Work::Training(&config.recipe, dataset.train.len()), device)?;
        let bad_files = judge_files(&data, &dataset, &config)?;
        let folder = RunFolder::create(output, &config, &dataset.info.name)?;
        data.write(&folder).inspect_err(|_| folder.discard_unsaved())?;
        announce(&dataset, &reasons, &config, &folder);
        Ok(Self { config, folder, data, start, bad_files, begun })
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
        let begun = Instant::now();
        let (folder, config) = match resume(run, asked)? {
            Resumption::Unfinished(folder, config) => (folder, *config),
            Resumption::Finished(progress) => return Ok(Resumed::Finished(progress)),
        };
        let data = RunData::reopen(open(&config)?, &config, folder.path(), Purpose::Resume)?;
        let images = data.dataset().train.len();
        memory::check(&config.model, Work::Training(&config.recipe, images), device)?;
        if asked != AskedLength::default() {
            folder.write_length(&config.recipe)?;
        }
        let bad_files = BadFiles::default();
        Ok(Resumed::Ready(Box::new(Self { config, folder, data, start: Start::Resumed, bad_files, begun })))
    }

    /// Trains to the end, or until the user stops it, and measures and reports the result.
    ///
    /// # Errors
    /// When training diverges, too many images cannot be read, or the disk refuses.
    pub fn train(self, device: &FoundDevice, threads: usize) -> Result<FinishedRun> {
        let Self { config, folder, data, start, bad_files, begun } = self;
        for remark in &data.remarks {
            note!("{remark}");
        }
        let resources = Resources { device: &device.device, threads, begun };
        let trained =
            Trainer::new(config.clone(), folder.clone(), &data, start, resources).and_then(|mut trainer| {
                trainer.set_bad_files(bad_files);
                Ok((trainer.run(&|| start_of(&config))?, trainer))
            });
        let (outcome, trainer) = trained.inspect_err(|_| folder.discard_unsaved())?;
        let trained = trainer.finish();
        let progress = trained.progress.clone();
        if outcome == Outcome::StoppedEarly {
            let Recipe { metric, patience, .. } = &config.recipe;
            note!("stopped early: no better validation {metric} for {patience} epochs");
        }
        let report = match outcome {
            Outcome::Interrupted => None,
            Outcome::Finished | Outcome::StoppedEarly => Some(
                report::of_run(&folder, &config, &data.dataset(), trained, device)
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

/// Refuses a data set of which too much cannot be read, before anything is made of it.
fn judge_files(data: &RunData, dataset: &Dataset, config: &RunConfig) -> Result<BadFiles> {
    let mut bad_files = BadFiles::default();
    for split in Split::ALL {
        let mut bad = data.bad(split);
        let mut total = dataset.split(split).len();
        if split == Split::Train {
            // What could not even be listed belongs to no split that is known.
            bad.extend(dataset.left_out.unreadable.iter().cloned());
            total += dataset.left_out.unreadable.len();
        }
        bad_files.judge(config.recipe.bad_file_limit, split, &bad, total)?;
    }
    Ok(bad_files)
}

/// The start of a run once more, without a word.
fn start_of(config: &RunConfig) -> Result<Start> {
    let Some(source) = config.pretrained_now() else { return Ok(Start::Fresh) };
    // They are here since the run began.
    let weights = pretrained::open(&source, true)?;
    let adaptation = weights.adapted(&config.model, &config.classes)?;
    check_weights(config, &source, &adaptation.tensors)?;
    Ok(Start::Pretrained(adaptation.tensors))
}

/// Refuses weights that are not those that the run of `config` began with, if it is known which ones these were.
fn check_weights(config: &RunConfig, source: &str, tensors: &[NamedTensor]) -> Result<()> {
    if config.origin.weights.as_ref().is_some_and(|checksum| *checksum != weights_checksum(tensors)) {
        bail!(
            "{source}: these are not the weights any more that the run began with; put them back as they were"
        );
    }
    Ok(())
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
