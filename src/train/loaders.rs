//! The reading of images that training and validation have in common.

use vitrine_datasets::{LoaderConfig, Preprocessing};

use crate::memory;
use crate::run_folder::RunConfig;

/// Batches in the order of the samples, without augmentation, whose decoded images stay in memory from one epoch to the
/// next.
pub(super) fn in_order(config: &RunConfig, preprocessing: &Preprocessing, threads: usize) -> LoaderConfig {
    LoaderConfig {
        batch_size: config.recipe.batch_size,
        threads,
        limits: config.limits(),
        cache_bytes: memory::for_cache(),
        hash_pixels: true,
        ..LoaderConfig::evaluation(preprocessing, config.classes.len())
    }
}
