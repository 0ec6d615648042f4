//! What the time there is can pay for: how large images may be and how often each is seen.

use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::{Device, Distribution, Tensor};
use vitrine_models::{Complexity, ModelConfig};

use super::architecture::hybrid;
use crate::recipe::Recipe;
use crate::train::Learner;

/// Share of a run's time that is spent in training steps; the rest goes to validation, loading and checkpoints.
const TRAINING: f64 = 0.85;

/// How much a machine trains in a second, and how long it may.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Length of the run.
    pub seconds: f64,
    /// Multiply-adds of forward passes that are trained in a second, backward pass and update included.
    pub multiply_adds_per_second: f64,
}

impl Budget {
    /// Measures a few training steps of the default architecture on images of 32 pixels: a second or so.
    ///
    /// # Errors
    /// When the device fails.
    pub fn measure(seconds: f64, device: &Device) -> Result<Self> {
        const BATCH: usize = 32;
        const STEPS: usize = 3;
        let config = hybrid(32, 3);
        let tracked = device.clone().autodiff();
        let recipe = Recipe::default();
        let mut learner = Learner::new(config.init(&tracked)?, &recipe);
        let images =
            Tensor::random([BATCH, config.channels, 32, 32], Distribution::Normal(0.0, 1.0), &tracked);
        let classes = config.num_classes;
        let targets = Tensor::<2>::full([BATCH, classes], 1.0 / classes as f64, &tracked);
        let mut fastest = f64::INFINITY;
        for step in 0..=STEPS {
            let start = Instant::now();
            learner.backward(&recipe, images.clone(), targets.clone(), 0);
            learner.update(&recipe, recipe.learning_rate, step + 1);
            device.sync().context("the device failed")?;
            // The first step allocates.
            if step > 0 {
                fastest = fastest.min(start.elapsed().as_secs_f64());
            }
        }
        let cost = BATCH as f64 * Complexity::of(&config).total() as f64;
        Ok(Self { seconds, multiply_adds_per_second: cost / fastest.max(1e-9) })
    }

    /// Passes over so many images that the time pays for.
    pub fn epochs(&self, config: &ModelConfig, images: usize) -> f64 {
        let views = TRAINING * self.seconds * self.multiply_adds_per_second
            / Complexity::of(config).total().max(1) as f64;
        views / images.max(1) as f64
    }
}
