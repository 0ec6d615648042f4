//! The arguments that say which data set is meant.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use vitrine_datasets::{Dataset, DatasetInfo, DownloadProgress, OpenOptions, ValidationOrigin};

use crate::cli::output::note;
use crate::events::EventSink;
use crate::usage::usage;

use super::file_size::FileSizeArgs;

/// Where named data sets are, and how large their images may be.
#[derive(Args, Clone)]
pub(super) struct DataArgs {
    /// Where named data sets are kept and downloaded to; by default VITRINE_DATA from the environment, or datasets/data.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// URL of a mirror to download named data sets from; by default VITRINE_MIRROR from the environment.
    #[arg(long, value_name = "URL", value_parser = address)]
    mirror: Option<String>,
    /// Never download.
    #[arg(long)]
    pub(super) offline: bool,
    #[command(flatten)]
    pub(super) file_size: FileSizeArgs,
}

impl DataArgs {
    /// The folder of named data sets.
    pub(super) fn folder(&self) -> PathBuf {
        let variable =
            || std::env::var_os("VITRINE_DATA").filter(|folder| !folder.is_empty()).map(PathBuf::from);
        self.data_dir.clone().or_else(variable).unwrap_or_else(|| OpenOptions::default().data_dir)
    }

    /// Checks that what was typed has an effect for `data`; `fetches` tells whether anything else may be downloaded.
    ///
    /// # Errors
    /// Names the option and why it has none. The environment, which is there for every command, is no option.
    pub(super) fn check(&self, data: &str, fetches: bool) -> Result<()> {
        // A folder of that name is taken in its place.
        let is_kept =
            vitrine_datasets::published_names().any(|name| name == data) && !Path::new(data).exists();
        let options = [
            ("--data-dir", self.data_dir.is_some()),
            ("--mirror", self.mirror.is_some()),
            ("--offline", self.offline && !fetches),
        ];
        match options.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) if !is_kept => {
                usage!("{option} has no effect for {data}, which is not downloaded: leave it out")
            }
            _ => Ok(()),
        }
    }

    /// These arguments, where they say nothing taken from a run that was begun with `data_dir`.
    pub(super) fn or(&self, data_dir: PathBuf) -> Self {
        Self { data_dir: Some(self.data_dir.clone().unwrap_or(data_dir)), ..self.clone() }
    }

    /// Opens a data set with the splits that it has.
    pub(super) fn open(&self, data: &str, events: &dyn EventSink) -> Result<Dataset> {
        let options = OpenOptions {
            data_dir: self.folder(),
            download: !self.offline,
            mirror: self
                .mirror
                .clone()
                .or_else(|| std::env::var("VITRINE_MIRROR").ok().filter(|url| !url.is_empty())),
            progress: Some(announce),
            max_file_bytes: self.file_size.limits().max_file_bytes,
        };
        let dataset = vitrine_datasets::open(data, &options)?;
        crate::library::warn(&dataset, events);
        Ok(dataset)
    }
}

/// An address that files can be downloaded from.
fn address(text: &str) -> Result<String, String> {
    let is_one =
        ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme) && text.len() > scheme.len());
    if is_one { Ok(text.to_owned()) } else { Err("it must begin with https:// or http://".to_owned()) }
}

/// Checks that a share for validation that was typed has an effect.
///
/// # Errors
/// When the data set has a validation split of its own.
pub(super) fn check_val_fraction(stated: Option<f64>, info: &DatasetInfo) -> Result<()> {
    if let (Some(share), ValidationOrigin::Given) = (stated, info.validation) {
        usage!("--val-fraction {share} has no effect: {} has a validation split of its own", info.name);
    }
    Ok(())
}

/// Checks that folds that were asked for can be made.
///
/// # Errors
/// When the data set has a validation split of its own.
pub(super) fn check_folds(folds: Option<usize>, info: &DatasetInfo) -> Result<()> {
    if let (Some(folds), ValidationOrigin::Given) = (folds, info.validation) {
        usage!(
            "--folds {folds}: {name} has a validation split of its own, and folds would not use it; leave --folds out, or name the training \
             images alone, such as the folder train",
            name = info.name
        );
    }
    Ok(())
}

fn announce(progress: &DownloadProgress<'_>) {
    if progress.received == 0 {
        note!("downloading {}", progress.url);
    }
}
