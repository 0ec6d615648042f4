//! Import of weights from timm, torchvision, Hugging Face, and Microsoft's Swin repository as a model of this program.
//!
//! Every key of the files is either used or listed as unused with a reason. A model whose logits would differ from
//! those of its own library is refused.

mod account;
mod classes;
mod collect;
mod config;
mod exported;
mod files;
mod image_size;
mod layout;
mod preprocessing;
pub mod verify;
mod way_to_state;
mod windows;

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use vitrine_models::weights::{self, Layout, LazyTensor, LoadError, NamedTensor, Reading};
use vitrine_models::{ImageSize, ModelConfig, VisionTransformer};

use crate::model_file::{ModelCard, TrainedOn};
use crate::weights_file::StoredTensor;
pub use account::Account;
use classes::class_names;
use collect::CONFIGURATION;
use config::ModelMetadata;
use files::SourceFiles;
pub use files::{files, files_now, holds_weights};
use image_size::Asked;
use layout::recognize;
pub use preprocessing::preprocessing_for;
use windows::StoredWindows;

/// What the user states about a model, for whatever its files do not say.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The library whose tensor names the file has; recognized from the names if `None`.
    pub layout: Option<Layout>,
    /// A preset, timm's name for an architecture, or the path of a configuration file; `config.json` next to the
    /// weights if `None`.
    pub config: Option<String>,
    /// Attention heads, one number per stage.
    pub heads: Option<Vec<usize>>,
    /// Height and width of the input in pixels; positions that are stored for another size are resampled.
    pub image_size: Option<[usize; 2]>,
    /// The side of a patch in pixels for which the patch embedding is resampled.
    pub patch_size: Option<usize>,
    /// Mean of each channel, from 0 to 1.
    pub mean: Option<Vec<f32>>,
    /// Standard deviation of each channel, from 0 to 1.
    pub std: Option<Vec<f32>>,
    /// Share of the scaled image's side that the center crop keeps, above 0 and at most 1.
    pub crop: Option<f64>,
    /// A file with one class name per line.
    pub classes: Option<PathBuf>,
}

/// Another library's weights as a model of this program.
pub struct Imported {
    /// Architecture, class names, and preprocessing. Without a head, the preprocessing may be for another image size
    /// than the stored positions: training then resamples the positions, unless the user asks for a size.
    pub card: ModelCard,
    /// The parameters under timm's names. They fit the architecture, except that the head's are missing if `has_head`
    /// is false.
    pub tensors: Vec<NamedTensor>,
    /// Whether the weights have a classifier.
    pub has_head: bool,
    /// Which keys were used, and where the rest of the description comes from.
    pub account: Account,
}

impl Imported {
    /// The same weights with the images that they have learned from, if these are known.
    fn with_images(self, trained_on: Option<TrainedOn>) -> Self {
        Self { card: ModelCard { trained_on, ..self.card }, ..self }
    }

    /// The weights for the image size of their preprocessing. Only the positions of a backbone may be for another size,
    /// and these are resampled, as its library does.
    ///
    /// # Errors
    /// If the architecture cannot have this size.
    pub fn at_size_of_images(mut self) -> Result<Self> {
        let [height, width] = self.card.preprocessing.image_size;
        let image_size = ImageSize { height, width };
        if image_size == self.card.model.image_size {
            return Ok(self);
        }
        let to = ModelConfig { image_size, ..self.card.model.clone() };
        to.validate()?;
        let adapted = weights::adapt(self.tensors, [&self.card.model, &to], true, self.card.resampling);
        let for_images = "for the images of the preprocessing (--image-size chooses another size)";
        let changes = adapted.changes.iter().map(|change| format!("{change} {for_images}"));
        self.account.notes.extend(changes);
        self.card.model = to;
        self.tensors = adapted.tensors;
        Ok(self)
    }

    /// Builds the model on a device, with a head of zeros if the weights have none.
    ///
    /// # Errors
    /// If the tensors do not fit the architecture.
    pub fn model(mut self, device: &Device) -> Result<VisionTransformer> {
        let fresh = self.card.model.init(device)?;
        if !self.has_head {
            self.tensors.extend(weights::zero_head(&fresh));
        }
        // Hardly more than the model itself is then in memory.
        let tensors = self.tensors.into_iter().map(LazyTensor::<Infallible>::from);
        weights::from_timm_lazily(fresh, tensors).map_err(|LoadError::Unfit(error)| error.into())
    }
}

/// Reads `source`: a file of weights, or a folder as Hugging Face and timm write it.
///
/// # Errors
/// If the source cannot be read, is no supported Vision Transformer, describes itself incompletely or with
/// contradictions, or has keys that are missing, unexpected, or of another shape. The message names them.
pub fn load(source: &Path, options: &Options) -> Result<Imported> {
    let files = SourceFiles::find(source)?;
    let mut notes = Vec::new();
    let (tensors, exported) = files.open_weights(&mut notes)?;
    match exported {
        Some(card) if options.config.is_none() => exported::read(card, files, tensors, notes, options),
        exported => read(files, tensors, notes, options)
            .map(|imported| imported.with_images(exported.and_then(|card| card.trained_on))),
    }
    .with_context(|| source.display().to_string())
}

/// Imports weights whose architecture follows from shapes, configuration files, and options.
fn read(
    files: SourceFiles,
    stored: Vec<StoredTensor>,
    mut notes: Vec<String>,
    options: &Options,
) -> Result<Imported> {
    let layout = recognize(&stored, options.layout)?;
    let metadata = collect::metadata(&files, layout, options, &mut notes)?;
    check_ambiguous(&stored, &metadata)?;
    let about_projection = about_projection(&stored)?;
    let (mut account, tensors, unneeded) = Account::open(layout, files, stored, notes)?;
    let facts = StoredWindows::of_tables(&unneeded)?.complete(&metadata.facts)?;
    let asked = Asked::of(options);
    let size = asked.image_size;
    let reading = image_size::read(&tensors, layout, &facts, size)
        .map_err(way_to_state::error)
        .with_context(|| match &options.config {
            Some(config) => format!("as {}, --config {config}", layout.name()),
            None => format!("as {}", layout.name()),
        })?;
    let tensors = account.set_aside(tensors, &reading);
    let pairs = facts.rotary.map(|(_, pairs)| pairs).unwrap_or_default();
    let tensors = weights::reorder_rotary(tensors, &reading.config, pairs);
    check_keys(&tensors, &reading)?;
    let (reading, tensors) = image_size::resampled(reading, tensors, asked, layout, &mut account.notes)?;
    account.notes.extend(reading.notes.iter().cloned());
    account.warnings.extend(reading.guesses.iter().map(way_to_state::warning));
    let mut pipeline = preprocessing::choose(&metadata, layout, &reading.config, &mut account.warnings);
    let stated = preprocessing::image_size(&metadata, layout, &reading);
    pipeline.image_size = image_size::of_images(stated, &reading, size.is_some(), &mut account.warnings)?;
    collect::add_crop(options, &metadata, &mut pipeline, CONFIGURATION)?;
    pipeline.validate()?;
    let classes = class_names(&reading, &metadata, options, &mut account.notes)?;
    let has_head = reading.has_head;
    let about_head = about_projection.filter(|_| has_head && metadata.classes.is_none());
    let resampling = layout.resampling(&reading.config);
    let card = ModelCard::new(reading.config, classes, pipeline);
    let card =
        ModelCard { about_head, resampling, ..card }.with_multi_label(metadata.multi_label && has_head);
    Ok(Imported { card, tensors, has_head, account })
}

/// Refuses tensors whose names do not tell whether a model has rotary positions, unless a configuration does.
fn check_ambiguous(stored: &[StoredTensor], metadata: &ModelMetadata) -> Result<()> {
    let is_eva = |tensor: &StoredTensor| {
        [".attn.q_bias", ".attn.q_proj.weight"].iter().any(|end| tensor.name.ends_with(end))
            && tensor.name.starts_with("blocks.")
    };
    // BEiT has the same biases, and a table of relative positions.
    let is_beit = stored.iter().any(|tensor| tensor.name.ends_with(".attn.relative_position_bias_table"));
    if let (Some(tensor), None, false) =
        (stored.iter().find(|tensor| is_eva(tensor)), metadata.facts.learned_position, is_beit)
    {
        bail!(
            "`{}` belongs to a model of timm's class Eva, and no tensor tells whether it has rotary positions: put the model's \
             config.json next to the weights, or name it (`vitrine import --config`)",
            tensor.name
        );
    }
    Ok(())
}

/// What the head of CLIP is, which nobody should take for classes. timm gives it a bias of zeros, which hardly any classifier has.
///
/// # Errors
/// If that bias cannot be read.
fn about_projection(stored: &[StoredTensor]) -> Result<Option<String>> {
    let named = |name: &str| stored.iter().find(|tensor| tensor.name == name);
    let is_projection = |tensor: &StoredTensor| {
        tensor.name.ends_with("visual_projection.weight") || tensor.name == "visual.proj"
    };
    let of_timm = match (named("norm_pre.weight"), named("head.bias")) {
        (Some(_), Some(bias)) => bias.read()?.values.iter().all(|value| *value == 0.0),
        _ => false,
    };
    Ok((of_timm || stored.iter().any(is_projection)).then(|| {
        let sure = if of_timm { "seems to be" } else { "is" };
        format!(
            "the head {sure} CLIP's projection to the space of texts: it gives an embedding, no classes, whose probabilities mean nothing"
        )
    }))
}

/// Checks every key and shape against the architecture.
fn check_keys(tensors: &[NamedTensor], reading: &Reading) -> Result<()> {
    let model = reading.config.init(&Device::default())?;
    let head = if reading.has_head { Vec::new() } else { weights::zero_head(&model) };
    Ok(weights::check(&model, tensors.iter().chain(&head))?)
}

/// The parameters of a model's head, under timm's names.
pub fn head_of(model: &VisionTransformer) -> Vec<NamedTensor> {
    let mut tensors = weights::to_timm(model);
    tensors.retain(|tensor| weights::is_head(&tensor.name));
    tensors
}

/// One line with the sizes of an architecture, for messages.
pub fn summary(config: &ModelConfig) -> String {
    let kind = if config.num_stages() > 1 { "stages of windows" } else { "plain" };
    format!(
        "{kind}, dim {}, depth {}, {} heads, patch {}, image {}",
        config.embed_dim, config.depth, config.num_heads, config.patch_size, config.image_size
    )
}
