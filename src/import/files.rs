//! The files of an import source: weights, `config.json`, and `preprocessor_config.json`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::hub::weights as hub_weights;
use crate::model_file::{self, ModelCard};
use crate::weights_file::{self, StoredTensor};

/// The description of a model next to its weights.
const CONFIG: &str = "config.json";
/// The description of its images.
const PREPROCESSOR: &str = "preprocessor_config.json";

/// The files that a source consists of.
pub(super) struct SourceFiles {
    /// One file, or the shards of a model.
    pub(super) weights: Vec<PathBuf>,
    /// `config.json` next to the weights.
    pub(super) config: Option<PathBuf>,
    /// `preprocessor_config.json` next to the weights.
    pub(super) preprocessor: Option<PathBuf>,
}

impl SourceFiles {
    /// Finds the files of `source`, a file of weights or a folder with one.
    ///
    /// # Errors
    /// If there is nothing at this path, or the folder holds no weights.
    pub(super) fn find(source: &Path) -> Result<Self> {
        if !source.exists() {
            bail!("{}: there is no such file or folder", source.display());
        }
        let folder = if source.is_dir() { Some(source) } else { source.parent() };
        let neighbor = |name: &str| folder.map(|folder| folder.join(name)).filter(|path| path.is_file());
        let weights = if source.is_dir() { weights_in(source)? } else { vec![source.to_owned()] };
        Ok(Self { weights, config: neighbor(CONFIG), preprocessor: neighbor(PREPROCESSOR) })
    }

    /// Opens the weights: all tensors, and the model card in the header if `vitrine export` wrote the file.
    ///
    /// # Errors
    /// If a file cannot be read, is a model file of this program, or repeats a key of an earlier shard.
    pub(super) fn open_weights(
        &self,
        notes: &mut Vec<String>,
    ) -> Result<(Vec<StoredTensor>, Option<ModelCard>)> {
        let mut exported = None;
        let mut tensors: Vec<StoredTensor> = Vec::new();
        let mut names = BTreeSet::new();
        for path in &self.weights {
            let file = weights_file::open(path)?;
            if ModelCard::is_in(&file.metadata) {
                bail!("{}: this is already a vitrine model", path.display());
            }
            exported = exported.or(ModelCard::exported_in(&file.metadata, path)?);
            notes.extend(file.checkpoint_note);
            for tensor in file.tensors {
                if !names.insert(tensor.name.clone()) {
                    bail!("{}: `{}` is in an earlier part too", path.display(), tensor.name);
                }
                tensors.push(tensor);
            }
        }
        if tensors.is_empty() {
            let files: Vec<String> = self.weights.iter().map(|path| path.display().to_string()).collect();
            bail!("{}: there are no tensors in it", files.join(", "));
        }
        Ok((tensors, exported))
    }
}

/// The files of an import from `source`: its weights, and the descriptions next to them.
pub fn files(source: &Path, weights: &[PathBuf]) -> Vec<PathBuf> {
    let folder = if source.is_dir() { Some(source) } else { source.parent() };
    let descriptions = [CONFIG, PREPROCESSOR].into_iter().filter_map(|name| Some(folder?.join(name)));
    weights.iter().cloned().chain(descriptions.filter(|path| path.is_file())).collect()
}

/// The files of an import of which `known` were there: descriptions come and go.
pub fn files_now(known: &[PathBuf]) -> Vec<PathBuf> {
    let is_weights = |path: &&PathBuf| !(path.ends_with(CONFIG) || path.ends_with(PREPROCESSOR));
    let weights: Vec<PathBuf> = known.iter().filter(is_weights).cloned().collect();
    weights.first().map_or_else(Vec::new, |first| files(first, &weights))
}

/// Whether a folder holds another library's weights under a usual name.
pub fn holds_weights(folder: &Path) -> bool {
    hub_weights::choose(|name| folder.join(name).is_file()).is_some()
}

/// The weights of a folder: one file, or the shards that an index lists.
fn weights_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let Some(file) = hub_weights::choose(|name| folder.join(name).is_file()) else {
        model_file::refuse_series(folder)?;
        bail!(
            "{}: the folder holds neither model.safetensors nor pytorch_model.bin, whole or with an index",
            folder.display()
        );
    };
    let path = folder.join(file);
    if !hub_weights::is_index(file) {
        return Ok(vec![path]);
    }
    Ok(hub_weights::shards(&path)?.into_iter().map(|shard| folder.join(shard)).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn descriptions_that_come_and_go_are_among_the_files_now() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let weights = [path("model.safetensors")];
        assert_eq!(files(folder.path(), &weights), weights);
        std::fs::write(path(PREPROCESSOR), "{}").unwrap();
        let with_preprocessor = [path("model.safetensors"), path(PREPROCESSOR)];
        assert_eq!(files_now(&weights), with_preprocessor);
        assert_eq!(files(folder.path(), &weights), with_preprocessor);
        std::fs::remove_file(path(PREPROCESSOR)).unwrap();
        assert_eq!(files_now(&with_preprocessor), weights);
    }

    #[test]
    fn a_folder_holds_one_file_of_weights_or_the_shards_of_an_index() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let weights = || SourceFiles::find(folder.path()).map(|files| files.weights);
        let error = weights().unwrap_err().to_string();
        assert!(error.contains("model.safetensors"), "{error}");
        std::fs::write(path(model_file::SERIES_FILE_NAME), "").unwrap();
        let error = weights().unwrap_err().to_string();
        assert!(error.contains("a folder of several runs"), "{error}");
        let index = r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}}"#;
        std::fs::write(path("model.safetensors.index.json"), index).unwrap();
        assert_eq!(weights().unwrap(), [path("1.safetensors"), path("2.safetensors")]);
        std::fs::write(path("model.safetensors"), "").unwrap();
        assert_eq!(weights().unwrap(), [path("model.safetensors")]);
        // The configuration is found next to a file of weights, too.
        std::fs::write(path("config.json"), "").unwrap();
        let files = SourceFiles::find(&path("model.safetensors")).unwrap();
        assert_eq!((files.config, files.preprocessor), (Some(path("config.json")), None));
        let error = SourceFiles::find(&path("nowhere")).err().unwrap().to_string();
        assert!(error.contains("nowhere"), "{error}");
    }
}
