//! What the time there is can pay for: how large images may be and how often each is seen.

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

/// Share of a run's time that is spent in training steps; the rest goes to validation, loading and checkpoints.
const TRAINING: f64 = 0.85;

/// Steps that are measured at most, besides the first ones of each size, which allocate and are not counted.
const STEPS: usize = 5;
/// Images of the first steps, which show a slow device before it is given whole batches.
const FIRST: [usize; 2] = [1, 8];

/// The most seconds that are measured, and the largest share of the run.
const MOST_SECONDS: f64 = 2.0;
const MOST_OF_RUN: f64 = 0.02;

/// How much a machine trains in a second, and how long it may.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Length of the run.
    pub seconds: f64,
    /// Multiply-adds of forward passes that are trained in a second, backward pass and update included.
    pub multiply_adds_per_second: f64,
}

impl Budget {
    /// What the time of a run pays for, where there is a limit and the plan depends on it: what is stated needs no measuring. Nothing where
    /// a training step does not fit the memory, which whoever begins the run will say.
    ///
    /// # Errors
    /// When there is no such architecture or recipe, or the device fails.
    pub fn of_run(
        overrides: &Overrides,
        evidence: &Evidence<'_>,
        device: &FoundDevice,
    ) -> Result<Option<Self>> {
        let Some(seconds) = overrides.length.seconds else { return Ok(None) };
        let is_file = overrides.recipe.as_ref().is_some_and(|recipe| recipe.ends_with(".toml"));
        let has_size = overrides.model.is_some() || overrides.image_size.is_some();
        if evidence.pretrained.is_some() || (is_file && has_size) {
            return Ok(None);
        }
        let config = architecture::to_measure(overrides, evidence)?;
        let recipe = recipe::to_measure(overrides, evidence, &config)?;
        let work = Work::Training(&recipe, evidence.train);
        if config.validate().is_err() || !memory::suffices(&config, work, device) {
            return Ok(None);
        }
        Self::measure(seconds, &config, &recipe, device).map(Some)
    }

    /// Measures a few training steps of a model by a recipe, with its batches and its optimizer: for a second or two, and no more than a
    /// fiftieth of the run, but for the first steps, which are colder than those of the run.
    fn measure(seconds: f64, config: &ModelConfig, recipe: &Recipe, device: &FoundDevice) -> Result<Self> {
        let mut learner = Learner::new(config.init(&device.device.clone().autodiff())?, recipe);
        let patience = Duration::from_secs_f64((MOST_OF_RUN * seconds).min(MOST_SECONDS));
        let whole = recipe.batch_size;
        let begin = Instant::now();
        let mut images_per_second = 0f64;
        for (step, batch) in
            FIRST.into_iter().chain([whole; STEPS + 1]).map(|batch| batch.min(whole)).enumerate()
        {
            let start = Instant::now();
            train_once(&mut learner, config, recipe, (batch, step + 1))?;
            device.device.sync().context("the device failed")?;
            // The first step of all allocates, and so does the first of a size; nothing else may be known of a slow device.
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

    /// Passes over so many images that the time pays for.
    pub fn epochs(&self, config: &ModelConfig, images: usize) -> f64 {
        let views = TRAINING * self.seconds * self.multiply_adds_per_second
            / Complexity::of(config).total().max(1) as f64;
        views / images.max(1) as f64
    }
}

/// Step number `step` on `batch` images that mean nothing.
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
