//! The batches of a run.

use std::sync::Arc;

use anyhow::Result;
use vitrine_datasets::{Augmentation, ClassSizes, Crop, Loader, LoaderConfig, Preprocessing, Sample};

use super::phase::Phase;
use super::run_config::RunConfig;
use crate::memory;
use crate::recipe::Recipe;
use crate::seed::{Stream, stream};

/// What the images of a phase go through: smaller ones where the recipe begins with them.
pub(super) fn preprocessing(config: &RunConfig, phase: Phase) -> Preprocessing {
    let mut preprocessing = config.preprocessing.clone();
    if let (Some(progressive), true) = (&config.recipe.progressive_learning, phase.is_easy) {
        let size = progressive.size(&config.model);
        preprocessing.image_size = [size.height, size.width];
    }
    preprocessing
}

/// How the batches of training are made by a recipe, in one of its phases.
pub(super) fn training(
    config: &RunConfig,
    class_sizes: &ClassSizes,
    recipe: &Recipe,
    threads: usize,
    phase: Phase,
) -> LoaderConfig {
    let preprocessing = preprocessing(config, phase);
    let share = preprocessing.image_size[0] as f64 / config.preprocessing.image_size[0] as f64;
    let whole = if phase.flips { recipe.augmentation.clone() } else { recipe.augmentation.without_flips() };
    let augmentation = if phase.is_easy { scaled(whole.crop_and_flips(), share) } else { whole };
    LoaderConfig {
        seed: stream(config.seed, Stream::Augmentation, 0),
        augmentation: Some(augmentation),
        label_smoothing: recipe.label_smoothing,
        balanced_sampling: recipe.balanced_sampling,
        class_weights: recipe.class_weights.then(|| class_sizes.balanced_weights()),
        ..in_order(config, &preprocessing, threads)
    }
}

/// The batches of validation.
pub(super) fn validation(config: &RunConfig, images: Arc<[Sample]>, threads: usize) -> Result<Loader> {
    Ok(Loader::new(images, in_order(config, &config.preprocessing, threads))?)
}

fn in_order(config: &RunConfig, preprocessing: &Preprocessing, threads: usize) -> LoaderConfig {
    LoaderConfig {
        batch_size: config.recipe.batch_size,
        threads,
        limits: config.limits(),
        cache_bytes: memory::for_cache(),
        hash_pixels: true,
        ..LoaderConfig::evaluation(preprocessing, config.classes.len())
    }
}

/// The same for images of another size: shifts are a share of it.
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
