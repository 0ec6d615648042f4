//! The choice of an architecture and its image size, where the user does not state them.

use std::path::Path;

use anyhow::{Context, Result, bail};
use vitrine_datasets::SourceKind;
use vitrine_models::{ImageSize, ModelConfig, Tokenizer, preset};

use super::{Evidence, Overrides, adjacency};
use crate::files::{has_extension, read_text};
use crate::import;
use crate::model_file::ModelCard;
use crate::toml_text;
use crate::usage::{did_you_mean, usage};

/// The name and the architecture of the model, for the classes of the data set. Adds the reasons for choices to
/// `reasons`.
pub(super) fn choose(
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    reasons: &mut Vec<String>,
) -> Result<(String, ModelConfig)> {
    let (name, mut model) = match (evidence.pretrained, &overrides.model) {
        (Some((name, card)), _) => pretrained(overrides, evidence, name, card, reasons),
        (None, Some(wanted)) => requested(wanted, overrides, evidence)?,
        (None, None) => by_default(overrides, evidence, reasons)?,
    };
    model.num_classes = num_classes(&model, overrides, evidence)?;
    Ok((name, model))
}

fn requested(wanted: &str, overrides: &Overrides, evidence: &Evidence<'_>) -> Result<(String, ModelConfig)> {
    let (name, mut config, is_preset) = named_model(wanted)?;
    if is_preset {
        config.channels = evidence.channels();
    }
    if let Some(side) = overrides.image_size {
        config.image_size = ImageSize::square(side);
    }
    Ok((name, config))
}

/// The default architecture, at the largest image size that the time limit allows.
fn by_default(
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    reasons: &mut Vec<String>,
) -> Result<(String, ModelConfig)> {
    let ((map, stride), why) = match overrides.image_size {
        Some(side) => of_stated_size(side, evidence)?,
        None => size_for(evidence),
    };
    let model = match stride {
        1 => for_time(map, evidence),
        _ => strided(map, stride, evidence),
    };
    Ok(described(model, why, reasons))
}

/// Adds the reasons for an architecture, and returns it with its name.
fn described(
    (preset, config): (&str, ModelConfig),
    why: String,
    reasons: &mut Vec<String>,
) -> (String, ModelConfig) {
    let side = config.image_size.width;
    let family = preset.split("_patch").next().unwrap_or(preset);
    let name = format!("{family}_patch{}_{side}", config.patch_size);
    reasons.push(format!("image size {side}: {why}"));
    reasons.push(format!(
        "model {name}: convolutions that make {} tokens of {} channels, then attention: they learn most from few images and in \
         little time",
        config.num_tokens(),
        config.embed_dim
    ));
    (name, config)
}

/// The largest number of training images for which pretrained weights are suggested.
const FEW_IMAGES: usize = 2000;

/// What pretrained weights may be worth, for few color images of a user who has chosen neither weights nor an architecture.
pub(super) fn pretrained_hint(overrides: &Overrides, evidence: &Evidence<'_>) -> Option<&'static str> {
    let is_own = match evidence.info.source {
        SourceKind::Folder | SourceKind::Manifest | SourceKind::Archive => true,
        SourceKind::Shapes | SourceKind::Idx | SourceKind::Cifar => false,
    };
    let is_open = evidence.pretrained.is_none() && overrides.model.is_none() && overrides.recipe.is_none();
    (is_own && is_open && evidence.train <= FEW_IMAGES && !evidence.survey.gray).then_some(
        "few images: pretrained weights may recognize more, such as --pretrained dinov2-small (others: vitrine presets); with 50 images a \
         class, such weights reached 65% instead of 56% on the varied photos of CIFAR-10, but 94% instead of 99% on signs of hands",
    )
}

/// Sides of the map that the stages of convolutions see, for images of more than 40 pixels, from the largest.
const MAPS: [usize; 5] = [128, 96, 64, 48, 32];

/// The largest stride for an image size that the user states.
const MAX_STRIDE: usize = 4;

/// The side of the map that the stages of convolutions see, with the stride that makes it from the image. With a stride of 1, the map is as
/// large as the image.
type Map = (usize, usize);

/// The maps for images of this side, from the largest; those that a stride makes are cut into whole patches of 8 by 8.
fn maps_of(side: usize) -> Vec<Map> {
    let map_of = |stride: usize| side.is_multiple_of(stride).then_some((side / stride, stride));
    let has_patch = |&(map, stride): &Map| {
        patch_for(map).is_some() && (stride == 1 || (map >= 32 && map.is_multiple_of(8)))
    };
    (1..=MAX_STRIDE).filter_map(map_of).filter(has_patch).collect()
}

/// The map for images of a size that the user states, and the reason for it.
fn of_stated_size(side: usize, evidence: &Evidence<'_>) -> Result<(Map, String)> {
    let Some(map) = affordable(&maps_of(side), evidence) else {
        let larger = (side..).find(|&side| !maps_of(side).is_empty()).unwrap_or(side);
        usage!(
            "--image-size {side}: the default model cannot cut such images into patches; the next larger size that it can is {larger}; \
             or choose a --model"
        )
    };
    let why = match map.1 {
        1 => "as stated".to_owned(),
        stride => format!("as stated, in patches of {stride} by {stride} pixels, which take less time"),
    };
    Ok((map, why))
}

/// The map for the data set, and the reason for the size of the image. For images of up to 40 pixels, the stride is 1.
fn size_for(evidence: &Evidence<'_>) -> (Map, String) {
    let native = evidence.native_side() as usize;
    if native <= 40 {
        let why = format!("the images are {native} pixels on their shorter side");
        return ((native.next_multiple_of(8).max(16), 1), why);
    }
    let maps: Vec<Map> = MAPS.into_iter().filter_map(|map| Some((map, stride_for(map, native)?))).collect();
    let map = affordable(&maps, evidence).expect("the smallest is below 41 pixels");
    let why = match (epochs_of(map, evidence), &evidence.budget) {
        (Some(epochs), Some(budget)) => format!(
            "the time pays for {} epochs at this size (measured: {:.1} billion multiply-adds a second)",
            super::rounded(epochs),
            budget.multiply_adds_per_second / 1e9
        ),
        _ => "training from scratch works best on small ones".to_owned(),
    };
    (map, format!("the images are about {native} pixels on their shorter side, and {why}"))
}

/// The first of these maps, from the largest, that leaves time for enough epochs; without a time limit, the first of up to 64 pixels.
/// The last one if none does, and `None` if there are none.
fn affordable(maps: &[Map], evidence: &Evidence<'_>) -> Option<Map> {
    let wanted = wanted_epochs(evidence.train);
    let pays = |&map: &Map| match epochs_of(map, evidence) {
        Some(epochs) => epochs >= wanted * more_for_larger(map.0),
        None => map.0 <= 64,
    };
    maps.iter().copied().find(pays).or(maps.last().copied())
}

/// The number of epochs that the time limit pays for, if there is one.
fn epochs_of((map, stride): Map, evidence: &Evidence<'_>) -> Option<f64> {
    Some(evidence.budget?.epochs(&strided(map, stride, evidence).1, evidence.train))
}

/// The stride by which images of this resolution become a map of this side; `None` if there are too few pixels, or where another map of the
/// same cost is better. Sizes up to 10% above the original resolution are allowed; so little upscaling does no harm.
///
/// A stride shows details that a smaller image would lose, at no cost. After training with 1,578 scenes with emoji, all in the
/// same time, test accuracy and loss are 51.8% and 1.55 at 32 pixels; 54.7, 55.7, and 55.1% and 1.48, 1.46, and 1.47 with strides of 2, 3,
/// and 4 and maps of 32. In four times the time, they are 57.6% and 1.30 at 64 pixels, and 59.3% and 1.28 at 128 with a stride of 2.
fn stride_for(map: usize, native: usize) -> Option<usize> {
    let fits = |stride: usize| 10 * map * stride <= 11 * native;
    let strides: &[usize] = if map == 32 { &[3, 2, 1] } else { &[2, 1] };
    // 32 with a stride takes the same time.
    let is_needless = map == 48 && stride_for(32, native).is_some_and(|stride| stride > 1);
    strides.iter().copied().find(|&stride| fits(stride)).filter(|_| !is_needless)
}

/// The number of epochs that a map must leave time for: with fewer, a run gains more from further epochs than
/// from larger maps. Small data sets need more epochs. After training with 1,564 scenes with emoji (two seeds each), 29 epochs of `long`
/// at 48 pixels recognize as many as 16 of `short` at 64, which take as much arithmetic (56.2 and 56.0%), and 33 at 64 as many as 15 at
/// 96 (57.5 and 57.5%), with lower losses (1.33 and 1.44, 1.29 and 1.34); 38 at 96 are ahead of 24 at 128 (58.8, and one run of 55.3%).
fn wanted_epochs(images: usize) -> f64 {
    (28_000.0 / images.max(1) as f64).clamp(4.0, 25.0)
}

/// How many times as many epochs a map must leave time for as maps of up to 96 pixels.
fn more_for_larger(map: usize) -> f64 {
    (map as f64 / 96.0).max(1.0)
}

/// The default architecture for images of up to 40 pixels.
const SMALLEST: &str = "hybrid_micro_patch8_32";

/// The larger ones, from the largest, each with the number of epochs at full image size that it must leave time for. In the time of 15
/// epochs of the smallest, 9 of the next are ahead on CIFAR-10 as it was published, by 0.3%, and as accurate on its images as JPEG; with
/// three times as much arithmetic, 11 epochs of the largest are ahead of 25 (`benches/peers/README.md`).
const LARGER: [(&str, f64); 2] = [("hybrid_base_patch8_32", 9.0), ("hybrid_small_patch8_32", 7.0)];

/// The number of training images from which larger architectures are chosen.
const IMAGES_OF_LARGER: usize = 20_000;

/// The default architecture for an image size, and its preset: the largest that the time limit allows, if there is one.
fn for_time(side: usize, evidence: &Evidence<'_>) -> (&'static str, ModelConfig) {
    let smallest = hybrid(side, evidence.channels());
    let Some(budget) = evidence.budget.filter(|_| evidence.train >= IMAGES_OF_LARGER && side <= 40) else {
        return smallest;
    };
    let larger = LARGER.map(|(name, epochs)| (resized(name, side, evidence.channels()), epochs));
    let affordable =
        larger.into_iter().find(|((_, config), epochs)| budget.epochs(config, evidence.train) >= *epochs);
    affordable.map_or(smallest, |(found, _)| found)
}

/// The default architecture for an image size, without regard to the time, and its preset: residual convolutions down to a grid
/// of tokens, then attention.
fn hybrid(side: usize, channels: usize) -> (&'static str, ModelConfig) {
    resized(if side <= 40 { SMALLEST } else { "hybrid_nano_patch8_64" }, side, channels)
}

/// The default architecture for a map of this side, which a stride makes from larger images, and its preset.
fn strided(map: usize, stride: usize, evidence: &Evidence<'_>) -> (&'static str, ModelConfig) {
    let (name, config) = hybrid(map, evidence.channels());
    (name, config.with_stride(stride))
}

/// A preset for another image size, and its name.
fn resized(name: &'static str, side: usize, channels: usize) -> (&'static str, ModelConfig) {
    let base = preset::find(name).expect("a preset of this program");
    // For sides that no patch size divides, an earlier check or the validation of the model reports the error.
    let patch_size = patch_for(side).unwrap_or(base.patch_size);
    (name, ModelConfig { image_size: ImageSize::square(side), patch_size, channels, ..base })
}

/// The architecture to measure the speed of training with: the requested one, or else the default one for images of 32
/// pixels.
///
/// # Errors
/// When the requested architecture does not exist.
pub(super) fn to_measure(overrides: &Overrides, evidence: &Evidence<'_>) -> Result<ModelConfig> {
    let mut config = match &overrides.model {
        Some(wanted) => requested(wanted, overrides, evidence)?.1,
        // Larger ones may get a stride, which the measured speed decides.
        None => hybrid(overrides.image_size.unwrap_or(32).min(32), evidence.channels()).1,
    };
    config.num_classes = evidence.info.classes.len();
    Ok(config)
}

/// The default patch size for an image size: it results in 4 by 4 tokens or more, up to 24 by 24 for large images.
/// `None` if no suitable patch size divides the side.
fn patch_for(side: usize) -> Option<usize> {
    let fitting: &[usize] = match side {
        ..=23 => &[4, 2],
        24..=40 => &[8, 4, 2],
        41..=96 => &[8, 4],
        97..=191 => &[8],
        192..=383 => &[16],
        _ => &[32],
    };
    fitting.iter().copied().find(|patch| side.is_multiple_of(*patch))
}

/// The name and architecture that `--model` refers to, and whether it is a preset rather than a TOML file.
///
/// # Errors
/// When there is no such preset or file, or the file does not describe a valid model.
pub fn named_model(wanted: &str) -> Result<(String, ModelConfig, bool)> {
    if let Some(config) = preset::find(wanted) {
        return Ok((wanted.to_owned(), config, true));
    }
    let path = Path::new(wanted);
    if !has_extension(path, "toml") {
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

/// Reads an architecture from a TOML file.
///
/// # Errors
/// When the file cannot be read or does not describe a valid model; the message names the file.
pub fn read_model(path: &Path) -> Result<ModelConfig> {
    let named = || path.display().to_string();
    let text = read_text(path).with_context(named)?;
    let config: ModelConfig = match adjacency::with_edges(&text, path)? {
        Some(table) => {
            table.try_into().map_err(|error| toml_text::in_one_line(&text, &error)).with_context(named)?
        }
        None => toml_text::parse(&text).with_context(named)?,
    };
    config.validate().with_context(named)?;
    Ok(config)
}

/// The architecture of pretrained weights, with the image size and channels of this run.
fn pretrained(
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    name: &str,
    card: &ModelCard,
    reasons: &mut Vec<String>,
) -> (String, ModelConfig) {
    // Plain patch embeddings can be converted between gray and color, by combining or repeating their filters.
    let channels = match (card.model.tokenizer, evidence.survey.gray) {
        (Tokenizer::Patch, true) => 1,
        (Tokenizer::Patch, false) => 3,
        (Tokenizer::ShiftedPatch | Tokenizer::Convolution { .. } | Tokenizer::Residual { .. }, _) => {
            card.model.channels
        }
    };
    let [height, width] = card.preprocessing.image_size;
    let image_size = overrides.image_size.map_or(ImageSize { height, width }, ImageSize::square);
    let config = ModelConfig { image_size, channels, ..card.model.clone() };
    reasons.push(format!("pretrained {name}: {}", import::summary(&config)));
    if channels == 1 && !evidence.survey.gray {
        reasons.push(
            "images are turned to gray, as these weights read one channel; other weights, or training without --pretrained, see colors"
                .to_owned(),
        );
    }
    if overrides.image_size.is_none() && image_size != card.model.image_size {
        reasons.push(format!(
            "image size {image_size}: the one that the preprocessing of these weights makes; their positions are stored for {}, and \
             --image-size chooses any",
            card.model.image_size
        ));
    }
    (name.to_owned(), config)
}

/// The number of classes of the data set. An architecture file that states a different number is an error.
fn num_classes(model: &ModelConfig, overrides: &Overrides, evidence: &Evidence<'_>) -> Result<usize> {
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
