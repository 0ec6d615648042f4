//! The batches of a run.

use std::sync::Arc;

use anyhow::Result;
use vitrine_datasets::{ClassSizes, Loader, LoaderConfig, Sample};

use super::run_config::RunConfig;
use crate::memory;
use crate::recipe::Recipe;
use crate::seed::{Stream, stream};

/// The batches of training by a recipe, or of validation without one.
pub(super) fn loader(
    config: &RunConfig,
    images: Arc<[Sample]>,
    recipe: Option<&Recipe>,
    threads: usize,
) -> Result<Loader> {
    let class_weights = recipe
        .filter(|recipe| recipe.class_weights)
        .map(|_| ClassSizes::of(&images, config.classes.len()).balanced_weights());
    let config = LoaderConfig {
        batch_size: config.recipe.batch_size,
        seed: stream(config.seed, Stream::Augmentation, 0),
        threads,
        prefetch: 4,
        preprocessing: config.preprocessing.clone(),
        augmentation: recipe.map(|recipe| recipe.augmentation.clone()),
        label_smoothing: recipe.map_or(0.0, |recipe| recipe.label_smoothing),
        balanced_sampling: recipe.is_some_and(|recipe| recipe.balanced_sampling),
        class_weights,
        classes: config.classes.len(),
        limits: config.limits(),
        cache_bytes: memory::for_cache(),
    };
    Ok(Loader::new(images, config)?)
}
