//! What the time there is can pay for: how large images may be and how often each is seen.

use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::{Device, Distribution, Tensor};
use vitrine_models::{Complexity, ModelConfig};

use super::architecture::{hybrid, named_model};
use crate::recipe::Recipe;
use crate::train::Learner;

/// Share of a run's time that is spent in training steps; the rest goes to validation, loading and checkpoints.
const TRAINING: f64 = 0.85;

/// Images of the steps that are measured: the first ones allocate, and show a slow device before it is given more.
const BATCHES: [usize; 6] = [1, 8, 32, 32, 32, 32];

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
    /// Measures a few training steps of the architecture that was asked for, or of the default one on images of 32 pixels: for a
    /// second or two, and no more than a fiftieth of the run, but for the step that shows it.
    ///
    /// # Errors
    /// When there is no such architecture, or the device fails.
    pub fn measure(seconds: f64, model: Option<&str>, device: &Device) -> Result<Self> {
        let config = match model {
            Some(wanted) => named_model(wanted)?.1,
            None => hybrid(32, 3),
        };
        let tracked = device.clone().autodiff();
        let recipe = Recipe::default();
        let mut learner = Learner::new(config.init(&tracked)?, &recipe);
        let begin = Instant::now();
        let patience = (MOST_OF_RUN * seconds).min(MOST_SECONDS);
        let mut images_per_second = 0f64;
        for (step, batch) in BATCHES.into_iter().enumerate() {
            let start = Instant::now();
            let shape = [batch, config.channels, config.image_size.height, config.image_size.width];
            let images = Tensor::random(shape, Distribution::Normal(0.0, 1.0), &tracked);
            let classes = config.num_classes;
            let targets = Tensor::<2>::full([batch, classes], 1.0 / classes as f64, &tracked);
            learner.backward(&recipe, images, targets, 0);
            learner.update(&recipe, recipe.learning_rate, step + 1);
            device.sync().context("the device failed")?;
            images_per_second = images_per_second.max(batch as f64 / start.elapsed().as_secs_f64().max(1e-9));
            if begin.elapsed().as_secs_f64() > patience {
                break;
            }
        }
        let cost = Complexity::of(&config).total() as f64;
        Ok(Self { seconds, multiply_adds_per_second: cost * images_per_second })
    }

    /// Passes over so many images that the time pays for.
    pub fn epochs(&self, config: &ModelConfig, images: usize) -> f64 {
        let views = TRAINING * self.seconds * self.multiply_adds_per_second
            / Complexity::of(config).total().max(1) as f64;
        views / images.max(1) as f64
    }
}
