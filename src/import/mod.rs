//! Other libraries' weights: read, recognised, accounted for key by key, and turned into a model of ours.

mod classes;
mod config_file;
mod preprocessing;
mod windows;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use vitrine_datasets::Preprocessing;
use vitrine_models::weights::{self, Facts, Layout, NamedTensor, Reading, read_architecture};
use vitrine_models::{ModelConfig, VisionTransformer, preset};

use crate::hub::weights as hub_weights;
use crate::model_file::ModelCard;
use crate::weights_file::{self, Entry};
use classes::class_names;
use config_file::Description;
use windows::Windows;

/// What the user says about weights that they do not say themselves.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whose names the keys are; told from the keys if left out.
    pub layout: Option<Layout>,
    /// The model's configuration as its library writes it, or a preset's name; `config.json` beside the weights if left out.
    pub config: Option<String>,
    /// A file with one class name a line.
    pub classes: Option<PathBuf>,
}

/// Weights of another library as a model of ours.
pub struct Imported {
    /// Architecture, classes and preprocessing.
    pub card: ModelCard,
    /// Under timm's names; they fit the architecture, but for the head where there is none.
    pub tensors: Vec<NamedTensor>,
    /// Whether there is a classifier.
    pub has_head: bool,
    /// Where everything came from.
    pub account: Account,
}

/// What became of every key, and what was found where.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// Whose names the keys are.
    pub layout: Layout,
    /// The files of weights.
    pub files: Vec<PathBuf>,
    /// Keys that the model is made of.
    pub used: usize,
    /// Keys that no model computes with, and why.
    pub unused: Vec<(String, &'static str)>,
    /// Where facts come from that are not in the weights, and what was assumed, a line each.
    pub notes: Vec<String>,
}

/// Reads `source`: a file of weights, or a folder as Hugging Face and timm write it.
///
/// # Errors
/// When it cannot be read, is no Vision Transformer, does not say enough, or has keys that are missing, unexpected or of another
/// shape: the message lists them all.
pub fn load(source: &Path, options: &Options) -> Result<Imported> {
    let files = Files::find(source)?;
    let mut notes = Vec::new();
    let mut description = describe(&files, options, &mut notes)?;
    let entries = files.entries(&mut notes)?;
    let layout = recognise(source, &entries, options.layout)?;
    let (unneeded, entries): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| weights::unused(&entry.name).is_some());
    let tensors = entries.iter().map(Entry::read).collect::<Result<Vec<_>>>()?;
    let used = tensors.len();
    let tensors = layout.to_timm(tensors);
    let tables = Windows::of_tables(&unneeded).with_context(|| source.display().to_string())?;
    let reading = architecture(source, &tensors, layout, tables, &mut description, options)?;
    let mut account = Account { layout, files: files.weights, used, unused: Vec::new(), notes };
    account.unused.extend(
        unneeded.into_iter().filter_map(|entry| Some((entry.name.clone(), weights::unused(&entry.name)?))),
    );
    let tensors = account.sort_out_head(tensors, reading.has_head);
    check(&tensors, &reading).with_context(|| source.display().to_string())?;
    account.notes.extend(reading.assumed.iter().cloned());
    let pipeline = preprocessing::choose(&description, layout, &reading.config, &mut account.notes);
    pipeline.validate().with_context(|| source.display().to_string())?;
    let classes = class_names(&reading, &description, options, &mut account.notes)?;
    let has_head = reading.has_head;
    Ok(Imported { card: ModelCard::new(reading.config, classes, pipeline), tensors, has_head, account })
}

/// The architecture of tensors under timm's names, by their shapes, the description and the tables stored beside them.
fn architecture(
    source: &Path,
    tensors: &[NamedTensor],
    layout: Layout,
    tables: Windows,
    description: &mut Description,
    options: &Options,
) -> Result<Reading> {
    let mut facts = description.facts.clone();
    facts.window = facts.window.or(tables.largest);
    facts.last_window = tables.last;
    facts.preset = description.preset.as_deref().and_then(preset::find);
    let named = source.display();
    let read = |facts: &Facts| {
        read_architecture(tensors, layout, facts).with_context(|| match &options.config {
            Some(config) => format!("{named} (as {}, --config {config})", layout.name()),
            None => format!("{named} (as {})", layout.name()),
        })
    };
    let reading = read(&facts)?;
    let Some(wrong) = facts.preset.take_if(|preset| !same_blocks(preset, &reading.config)) else {
        return Ok(reading);
    };
    if options.config.is_some() {
        bail!(
            "--config {}: this is {}, and {named} holds {}",
            description.preset.take().unwrap_or_default(),
            summary(&wrong),
            summary(&reading.config)
        );
    }
    // The name of a file, or timm's name of what was changed since.
    description.preset = None;
    read(&facts)
}

impl Account {
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

/// Whether two architectures have blocks of the same sizes.
fn same_blocks(a: &ModelConfig, b: &ModelConfig) -> bool {
    let sizes = |config: &ModelConfig| {
        (config.embed_dim, config.depth.clone(), config.patch_size, config.class_depth)
    };
    sizes(a) == sizes(b)
}

fn recognise(source: &Path, entries: &[Entry], wanted: Option<Layout>) -> Result<Layout> {
    if let Some(layout) = wanted {
        return Ok(layout);
    }
    let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    Layout::recognise(names.iter().copied()).with_context(|| {
        let first: Vec<&str> = names.iter().copied().take(5).collect();
        format!(
            "{}: no layout that is known has these keys ({}, ...); {} are known, for Vision Transformers and Swin; --layout names one",
            source.display(),
            first.join(", "),
            Layout::ALL.map(Layout::name).join(", ")
        )
    })
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

    fn entries(&self, notes: &mut Vec<String>) -> Result<Vec<Entry>> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut seen = BTreeSet::new();
        for path in &self.weights {
            let file = weights_file::open(path)?;
            if ModelCard::is_in(&file.metadata) {
                bail!("{}: this is a model of vitrine already", path.display());
            }
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
        Ok(entries)
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

/// What configuration files and names say.
fn describe(files: &Files, options: &Options, notes: &mut Vec<String>) -> Result<Description> {
    let mut description = match (&options.config, &files.config) {
        (Some(named), _) => match preset::find(named) {
            Some(_) => Description { preset: Some(named.clone()), ..Description::default() },
            None => config_file::read(Path::new(named)).with_context(|| {
                format!("--config {named}: a preset's name or a configuration file is needed")
            })?,
        },
        (None, Some(path)) => {
            notes.push(format!("configuration: {}", path.display()));
            config_file::read(path)?
        }
        (None, None) => Description::default(),
    };
    if let Some(path) = &files.preprocessor {
        notes.push(format!("preprocessing: {}", path.display()));
        config_file::read_preprocessor(path, &mut description)?;
    }
    let stem = files.weights.first().and_then(|path| path.file_stem()).unwrap_or_default().to_string_lossy();
    if config_file::has_enlarged_windows(&stem) {
        bail!("{stem}: windows that were enlarged after pre-training are not supported");
    }
    if description.preset.is_none() && options.config.is_none() {
        description.preset = files.weights.first().and_then(|path| preset_in(path));
        if let Some(name) = &description.preset {
            notes.push(format!("taken for {name} by the name of the file"));
        }
    }
    notes.append(&mut description.notes);
    Ok(description)
}

/// The longest name of a preset that a file's name begins with.
fn preset_in(path: &Path) -> Option<String> {
    let stem = path.file_stem()?.to_string_lossy().replace('-', "_");
    let names = preset::all().into_iter().map(|preset| preset.name).filter(|name| stem.starts_with(name));
    names.max_by_key(|name| name.len()).map(str::to_owned)
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
