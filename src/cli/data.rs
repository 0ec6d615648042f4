//! The arguments that say which data set is meant.

use crate::output::note;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use vitrine_datasets::{Dataset, DecodeLimits, DownloadProgress, OpenOptions};

/// Where named data sets are.
#[derive(Args, Clone)]
pub(super) struct DataArgs {
    /// Where named data sets are kept and downloaded to [default: datasets/data].
    #[arg(long, env = "VITRINE_DATA", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address to download named data sets from, instead of their publishers.
    #[arg(long, env = "VITRINE_MIRROR", value_name = "URL")]
    mirror: Option<String>,
    /// Never download.
    #[arg(long)]
    pub(super) offline: bool,
}

impl DataArgs {
    /// Where named data sets are kept.
    pub(super) fn data_dir(&self) -> PathBuf {
        self.data_dir.clone().unwrap_or_else(|| "datasets/data".into())
    }

    /// These arguments, where they say nothing filled from a run that was begun with `data_dir`.
    pub(super) fn or(&self, data_dir: PathBuf) -> Self {
        Self { data_dir: Some(self.data_dir.clone().unwrap_or(data_dir)), ..self.clone() }
    }

    /// Opens a data set; where it has no validation split, `val_fraction` of its training pictures become one.
    pub(super) fn open(&self, data: &str, val_fraction: f64, seed: u64) -> Result<Dataset> {
        let options = OpenOptions {
            data_dir: self.data_dir(),
            val_fraction,
            seed,
            download: !self.offline,
            mirror: self.mirror.clone(),
            progress: Some(announce),
            max_file_bytes: DecodeLimits::default().max_file_bytes,
        };
        let dataset = vitrine_datasets::open(data, &options)?;
        for warning in dataset.warnings.iter().cloned().chain(dataset.left_out.faults()) {
            note!("warning: {warning}");
        }
        Ok(dataset)
    }
}

fn announce(progress: &DownloadProgress<'_>) {
    if progress.received == 0 {
        note!("downloading {}", progress.url);
    }
}
