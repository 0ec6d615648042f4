//! A new run: what the user states, and the plan that fills the rest.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use vitrine_datasets::{ClassSizes, Dataset, DecodeLimits, Fold, survey};

use super::PROGRAM;
use super::start::begin_with;
use crate::plan::{Budget, Evidence, Overrides, Plan};
use crate::pretrained::Pretrained;
use crate::run_folder::{HoldOut, Origin, RunConfig, RunData, data_path, weights_checksum};
use crate::runtime::Runtime;
use crate::train::Start;

/// How many images are read to find out their sizes and whether they have colors.
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
    /// When it was begun: its time counts from then on, the choice of everything included.
    pub begun: Instant,
}

/// A run of which everything is decided, before its folder is made.
pub struct PlannedRun {
    pub(super) config: RunConfig,
    pub(super) data: RunData,
    pub(super) start: Start,
    /// The choices with their reasons, one per line.
    pub(super) reasons: Vec<String>,
    pub(super) begun: Instant,
}

impl PlannedRun {
    /// Decides everything that was left open.
    ///
    /// # Errors
    /// When something asked for is not there or does not fit.
    pub fn new(new: NewRun<'_>, runtime: Runtime<'_>) -> Result<Self> {
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
        evidence.budget = Budget::of_run(new.overrides, &evidence, runtime.device)?;
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
                threads: Some(runtime.threads),
                device: Some(runtime.device.name.clone()),
                weights: None,
                images: data.trained_on.splits.clone(),
            },
        };
        let start =
            pretrained.map_or(Ok(Start::Fresh), |weights| begin_with(weights, &config, runtime.events))?;
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
