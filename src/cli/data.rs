//! The options of data sets: the folder of named data sets, their download, and the limit on the size of image files.

use std::path::{Path, PathBuf};

use anyhow::{Error, Result, anyhow};
use clap::Args;
use vitrine_datasets::{
    Dataset, DatasetError, DatasetInfo, DownloadProgress, OpenOptions, SourceKind, ValidationOrigin,
};

use crate::cli::aliases;
use crate::cli::output::note;
use crate::events::EventSink;
use crate::usage::{did_you_mean, usage};

use super::file_size::FileSizeArgs;

/// The options of data sets.
#[derive(Args, Clone)]
pub(super) struct DataArgs {
    /// Where named data sets are kept and downloaded to; by default VITRINE_DATA from the environment, or
    /// datasets/data.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// URL of a mirror to download named data sets from; by default VITRINE_MIRROR from the environment.
    #[arg(long, value_name = "URL", value_parser = url, conflicts_with = "offline")]
    mirror: Option<String>,
    /// Never download.
    #[arg(long)]
    pub(super) offline: bool,
    /// Images have any number of labels each, with this character between them in the label column of a manifest. Arrays
    /// of labels in JSON Lines need no separator.
    #[arg(long, value_name = "CHARACTER", aliases = aliases::LABEL_SEPARATOR)]
    pub(super) label_separator: Option<char>,
    #[command(flatten)]
    pub(super) file_size: FileSizeArgs,
}

impl DataArgs {
    /// The folder of named data sets: `--data-dir`, or else VITRINE_DATA, or else the default.
    pub(super) fn folder(&self) -> PathBuf {
        let variable =
            || std::env::var_os("VITRINE_DATA").filter(|folder| !folder.is_empty()).map(PathBuf::from);
        self.data_dir.clone().or_else(variable).unwrap_or_else(|| OpenOptions::default().data_dir)
    }

    /// The absolute path of `--data-dir`, if it is given.
    ///
    /// # Errors
    /// If the current folder is not known.
    pub(super) fn stated_folder(&self) -> Result<Option<PathBuf>> {
        Ok(self.data_dir.as_ref().map(std::path::absolute).transpose()?)
    }

    /// Checks that the given options have an effect for `data`. `fetches` states whether the command may also download
    /// weights, because `--offline` then has an effect for any data set.
    ///
    /// # Errors
    /// If an option has no effect; the message says why. Environment variables are not checked, because they are set
    /// for all commands.
    pub(super) fn check(&self, data: &str, fetches: bool) -> Result<()> {
        self.check_kept_in(&self.folder(), data, fetches)
    }

    /// Checks as [`check`](Self::check) does, for named data sets that are kept in `folder`.
    ///
    /// # Errors
    /// If an option has no effect.
    pub(super) fn check_kept_in(&self, folder: &Path, data: &str, fetches: bool) -> Result<()> {
        let is_known = vitrine_datasets::is_known_name(data, folder);
        let is_named = is_known && vitrine_datasets::published_names().any(|name| name == data);
        let options = [
            ("--data-dir", self.data_dir.is_some()),
            ("--mirror", self.mirror.is_some()),
            ("--offline", self.offline && !fetches),
        ];
        match options.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) if !is_named => {
                usage!("{option} has no effect for {data}, which is not downloaded: leave it out")
            }
            _ => {}
        }
        if self.file_size.max_file_size.is_some() && is_known {
            usage!("--max-file-size has no effect for {data}, whose images are no files: leave it out");
        }
        Ok(())
    }

    /// These options with `data_dir`, the folder of a run that was begun before, unless `--data-dir` is given.
    pub(super) fn or_data_dir(&self, data_dir: PathBuf) -> Self {
        Self { data_dir: Some(self.data_dir.clone().unwrap_or(data_dir)), ..self.clone() }
    }

    /// Opens a data set with the splits that it comes with, and reports its warnings as events.
    ///
    /// # Errors
    /// If it cannot be opened, or the given limit on the size of image files has no effect.
    pub(super) fn open(&self, data: &str, events: &dyn EventSink) -> Result<Dataset> {
        let dataset = self.opened(data, events)?;
        if self.file_size.max_file_size.is_some() {
            check_files("--max-file-size", data, &dataset.info)?;
        }
        Ok(dataset)
    }

    /// [`Self::open`] of the data set of an earlier run, whose limit and separator need not have an effect.
    pub(super) fn reopen(&self, data: &str, events: &dyn EventSink) -> Result<Dataset> {
        match self.opened(data, events) {
            Err(error) if matches!(error.downcast_ref(), Some(DatasetError::LabelSeparator { .. })) => {
                Self { label_separator: None, ..self.clone() }.opened(data, events)
            }
            opened => opened,
        }
    }

    fn opened(&self, data: &str, events: &dyn EventSink) -> Result<Dataset> {
        let options = OpenOptions {
            data_dir: self.folder(),
            download: !self.offline,
            mirror: self.mirror.clone().map_or_else(mirror_of_environment, |mirror| Ok(Some(mirror)))?,
            progress: Some(announce),
            max_file_bytes: self.file_size.limits().max_file_bytes,
            label_separator: self.label_separator,
        };
        let dataset = vitrine_datasets::open(data, &options).map_err(corrected)?;
        crate::library::emit_warnings(&dataset, events);
        Ok(dataset)
    }
}

/// The error of a mistyped name with the one that is probably meant, or any other error as it is.
fn corrected(error: DatasetError) -> Error {
    let meant = match &error {
        DatasetError::UnknownData { data, .. } => did_you_mean(data, vitrine_datasets::names()),
        _ => String::new(),
    };
    if meant.is_empty() { error.into() } else { anyhow!("{error}{meant}") }
}

/// The mirror that the environment names, if it does.
///
/// # Errors
/// If it is no URL.
fn mirror_of_environment() -> Result<Option<String>> {
    let Some(mirror) = std::env::var("VITRINE_MIRROR").ok().filter(|mirror| !mirror.is_empty()) else {
        return Ok(None);
    };
    match url(&mirror) {
        Ok(mirror) => Ok(Some(mirror)),
        Err(problem) => usage!("VITRINE_MIRROR is {mirror:?}: {problem}"),
    }
}

/// A value parser for the URL of a mirror.
fn url(text: &str) -> Result<String, String> {
    let is_url =
        ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme) && text.len() > scheme.len());
    if is_url { Ok(text.to_owned()) } else { Err("it must begin with https:// or http://".to_owned()) }
}

/// Checks that an option for image files has an effect.
///
/// # Errors
/// If the images of the data set are no files.
pub(super) fn check_files(option: &str, data: &str, info: &DatasetInfo) -> Result<()> {
    match info.source {
        SourceKind::Folder | SourceKind::Manifest | SourceKind::Archive => Ok(()),
        SourceKind::Shapes | SourceKind::Idx | SourceKind::Cifar => {
            usage!("{option} has no effect for {data}, whose images are no files: leave it out")
        }
    }
}

/// Checks that `--val-fraction` has an effect, if it is given.
///
/// # Errors
/// If the data set has a validation split of its own.
pub(super) fn check_val_fraction(stated: Option<f64>, info: &DatasetInfo) -> Result<()> {
    if let (Some(share), ValidationOrigin::Given) = (stated, info.validation) {
        usage!("--val-fraction {share} has no effect: {} has a validation split of its own", info.name);
    }
    Ok(())
}

/// Checks that `--folds`, if it is given, suits the data set.
///
/// # Errors
/// If the data set has a validation split of its own.
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

/// Prints a message when a download begins.
fn announce(progress: &DownloadProgress<'_>) {
    if progress.received == 0 {
        note!("downloading {}", progress.url);
    }
}
