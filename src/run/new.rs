//! A new run: the user's overrides, completed by the automatic plan into a full configuration.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use vitrine_datasets::{ClassSizes, Dataset, DecodeLimits, Fold, survey};

use super::PROGRAM;
use super::image_size;
use super::initial_weights::adapted_start;
use crate::plan::{Budget, Evidence, Overrides, Plan};
use crate::pretrained::Pretrained;
use crate::recipe::Precision;
use crate::run_folder::{HoldOut, Origin, RunConfig, RunData, data_path, existing_path};
use crate::runtime::Runtime;
use crate::train::Start;
use crate::weights_file;

/// Number of training images that are decoded to learn their typical size and whether they have colors.
const SURVEYED_IMAGES: usize = 512;

/// Validation images that are enough in a data set without a test split: the standard error of an accuracy of 90% is then
/// 0.4 points.
const ENOUGH_TO_REPORT: usize = 5000;
/// Validation images that are enough where validation only chooses the best epoch: a standard error of 0.7 points.
const ENOUGH_TO_CHOOSE: usize = 2000;
/// Validation images of each class that are enough.
const ENOUGH_OF_A_CLASS: usize = 20;

/// The default share of the training images that becomes the validation split of a data set without one: a fifth, or a
/// tenth if there is a test split, since validation then only chooses the best epoch. Less of a large data set, whose
/// images teach more in training.
pub fn default_val_fraction(dataset: &Dataset) -> f64 {
    let (share, enough) =
        if dataset.test.is_empty() { (0.2_f64, ENOUGH_TO_REPORT) } else { (0.1, ENOUGH_TO_CHOOSE) };
    let enough = enough.max(ENOUGH_OF_A_CLASS * dataset.info.classes.len());
    share.min(enough as f64 / dataset.train.len().max(1) as f64)
}

/// The inputs from which a new run is planned.
pub struct NewRun<'a> {
    /// Name or path of the data set, as the user wrote it.
    pub data: &'a str,
    /// The data set, with the splits that it has.
    pub dataset: Dataset,
    /// The folder into which data sets with a name are downloaded.
    pub data_dir: PathBuf,
    /// The largest image file that is read, in bytes; `None` for the default limit.
    pub max_file_size: Option<u64>,
    /// The character between the labels of an image in the manifest; `None` for one label an image.
    pub label_separator: Option<char>,
    /// The settings that the user stated.
    pub overrides: &'a Overrides,
    /// The pretrained weights; `None` for random initialization.
    pub pretrained: Option<Pretrained>,
    /// Share of the training images that becomes the validation split if the data set has none, above 0 and below 1.
    /// `None` stands for [`default_val_fraction`].
    pub val_fraction: Option<f64>,
    /// The seed of everything random: initialization, data order, augmentation, and the validation split.
    pub seed: u64,
    /// The fold that becomes the validation split, in place of `val_fraction`, if the run is one of a cross-validation.
    pub fold: Option<Fold>,
    /// When the command began. The time of the run counts from here, so it includes the planning.
    pub begun: Instant,
}

/// A run with a complete configuration, before its folder is created.
pub struct PlannedRun {
    pub(super) config: RunConfig,
    pub(super) data: RunData,
    pub(super) start: Start,
    /// The settings that the program chose, one per entry, each with the reason.
    pub(super) reasons: Vec<String>,
    /// See [`Plan::usual_epochs`].
    pub(super) usual_epochs: Option<f64>,
    pub(super) begun: Instant,
}

impl PlannedRun {
    /// Chooses every setting that the user left open: image size, architecture, recipe, and validation split.
    ///
    /// # Errors
    /// If the data set cannot be trained on, or a stated setting does not exist or contradicts the data or another one.
    pub fn new(new: NewRun<'_>, runtime: Runtime<'_>) -> Result<Self> {
        let pretrained = new.pretrained;
        let source = pretrained.as_ref().map(|weights| weights.source.clone());
        let earlier = pretrained.as_ref().and_then(|weights| weights.card.trained_on.as_ref());
        let val_fraction = new.val_fraction.unwrap_or_else(|| default_val_fraction(&new.dataset));
        let hold_out = HoldOut { fraction: val_fraction, seed: new.seed, fold: new.fold };
        let limits = DecodeLimits::default().with_max_file_bytes(new.max_file_size);
        let data = RunData::choose(new.dataset, new.data, hold_out, earlier, &limits)?;
        let dataset = data.dataset();
        let survey = survey(&dataset.train, SURVEYED_IMAGES, &limits)?;
        let mut evidence = Evidence {
            info: &dataset.info,
            survey: &survey,
            train: dataset.train.len(),
            class_sizes: &ClassSizes::of(&dataset.train, dataset.info.classes.len()),
            pretrained: pretrained.as_ref().map(|weights| (weights.name.as_str(), &weights.card)),
            budget: None,
            // Workers may be other processors.
            multiplies_bfloat16: runtime.workers.is_none() && runtime.device.suits(Precision::Bf16),
        };
        evidence.budget = Budget::of_run(new.overrides, &evidence, runtime.device)?;
        let plan = Plan::for_device(new.overrides, &evidence, runtime.device)?;
        runtime.device.check_precision(plan.recipe.precision)?;
        let smaller = plan.with_half_size(new.overrides, &evidence, runtime.device)?;
        let config = RunConfig {
            program: PROGRAM.to_owned(),
            data: new.data.to_owned(),
            data_path: data_path(new.data, &new.data_dir),
            data_dir: std::path::absolute(new.data_dir)?,
            val_fraction,
            seed: new.seed,
            split_seed: None,
            fold: new.fold,
            model_name: plan.model_name,
            pretrained_path: source.as_deref().and_then(existing_path),
            pretrained: source,
            lengthened: false,
            max_file_size: new.max_file_size,
            label_separator: new.label_separator,
            multi_label: dataset.info.multi_label,
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
        let (mut config, reasons) = match (smaller, &pretrained) {
            (Some(smaller), Some(weights)) => {
                image_size::choose((config, plan.reasons), smaller, weights, &data, runtime)?
            }
            _ => (config, plan.reasons),
        };
        let start =
            pretrained.map_or(Ok(Start::Fresh), |weights| adapted_start(weights, &config, runtime.events))?;
        if let Start::Pretrained(tensors) = &start {
            config.origin.weights = Some(weights_file::checksum(tensors));
        }
        Ok(Self { config, data, start, reasons, usual_epochs: plan.usual_epochs, begun: new.begun })
    }

    /// The configuration of the run.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// The name of the data set.
    pub fn data_name(&self) -> String {
        self.data.dataset().info.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_folder::testing::drawn;

    #[test]
    fn large_data_sets_keep_a_smaller_share_for_validation() {
        let kept = |train: usize, test: usize| {
            (default_val_fraction(&drawn([train, 0, test])) * train as f64).round()
        };
        assert_eq!([kept(1000, 0), kept(1000, 10)], [200.0, 100.0]);
        assert_eq!([kept(50_000, 0), kept(50_000, 10)], [5000.0, 2000.0]);
        let mut many_classes = drawn([50_000, 0, 10]);
        many_classes.info.classes = vec![String::new(); 200];
        assert_eq!(default_val_fraction(&many_classes) * 50_000.0, 4000.0);
    }
}
