//! The configuration of a run, `config.toml`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vitrine_datasets::{DecodeLimits, Fold, Preprocessing};
use vitrine_models::ModelConfig;

use super::hold_out::HoldOut;
use super::location::data_path;
use super::origin::Origin;
use crate::bounds;
use crate::files::read_text;
use crate::model_file;
use crate::recipe::Recipe;
use crate::serialized::{shown_path, shown_path_option};
use crate::toml_text;

/// The complete configuration of a run, from which it can be resumed or repeated. Stored as `config.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Name and version of the program that made the run.
    pub program: String,
    /// Name or path of the data set, as the user gave it.
    pub data: String,
    /// The absolute path of the data set, if it was given as a path, so that the run can be resumed from any folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(with = "shown_path_option")]
    pub data_path: Option<PathBuf>,
    /// The folder into which data sets with a name are downloaded.
    #[serde(with = "shown_path")]
    pub data_dir: PathBuf,
    /// Share of the training images that is split off for validation if the data set has no validation split.
    pub val_fraction: f64,
    /// The seed of everything random: initialization, data order, augmentation, and, by default, the validation split.
    pub seed: u64,
    /// The seed of the validation split, if it differs from `seed`: the runs of a series with different seeds are
    /// compared on the same validation images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_seed: Option<u64>,
    /// The fold of the training images that is the validation split, if the run is one of a cross-validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fold: Option<Fold>,
    /// Name of the architecture, for titles.
    pub model_name: String,
    /// The weights that training began with, as `--pretrained` named them. A repository has its commit, `hf:OWNER/NAME@COMMIT`,
    /// which earlier versions did not record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretrained: Option<String>,
    /// The absolute path of these weights, if they were given as a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(with = "shown_path_option")]
    pub pretrained_path: Option<PathBuf>,
    /// Whether the length of the run was changed after it had begun. Such a run cannot be repeated bit for bit, since
    /// its learning rate first followed the schedule of the original length.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lengthened: bool,
    /// The largest image file that is read, in bytes; `None` for the default limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_file_size: Option<u64>,
    /// The character between the labels of an image in the manifest, as `--label-separator` gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_separator: Option<char>,
    /// Whether an image has any number of classes, and not exactly one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub multi_label: bool,
    /// Class names, in the order of the logits.
    pub classes: Vec<String>,
    /// The architecture.
    pub model: ModelConfig,
    /// How every image is resized and normalized.
    pub preprocessing: Preprocessing,
    /// How the model is trained.
    pub recipe: Recipe,
    /// The conditions under which the run began, by which a repetition is checked.
    #[serde(default, skip_serializing_if = "Origin::is_unknown")]
    pub origin: Origin,
}

impl RunConfig {
    /// Reads the `config.toml` of a run.
    ///
    /// # Errors
    /// If it cannot be read or is invalid; the message names the file and the key.
    pub fn read(file: &Path) -> Result<Self> {
        let read = || -> Result<Self> { toml_text::parse(&read_text(file)?) };
        let config = read().with_context(|| file.display().to_string())?;
        config.validate().with_context(|| file.display().to_string())?;
        Ok(config)
    }

    /// How the validation split is chosen if the data set has none.
    pub fn hold_out(&self) -> HoldOut {
        let seed = self.split_seed.unwrap_or(self.seed);
        HoldOut { fraction: self.val_fraction, seed, fold: self.fold }
    }

    /// Checks the range of every number, and that model, class names, and preprocessing agree.
    ///
    /// # Errors
    /// If a value is invalid; the message names the key, the value, and the allowed range.
    pub fn validate(&self) -> Result<()> {
        model_file::check_together(&self.model, &self.classes, &self.preprocessing)?;
        if let Some(Fold { number, of }) = self.fold
            && !(1..=of).contains(&number)
        {
            bail!("`fold` is number {number} of {of}: it must be one of them");
        }
        if !bounds::SEED.contain(self.seed) {
            bail!("`seed` is {}: it must be {}", self.seed, bounds::SEED);
        }
        self.recipe.validate()
    }

    /// The name or path under which the data set is found now: the absolute path if it still exists, or else the
    /// original path relative to the current folder, if something exists there.
    pub fn data_now(&self) -> String {
        current_location(&self.data, self.data_path.as_deref())
    }

    /// States a new place of the data set, a name or a path, and a new folder of named data sets, as far as there is one.
    pub fn move_data(&mut self, data: Option<&str>, data_dir: Option<&Path>) {
        if let Some(folder) = data_dir {
            self.data_dir = folder.to_owned();
        }
        if let Some(data) = data {
            self.data = data.to_owned();
            self.data_path = data_path(data, &self.data_dir);
        }
    }

    /// The name or path under which the pretrained weights are found now; see [`data_now`](Self::data_now).
    pub fn pretrained_now(&self) -> Option<String> {
        self.pretrained.as_ref().map(|source| current_location(source, self.pretrained_path.as_deref()))
    }

    /// The limits on the size of an image that is decoded.
    pub fn limits(&self) -> DecodeLimits {
        DecodeLimits::default().with_max_file_bytes(self.max_file_size)
    }
}

/// `path`, unless it no longer exists, or is no text, and the relative path `name` does.
fn current_location(name: &str, path: Option<&Path>) -> String {
    let is_here = Path::new(name).exists();
    match path {
        Some(path) if !is_here || path.exists() && path.to_str().is_some() => path.display().to_string(),
        _ => name.to_owned(),
    }
}
