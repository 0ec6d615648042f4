//! How a model is trained where nobody said so: the recipe, the number of epochs, what suits the images.

use std::path::Path;

use anyhow::Result;
use vitrine_datasets::{Augmentation, Crop, SourceKind};
use vitrine_models::ModelConfig;

use super::{Evidence, Overrides};
use crate::recipe::{Freeze, NamedRecipe, Optimizer, ProgressiveLearning, Recipe};
use crate::usage::{did_you_mean, usage};

/// The recipe that was asked for, or the one for these data, with what was stated in place of its values.
pub(super) fn choose(
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    model: &ModelConfig,
    reasons: &mut Vec<String>,
) -> Result<Recipe> {
    let is_file = overrides.recipe.as_ref().is_some_and(|recipe| recipe.ends_with(".toml"));
    let mut recipe = match &overrides.recipe {
        Some(file) if is_file => from_file(Path::new(file), evidence)?,
        Some(name) => asked_for(find(name)?, evidence, model, reasons),
        None => suited(by_default(overrides, evidence, model, reasons), evidence, model),
    };
    overrides.length.apply(&mut recipe);
    let freeze = overrides.options.freeze.or(recipe.freeze);
    if freeze == Some(Freeze::Backbone) && !is_file {
        // A single layer learns.
        recipe.layer_decay = 1.0;
        recipe.optimizer = Optimizer::AdamW;
        recipe.learning_rate = 3e-3;
    }
    overrides.options.apply(&mut recipe);
    if !is_file {
        reasons.extend(about_flips(&recipe, overrides, evidence).map(str::to_owned));
    }
    if let Some(progressive) = &recipe.progressive_learning {
        reasons.push(described(progressive, &recipe, model));
    }
    Ok(recipe)
}

/// The recipe whose steps stand for those of the run: the one that was asked for, or `short`.
///
/// # Errors
/// When there is no such recipe.
pub(super) fn to_measure(
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    model: &ModelConfig,
) -> Result<Recipe> {
    let mut recipe = match &overrides.recipe {
        Some(file) if file.ends_with(".toml") => from_file(Path::new(file), evidence)?,
        Some(name) => suited(find(name)?, evidence, model),
        None => suited(find("short")?, evidence, model),
    };
    overrides.options.apply(&mut recipe);
    Ok(recipe)
}

/// Epochs that a run will have: as many as were stated, or as the time pays for, if it was measured.
fn affordable(stated: Option<usize>, evidence: &Evidence<'_>, model: &ModelConfig) -> Option<f64> {
    let paid = evidence.budget.map(|budget| budget.epochs(model, evidence.train) * images_for_one(model));
    let stated = stated.map(|epochs| epochs as f64);
    paid.into_iter().chain(stated).reduce(f64::min)
}

/// What is to be said of flips, unless the user decided about them.
fn about_flips(recipe: &Recipe, overrides: &Overrides, evidence: &Evidence<'_>) -> Option<&'static str> {
    if overrides.options.flips.is_some() {
        return None;
    }
    match (recipe.judge_flips, recipe.augmentation.horizontal_flip > 0.0) {
        (true, _) => Some(
            "without flips until the validation images are recognized in the mirror, too (--flips or --no-flips decides now)",
        ),
        (false, true) => Some("with flips"),
        (false, false) if !evidence.info.flip_safe => Some("without flips, which would change the class"),
        (false, false) => None,
    }
}

/// What the first phase of a run is.
fn described(progressive: &ProgressiveLearning, recipe: &Recipe, model: &ModelConfig) -> String {
    let size = progressive.size(model);
    let images = if size == model.image_size {
        "images".to_owned()
    } else {
        format!("images of {}x{} pixels", size.width, size.height)
    };
    let augmentation = match recipe.augmentation == recipe.augmentation.crop_and_flips() {
        true => "",
        false => ", with light augmentation",
    };
    format!("the first {:.0}% of the run: {images}{augmentation}", 100.0 * progressive.until)
}

fn from_file(file: &Path, evidence: &Evidence<'_>) -> Result<Recipe> {
    let mut recipe = Recipe::read(file)?;
    if recipe.epochs.is_none() && recipe.time_seconds.is_none() {
        recipe.epochs = Some(epochs_for(evidence));
    }
    Ok(recipe)
}

fn find(wanted: &str) -> Result<NamedRecipe> {
    let Some(named) = NamedRecipe::find(wanted) else {
        let names: Vec<&str> = NamedRecipe::all().map(|named| named.name).collect();
        usage!(
            "--recipe {wanted}: there is no such recipe; choose {}, or name a .toml file{}",
            names.join(", "),
            did_you_mean(wanted, names)
        );
    };
    Ok(named)
}

fn asked_for(
    named: NamedRecipe,
    evidence: &Evidence<'_>,
    model: &ModelConfig,
    reasons: &mut Vec<String>,
) -> Recipe {
    let NamedRecipe { name, source, .. } = &named;
    if named.is_whole() {
        let flips = if evidence.info.flip_safe { "" } else { " but for its flips" };
        reasons.push(format!("recipe {name} as published{flips}: {source}"));
    }
    suited(named, evidence, model)
}

/// Epochs that are worth strong augmentation: after 24 of CIFAR-10, `short` is no worse (87.0%, and 86.5% with `long`).
const STRONG_EPOCHS: f64 = 26.0;

fn by_default(
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    model: &ModelConfig,
    reasons: &mut Vec<String>,
) -> NamedRecipe {
    let epochs = affordable(overrides.length.epochs, evidence, model);
    let epochs = epochs.unwrap_or_else(|| epochs_for(evidence) as f64);
    let name = match epochs {
        _ if evidence.pretrained.is_some() => "fine-tune",
        STRONG_EPOCHS.. => "long",
        _ => "short",
    };
    if overrides.length.epochs.is_none() && overrides.length.seconds.is_none() {
        reasons.push(format!("{epochs} epochs: {} training images", evidence.train));
    }
    reasons.push(format!("recipe {name} for {} epochs", super::rounded(epochs)));
    NamedRecipe::find(name).expect("a recipe of this program")
}

/// Images that `short` and `long`, which begin with the same small ones, see in the time of one at the model's size.
fn images_for_one(model: &ModelConfig) -> f64 {
    let short = NamedRecipe::find("short").expect("a recipe of this program").recipe;
    let first = short.progressive_learning.and_then(|wanted| progressive(wanted, &short.augmentation, model));
    first.map_or(1.0, |first| first.images_for_one(model))
}

/// A named recipe for these images: nothing that would change their class or do nothing to them, and, unless the recipe is whole, its
/// crop in their size and a length that suits them.
fn suited(named: NamedRecipe, evidence: &Evidence<'_>, model: &ModelConfig) -> Recipe {
    let is_whole = named.is_whole();
    let mut recipe = named.recipe;
    let augmentation = &mut recipe.augmentation;
    if !evidence.info.flip_safe {
        *augmentation = augmentation.without_flips();
    }
    if evidence.is_gray_to(model) {
        *augmentation = Augmentation {
            brightness: 0.0,
            contrast: 0.0,
            saturation: 0.0,
            hue: 0.0,
            ..augmentation.clone()
        };
    }
    if is_whole {
        return recipe;
    }
    recipe.judge_flips = recipe.augmentation.horizontal_flip > 0.0 && !knows_flips(evidence.info.source);
    recipe.augmentation.crop = crop(recipe.augmentation.crop, evidence, model);
    if model.embed_dim > 128 {
        recipe.learning_rate /= 2.0;
    }
    recipe.batch_size = if evidence.train < 20_000 { 32 } else { 64 };
    recipe.epochs = Some(epochs_for(evidence));
    recipe.progressive_learning =
        recipe.progressive_learning.and_then(|wanted| progressive(wanted, &recipe.augmentation, model));
    recipe
}

/// Whether it is known of the images of a source what mirroring does to them; a stranger's folder may hold letters.
fn knows_flips(source: SourceKind) -> bool {
    match source {
        SourceKind::Shapes | SourceKind::Cifar => true,
        SourceKind::Folder | SourceKind::Manifest | SourceKind::Archive | SourceKind::Idx => false,
    }
}

/// Progressive learning as far as the model and the augmentation can do it.
fn progressive(
    wanted: ProgressiveLearning,
    augmentation: &Augmentation,
    model: &ModelConfig,
) -> Option<ProgressiveLearning> {
    let scale = if model.fits_all_sizes() { wanted.scale } else { 1.0 };
    let possible = ProgressiveLearning { scale, ..wanted };
    possible.check_model(model, augmentation).is_ok().then_some(possible)
}

/// The recipe's crop in the size of the images: parts are taken of photos alone, and smaller images are moved by up to an eighth.
fn crop(wanted: Crop, evidence: &Evidence<'_>, model: &ModelConfig) -> Crop {
    let photos = !evidence.has_squares() || evidence.survey.sizes.width.median > 96;
    match wanted {
        Crop::None => Crop::None,
        Crop::Resized { .. } if photos => wanted,
        Crop::Resized { .. } | Crop::Pad { .. } => {
            let side = model.image_size.height.min(model.image_size.width);
            Crop::Pad { pixels: (side / 8).max(1) as u32, reflect: true }
        }
    }
}

/// Few images want many passes; the views of all passes together stay affordable on a CPU.
fn epochs_for(evidence: &Evidence<'_>) -> usize {
    if evidence.pretrained.is_some() {
        return (50_000 / evidence.train.max(1)).clamp(5, 50);
    }
    if evidence.info.source == SourceKind::Shapes {
        return 2;
    }
    (200_000 / evidence.train.max(1)).clamp(5, 60)
}
