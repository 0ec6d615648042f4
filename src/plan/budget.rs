//! The compute budget of a run with a time limit, from a measurement of training speed: it determines the image size
//! and the number of epochs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use burn::module::Module;
use burn::tensor::{Distribution, Tensor};
use vitrine_models::{Complexity, ModelConfig};

use super::{Evidence, Overrides, architecture, recipe};
use crate::device::FoundDevice;
use crate::learner::Learner;
use crate::memory::{self, Work};
use crate::recipe::Recipe;

/// Share of a run's time that training steps take; validation, loading, and checkpoints take the rest.
const TRAINING_SHARE: f64 = 0.85;

/// Maximum number of measured steps, not counting the first step at each batch size, which allocates memory. The fastest counts: a
/// processor that others share may be slower by a quarter for as long as five steps of the default model take.
const MAX_STEPS: usize = 20;
/// Batch sizes of the first steps. They show how slow a device is before it gets whole batches.
const FIRST_BATCHES: [usize; 2] = [1, 8];

/// Maximum time for measuring in seconds.
const MAX_SECONDS: f64 = 2.0;
/// Maximum time for measuring as a share of the run.
const MAX_SHARE_OF_RUN: f64 = 0.02;

/// How fast the machine trains, and how long the run may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Time limit of the run.
    pub seconds: f64,
    /// Multiply-adds of forward passes per second of training; the time includes backward passes and updates.
    pub multiply_adds_per_second: f64,
}

impl Budget {
    /// Measures the budget, if the run has a time limit and its plan has open choices that depend on it. Returns `None`
    /// otherwise, and if a training step does not fit in memory, which is reported when the run starts.
    ///
    /// # Errors
    /// When the requested architecture or recipe does not exist, or the device fails.
    pub fn of_run(
        overrides: &Overrides,
        evidence: &Evidence<'_>,
        device: &FoundDevice,
    ) -> Result<Option<Self>> {
        let Some(seconds) = time_for_choices(overrides, evidence)? else { return Ok(None) };
        let config = architecture::to_measure(overrides, evidence)?;
        let recipe = recipe::to_measure(overrides, evidence, &config)?;
        let work = Work::Training(&recipe, evidence.train);
        if config.validate().is_err() || !memory::suffices(&config, work, device) {
            return Ok(None);
        }
        Self::measure(seconds, &config, &recipe, device).map(Some)
    }

    /// Measures the speed of training steps with the recipe's batch size and optimizer, for two seconds or 2% of
    /// the run, whichever is less. At least two steps are made, however long they take.
    fn measure(seconds: f64, config: &ModelConfig, recipe: &Recipe, device: &FoundDevice) -> Result<Self> {
        let mut learner = Learner::new(config.init(&device.device.clone().autodiff())?, recipe);
        let patience = Duration::from_secs_f64((MAX_SHARE_OF_RUN * seconds).min(MAX_SECONDS));
        let whole = recipe.batch_size;
        let begin = Instant::now();
        let mut images_per_second = 0f64;
        for (step, batch) in
            FIRST_BATCHES.into_iter().chain([whole; MAX_STEPS + 1]).map(|batch| batch.min(whole)).enumerate()
        {
            let start = Instant::now();
            train_once(&mut learner, config, recipe, (batch, step + 1))?;
            device.device.sync().context("the device failed")?;
            // The first step allocates memory and is not measured. The first step at each later batch size is slow as
            // well, but on a slow device no other measurement may follow, and the fastest step counts.
            if step > 0 {
                images_per_second =
                    images_per_second.max(batch as f64 / start.elapsed().as_secs_f64().max(1e-9));
            }
            if step > 0 && begin.elapsed() > patience {
                break;
            }
        }
        Ok(Self {
            seconds,
            multiply_adds_per_second: Complexity::of(config).total() as f64 * images_per_second,
        })
    }

    /// Number of epochs over `images` images for which the time suffices.
    pub fn epochs(&self, config: &ModelConfig, images: usize) -> f64 {
        let views = TRAINING_SHARE * self.seconds * self.multiply_adds_per_second
            / Complexity::of(config).total().max(1) as f64;
        views / images.max(1) as f64
    }
}

/// The time limit of a run, which the user or the recipe's file states, if the plan has open choices that depend on it.
///
/// # Errors
/// When the recipe's file cannot be read.
pub(super) fn time_for_choices(overrides: &Overrides, evidence: &Evidence<'_>) -> Result<Option<f64>> {
    let file = overrides.recipe_file().map(Recipe::read).transpose()?;
    let of_file = file.as_ref().and_then(|recipe| recipe.time_seconds);
    let is_open = evidence.pretrained.is_none() && (file.is_none() || overrides.model.is_none());
    Ok(overrides.length.seconds.or(of_file).filter(|_| is_open))
}

/// Step number `step`, on `batch` random images.
fn train_once(
    learner: &mut Learner,
    config: &ModelConfig,
    recipe: &Recipe,
    (batch, step): (usize, usize),
) -> Result<()> {
    let device = learner.model.devices().into_iter().next().context("the model is on no device")?;
    let shape = [batch, config.channels, config.image_size.height, config.image_size.width];
    let images = Tensor::random(shape, Distribution::Normal(0.0, 1.0), &device);
    let targets = Tensor::<2>::full([batch, config.num_classes], 1.0 / config.num_classes as f64, &device);
    learner.backward(recipe, images, targets, 0);
    learner.update(recipe, recipe.learning_rate, step);
    Ok(())
}
