//! `vitrine cache`: the features that are kept on disk, and how to delete them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use indicatif::{DecimalBytes, HumanDuration};

use super::Status;
use crate::cli::output::outln;
use crate::features::{FeatureStore, KeptFeatures, default_folder};
use crate::text::shell_word;

/// List the features of images that `vitrine train --pretrained` has kept, or delete them.
///
/// The features of each backbone are listed with the number of images, their size, and when they were used last. They may be
/// deleted at any time: what is needed again is computed again.
#[derive(Args)]
#[command(after_help = "Examples:\n  vitrine cache\n  vitrine cache --clear")]
pub(super) struct Cache {
    /// Delete all of them.
    #[arg(long)]
    clear: bool,
    /// The folder of the cache; by default VITRINE_CACHE from the environment, or ~/.cache/vitrine.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

impl Cache {
    pub(super) fn run(&self) -> Result<Status> {
        let folder = self.cache.clone().or_else(default_folder);
        let folder = folder.context("there is no home folder: name the folder of the cache with --cache")?;
        let store = FeatureStore::new(&folder, FeatureStore::LIMIT);
        let kept = store.list()?;
        let place = store.folder().display();
        if kept.is_empty() {
            outln!("{place}: no features")?;
            return Ok(Status::Done);
        }
        for features in &kept {
            let about = features.described();
            outln!(
                "{:>10}  {:>9} images  used {} ago  {about}",
                DecimalBytes(features.bytes).to_string(),
                features.images,
                HumanDuration(features.used.elapsed().unwrap_or_default())
            )?;
        }
        let bytes = DecimalBytes(kept.iter().map(|features| features.bytes).sum());
        if self.clear {
            kept.iter().try_for_each(KeptFeatures::delete)?;
            outln!("{place}: deleted {bytes}")?;
        } else {
            let named =
                self.cache.as_ref().map(|folder| format!(" --cache {}", shell_word(folder.display())));
            outln!("{place}: {bytes}; delete them with: vitrine cache{} --clear", named.unwrap_or_default())?;
        }
        Ok(Status::Done)
    }
}
