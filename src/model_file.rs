//! The file that a trained model is: weights under timm's names, and in the header all that using them takes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use vitrine_datasets::Preprocessing;
use vitrine_models::weights::{self, NamedTensor};
use vitrine_models::{ModelConfig, VisionTransformer};

use crate::class_names::check_unique;
use crate::recipe::Recipe;
use crate::trained_on::TrainedOn;
use crate::weights_file::{self, Precision, StoredTensor};

/// The header's layout; a file with a higher number comes from a newer program.
const FORMAT: u32 = 1;
/// The key of our entry in the safetensors header.
const KEY: &str = "vitrine";
/// The key of our entry in the header of a file for another library.
pub const EXPORTED_KEY: &str = "vitrine_export";
/// The model inside a run folder.
pub const FILE_NAME: &str = "model.safetensors";

/// What a model file says about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// Layout of this header.
    pub format: u32,
    /// The program that wrote it, with its version.
    pub program: String,
    /// The architecture.
    pub model: ModelConfig,
    /// Class names, in the order of the logits.
    pub classes: Vec<String>,
    /// What is done to an image before the model sees it.
    pub preprocessing: Preprocessing,
    /// The weights that training began with, as `--pretrained` named them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretrained: Option<String>,
    /// The data set that it was trained on, as `vitrine train` took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Which images these were; unknown in files of other programs and earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained_on: Option<TrainedOn>,
    /// How it was trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<Recipe>,
    /// How good it was on the validation split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Validation>,
}

/// The figures of the epoch that a model was saved after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Epochs done.
    pub epoch: usize,
    /// Images that were measured.
    pub samples: usize,
    /// Mean cross entropy.
    pub loss: f64,
    /// Share of images whose best class is right.
    pub top1: f64,
    /// Mean F1 of the classes that occur; not measured by earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub macro_f1: Option<f64>,
    /// Mean recall of the classes that have images; not measured by earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balanced_accuracy: Option<f64>,
}

impl ModelCard {
    /// Whether a safetensors header's text holds a card.
    pub fn is_in(metadata: &HashMap<String, String>) -> bool {
        metadata.contains_key(KEY)
    }

    /// For people to read: without the list of the images that it was trained on.
    pub fn summary(&self) -> Self {
        Self { trained_on: self.trained_on.as_ref().map(TrainedOn::summary), ..self.clone() }
    }

    /// The card in the header of a file that was written for another library.
    ///
    /// # Errors
    /// When it is damaged or comes from a newer program.
    pub fn exported_in(metadata: &HashMap<String, String>, path: &Path) -> Result<Option<Self>> {
        metadata.get(EXPORTED_KEY).map(|text| parse(text, path)).transpose()
    }

    /// A card of this program's format.
    pub fn new(model: ModelConfig, classes: Vec<String>, preprocessing: Preprocessing) -> Self {
        Self {
            format: FORMAT,
            program: concat!("vitrine ", env!("CARGO_PKG_VERSION")).to_owned(),
            model,
            classes,
            preprocessing,
            pretrained: None,
            data: None,
            trained_on: None,
            recipe: None,
            validation: None,
        }
    }
}

/// Writes the model to a temporary file next to `path` and renames it: `path` always holds a whole model.
///
/// # Errors
/// When the file cannot be written, or a weight is too large for the precision; the message names it.
pub fn save(path: &Path, card: &ModelCard, model: &VisionTransformer, precision: Precision) -> Result<()> {
    let header = HashMap::from([(KEY.to_owned(), serde_json::to_string(card)?)]);
    weights_file::save(path, &weights::to_timm(model), &[], precision, header)
}

/// The model file that `path` means: the file itself, or the best model of a run folder.
///
/// # Errors
/// When there is nothing, or a folder without a model.
pub fn locate(path: &Path) -> Result<PathBuf> {
    if !path.exists() {
        bail!("{}: there is no such model file or run folder", path.display());
    }
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let file = path.join(FILE_NAME);
    if !file.is_file() {
        bail!(
            "{}: the folder holds no {FILE_NAME}; is it a run folder whose first epoch is done?",
            path.display()
        );
    }
    Ok(file)
}

/// Reads what the file at `path` (a model file or a run folder) says about itself.
///
/// # Errors
/// When the file is none of ours, is cut short, or comes from a newer program.
pub fn read_card(path: &Path) -> Result<ModelCard> {
    let path = locate(path)?;
    card(&weights_file::open(&path)?.metadata, &path)
}

/// Reads a model file or the best model of a run folder, its parameters under timm's names.
///
/// # Errors
/// When the file is none of ours, is cut short, or comes from a newer program.
pub fn read(path: &Path) -> Result<(ModelCard, Vec<NamedTensor>)> {
    let path = locate(path)?;
    let file = weights_file::open(&path)?;
    let card = card(&file.metadata, &path)?;
    Ok((card, file.tensors.iter().map(StoredTensor::read).collect::<Result<_>>()?))
}

/// Reads a model file or the best model of a run folder.
///
/// # Errors
/// When the file is none of ours, is cut short, comes from a newer program, or does not fit its own description.
pub fn load(path: &Path, device: &Device) -> Result<(ModelCard, VisionTransformer)> {
    let (card, tensors) = read(path)?;
    let model = card.model.init(device).with_context(|| path.display().to_string())?;
    let model = weights::from_timm(model, tensors).with_context(|| path.display().to_string())?;
    Ok((card, model))
}

fn damaged(path: &Path, error: &dyn std::fmt::Display) -> anyhow::Error {
    anyhow!(
        "{}: not a model file, or cut short ({error}); a model file is what `vitrine train` writes",
        path.display()
    )
}

fn card(metadata: &HashMap<String, String>, path: &Path) -> Result<ModelCard> {
    let text = metadata.get(KEY).ok_or_else(|| {
        anyhow!(
            "{}: not a vitrine model: its header has no `{KEY}` entry; `vitrine import` makes a model from other weights",
            path.display()
        )
    })?;
    parse(text, path)
}

/// A header's entry, checked.
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
    check_together(&card.model, &card.classes, &card.preprocessing)
        .map_err(|error| broken(&error.to_string()))?;
    Ok(card)
}

/// Checks an architecture, its class names and its preprocessing, and that they belong together.
///
/// # Errors
/// Says what is wrong.
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
