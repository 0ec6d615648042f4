//! The loader settings that training and validation share.

use vitrine_datasets::{LoaderConfig, Preprocessing};

use crate::memory;
use crate::run_folder::RunConfig;

/// Settings for batches in the order of the samples, without augmentation, with decoded images cached from one epoch to
/// the next.
pub(super) fn in_order(config: &RunConfig, preprocessing: &Preprocessing, threads: usize) -> LoaderConfig {
    LoaderConfig {
        batch_size: config.recipe.batch_size,
        threads,
        limits: config.limits(),
        cache_bytes: memory::for_cache(),
        hash_pixels: true,
        multi_label: config.multi_label,
        ..LoaderConfig::evaluation(preprocessing, config.classes.len())
    }
}
