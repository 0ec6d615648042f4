//! The phases of a run: what training images go through changes with the share of the run that is done, even within an epoch.

use std::sync::Arc;

use anyhow::Result;
use vitrine_datasets::{Augmentation, ClassSizes, Crop, Loader, LoaderConfig, Preprocessing, Sample};

use super::flips::FlipVerdict;
use super::loaders::in_order;
use super::schedule::mixes_after;
use crate::recipe::Recipe;
use crate::run_folder::RunConfig;
use crate::seed::{Stream, stream};

/// The differences between phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PhaseKind {
    /// Whether images are small and lightly augmented: the first part of `progressive_learning`.
    pub(super) is_easy: bool,
    /// Whether images are mirrored, if the recipe mirrors them.
    pub(super) flips: bool,
    /// Whether the clock still allows mixup and CutMix.
    pub(super) mixes: bool,
}

impl PhaseKind {
    /// The phase of the next update: after the share `done` of the attempt and `seconds` of the run, given what validation
    /// has shown about flips.
    pub(super) fn at(recipe: &Recipe, done: f64, seconds: f64, flips: Option<&FlipVerdict>) -> Self {
        let is_easy =
            recipe.progressive_learning.as_ref().is_some_and(|progressive| done < progressive.until);
        let flips = !recipe.judge_flips || flips.is_some_and(|verdict| verdict.flips);
        Self { is_easy, flips, mixes: mixes_after(recipe, seconds) }
    }
}

/// The present phase of a run: its recipe, and the batches that follow from it.
pub(super) struct Phase {
    pub(super) kind: PhaseKind,
    /// The recipe of the configuration, or a gentler one after a restart.
    pub(super) recipe: Recipe,
    /// The batches of training.
    pub(super) batches: Loader,
    /// What every training image goes through.
    pub(super) preprocessing: Preprocessing,
}

/// What batches are made from in all phases.
#[derive(Clone, Copy)]
pub(super) struct Ingredients<'a> {
    pub(super) config: &'a RunConfig,
    pub(super) class_sizes: &'a ClassSizes,
    /// Threads that decode.
    pub(super) threads: usize,
}

impl Phase {
    /// The first phase of a session, in which nothing is known of the place in the run yet: full size, with everything that the
    /// recipe has. [`Self::change`] comes before its first batch.
    pub(super) fn first(ingredients: Ingredients<'_>, recipe: Recipe, images: Arc<[Sample]>) -> Result<Self> {
        let kind = PhaseKind { is_easy: false, flips: true, mixes: true };
        let loading = training(ingredients, &recipe, kind);
        Ok(Self {
            kind,
            recipe,
            batches: Loader::new(images, loading)?,
            preprocessing: preprocessing(ingredients.config, kind),
        })
    }

    /// Makes the batches anew, for another kind of phase or another recipe. Decoded images that the loader keeps stay.
    pub(super) fn change(
        &mut self,
        ingredients: Ingredients<'_>,
        kind: PhaseKind,
        hash_pixels: bool,
    ) -> Result<()> {
        let loading = training(ingredients, &self.recipe, kind);
        self.batches = self.batches.reconfigured(LoaderConfig { hash_pixels, ..loading })?;
        self.preprocessing = preprocessing(ingredients.config, kind);
        self.kind = kind;
        Ok(())
    }
}

/// What the images of a phase go through: smaller ones if the recipe begins with them.
fn preprocessing(config: &RunConfig, kind: PhaseKind) -> Preprocessing {
    let mut preprocessing = config.preprocessing.clone();
    if let (Some(progressive), true) = (&config.recipe.progressive_learning, kind.is_easy) {
        let size = progressive.size(&config.model);
        preprocessing.image_size = [size.height, size.width];
    }
    preprocessing
}

/// How the batches of training are made by a recipe, in one of its phases.
fn training(ingredients: Ingredients<'_>, recipe: &Recipe, kind: PhaseKind) -> LoaderConfig {
    let Ingredients { config, class_sizes, threads } = ingredients;
    let preprocessing = preprocessing(config, kind);
    let share = preprocessing.image_size[0] as f64 / config.preprocessing.image_size[0] as f64;
    let whole = if kind.flips { recipe.augmentation.clone() } else { recipe.augmentation.without_flips() };
    let augmentation = if kind.is_easy { scaled(whole.crop_and_flips(), share) } else { whole };
    LoaderConfig {
        seed: stream(config.seed, Stream::Augmentation, 0),
        augmentation: Some(augmentation),
        label_smoothing: recipe.label_smoothing,
        balanced_sampling: recipe.balanced_sampling,
        class_weights: recipe.class_weights.then(|| class_sizes.balanced_weights()),
        ..in_order(config, &preprocessing, threads)
    }
}

/// An augmentation for images whose side is the share `share` of the usual one: shifts are scaled with it.
fn scaled(augmentation: Augmentation, share: f64) -> Augmentation {
    let crop = match augmentation.crop {
        Crop::Pad { pixels, reflect } => {
            let scaled = (f64::from(pixels) * share).round() as u32;
            Crop::Pad { pixels: scaled.max(pixels.min(1)), reflect }
        }
        crop @ (Crop::None | Crop::Resized { .. }) => crop,
    };
    Augmentation { crop, ..augmentation }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::ProgressiveLearning;

    fn verdict(flips: bool) -> FlipVerdict {
        FlipVerdict { epoch: 1, flips, is_sure: true, recognized: 9, lost: 0, gained: 0, classes: Vec::new() }
    }

    #[test]
    fn phases_end_at_their_share_of_the_run_wherever_an_epoch_is() {
        let progressive_learning = Some(ProgressiveLearning { until: 0.4, scale: 0.5 });
        let augmentation = Augmentation { mix_until: 0.5, ..Augmentation::none() };
        let recipe =
            Recipe { progressive_learning, augmentation, time_seconds: Some(10.0), ..Recipe::default() };
        let at = |done: f64| {
            let PhaseKind { is_easy, flips, mixes } = PhaseKind::at(&recipe, done, 10.0 * done, None);
            assert!(flips, "a recipe without `judge_flips` flips from the beginning");
            (is_easy, mixes)
        };
        assert_eq!(
            [0.0, 0.39, 0.4, 0.5].map(at),
            [(true, true), (true, true), (false, true), (false, false)]
        );
    }

    #[test]
    fn flips_that_validation_decides_wait_for_the_verdict() {
        let judged = Recipe { judge_flips: true, ..Recipe::default() };
        let flips = |verdict: Option<&FlipVerdict>| PhaseKind::at(&judged, 0.5, 0.0, verdict).flips;
        assert_eq!(
            [flips(None), flips(Some(&verdict(false))), flips(Some(&verdict(true)))],
            [false, false, true]
        );
    }

    #[test]
    fn shifts_are_a_share_of_the_image() {
        let shifted = |pixels, share| {
            let crop = Crop::Pad { pixels, reflect: true };
            match scaled(Augmentation { crop, ..Augmentation::none() }, share).crop {
                Crop::Pad { pixels, reflect: true } => pixels,
                crop => panic!("{crop:?}"),
            }
        };
        assert_eq!(
            [(8, 0.5), (8, 1.0), (1, 0.25), (0, 0.5)].map(|(pixels, share)| shifted(pixels, share)),
            [4, 8, 1, 0]
        );
    }
}
