//! Everything a run was decided to be.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vitrine_datasets::{DecodeLimits, Fold, Preprocessing};
use vitrine_models::ModelConfig;

use super::hold_out::HoldOut;
use super::origin::Origin;
use crate::files::read_text;
use crate::model_file;
use crate::recipe::Recipe;

/// Everything a run was decided to be: `config.toml`, from which it can be repeated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// The program that wrote it, with its version.
    pub program: String,
    /// Data set name or path, as `vitrine train` took it.
    pub data: String,
    /// The same path from the root on, where it is a path: the run can be resumed from any folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_path: Option<PathBuf>,
    /// Where named data sets are kept.
    pub data_dir: PathBuf,
    /// Share of the training images that is split off where the data set has no validation split.
    pub val_fraction: f64,
    /// From which everything random comes.
    pub seed: u64,
    /// From which the validation images are chosen, where it is not `seed`: several runs are compared on the same ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_seed: Option<u64>,
    /// The part of the training images that is kept for validation, where they are parts in turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fold: Option<Fold>,
    /// The `--model` that was chosen, for titles.
    pub model_name: String,
    /// The weights that training began with, as `--pretrained` named them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretrained: Option<String>,
    /// Their path from the root on, where it is a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretrained_path: Option<PathBuf>,
    /// Whether the run was given another length after it had begun: its learning rate followed the first one until then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lengthened: bool,
    /// The most bytes of an image file, where it is not the usual number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_file_size: Option<u64>,
    /// Class names, in the order of the logits.
    pub classes: Vec<String>,
    /// The architecture.
    pub model: ModelConfig,
    /// What is done to every image.
    pub preprocessing: Preprocessing,
    /// How it is trained.
    pub recipe: Recipe,
    /// What it was begun with.
    #[serde(default, skip_serializing_if = "Origin::is_unknown")]
    pub origin: Origin,
}

impl RunConfig {
    /// Reads `config.toml` of a run.
    ///
    /// # Errors
    /// When it cannot be read or says what cannot be done; the message names the file and the key.
    pub fn read(file: &Path) -> Result<Self> {
        let read = || -> Result<Self> { Ok(toml::from_str(&read_text(file)?)?) };
        let config = read().with_context(|| file.display().to_string())?;
        config.validate().with_context(|| file.display().to_string())?;
        Ok(config)
    }

    /// Which training images are kept for validation, where the data set has no validation split.
    pub fn hold_out(&self) -> HoldOut {
        let seed = self.split_seed.unwrap_or(self.seed);
        HoldOut { fraction: self.val_fraction, seed, fold: self.fold }
    }

    /// Checks every number and what belongs together, before anything is made of it.
    ///
    /// # Errors
    /// Names the key, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        model_file::check_together(&self.model, &self.classes, &self.preprocessing)?;
        if let Some(Fold { number, of }) = self.fold
            && !(1..=of).contains(&number)
        {
            bail!("`fold` is number {number} of {of}: it must be one of them");
        }
        self.recipe.validate()
    }

    /// The data set: where it was when the run began, or else as it was named then, from here.
    pub fn data_now(&self) -> String {
        now(&self.data, self.data_path.as_deref())
    }

    /// The weights that training began with, found in the same way.
    pub fn pretrained_now(&self) -> Option<String> {
        self.pretrained.as_ref().map(|source| now(source, self.pretrained_path.as_deref()))
    }

    /// What decoding an image may cost.
    pub fn limits(&self) -> DecodeLimits {
        DecodeLimits::default().with_max_file_bytes(self.max_file_size)
    }
}

/// A path where it was, unless nothing is there any more and something is where its name points to from here.
fn now(name: &str, path: Option<&Path>) -> String {
    match path {
        Some(path) if path.exists() || !Path::new(name).exists() => path.display().to_string(),
        _ => name.to_owned(),
    }
}
