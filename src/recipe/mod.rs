//! Recipes: how a model is optimized and what is done to its training images, as one serde struct, and the named ones.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vitrine_datasets::Augmentation;

use crate::bounds::{self, Bounds};
use crate::files::read_text;

mod file;
mod freeze;
mod length;
mod metric;
mod named;
mod optimizer;
mod overrides;
mod precision;
mod progressive;

use file::RecipeFile;
pub use freeze::Freeze;
pub use length::AskedLength;
pub use metric::Metric;
pub use named::NamedRecipe;
pub use optimizer::Optimizer;
pub use overrides::RecipeOverrides;
pub use precision::Precision;
pub use progressive::ProgressiveLearning;

/// Length, optimization, and augmentation of a training run, as read from TOML.
///
/// Unknown keys are refused, and keys that are left out have their defaults. `docs/recipes.md` lists the keys with
/// these doc comments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recipe {
    /// Passes over the training images. If `time_seconds` is given, too, the run ends with whichever is reached first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<usize>,
    /// Length of the run in seconds, including validation. The learning rate then depends on the time instead of the
    /// step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_seconds: Option<f64>,
    /// Images per batch.
    pub batch_size: usize,
    /// Number of batches whose gradients are averaged for one update, at most those of an epoch.
    pub accumulate: usize,
    /// Whether the backward pass computes each block again instead of keeping its activations (Chen et al. 2016), which
    /// takes less memory and about a third more computation.
    pub gradient_checkpointing: bool,
    /// The numbers that matrix products and convolutions multiply: `"f32"`, or `"bf16"`, rounded to bfloat16 with sums in float32 (mixed
    /// precision; Micikevicius et al. 2018), which is faster on processors with AVX512-BF16 and refused on others.
    pub precision: Precision,
    /// The highest learning rate, which is reached at the end of the warm-up.
    pub learning_rate: f64,
    /// The learning rate at the end of the run, as a share of the highest. A run of one update has the highest.
    pub final_learning_rate: f64,
    /// Share of the run in which the learning rate rises linearly from 0.
    pub warmup: f64,
    /// The rule by which gradients become updates.
    pub optimizer: Optimizer,
    /// Decoupled weight decay (Loshchilov & Hutter 2019). Norms, biases, positions, and tokens are not decayed.
    pub weight_decay: f64,
    /// Decay rates of AdamW's running averages of the gradients and of their squares.
    pub betas: [f64; 2],
    /// The number that AdamW adds to its denominator, against division by zero.
    pub epsilon: f64,
    /// Decay rate of Muon's running sum of gradients.
    pub momentum: f64,
    /// Largest norm of the gradients of all parameters together; larger gradients are scaled down to it. 0 turns
    /// clipping off.
    pub clip_norm: f64,
    /// Share of the target probability that is spread over all classes (Szegedy et al. 2016, section 7).
    pub label_smoothing: f64,
    /// Whether the loss of an image is multiplied by `images / (classes * images of its class)`, so that all classes
    /// have the same total weight.
    pub class_weights: bool,
    /// Whether an epoch draws its images from all classes equally often. The number of images in an epoch stays the
    /// same.
    pub balanced_sampling: bool,
    /// Decay rate of the running average of weights that is evaluated and saved. 0 turns averaging off.
    pub ema_decay: f64,
    /// The part of a pretrained model whose parameters stay fixed: `"backbone"`, or `{ blocks = N }` for the first N
    /// blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freeze: Option<Freeze>,
    /// Whether the head is fitted to the features of the frozen backbone, in place of epochs: each image is computed once, as
    /// it is, and the head is a logistic regression, whose strength is chosen by cross-validation.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fit_head: bool,
    /// Whether the run begins with a probe: the head is fitted to the features of the pretrained backbone, as with `fit_head`.
    /// The epochs then start from that head (Kumar et al. 2022, arXiv:2202.10054), and an epoch's model is kept only if
    /// the validation result is at least as good as the probe's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub probe_first: bool,
    /// Factor by which the learning rate falls with each block from the head toward the input (Bao et al. 2022, BEiT,
    /// appendix H). 1 gives all blocks the same rate.
    pub layer_decay: f64,
    /// The result on the validation images that chooses the best epoch, whose model is kept. If left out, it is accuracy, or mean
    /// average precision for images of several labels each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<Metric>,
    /// Number of epochs without a better validation result after which the run stops. 0 never stops a run early.
    pub patience: usize,
    /// Share of unreadable images in a split above which the run fails. Up to five are tolerated where they are at most a
    /// tenth of the split, except with 0.
    pub bad_file_limit: f64,
    /// A first phase of the run with smaller images and lighter augmentation. Without this table, there is no such
    /// phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progressive_learning: Option<ProgressiveLearning>,
    /// Whether the kernels of a residual tokenizer's first convolution start as the directions in which patches of the training
    /// images vary most (whitening; Jordan 2024, section 3.2), in place of random ones.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub whitened_stem: bool,
    /// Whether the run begins without flips, and mirrors images only after the validation images have shown that their
    /// mirror images are recognized, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub judge_flips: bool,
    /// Whether the finished model is asked about each image and its mirror image, if that recognizes more validation images.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mirror_views: bool,
    /// Whether the finished model is asked about two shifts of each image in place of it, if that recognizes more validation images.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shifted_views: bool,
    /// Random changes to the training images.
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
            precision: Precision::F32,
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
            fit_head: false,
            probe_first: false,
            layer_decay: 1.0,
            metric: None,
            patience: 0,
            bad_file_limit: 0.01,
            progressive_learning: None,
            whitened_stem: false,
            judge_flips: false,
            mirror_views: false,
            shifted_views: false,
            augmentation: Augmentation::default(),
        }
    }
}

impl Recipe {
    /// The [`metric`](Self#structfield.metric) of a recipe that belongs to a run, or else accuracy.
    pub fn metric(&self) -> Metric {
        self.metric.unwrap_or_default()
    }

    /// Reads a recipe file. Next to the keys of a recipe, it may have the texts `purpose`, `source`, and `expected`.
    ///
    /// # Errors
    /// When the file cannot be read, or a key or a value is not valid; the message names the file and the key.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_text(path).with_context(|| format!("--recipe {}", path.display()))?;
        let file = RecipeFile::parse(&text).with_context(|| format!("--recipe {}", path.display()))?;
        let recipe = file.recipe;
        recipe.validate().with_context(|| format!("--recipe {}", path.display()))?;
        Ok(recipe)
    }

    /// Checks every number, and that no key is without effect.
    ///
    /// # Errors
    /// Names the key, its value, and the allowed range.
    pub fn validate(&self) -> Result<()> {
        self.check_numbers()?;
        self.check_combinations()?;
        self.check_fit()?;
        self.optimizer.check(self)?;
        if let Some(progressive) = &self.progressive_learning {
            progressive.check()?;
        }
        self.augmentation.validate().context("`augmentation`")?;
        Ok(())
    }

    /// Checks that every number is in its range.
    fn check_numbers(&self) -> Result<()> {
        let whole = [
            ("epochs", self.epochs.unwrap_or(1), bounds::EPOCHS),
            ("batch_size", self.batch_size, bounds::BATCH_SIZE),
            ("accumulate", self.accumulate, bounds::BATCH_SIZE),
            ("patience", self.patience, bounds::PATIENCE),
        ];
        whole.into_iter().try_for_each(|(key, value, allowed)| check(key, value, allowed))?;
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
        numbers.into_iter().try_for_each(|(key, value, allowed)| check(key, value, allowed))?;
        self.check_rounded()
    }

    /// Checks that the numbers of the optimizer are in their ranges in float32, too, where 0.99999999 is 1.
    fn check_rounded(&self) -> Result<()> {
        let computed = [
            ("betas[0]", self.betas[0], bounds::SHARE_BELOW_ONE),
            ("betas[1]", self.betas[1], bounds::SHARE_BELOW_ONE),
            ("epsilon", self.epsilon, bounds::PART),
        ];
        for (key, value, allowed) in computed {
            let rounded = f64::from(value as f32);
            if !allowed.contain(rounded) {
                bail!(
                    "`{key}` is {value}, and {rounded} in float32, in which training computes: it must be {allowed} there, too"
                );
            }
        }
        Ok(())
    }

    /// Whether a head is fitted that learns from mirror images, too.
    pub fn fits_mirror_images(&self) -> bool {
        self.fit_head && self.augmentation.horizontal_flip > 0.0
    }

    /// The recipe of a fitted head with what has an effect on it: the time, the size of batches, class weights, the metric, and
    /// the limit on unreadable files; and mirror images, if the recipe is that of a fitted head already.
    pub fn fitting_head(&self) -> Self {
        let horizontal_flip = if self.fit_head { self.augmentation.horizontal_flip } else { 0.0 };
        Self {
            epochs: Some(1),
            time_seconds: self.time_seconds,
            batch_size: self.batch_size,
            label_smoothing: 0.0,
            class_weights: self.class_weights,
            freeze: Some(Freeze::Backbone),
            fit_head: true,
            metric: self.metric,
            bad_file_limit: self.bad_file_limit,
            mirror_views: self.fit_head && self.mirror_views,
            augmentation: Augmentation { horizontal_flip, ..Augmentation::none() },
            ..Self::default()
        }
    }

    /// Checks that a recipe that fits the head has no key for training by steps.
    fn check_fit(&self) -> Result<()> {
        if !self.fit_head {
            return Ok(());
        }
        let keys = |recipe: &Self| toml::Table::try_from(recipe);
        let (stated, fitting, default) = (keys(self)?, keys(&self.fitting_head())?, keys(&Self::default())?);
        let differs = |key: &&String| {
            stated.get(*key) != fitting.get(*key)
                && (stated.get(*key) != default.get(*key) || *key == "freeze")
        };
        if let Some(key) = stated.keys().chain(fitting.keys()).find(differs) {
            let way_out = match fitting.get(key) {
                Some(value) => format!("write `{key} = {value}`, or leave `fit_head` out"),
                None => format!("leave `{key}` or `fit_head` out"),
            };
            bail!(
                "`{key}` has no effect if `fit_head` is set, because the head is then computed from the images as they are: \
                 {way_out}"
            );
        }
        Ok(())
    }

    /// Refuses keys that have no effect together.
    fn check_combinations(&self) -> Result<()> {
        let is_backbone_frozen = self.freeze == Some(Freeze::Backbone);
        if is_backbone_frozen && self.layer_decay < 1.0 {
            bail!(
                "`layer_decay` (--layer-decay) has no effect if the backbone is frozen, because only the head learns: leave it out"
            );
        }
        if is_backbone_frozen && self.gradient_checkpointing {
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
        for (key, is_set) in [("judge_flips", self.judge_flips), ("mirror_views", self.mirror_views)] {
            if is_set && self.augmentation.horizontal_flip == 0.0 {
                bail!(
                    "`{key}` has no effect, because `augmentation.horizontal_flip` is 0: leave it out, or set a share of images to mirror"
                );
            }
        }
        self.check_first_phase()
    }

    /// Refuses mixing that would end before the first phase of progressive learning, which mixes nothing.
    fn check_first_phase(&self) -> Result<()> {
        let Augmentation { mixup, cutmix, mix_until, .. } = self.augmentation;
        let Some(ProgressiveLearning { until, .. }) = self.progressive_learning else { return Ok(()) };
        if (mixup > 0.0 || cutmix > 0.0) && mix_until <= until {
            bail!(
                "`augmentation.mix_until` is {mix_until}, and the first phase, which mixes nothing, lasts until \
                 `progressive_learning.until` {until}: `mixup` and `cutmix` have no effect; let them end later, or leave them out"
            );
        }
        Ok(())
    }
}

/// Checks that the number of a key is in its range.
///
/// # Errors
/// Names the key, its value, and the range.
fn check<T>(key: &str, value: T, allowed: Bounds<T>) -> Result<()>
where
    T: PartialOrd + Copy + FromStr + fmt::Display,
{
    if !allowed.contain(value) {
        bail!("`{key}` is {value}: it must be {allowed}");
    }
    Ok(())
}
