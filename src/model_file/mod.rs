//! Model files: safetensors with the weights under timm's names, and in the header a card with everything that
//! classification needs.

pub(crate) mod class_names;
mod trained_on;

use std::collections::HashMap;
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::tensor::Device;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use vitrine_datasets::Preprocessing;
use vitrine_models::position::Resampling;
use vitrine_models::weights::{self, LazyTensor, LoadError, NamedTensor};
use vitrine_models::{ModelConfig, VisionTransformer};

use class_names::check_unique;
pub use trained_on::TrainedOn;

use crate::recipe::Recipe;
use crate::serialized::null_is_nan;
use crate::text::shell_word;
use crate::weights_file::{self, Precision, StoredTensor};

/// The version of the card's format. A file with a higher one was written by a newer program.
const FORMAT: u32 = 4;
/// The format of cards of images of several labels each.
const MULTI_LABEL_FORMAT: u32 = 2;
/// The format of cards of models without a classifier.
const BACKBONE_FORMAT: u32 = 3;
/// The format of cards of models with weights of eight bits.
const INT8_FORMAT: u32 = 4;
/// The lowest version that a card can have. Cards that earlier programs understand have this one.
const OLDEST_FORMAT: u32 = 1;
/// The key of the card in the safetensors header.
pub const KEY: &str = "vitrine";
/// The key of the card in the header of a file that was exported for another library.
pub const EXPORTED_KEY: &str = "vitrine_export";
/// The name of the model file in a run folder.
pub const FILE_NAME: &str = "model.safetensors";
/// The name of the file that describes several runs, in the folder of their folders.
pub const SERIES_FILE_NAME: &str = "series.toml";

/// The card of a model file, which describes the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// Version of the card's format.
    pub format: u32,
    /// The program that wrote the file, with its version.
    pub program: String,
    /// The architecture.
    pub model: ModelConfig,
    /// Class names, in the order of the logits; none for a model without a classifier, a backbone. Such a card has format
    /// 3 or more, so that earlier programs refuse it. Its architecture has one class, whose head is not stored.
    pub classes: Vec<String>,
    /// What those who read the logits should know; `None` if they are those of classes. Earlier versions did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about_head: Option<String>,
    /// Whether an image has any number of classes: every logit is then judged by itself, by the logistic function. Such a
    /// card has format 2 or more, so that earlier programs refuse it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub multi_label: bool,
    /// Whether the weights of most layers have eight bits: see [`VisionTransformer::quantized`]. Such a card has format 4, so that
    /// earlier programs refuse it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub int8: bool,
    /// The preprocessing of images.
    pub preprocessing: Preprocessing,
    /// Whether the model is asked about each image and its mirror image, whose answers are averaged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mirror_views: bool,
    /// Whether the model is asked about two shifts of these in place of each: see [`Views::Shifted`](crate::predict::Views::Shifted).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shifted_views: bool,
    /// The filter by which the positions are resampled for another image size.
    #[serde(default, skip_serializing_if = "Resampling::is_default")]
    pub resampling: Resampling,
    /// The weights that training began with, as `--pretrained` named them, or those of an imported model. A repository has its
    /// commit, `hf:OWNER/NAME@COMMIT`, which earlier versions did not record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretrained: Option<String>,
    /// The data set that the model was trained on, as `vitrine train` was given it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The images that the model was trained on, by their content; `None` for imported models and those of earlier
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained_on: Option<TrainedOn>,
    /// The training recipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<Recipe>,
    /// The metrics on the validation split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Validation>,
}

/// Validation metrics of the epoch after which a model was saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Number of epochs that were completed.
    pub epoch: usize,
    /// Number of validation images.
    pub samples: usize,
    /// Mean cross entropy.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// Share of images whose highest logit is that of their class, or of one of them, from 0 to 1; NaN if no image has a class.
    #[serde(deserialize_with = "null_is_nan")]
    pub top1: f64,
    /// Mean F1 score of the classes that occur among labels or predictions; earlier versions did not measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub macro_f1: Option<f64>,
    /// Mean recall of the classes that have images; earlier versions did not measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balanced_accuracy: Option<f64>,
    /// Mean average precision, with several labels an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_average_precision: Option<f64>,
}

impl ModelCard {
    /// The same card for images of several labels each, if `multi_label` is set.
    pub fn with_multi_label(self, multi_label: bool) -> Self {
        Self { multi_label, ..self }.with_its_format()
    }

    /// The same card for a model with weights of eight bits.
    pub fn with_int8(self) -> Self {
        Self { int8: true, ..self }.with_its_format()
    }

    /// The card with the lowest format that says what it says.
    fn with_its_format(self) -> Self {
        let format = match (self.int8, self.has_classifier(), self.multi_label) {
            (true, ..) => INT8_FORMAT,
            (false, false, _) => BACKBONE_FORMAT,
            (false, true, true) => MULTI_LABEL_FORMAT,
            (false, true, false) => OLDEST_FORMAT,
        };
        Self { format, ..self }
    }

    /// Whether the model has a classifier. If it has none, its logits mean nothing.
    pub fn has_classifier(&self) -> bool {
        !self.classes.is_empty()
    }

    /// Checks that the model, which is called `name`, has a classifier.
    ///
    /// # Errors
    /// If it has none. The message says how to train one.
    pub fn require_classifier(&self, name: impl Display) -> Result<()> {
        ensure!(
            self.has_classifier(),
            "{name}: this model has no classifier; train one: vitrine train DATA --pretrained {}",
            shell_word(&name)
        );
        Ok(())
    }

    /// Whether the text entries of a safetensors header include a card.
    pub fn is_in(metadata: &HashMap<String, String>) -> bool {
        metadata.contains_key(KEY)
    }

    /// The card without the list of training images, for display.
    pub fn summary(&self) -> Self {
        Self { trained_on: self.trained_on.as_ref().map(TrainedOn::summary), ..self.clone() }
    }

    /// The card in the header of a file that was exported for another library, if there is one. `path` is the file, for
    /// messages.
    ///
    /// # Errors
    /// If the card is damaged or was written by a newer program.
    pub fn exported_in(metadata: &HashMap<String, String>, path: &Path) -> Result<Option<Self>> {
        metadata.get(EXPORTED_KEY).map(|text| parse(text, path)).transpose()
    }

    /// A card in this program's format, without a history of training.
    pub fn new(model: ModelConfig, classes: Vec<String>, preprocessing: Preprocessing) -> Self {
        Self {
            format: OLDEST_FORMAT,
            program: concat!("vitrine ", env!("CARGO_PKG_VERSION")).to_owned(),
            model,
            classes,
            about_head: None,
            multi_label: false,
            int8: false,
            preprocessing,
            mirror_views: false,
            shifted_views: false,
            resampling: Resampling::default(),
            pretrained: None,
            data: None,
            trained_on: None,
            recipe: None,
            validation: None,
        }
        .with_its_format()
    }
}

/// Writes a model file. It is written under a temporary name first and then renamed, so that `path` never holds a part
/// of a model.
///
/// # Errors
/// If the file cannot be written, or a weight is too large for the precision. The message names it.
pub fn save(path: &Path, card: &ModelCard, model: &VisionTransformer, precision: Precision) -> Result<()> {
    let header = HashMap::from([(KEY.to_owned(), serde_json::to_string(card)?)]);
    let mut tensors = weights::to_timm(model);
    tensors.retain(|tensor| card.has_classifier() || !weights::is_head(&tensor.name));
    let store = if card.int8 { weights_file::save_with_bytes } else { weights_file::save };
    store(path, &tensors, &[], precision, header)
}

/// The path of the model file: `path` itself, or for a run folder the best model in it.
///
/// # Errors
/// If `path` does not exist or is a folder without a model.
pub fn locate(path: &Path) -> Result<PathBuf> {
    if !path.exists() {
        bail!("{}: there is no such model file or run folder", path.display());
    }
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let file = path.join(FILE_NAME);
    if !file.is_file() {
        refuse_series(path)?;
        bail!(
            "{}: the folder holds no {FILE_NAME}; that of a run has one as soon as its first epoch is done or its head is fitted: \
             `vitrine train --resume {}` goes on with a run that was stopped",
            path.display(),
            shell_word(path.display())
        );
    }
    Ok(file)
}

/// Refuses a folder of several runs, each of which has a model of its own.
///
/// # Errors
/// If `folder` is one.
pub fn refuse_series(folder: &Path) -> Result<()> {
    if folder.join(SERIES_FILE_NAME).is_file() {
        bail!(
            "{}: this is a folder of several runs; name one of them (`vitrine train --resume {}` shows their results)",
            folder.display(),
            shell_word(folder.display())
        );
    }
    Ok(())
}

/// The SHA-256 of files one after the other, in hexadecimal.
///
/// # Errors
/// If one of them cannot be read.
pub fn checksum(files: &[PathBuf]) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    for path in files {
        let mut hash = || -> std::io::Result<()> {
            let mut file = File::open(path)?;
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok(()),
                    length => hasher.update(&buffer[..length]),
                }
            }
        };
        hash().with_context(|| format!("{}: cannot be read", path.display()))?;
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reads the card of a model file, or of the best model in a run folder.
///
/// # Errors
/// If the file is no model file of this program, is cut short, or was written by a newer program.
pub fn read_card(path: &Path) -> Result<ModelCard> {
    let path = locate(path)?;
    card(&weights_file::open(&path)?.metadata, &path)
}

/// Reads the card and the parameters, under timm's names, of a model file or of the best model in a run folder.
///
/// # Errors
/// If the file is no model file of this program, is cut short, or was written by a newer program.
pub fn read(path: &Path) -> Result<(ModelCard, Vec<NamedTensor>)> {
    let path = locate(path)?;
    let file = weights_file::open(&path)?;
    let card = card(&file.metadata, &path)?;
    Ok((card, file.tensors.par_iter().map(StoredTensor::read).collect::<Result<_>>()?))
}

/// Loads the model of a model file, or the best model in a run folder, on a device. A model without a classifier gets a
/// head of zeros.
///
/// # Errors
/// If the file is no model file of this program, is cut short, was written by a newer program, or its tensors do not
/// fit its card.
pub fn load(path: &Path, device: &Device) -> Result<(ModelCard, VisionTransformer)> {
    load_as(path, device, ModelConfig::clone)
}

/// As [`load`], with a change of the architecture that its parameters do not notice.
///
/// # Errors
/// As [`load`].
pub fn load_as(
    path: &Path,
    device: &Device,
    change: impl FnOnce(&ModelConfig) -> ModelConfig,
) -> Result<(ModelCard, VisionTransformer)> {
    let path = locate(path)?;
    let file = weights_file::open(&path)?;
    let card = card(&file.metadata, &path)?;
    let named = || path.display().to_string();
    let model = change(&card.model).init(device).with_context(named)?;
    let head = if card.has_classifier() { Vec::new() } else { weights::zero_head(&model) };
    let tensors = file.tensors.iter().map(StoredTensor::lazy).chain(head.into_iter().map(LazyTensor::from));
    let model = weights::from_timm_lazily(model, tensors).map_err(|error| match error {
        LoadError::Unfit(error) => anyhow::Error::from(error).context(named()),
        LoadError::Unreadable(error) => error,
    })?;
    let model = if card.int8 { model.quantized() } else { model };
    Ok((card, model))
}

/// The error for a file whose card cannot be parsed.
fn damaged(path: &Path, error: &dyn std::fmt::Display) -> anyhow::Error {
    anyhow!(
        "{}: not a model file, or cut short ({error}); a model file is what `vitrine train` writes",
        path.display()
    )
}

/// Reads the card from the text entries of a safetensors header.
fn card(metadata: &HashMap<String, String>, path: &Path) -> Result<ModelCard> {
    let text = metadata.get(KEY).ok_or_else(|| {
        anyhow!(
            "{}: not a vitrine model: its header has no `{KEY}` entry; `vitrine import` makes a model from other weights",
            path.display()
        )
    })?;
    parse(text, path)
}

/// Parses and validates a card.
fn parse(text: &str, path: &Path) -> Result<ModelCard> {
    #[derive(Deserialize)]
    struct Version {
        format: u32,
    }
    let version: Version = serde_json::from_str(text).map_err(|error| damaged(path, &error))?;
    if version.format > FORMAT {
        bail!(
            "{}: written by a newer vitrine (format {}, this program reads up to {FORMAT}); update vitrine",
            path.display(),
            version.format
        );
    }
    if version.format == 0 {
        bail!("{}: its description is broken: there is no format 0", path.display());
    }
    let card: ModelCard = serde_json::from_str(text).map_err(|error| damaged(path, &error))?;
    let broken = |what: &str| anyhow!("{}: its description is broken: {what}", path.display());
    let backbone = ["backbone".to_owned()];
    let classes = if card.has_classifier() { card.classes.as_slice() } else { &backbone };
    check_together(&card.model, classes, &card.preprocessing).map_err(|error| broken(&error.to_string()))?;
    Ok(card)
}

/// Validates an architecture, class names, and preprocessing, and that they agree in the number of classes, the image
/// size, and channels.
///
/// # Errors
/// If one of them is invalid, or they disagree; the message says which and why.
pub fn check_together(model: &ModelConfig, classes: &[String], preprocessing: &Preprocessing) -> Result<()> {
    model.validate()?;
    preprocessing.validate()?;
    ensure!(
        classes.len() == model.num_classes,
        "the number of class names differs from the number of logits"
    );
    check_unique(classes)?;
    let size = model.image_size;
    ensure!(
        preprocessing.image_size == [size.height, size.width] && preprocessing.channels == model.channels,
        "preprocessing and architecture expect different image sizes or channels"
    );
    Ok(())
}
