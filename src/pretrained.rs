//! Weights that training begins with: a model of ours, another library's files, or a repository of Hugging Face.

use anyhow::{Context, Result};
use vitrine_models::ModelConfig;
use vitrine_models::weights::{self, Adaptation, NamedTensor};

use crate::events::EventSink;
use crate::hub;
use crate::import::{self, Account, Options};
use crate::model_file::{self, ModelCard};
use crate::weights_file;

/// Weights with everything that is known of them.
pub struct Pretrained {
    /// What it is called in folder names and titles.
    pub name: String,
    /// Architecture, classes and preprocessing.
    pub card: ModelCard,
    tensors: Vec<NamedTensor>,
    has_head: bool,
    /// What became of every key, where the weights are another library's.
    pub account: Option<Account>,
}

/// Opens what `--pretrained` names.
///
/// # Errors
/// When there is no such thing, it cannot be fetched, or holds no Vision Transformer.
pub fn open(source: &str, offline: bool, events: &dyn EventSink) -> Result<Pretrained> {
    let (path, name) = hub::locate(source, offline, events)?;
    let own = if path.is_dir() { path.join(model_file::FILE_NAME) } else { path.clone() };
    if own.is_file() && ModelCard::is_in(&weights_file::open(&own)?.metadata) {
        let (card, tensors) = model_file::read(&own)?;
        return Ok(Pretrained { name, card, tensors, has_head: true, account: None });
    }
    let imported = import::load(&path, &Options::default())?;
    Ok(Pretrained {
        name,
        card: imported.card,
        tensors: imported.tensors,
        has_head: imported.has_head,
        account: Some(imported.account),
    })
}

impl Pretrained {
    /// The weights for an architecture of the same blocks. The head stays where it tells the same classes apart.
    ///
    /// # Errors
    /// When the weights do not fit after all.
    pub fn adapted(self, to: &ModelConfig, classes: &[String]) -> Result<Adaptation> {
        let keep_head = self.has_head && self.card.classes == classes;
        let adaptation = weights::adapt(self.tensors, &self.card.model, to, keep_head);
        let model = to.init(&burn::tensor::Device::default())?;
        let head = if keep_head { Vec::new() } else { import::head_of(&model) };
        weights::check(&model, adaptation.tensors.iter().chain(&head))
            .context("--pretrained: the weights do not fit this image size or these colors")?;
        Ok(adaptation)
    }
}
