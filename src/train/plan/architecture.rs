//! What is trained where nobody said so: an architecture in the size of the images.

use std::path::Path;

use anyhow::{Context, Result, bail};
use vitrine_models::{ImageSize, ModelConfig, Tokenizer, preset};

use super::{Evidence, Overrides};
use crate::files::read_text;
use crate::import;
use crate::model_file::ModelCard;
use crate::usage::{did_you_mean, usage};

/// The architecture, for the data's classes, and what it is called.
pub(super) fn choose(
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    reasons: &mut Vec<String>,
) -> Result<(String, ModelConfig)> {
    let (name, mut model) = match (evidence.pretrained, &overrides.model) {
        (Some((name, card)), _) => pretrained(overrides, evidence, name, card, reasons),
        (None, Some(wanted)) => asked_for(wanted, overrides, evidence)?,
        (None, None) => by_default(overrides, evidence, reasons),
    };
    model.num_classes = classes_of(&model, overrides, evidence)?;
    Ok((name, model))
}

fn asked_for(wanted: &str, overrides: &Overrides, evidence: &Evidence<'_>) -> Result<(String, ModelConfig)> {
    let (name, mut config, is_preset) = named_model(wanted)?;
    if is_preset {
        config.channels = evidence.channels();
    }
    if let Some(side) = overrides.image_size {
        config.image_size = ImageSize::square(side);
    }
    Ok((name, config))
}

fn by_default(
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    reasons: &mut Vec<String>,
) -> (String, ModelConfig) {
    let side = evidence.survey.sizes.width.median.min(evidence.survey.sizes.height.median) as usize;
    let (image, patch, why) = match (overrides.image_size, side) {
        (Some(size), _) => (size, patch_for(size), format!("patch {} divides it", patch_for(size))),
        (None, ..=40) => (
            side.next_multiple_of(4).max(16),
            4,
            format!("the images are {side} pixels on their shorter side"),
        ),
        (None, ..=96) => (64, 8, format!("the images are about {side} pixels on their shorter side")),
        (None, _) => (
            96,
            8,
            format!("the images are about {side} pixels, and training from scratch works best on small ones"),
        ),
    };
    let large = evidence.train >= 100_000 && !evidence.survey.gray;
    let name = if large { "vit_nano_patch4_32" } else { "vit_pico_patch4_32" };
    let size_why = match (large, evidence.survey.gray) {
        (true, _) => format!("{} color images are enough for it", evidence.train),
        (false, true) => "enough for gray images".to_owned(),
        (false, false) => format!("{} images; a larger model needs 100,000 or many hours", evidence.train),
    };
    let base = preset::find(name).expect("a preset of this program");
    let config = ModelConfig {
        image_size: ImageSize::square(image),
        patch_size: patch,
        channels: evidence.channels(),
        ..base
    };
    let family = if large { "vit_nano" } else { "vit_pico" };
    reasons.push(format!("image size {image}, patch {patch}: {why}"));
    reasons.push(format!(
        "model {family}: dim {}, depth {}, {} heads: {size_why}",
        config.embed_dim, config.depth, config.num_heads
    ));
    (format!("{family}_patch{patch}_{image}"), config)
}

/// The largest usual patch that gives at least 8 by 8 of them; where none divides, 4, so that the error names it.
fn patch_for(side: usize) -> usize {
    [16, 14, 8, 7, 4, 2]
        .into_iter()
        .find(|patch| side.is_multiple_of(*patch) && side / patch >= 8)
        .unwrap_or(4)
}

/// The architecture that `--model` names, what it is called, and whether it is a preset rather than a TOML file.
///
/// # Errors
/// When there is no such preset or file, or the file describes no model.
pub fn named_model(wanted: &str) -> Result<(String, ModelConfig, bool)> {
    if let Some(config) = preset::find(wanted) {
        return Ok((wanted.to_owned(), config, true));
    }
    let path = Path::new(wanted);
    if path.extension().is_none_or(|extension| extension != "toml") {
        let names = preset::all().into_iter().map(|entry| entry.name);
        usage!(
            "--model {wanted}: there is no such preset{}; `vitrine presets` lists them, or name a .toml file",
            did_you_mean(wanted, names)
        );
    }
    let config = read_model(path).context("--model")?;
    let name = path.file_stem().map_or_else(|| wanted.to_owned(), |stem| stem.to_string_lossy().into_owned());
    Ok((name, config, false))
}

/// The architecture that a TOML file describes.
///
/// # Errors
/// When the file cannot be read or describes no model; the message names it.
pub fn read_model(path: &Path) -> Result<ModelConfig> {
    let named = || path.display().to_string();
    let text = read_text(path).with_context(named)?;
    let config: ModelConfig = toml::from_str(&text).with_context(named)?;
    config.validate().with_context(named)?;
    Ok(config)
}

/// The architecture of pretrained weights, for the data's size and colors.
fn pretrained(
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    name: &str,
    card: &ModelCard,
    reasons: &mut Vec<String>,
) -> (String, ModelConfig) {
    // The filters of plain patches can be joined or repeated.
    let channels = match (card.model.tokenizer, evidence.survey.gray) {
        (Tokenizer::Patch, true) => 1,
        (Tokenizer::Patch, false) => 3,
        (Tokenizer::ShiftedPatch | Tokenizer::Convolution { .. }, _) => card.model.channels,
    };
    let image_size = overrides.image_size.map_or(card.model.image_size, ImageSize::square);
    let config = ModelConfig { image_size, channels, ..card.model.clone() };
    reasons.push(format!("pretrained {name}: {}", import::summary(&config)));
    (name.to_owned(), config)
}

/// As many classes as the data have; a file of an architecture that states another number is not meant for them.
fn classes_of(model: &ModelConfig, overrides: &Overrides, evidence: &Evidence<'_>) -> Result<usize> {
    let classes = evidence.info.classes.len();
    let stated = match &overrides.model {
        Some(file) if preset::find(file).is_none() => Path::new(file),
        _ => return Ok(classes),
    };
    if model.num_classes != classes && model.num_classes != ModelConfig::DEFAULT_CLASSES {
        bail!(
            "{}: `num_classes` is {}, but the data set has {classes} classes: leave it out",
            stated.display(),
            model.num_classes
        );
    }
    Ok(classes)
}
