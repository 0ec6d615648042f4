//! Other libraries' weights: read, recognized, accounted for key by key, and turned into a model of ours.

mod account;
mod classes;
mod config_file;
mod constructor;
mod description;
mod exported;
mod foreign;
mod hugging_face_config;
mod image_size;
mod preprocessing;
mod processor;
mod stated;
#[cfg(test)]
mod tests;
mod timm_config;
mod timm_names;
mod values;
pub mod verify;
mod way_to_state;
mod windows;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use vitrine_datasets::Preprocessing;
use vitrine_models::weights::{self, Facts, Layout, NamedTensor, Reading};
use vitrine_models::{ImageSize, ModelConfig, VisionTransformer};

use crate::hub::weights as hub_weights;
use crate::model_file::ModelCard;
use crate::weights_file::{self, Entry};
pub use account::Account;
use classes::class_names;
use windows::Windows;

/// What the user says about weights that they do not say themselves.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whose names the keys are; told from the keys if left out.
    pub layout: Option<Layout>,
    /// The model's configuration as its library writes it, a preset's name, or timm's; `config.json` next to the weights if left out.
    pub config: Option<String>,
    /// Attention heads, one number per stage.
    pub heads: Option<Vec<usize>>,
    /// Height and width of the input in pixels; positions that are stored for another size are resampled.
    pub image_size: Option<[usize; 2]>,
    /// Mean of each channel, from 0 to 1.
    pub mean: Option<Vec<f32>>,
    /// Standard deviation of each channel, from 0 to 1.
    pub std: Option<Vec<f32>>,
    /// Share of the scaled image that is kept.
    pub crop: Option<f64>,
    /// A file with one class name per line.
    pub classes: Option<PathBuf>,
}

impl Options {
    /// Whether the user leaves architecture and preprocessing to the files.
    fn state_nothing(&self) -> bool {
        let Self { layout: _, config, heads, image_size, mean, std, crop, classes: _ } = self;
        let stated = [config.is_some(), heads.is_some(), image_size.is_some(), mean.is_some(), std.is_some()];
        !stated.contains(&true) && crop.is_none()
    }
}

/// Weights of another library as a model of ours.
pub struct Imported {
    /// Architecture, classes and preprocessing. Without a head, the preprocessing may be for images of another size than that of the
    /// stored positions, which are resampled where training does not ask for a size of its own.
    pub card: ModelCard,
    /// Under timm's names; they fit the architecture, but for the head where there is none.
    pub tensors: Vec<NamedTensor>,
    /// Whether there is a classifier.
    pub has_head: bool,
    /// Where everything came from.
    pub account: Account,
}

/// Reads `source`: a file of weights, or a folder as Hugging Face and timm write it.
///
/// # Errors
/// When it cannot be read, is no Vision Transformer of ours, does not say enough, contradicts itself, or has keys that are missing,
/// unexpected or of another shape: the message names them.
pub fn load(source: &Path, options: &Options) -> Result<Imported> {
    let files = Files::find(source)?;
    let mut notes = Vec::new();
    let (entries, exported) = files.entries(&mut notes)?;
    match exported.filter(|_| options.state_nothing()) {
        Some(card) => exported::read(card, files, entries, notes, options),
        None => read(files, entries, notes, options),
    }
    .with_context(|| source.display().to_string())
}

fn read(files: Files, entries: Vec<Entry>, mut notes: Vec<String>, options: &Options) -> Result<Imported> {
    let layout = recognize(&entries, options.layout)?;
    let description = stated::describe(&files, layout, options, &mut notes)?;
    let (mut account, tensors, unneeded) = Account::of(layout, files, entries, notes)?;
    let facts = with_windows(&description.facts, &Windows::of_tables(&unneeded)?)?;
    let asked = options.image_size.map(|[height, width]| ImageSize { height, width });
    let reading = image_size::read(&tensors, layout, &facts, asked)
        .map_err(way_to_state::error)
        .with_context(|| match &options.config {
            Some(config) => format!("as {}, --config {config}", layout.name()),
            None => format!("as {}", layout.name()),
        })?;
    let tensors = account.sort_out_head(tensors, reading.has_head);
    check(&tensors, &reading)?;
    let (reading, tensors) = match asked.filter(|asked| *asked != reading.config.image_size) {
        Some(asked) => image_size::resampled(reading, tensors, asked, layout, &mut account.notes)?,
        None => (reading, tensors),
    };
    account.notes.extend(reading.notes.iter().cloned());
    account.warnings.extend(reading.guesses.iter().map(way_to_state::warning));
    let mut pipeline = preprocessing::choose(&description, layout, &reading.config, &mut account.warnings);
    pipeline.image_size =
        image_size::of_images(&description, &reading, asked.is_some(), &mut account.warnings)?;
    stated::add_crop(options, &description, &mut pipeline)?;
    pipeline.validate()?;
    let classes = class_names(&reading, &description, options, &mut account.notes)?;
    let has_head = reading.has_head;
    Ok(Imported { card: ModelCard::new(reading.config, classes, pipeline), tensors, has_head, account })
}

/// What is stated, with the windows that stored tables are for.
fn with_windows(stated: &Facts, tables: &Windows) -> Result<Facts> {
    if let (Some(stated), Some(table)) = (stated.window, tables.largest)
        && stated < table
    {
        bail!(
            "the configuration states windows of {stated}, but the stored tables are for windows of {table}"
        );
    }
    Ok(Facts { window: stated.window.or(tables.largest), last_window: tables.last, ..stated.clone() })
}

impl Account {
    /// What the entries are used for: the tensors under timm's names, and those that no model computes with.
    fn of(
        layout: Layout,
        files: Files,
        entries: Vec<Entry>,
        notes: Vec<String>,
    ) -> Result<(Self, Vec<NamedTensor>, Vec<Entry>)> {
        let (unneeded, entries): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| weights::unused(&entry.name).is_some());
        let tensors = entries.iter().map(Entry::read).collect::<Result<Vec<_>>>()?;
        let unused = unneeded
            .iter()
            .filter_map(|entry| Some((entry.name.clone(), weights::unused(&entry.name)?)))
            .collect();
        let files = files.weights;
        let account = Self { layout, files, used: tensors.len(), unused, notes, warnings: Vec::new() };
        Ok((account, layout.to_timm(tensors), unneeded))
    }

    /// The tensors without a head that does not count, which is noted.
    fn sort_out_head(&mut self, tensors: Vec<NamedTensor>, keep: bool) -> Vec<NamedTensor> {
        let (head, rest): (Vec<_>, Vec<_>) =
            tensors.into_iter().partition(|tensor| !keep && weights::is_head(&tensor.name));
        self.used -= head.len().min(self.used);
        self.unused.extend(head.into_iter().map(|tensor| (tensor.name, "a head that cannot be used here")));
        rest
    }
}

impl Imported {
    /// The model; a head that is missing is fresh.
    ///
    /// # Errors
    /// When the tensors do not fit after all.
    pub fn model(mut self, device: &Device) -> Result<VisionTransformer> {
        let fresh = self.card.model.init(device)?;
        if !self.has_head {
            self.tensors.extend(head_of(&fresh));
        }
        Ok(weights::from_timm(fresh, self.tensors)?)
    }
}

/// The head's parameters of a model.
pub fn head_of(model: &VisionTransformer) -> Vec<NamedTensor> {
    let mut tensors = weights::to_timm(model);
    tensors.retain(|tensor| weights::is_head(&tensor.name));
    tensors
}

/// Checks every key and shape against the architecture.
fn check(tensors: &[NamedTensor], reading: &Reading) -> Result<()> {
    let model = reading.config.init(&Device::default())?;
    let head = if reading.has_head { Vec::new() } else { head_of(&model) };
    Ok(weights::check(&model, tensors.iter().chain(&head))?)
}

/// The layout that the user names, or that the keys tell.
fn recognize(entries: &[Entry], wanted: Option<Layout>) -> Result<Layout> {
    let names = || entries.iter().map(|entry| entry.name.as_str());
    if let Some((name, part)) = foreign::part(names().filter(|name| weights::unused(name).is_none())) {
        bail!("`{name}` belongs to a model with {part}, which is not supported");
    }
    let told = Layout::recognize(names().collect::<Vec<_>>());
    match (wanted, told) {
        (Some(wanted), Some(told)) if wanted != told => {
            bail!("--layout {}: the names of the tensors are those of {}", wanted.name(), told.name())
        }
        (Some(layout), _) | (None, Some(layout)) => Ok(layout),
        (None, None) => {
            let first: Vec<&str> = names().take(5).collect();
            bail!(
                "no known layout has these keys ({}, ...); {} are known, for Vision Transformers and Swin; --layout chooses one",
                first.join(", "),
                Layout::ALL.iter().map(|layout| layout.name()).collect::<Vec<_>>().join(", ")
            )
        }
    }
}

/// The files that a source consists of.
struct Files {
    weights: Vec<PathBuf>,
    config: Option<PathBuf>,
    preprocessor: Option<PathBuf>,
}

impl Files {
    fn find(source: &Path) -> Result<Self> {
        if !source.exists() {
            bail!("{}: there is no such file or folder", source.display());
        }
        let folder = if source.is_dir() { Some(source) } else { source.parent() };
        let beside = |name: &str| folder.map(|folder| folder.join(name)).filter(|path| path.is_file());
        let weights = if source.is_dir() { weights_in(source)? } else { vec![source.to_owned()] };
        Ok(Self { weights, config: beside("config.json"), preprocessor: beside("preprocessor_config.json") })
    }

    /// All tensors, and what vitrine's own exporter wrote next to them.
    fn entries(&self, notes: &mut Vec<String>) -> Result<(Vec<Entry>, Option<ModelCard>)> {
        let mut exported = None;
        let mut entries: Vec<Entry> = Vec::new();
        let mut seen = BTreeSet::new();
        for path in &self.weights {
            let file = weights_file::open(path)?;
            if ModelCard::is_in(&file.metadata) {
                bail!("{}: this is already a vitrine model", path.display());
            }
            exported = exported.or(ModelCard::exported_in(&file.metadata, path)?);
            notes.extend(file.part);
            for entry in file.entries {
                if !seen.insert(entry.name.clone()) {
                    bail!("{}: `{}` is in an earlier part too", path.display(), entry.name);
                }
                entries.push(entry);
            }
        }
        if entries.is_empty() {
            let files: Vec<String> = self.weights.iter().map(|path| path.display().to_string()).collect();
            bail!("{}: there are no tensors in it", files.join(", "));
        }
        Ok((entries, exported))
    }
}

/// The weights of a folder: one file, or the parts that an index names.
fn weights_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let Some(file) = hub_weights::choose(|name| folder.join(name).is_file()) else {
        bail!(
            "{}: the folder holds neither model.safetensors nor pytorch_model.bin, whole or with an index",
            folder.display()
        );
    };
    let path = folder.join(file);
    if !hub_weights::is_index(file) {
        return Ok(vec![path]);
    }
    Ok(hub_weights::shards(&path)?.into_iter().map(|part| folder.join(part)).collect())
}

/// A model's preprocessing for a variant of it with another image size or other channels.
pub fn preprocessing_for(preprocessing: &Preprocessing, model: &ModelConfig) -> Preprocessing {
    Preprocessing {
        image_size: [model.image_size.height, model.image_size.width],
        channels: model.channels,
        mean: preprocessing::of_channels(&preprocessing.mean, model.channels),
        std: preprocessing::of_channels(&preprocessing.std, model.channels),
        ..preprocessing.clone()
    }
}

/// The architecture that a source describes, for messages.
pub fn summary(config: &ModelConfig) -> String {
    let kind = if config.num_stages() > 1 { "stages of windows" } else { "plain" };
    format!(
        "{kind}, dim {}, depth {}, {} heads, patch {}, image {}",
        config.embed_dim, config.depth, config.num_heads, config.patch_size, config.image_size
    )
}
