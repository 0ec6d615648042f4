//! How a model is trained where nobody said so: the recipe, the number of epochs, what suits the images.

use std::path::Path;

use anyhow::Result;
use vitrine_datasets::{Augmentation, Crop, SourceKind};
use vitrine_models::ModelConfig;

use super::{Evidence, Overrides};
use crate::recipe::{Freeze, NamedRecipe, Recipe};
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
        Some(name) => suited(find(name)?, evidence, model),
        None => suited(by_default(overrides, evidence, reasons), evidence, model),
    };
    overrides.length.apply(&mut recipe);
    let freeze = overrides.options.freeze.or(recipe.freeze);
    if freeze == Some(Freeze::Backbone) && !is_file {
        // A single layer learns.
        recipe.layer_decay = 1.0;
        recipe.learning_rate = 3e-3;
    }
    overrides.options.apply(&mut recipe);
    Ok(recipe)
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

fn by_default(overrides: &Overrides, evidence: &Evidence<'_>, reasons: &mut Vec<String>) -> NamedRecipe {
    let epochs = epochs_for(evidence);
    let name = match overrides.length.epochs.unwrap_or(epochs) {
        _ if evidence.pretrained.is_some() => "fine-tune",
        _ if evidence.info.source == SourceKind::Shapes => "plain",
        60.. => "long",
        _ => "short",
    };
    if overrides.length.epochs.is_none() && overrides.length.time.is_none() {
        reasons.push(format!("{epochs} epochs: {} training images", evidence.train));
    }
    let flips =
        if evidence.info.flip_safe { "with flips" } else { "without flips, which would change the class" };
    reasons.push(format!("recipe {name}, {flips}"));
    NamedRecipe::find(name).expect("a recipe of this program")
}

/// A named recipe for these images: its crop in their size, and nothing that would change their class.
fn suited(named: NamedRecipe, evidence: &Evidence<'_>, model: &ModelConfig) -> Recipe {
    let mut recipe = named.recipe;
    let augmentation = &mut recipe.augmentation;
    if augmentation.crop != Crop::None {
        augmentation.crop = crop(evidence, model);
    }
    if !evidence.info.flip_safe {
        augmentation.horizontal_flip = 0.0;
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
    if model.embed_dim > 128 {
        recipe.learning_rate /= 2.0;
    }
    recipe.batch_size = if evidence.train < 20_000 { 32 } else { 64 };
    recipe.epochs = Some(epochs_for(evidence));
    recipe
}

/// A part of a photo, or a small image moved by an eighth.
fn crop(evidence: &Evidence<'_>, model: &ModelConfig) -> Crop {
    let photos = !evidence.has_squares() || evidence.survey.sizes.width.median > 96;
    if photos {
        Crop::Resized { scale: [0.5, 1.0], ratio: [0.75, 4.0 / 3.0] }
    } else {
        let side = model.image_size.height.min(model.image_size.width);
        Crop::Pad { pixels: (side / 8).max(1) as u32 }
    }
}

/// Few images want many passes; the views of all passes together stay affordable on a CPU.
fn epochs_for(evidence: &Evidence<'_>) -> usize {
    if evidence.pretrained.is_some() {
        return (50_000 / evidence.train.max(1)).clamp(5, 50);
    }
    if evidence.info.source == SourceKind::Shapes {
        return 7;
    }
    (400_000 / evidence.train.max(1)).clamp(8, 100)
}
