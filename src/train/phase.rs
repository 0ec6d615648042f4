//! The phases of a run: image size, flips, and mixing change at given shares of the run, even in the middle of an
//! epoch.

use std::sync::Arc;

use anyhow::Result;
use vitrine_datasets::{Augmentation, ClassSizes, Crop, Loader, LoaderConfig, Preprocessing, Sample};

use super::flips::FlipVerdict;
use super::loaders::in_order;
use super::schedule::mixes_after;
use crate::recipe::Recipe;
use crate::run_folder::RunConfig;
use crate::seed::{Stream, stream};

/// The settings in which phases differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PhaseKind {
    /// Whether images are small and lightly augmented, as in the first part of `progressive_learning`.
    pub(super) is_easy: bool,
    /// Whether the flips of the recipe, if it has any, are applied.
    pub(super) flips: bool,
    /// Whether mixup and CutMix are still on, as far as the time limit decides (see [`mixes_after`]).
    pub(super) mixes: bool,
}

impl PhaseKind {
    /// The phase of the next update: `attempt` and `run` are the finished shares of the present attempt and of the run's training,
    /// and `flips` is the judgment of the validation images if it has been made.
    pub(super) fn at(recipe: &Recipe, attempt: f64, run: f64, flips: Option<&FlipVerdict>) -> Self {
        let is_easy =
            recipe.progressive_learning.as_ref().is_some_and(|progressive| attempt < progressive.until);
        let flips = !recipe.judge_flips || flips.is_some_and(|verdict| verdict.flips);
        Self { is_easy, flips, mixes: mixes_after(recipe, run) }
    }
}

/// The present phase of a run: its recipe, and the loader that follows from it.
pub(super) struct Phase {
    pub(super) kind: PhaseKind,
    /// The recipe of the configuration, or a gentler one after a restart.
    pub(super) recipe: Recipe,
    /// The loader of training batches.
    pub(super) batches: Loader,
    /// Preprocessing of the training images.
    pub(super) preprocessing: Preprocessing,
}

/// The inputs of a training loader that are the same in all phases.
#[derive(Clone, Copy)]
pub(super) struct Ingredients<'a> {
    pub(super) config: &'a RunConfig,
    pub(super) class_sizes: &'a ClassSizes,
    /// Number of threads that decode images.
    pub(super) threads: usize,
}

impl Phase {
    /// The phase to start a session with: full size, and all augmentation of the recipe. The position in the run is not
    /// known yet; [`Self::change`] follows before the first batch if another phase is due.
    pub(super) fn first(ingredients: Ingredients<'_>, recipe: Recipe, images: Arc<[Sample]>) -> Result<Self> {
        let kind = PhaseKind { is_easy: false, flips: true, mixes: true };
        let loading = loader_config(ingredients, &recipe, kind);
        Ok(Self {
            kind,
            recipe,
            batches: Loader::new(images, loading)?,
            preprocessing: preprocessing(ingredients.config, kind),
        })
    }

    /// Changes the loader for another kind of phase or another recipe. The cache of decoded images is kept.
    pub(super) fn change(
        &mut self,
        ingredients: Ingredients<'_>,
        kind: PhaseKind,
        hash_pixels: bool,
    ) -> Result<()> {
        let loading = loader_config(ingredients, &self.recipe, kind);
        self.batches = self.batches.reconfigured(LoaderConfig { hash_pixels, ..loading })?;
        self.preprocessing = preprocessing(ingredients.config, kind);
        self.kind = kind;
        Ok(())
    }
}

/// The preprocessing of images in a phase: to a smaller size in the first part of progressive learning.
fn preprocessing(config: &RunConfig, kind: PhaseKind) -> Preprocessing {
    let mut preprocessing = config.preprocessing.clone();
    if let (Some(progressive), true) = (&config.recipe.progressive_learning, kind.is_easy) {
        let size = progressive.size(&config.model);
        preprocessing.image_size = [size.height, size.width];
    }
    preprocessing
}

/// How many times the side of the model's input large images keep when they are scaled down once for all epochs. A random crop
/// of a fourteenth of the area is then still scaled down, not up.
const GAP: usize = 4;

/// The settings of the training loader for a recipe in one of its phases.
fn loader_config(ingredients: Ingredients<'_>, recipe: &Recipe, kind: PhaseKind) -> LoaderConfig {
    let Ingredients { config, class_sizes, threads } = ingredients;
    let preprocessing = preprocessing(config, kind);
    let share = preprocessing.image_size[0] as f64 / config.preprocessing.image_size[0] as f64;
    let whole = if kind.flips { recipe.augmentation.clone() } else { recipe.augmentation.without_flips() };
    let augmentation = if kind.is_easy { scale_shift(whole.crop_and_flips(), share) } else { whole };
    LoaderConfig {
        seed: stream(config.seed, Stream::Augmentation, 0),
        augmentation: Some(augmentation),
        reduce_to: config.preprocessing.image_size.into_iter().max().map(|side| (GAP * side) as u32),
        label_smoothing: recipe.label_smoothing,
        balanced_sampling: recipe.balanced_sampling,
        class_weights: recipe.class_weights.then(|| class_sizes.balanced_weights()),
        ..in_order(config, &preprocessing, threads)
    }
}

/// The augmentation for images with `share` times the usual side: the pixels of a random shift are scaled with it.
fn scale_shift(augmentation: Augmentation, share: f64) -> Augmentation {
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
        FlipVerdict {
            epoch: 1,
            flips,
            is_sure: true,
            counts_labels: false,
            recognized: 9,
            lost: 0,
            gained: 0,
            classes: Vec::new(),
        }
    }

    #[test]
    fn phases_end_at_their_share_of_the_run_even_within_an_epoch() {
        let progressive_learning = Some(ProgressiveLearning { until: 0.4, scale: 0.5 });
        let augmentation = Augmentation { mix_until: 0.5, ..Augmentation::none() };
        let recipe =
            Recipe { progressive_learning, augmentation, time_seconds: Some(10.0), ..Recipe::default() };
        let at = |done: f64| {
            let PhaseKind { is_easy, flips, mixes } = PhaseKind::at(&recipe, done, done, None);
            assert!(flips, "a recipe without `judge_flips` flips from the beginning");
            (is_easy, mixes)
        };
        assert_eq!(
            [0.0, 0.39, 0.4, 0.5].map(at),
            [(true, true), (true, true), (false, true), (false, false)]
        );
    }

    #[test]
    fn flips_wait_for_the_judgment_of_the_validation_images() {
        let judged = Recipe { judge_flips: true, ..Recipe::default() };
        let flips = |verdict: Option<&FlipVerdict>| PhaseKind::at(&judged, 0.5, 0.0, verdict).flips;
        assert_eq!(
            [flips(None), flips(Some(&verdict(false))), flips(Some(&verdict(true)))],
            [false, false, true]
        );
    }

    #[test]
    fn shifts_are_scaled_with_the_image() {
        let shifted = |pixels, share| {
            let crop = Crop::Pad { pixels, reflect: true };
            match scale_shift(Augmentation { crop, ..Augmentation::none() }, share).crop {
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
