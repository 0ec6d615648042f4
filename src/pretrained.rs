//! Pretrained weights: a model of this program, another library's files, or a repository on Hugging Face, adapted to
//! the model that training begins with.

use anyhow::{Context, Result};
use vitrine_models::ModelConfig;
use vitrine_models::weights::{self, Adaptation, NamedTensor};

use crate::events::EventSink;
use crate::hub::{self, Located};
use crate::import::{self, Account, Options};
use crate::model_file::{self, ModelCard};
use crate::weights_file;

/// Pretrained weights with the description of their model.
#[derive(Clone)]
pub struct Pretrained {
    /// The source as files record it: a repository with its commit, `hf:OWNER/NAME@COMMIT`, or else as the user named it.
    pub source: String,
    /// A short name for run folders and titles.
    pub name: String,
    /// Architecture, class names, and preprocessing.
    pub card: ModelCard,
    tensors: Vec<NamedTensor>,
    /// Whether the tensors include a classification head.
    has_head: bool,
    /// The report of the import about every tensor; `None` for a model of this program.
    pub account: Option<Account>,
}

/// Opens the weights that `--pretrained` names: a path, `hf:OWNER/NAME[@REVISION]`, or the name of a published backbone, which
/// are downloaded unless they are in the cache. With `offline`, the network is not used.
///
/// # Errors
/// If there is no such file or repository, it cannot be downloaded, or it holds no supported Vision Transformer. The
/// message begins with `--pretrained` and the source.
pub fn open(source: &str, offline: bool, events: &dyn EventSink) -> Result<Pretrained> {
    let opened = || -> Result<Pretrained> { read(hub::locate(source, offline, events)?) };
    opened().map_err(|error| {
        let is_named = error.to_string().starts_with(source);
        error.context(if is_named { "--pretrained".to_owned() } else { format!("--pretrained {source}") })
    })
}

/// Reads the weights that were located. A folder may be a run folder of this program or a folder of another library.
fn read(Located { path, name, source }: Located) -> Result<Pretrained> {
    let model = if path.is_dir() { path.join(model_file::FILE_NAME) } else { path.clone() };
    if model.is_file() && ModelCard::is_in(&weights_file::open(&model)?.metadata) {
        let (card, tensors) = model_file::read(&model)?;
        let card = without_refitted_head(card);
        let has_head = card.has_classifier();
        return Ok(Pretrained { source, name, card, tensors, has_head, account: None });
    }
    // The head of an embedding is replaced by one for classes.
    let import::Imported { card, tensors, has_head, account } = import::load(&path, &Options::default())?;
    let card = without_refitted_head(card);
    let has_head = has_head && card.has_classifier();
    Ok(Pretrained { source, name, card, tensors, has_head, account: Some(account) })
}

/// The description without the head, if that has learned from validation images: they could not judge a run that keeps it, while
/// the backbone has not seen them, and the head can be fitted again.
fn without_refitted_head(card: ModelCard) -> ModelCard {
    match card.trained_on {
        Some(of) if !of.head_keys.is_empty() => {
            ModelCard { classes: Vec::new(), trained_on: Some(of.without_head_images()), ..card }
        }
        trained_on => ModelCard { trained_on, ..card },
    }
}

impl Pretrained {
    /// Adapts the weights to an architecture with the same blocks. The head is kept only if `classes` are the classes
    /// of the weights, in the same order, and if it reads the same.
    ///
    /// # Errors
    /// If the weights do not fit the architecture.
    pub fn adapted(self, to: &ModelConfig, classes: &[String]) -> Result<Adaptation> {
        let reads_the_same = self.card.model.pool == to.pool;
        let keep_head = self.has_head && reads_the_same && self.card.classes == classes;
        let adaptation =
            weights::adapt(self.tensors, [&self.card.model, to], keep_head, self.card.resampling);
        let model = to.init(&burn::tensor::Device::default())?;
        let head = if keep_head { Vec::new() } else { weights::zero_head(&model) };
        weights::check(&model, adaptation.tensors.iter().chain(&head))
            .context("--pretrained: the weights do not fit this image size or these colors")?;
        Ok(adaptation)
    }
}
