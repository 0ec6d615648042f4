//! How a model is trained: every number of it, in one serde description, and the named choices.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::path::Path;
use vitrine_datasets::Augmentation;

use crate::bounds;
use crate::files::read_text;

mod file;
mod freeze;
mod length;
mod metric;
mod named;
mod optimizer;
mod overrides;
mod progressive;

use file::RecipeFile;
pub use freeze::Freeze;
pub use length::AskedLength;
pub use metric::Metric;
pub use named::NamedRecipe;
pub use optimizer::Optimizer;
pub use overrides::RecipeOverrides;
pub use progressive::ProgressiveLearning;

/// Optimization and augmentation, as read from TOML. Unknown keys are refused; keys that are left out have the
/// default's value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recipe {
    /// Passes over the training images. With `time_seconds` too, what is reached first ends the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<usize>,
    /// Length of the run in seconds, validation included; the learning rate follows the clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_seconds: Option<f64>,
    /// Images per step.
    pub batch_size: usize,
    /// Batches whose gradients are averaged for one update.
    pub accumulate: usize,
    /// What a block computes is not kept for the backward pass but computed again (Chen et al. 2016): less memory, a third more work.
    pub gradient_checkpointing: bool,
    /// The highest learning rate, reached after the warm-up.
    pub learning_rate: f64,
    /// The last learning rate, as a share of the highest.
    pub final_learning_rate: f64,
    /// Share of the run in which the learning rate rises linearly from 0.
    pub warmup: f64,
    /// How gradients become updates.
    pub optimizer: Optimizer,
    /// Decoupled decay (Loshchilov & Hutter 2019); not on norms, biases, positions and tokens.
    pub weight_decay: f64,
    /// AdamW's averaging of gradients and of their squares.
    pub betas: [f64; 2],
    /// AdamW's term against division by zero.
    pub epsilon: f64,
    /// How much of its sum of gradients Muon keeps.
    pub momentum: f64,
    /// Gradients are scaled down to this norm over all parameters together; 0 turns clipping off.
    pub clip_norm: f64,
    /// Share of the target spread over all classes (Szegedy et al. 2016, section 7).
    pub label_smoothing: f64,
    /// The loss of an image is multiplied by `images / (classes * images of its class)`, so that all classes weigh the same together.
    pub class_weights: bool,
    /// Every epoch draws as many images as there are, from all classes equally often.
    pub balanced_sampling: bool,
    /// Decay of the running average of weights that is evaluated and saved; 0 turns averaging off.
    pub ema_decay: f64,
    /// The part of a pretrained model that does not learn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freeze: Option<Freeze>,
    /// By which factor the learning rate falls with every block from the head toward the input (Bao et al. 2022, BEiT,
    /// appendix H); 1 is the same for all.
    pub layer_decay: f64,
    /// What chooses the best epoch, whose model is kept, by its validation.
    pub metric: Metric,
    /// Epochs without a better validation result after which the run stops; 0 never stops early.
    pub patience: usize,
    /// Share of unreadable images of a split above which the run fails; a few pass in any case, none with 0.
    pub bad_file_limit: f64,
    /// Smaller images and lighter augmentation in the first part of the run; none is all of it as the rest says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progressive_learning: Option<ProgressiveLearning>,
    /// Whether the run begins without flips, and mirrors images only once the validation images have shown that mirror images are
    /// recognized, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub judge_flips: bool,
    /// What is done to training images.
    pub augmentation: Augmentation,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            epochs: None,
            time_seconds: None,
            batch_size: 64,
            accumulate: 1,
            gradient_checkpointing: false,
            learning_rate: 1e-3,
            final_learning_rate: 0.01,
            warmup: 0.05,
            optimizer: Optimizer::default(),
            weight_decay: 0.05,
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            momentum: 0.95,
            clip_norm: 1.0,
            label_smoothing: 0.1,
            class_weights: false,
            balanced_sampling: false,
            ema_decay: 0.0,
            freeze: None,
            layer_decay: 1.0,
            metric: Metric::default(),
            patience: 0,
            bad_file_limit: 0.01,
            progressive_learning: None,
            judge_flips: false,
            augmentation: Augmentation::default(),
        }
    }
}

impl Recipe {
    /// Reads a recipe file: these keys, and next to them `purpose`, `source` and `expected`, texts that describe the recipe.
    ///
    /// # Errors
    /// When the file cannot be read or says what cannot be done; the message names the file and the key.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_text(path).with_context(|| format!("--recipe {}", path.display()))?;
        let file = RecipeFile::parse(&text).with_context(|| format!("--recipe {}", path.display()))?;
        let recipe = file.recipe;
        recipe.validate().with_context(|| format!("--recipe {}", path.display()))?;
        Ok(recipe)
    }

    /// Checks every number.
    ///
    /// # Errors
    /// Names the key, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        let whole = [
            ("epochs", self.epochs.unwrap_or(1), bounds::EPOCHS),
            ("batch_size", self.batch_size, bounds::BATCH_SIZE),
            ("accumulate", self.accumulate, bounds::BATCH_SIZE),
            ("patience", self.patience.max(1), bounds::EPOCHS),
        ];
        for (key, value, allowed) in whole {
            if !allowed.contain(value) {
                bail!("`{key}` is {value}: it must be {allowed}");
            }
        }
        let numbers = [
            ("time_seconds", self.time_seconds.unwrap_or(1.0), bounds::SECONDS),
            ("learning_rate", self.learning_rate, bounds::LEARNING_RATE),
            ("final_learning_rate", self.final_learning_rate, bounds::SHARE),
            ("warmup", self.warmup, bounds::SHARE_BELOW_ONE),
            ("weight_decay", self.weight_decay, bounds::NOT_NEGATIVE),
            ("betas[0]", self.betas[0], bounds::SHARE_BELOW_ONE),
            ("betas[1]", self.betas[1], bounds::SHARE_BELOW_ONE),
            ("epsilon", self.epsilon, bounds::PART),
            ("momentum", self.momentum, bounds::SHARE_BELOW_ONE),
            ("clip_norm", self.clip_norm, bounds::NOT_NEGATIVE),
            ("label_smoothing", self.label_smoothing, bounds::SHARE_BELOW_ONE),
            ("ema_decay", self.ema_decay, bounds::SHARE_BELOW_ONE),
            ("layer_decay", self.layer_decay, bounds::FACTOR),
            ("bad_file_limit", self.bad_file_limit, bounds::SHARE),
        ];
        for (key, value, allowed) in numbers {
            if !allowed.contain(value) {
                bail!("`{key}` is {value}: it must be {allowed}");
            }
        }
        if self.freeze == Some(Freeze::Backbone) && self.layer_decay < 1.0 {
            bail!(
                "`layer_decay` (--layer-decay) has no effect if the backbone is frozen, because only the head learns: leave it out"
            );
        }
        if self.freeze == Some(Freeze::Backbone) && self.gradient_checkpointing {
            bail!(
                "`gradient_checkpointing` (--gradient-checkpointing) saves nothing if the backbone is frozen, because frozen blocks store no activations: leave it out"
            );
        }
        if self.class_weights && self.balanced_sampling {
            bail!(
                "`class_weights` (--class-weights) and `balanced_sampling` (--balanced-sampling) do not go together: where classes come up \
                 equally often, weights would favor the rare ones twice; leave one of them out"
            );
        }
        if self.judge_flips && self.augmentation.horizontal_flip == 0.0 {
            bail!(
                "`judge_flips` has no effect, because `augmentation.horizontal_flip` is 0: leave it out, or set a share of images to mirror"
            );
        }
        self.optimizer.check(self)?;
        if let Some(progressive) = &self.progressive_learning {
            progressive.check()?;
        }
        self.augmentation.validate().context("`augmentation`")?;
        Ok(())
    }
}
