//! Other libraries' weights: read, recognised, accounted for key by key, and turned into a model of ours.

mod config_file;
mod preprocessing;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use serde::Deserialize;
use vitrine_datasets::Preprocessing;
use vitrine_models::weights::{self, Facts, Layout, NamedTensor, Reading, read_architecture};
use vitrine_models::{ModelConfig, VisionTransformer, preset};

use crate::model_file::ModelCard;
use crate::weights_file::{self, Entry};
use config_file::Description;

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
    let description = describe(&files, options, &mut notes)?;
    let entries = files.entries()?;
    let layout = recognise(source, &entries, options.layout)?;
    let (unused, entries): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| weights::unused(&entry.name).is_some());
    let tensors = entries.iter().map(Entry::read).collect::<Result<Vec<_>>>()?;
    let used = tensors.len();
    let tensors = layout.to_timm(tensors);

    let mut facts = description.facts.clone();
    facts.preset = description.preset.as_deref().and_then(preset::find);
    facts.window = facts.window.or_else(|| unused.iter().find_map(window_of_table));
    let reading = read_architecture(&tensors, layout, &facts)
        .with_context(|| format!("{} (as {})", source.display(), layout.name()))?;
    let tensors = fit(tensors, &reading, &facts).with_context(|| source.display().to_string())?;
    notes.extend(reading.assumed.iter().cloned());
    let pipeline = preprocessing::choose(&description, layout, &reading.config, &mut notes);
    pipeline.validate().with_context(|| source.display().to_string())?;
    let classes = class_names(&reading, &description, options, &mut notes)?;
    let unused: Vec<(String, &'static str)> = unused
        .into_iter()
        .filter_map(|entry| weights::unused(&entry.name).map(|reason| (entry.name, reason)))
        .collect();
    Ok(Imported {
        card: ModelCard::new(reading.config, classes, pipeline),
        tensors,
        has_head: reading.has_head,
        account: Account { layout, used, unused, notes },
    })
}

impl Imported {
    /// The model; a head that is missing is fresh.
    ///
    /// # Errors
    /// When the tensors do not fit after all.
    pub fn model(self, device: &Device) -> Result<VisionTransformer> {
        let fresh = self.card.model.init(device)?;
        let head = if self.has_head { Vec::new() } else { head_of(&fresh) };
        Ok(weights::from_timm(fresh, [self.tensors, head].concat())?)
    }
}

/// The head's parameters of a model.
pub fn head_of(model: &VisionTransformer) -> Vec<NamedTensor> {
    let mut tensors = weights::to_timm(model);
    tensors.retain(|tensor| weights::is_head(&tensor.name));
    tensors
}

/// Checks every key against the architecture, and leaves out a head that does not count.
fn fit(mut tensors: Vec<NamedTensor>, reading: &Reading, facts: &Facts) -> Result<Vec<NamedTensor>> {
    if !reading.has_head {
        tensors.retain(|tensor| !weights::is_head(&tensor.name));
    }
    let model = reading.config.init(&Device::default())?;
    let head = if reading.has_head { Vec::new() } else { head_of(&model) };
    if let Err(error) = weights::check(&model, tensors.iter().chain(&head)) {
        let hint = match facts.preset {
            Some(_) => "; is the name or the configuration file another model's?",
            None => "; a configuration file (--config) may tell what shapes do not",
        };
        bail!("{error}{hint}");
    }
    Ok(tensors)
}

/// The side of the windows that a table of relative positions in the file is for.
fn window_of_table(entry: &Entry) -> Option<usize> {
    let side = match (entry.name.rsplit('.').next()?, entry.shape.as_slice()) {
        ("relative_coords_table", &[1, side, _, 2]) => side.div_ceil(2),
        ("relative_position_index", &[area, _]) => area.isqrt(),
        ("relative_position_index", &[square]) => square.isqrt().isqrt(),
        _ => return None,
    };
    (side > 0).then_some(side)
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

    fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut seen = BTreeSet::new();
        for path in &self.weights {
            let file = weights_file::open(path)?;
            if ModelCard::is_in(&file.metadata) {
                bail!("{}: this is a model of vitrine already", path.display());
            }
            for entry in file.entries {
                if !seen.insert(entry.name.clone()) {
                    bail!("{}: `{}` is in an earlier part too", path.display(), entry.name);
                }
                entries.push(entry);
            }
        }
        if entries.is_empty() {
            bail!("{}: there are no tensors in it", self.weights[0].display());
        }
        Ok(entries)
    }
}

/// The weights of a folder: one file, or the parts that an index names.
fn weights_in(folder: &Path) -> Result<Vec<PathBuf>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    for name in ["model.safetensors", "pytorch_model.bin"] {
        let whole = folder.join(name);
        if whole.is_file() {
            return Ok(vec![whole]);
        }
        let index = folder.join(format!("{name}.index.json"));
        if !index.is_file() {
            continue;
        }
        let text = std::fs::read(&index).with_context(|| format!("{}: cannot be read", index.display()))?;
        let parts: Index = serde_json::from_slice(&text)
            .with_context(|| format!("{}: not an index of weights", index.display()))?;
        let names: BTreeSet<String> = parts.weight_map.into_values().collect();
        return names
            .into_iter()
            .map(|part| {
                let plain =
                    Path::new(&part).components().count() == 1 && Path::new(&part).file_name().is_some();
                if !plain {
                    bail!("{}: `{part}` is no file beside it", index.display());
                }
                Ok(folder.join(part))
            })
            .collect();
    }
    bail!(
        "{}: the folder holds neither model.safetensors nor pytorch_model.bin, whole or with an index",
        folder.display()
    )
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

/// ImageNet-1k's classes in the order of all models trained on it, as torchvision names them.
const IMAGENET_CLASSES: &str = include_str!("imagenet_classes.txt");

fn class_names(
    reading: &Reading,
    description: &Description,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Vec<String>> {
    let count = reading.config.num_classes;
    if let Some(path) = &options.classes {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("--classes {}: cannot be read", path.display()))?;
        let names: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
        if names.len() != count || names.iter().any(String::is_empty) {
            bail!(
                "--classes {}: {} names are needed, one a line, and there are {}",
                path.display(),
                count,
                names.iter().filter(|name| !name.is_empty()).count()
            );
        }
        return Ok(names);
    }
    if !reading.has_head {
        return Ok(vec!["none".to_owned()]);
    }
    match &description.classes {
        Some(names) if names.len() == count => return Ok(names.clone()),
        Some(names) => notes.push(format!(
            "the configuration names {} classes and the head has {count}: not used",
            names.len()
        )),
        None => {}
    }
    if count == 1000 {
        notes.push("class names: ImageNet-1k's, by their number; --classes names others".to_owned());
        return Ok(IMAGENET_CLASSES.lines().map(str::to_owned).collect());
    }
    notes.push("class names: numbers, for nothing names them; --classes does".to_owned());
    Ok((0..count).map(|class| class.to_string()).collect())
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
