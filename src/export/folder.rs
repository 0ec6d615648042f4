//! The output folder of an export, with weights and JSON files.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use serde_json::Value;
use vitrine_models::weights::NamedTensor;

use super::{Job, card};
use crate::files::write_atomically;
use crate::usage::usage;
use crate::weights_file;

/// The folder that an export writes to.
pub(super) struct ExportFolder<'a>(&'a Path);

/// Checks that a folder can be created there, or is empty.
///
/// # Errors
/// If there is a file at this path, or the folder is not empty.
pub(super) fn check(path: &Path) -> Result<()> {
    if path.exists() && !path.is_dir() {
        usage!("--output {}: a file is in the way of the folder", path.display());
    }
    if path.is_dir() && std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
        usage!("--output {}: the folder is not empty; choose another one", path.display());
    }
    Ok(())
}

impl<'a> ExportFolder<'a> {
    /// Creates the folder, or takes an existing empty one.
    ///
    /// # Errors
    /// If there is a file at this path, the folder is not empty, or it cannot be created.
    pub(super) fn create(path: &'a Path) -> Result<Self> {
        check(path)?;
        std::fs::create_dir_all(path)
            .map_err(|error| anyhow!("--output {}: cannot be created: {error}", path.display()))?;
        Ok(Self(path))
    }

    /// Writes `model.safetensors`, and returns its path.
    pub(super) fn weights(&self, job: &Job<'_>, tensors: &[NamedTensor]) -> Result<PathBuf> {
        let path = self.0.join("model.safetensors");
        weights_file::save(&path, tensors, &[], job.precision, card::metadata(job)?)?;
        Ok(path)
    }

    /// Writes a JSON file, and returns its path.
    pub(super) fn json(&self, name: &str, value: &Value) -> Result<PathBuf> {
        let path = self.0.join(name);
        write_atomically(&path, serde_json::to_string_pretty(value)?.as_bytes())?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_folder_is_created_unless_a_file_or_another_folders_content_is_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "in the way").unwrap();
        for (name, fits) in [("new/model", true), ("new/model", true), ("file", false), ("", false)] {
            let output = path(name);
            let made = ExportFolder::create(&output);
            assert_eq!(made.is_ok(), fits, "{name}");
            if let Err(error) = made {
                assert!(error.to_string().contains("--output"), "{error}");
            }
        }
        assert!(path("new/model").is_dir());
    }
}
