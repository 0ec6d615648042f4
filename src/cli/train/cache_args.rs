//! The options for the cache of features.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::cli::file_size::bytes;
use crate::features::{FeatureStore, default_folder};
use crate::run_folder::RunConfig;
use crate::usage::usage;

/// The options for the cache of features.
#[derive(Args, Clone, Debug)]
pub(super) struct CacheArgs {
    /// Where the features of images are kept that a head is fitted to (--pretrained); by default VITRINE_CACHE from
    /// the environment, or ~/.cache/vitrine. It may be deleted at any time.
    #[arg(long, value_name = "DIR", conflicts_with = "no_cache")]
    cache: Option<PathBuf>,
    /// Neither read nor keep features of images.
    #[arg(long)]
    no_cache: bool,
    /// Size of all kept features above which those of the backbone that was not used for longest are deleted, but not those in use [default: 4G].
    #[arg(long, value_name = "SIZE", value_parser = bytes, conflicts_with = "no_cache")]
    cache_limit: Option<u64>,
}

impl CacheArgs {
    /// Where features are kept; `None` for nowhere.
    pub(super) fn store(&self) -> Option<FeatureStore> {
        if self.no_cache {
            return None;
        }
        let folder = self.cache.clone().or_else(default_folder)?;
        Some(FeatureStore::new(&folder, self.cache_limit.unwrap_or(FeatureStore::LIMIT)))
    }

    /// Checks that the given option has an effect on a run.
    ///
    /// # Errors
    /// If no features are computed in the run.
    pub(super) fn check(&self, config: &RunConfig) -> Result<()> {
        let stated = [
            ("--cache", self.cache.is_some()),
            ("--no-cache", self.no_cache),
            ("--cache-limit", self.cache_limit.is_some()),
        ];
        let has_features = config.recipe.fit_head || config.recipe.probe_first;
        if let (Some((option, _)), false) = (stated.iter().find(|(_, is)| *is), has_features) {
            usage!(
                "{option} has no effect: only a head that is fitted to features (--pretrained without --recipe) uses the cache; \
                 leave it out"
            );
        }
        Ok(())
    }
}
