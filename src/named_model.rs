//! A model as users name it: a model file, a run folder, weights of another library, or a repository on Hugging Face.

use std::path::{Path, PathBuf};

use anyhow::Result;
use burn::tensor::Device;
use vitrine_models::{ModelConfig, VisionTransformer};

use crate::events::EventSink;
use crate::hub::{self, Located};
use crate::import::{self, Imported, Options};
use crate::model_file::{self, ModelCard};
use crate::weights_file;

/// A model that is loaded.
pub struct NamedModel {
    /// A short name: that of the file, folder, or repository.
    pub name: String,
    /// Its source as files record it: a repository with its commit, `hf:OWNER/NAME@COMMIT`, or else as it was named.
    pub source: String,
    /// Architecture, class names, and preprocessing.
    pub card: ModelCard,
    /// The model, with a head of zeros if it has no classifier.
    pub model: VisionTransformer,
    /// The files that it was read from.
    pub files: Vec<PathBuf>,
    /// Whether they are another library's.
    pub is_imported: bool,
}

impl NamedModel {
    /// Emits a warning if the logits are not those of classes.
    pub fn warn_of_head(&self, events: &dyn EventSink) {
        events.emit_warning(self.card.about_head.as_ref().map(|about| format!("{}: {about}", self.name)));
    }
}

/// Loads the model that `source` names onto a device: a model file, a run folder (its best model), another library's weights,
/// or `hf:OWNER/NAME[@REVISION]` or the name of a published backbone, which are downloaded unless they are in the cache. With
/// `offline`, the network is not used. `change` alters the architecture in what its parameters do not notice.
///
/// Assumptions about another library's weights are emitted as warnings.
///
/// # Errors
/// If there is no such file or repository, it cannot be downloaded, or it holds no supported Vision Transformer.
pub fn load(
    source: &Path,
    offline: bool,
    device: &Device,
    change: impl FnOnce(&ModelConfig) -> ModelConfig,
    events: &dyn EventSink,
) -> Result<NamedModel> {
    // A name or repository is text; what is none can only be a path.
    let Located { path, name, source } = match source.to_str() {
        Some(text) => hub::locate(text, offline, events)?,
        None => {
            let shown = source.to_string_lossy().into_owned();
            Located { path: source.to_owned(), name: shown.clone(), source: shown }
        }
    };
    if is_own(&path)? {
        let (card, model) = model_file::load_as(&path, device, change)?;
        let files = vec![model_file::locate(&path)?];
        return Ok(NamedModel { name, source, card, model, files, is_imported: false });
    }
    let mut imported = import::load(&path, &Options::default())?.at_size_of_images()?;
    for warning in &imported.account.warnings {
        events.emit_warning(Some(warning.clone()));
    }
    imported.card.pretrained = Some(source.clone());
    let (card, files) = (imported.card.clone(), import::files(&path, &imported.account.files));
    let changed = Imported { card: ModelCard { model: change(&card.model), ..card.clone() }, ..imported };
    let model = changed.model(device)?;
    Ok(NamedModel { name, source, card, model, files, is_imported: true })
}

/// Whether a path leads to a model of this program, and not to another library's weights.
///
/// # Errors
/// If it leads to neither.
fn is_own(path: &Path) -> Result<bool> {
    match model_file::locate(path) {
        Ok(file) => Ok(ModelCard::is_in(&weights_file::open(&file)?.metadata)),
        Err(_) if path.is_dir() && import::holds_weights(path) => Ok(false),
        Err(error) => Err(error),
    }
}
