//! The choice of a recipe and its adaptation to the data: number of epochs, batch size, crop, flips, and color
//! augmentation.

use std::path::Path;

use anyhow::Result;
use vitrine_datasets::{Augmentation, Crop, SourceKind};
use vitrine_models::{ModelConfig, Tokenizer};

use super::{Evidence, Overrides, head_fit};
use crate::recipe::{Freeze, Metric, NamedRecipe, Optimizer, Precision, ProgressiveLearning, Recipe};
use crate::text::count;
use crate::usage::{did_you_mean, usage};

/// The requested recipe, or else the default one for the data set, with the values that the user states. Adds the
/// reasons for choices to `reasons`.
pub(super) fn choose(
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    model: &ModelConfig,
    reasons: &mut Vec<String>,
) -> Result<Recipe> {
    let usual = if evidence.info.multi_label { Metric::MeanAveragePrecision } else { Metric::Accuracy };
    let by_steps = match head_fit::choose(overrides, evidence, model, reasons) {
        Ok(mut recipe) => {
            recipe.metric.get_or_insert(usual);
            return Ok(recipe);
        }
        Err(reason) => reason,
    };
    let is_file = overrides.recipe_file().is_some();
    let mut recipe = match (overrides.recipe_file(), &overrides.recipe) {
        (Some(file), _) => from_file(file, evidence)?,
        (None, Some(name)) => requested(find(name)?, evidence, model, reasons),
        (None, None) => {
            for_labels(suited(by_default(overrides, evidence, model, reasons), evidence, model), evidence)
        }
    };
    if !recipe.fit_head {
        reasons.extend(by_steps);
    }
    overrides.length.apply(&mut recipe);
    if recipe.fit_head && overrides.length.epochs.is_none() {
        // A time limit takes the place of epochs elsewhere; here it limits the images.
        recipe = recipe.fitting_head();
    }
    let freeze = overrides.options.freeze.or(recipe.freeze);
    if freeze == Some(Freeze::Backbone) && !is_file {
        // Only the head is trained, a single layer: AdamW at a higher learning rate suits it, and layer decay has no effect.
        recipe.layer_decay = 1.0;
        recipe.optimizer = Optimizer::AdamW;
        recipe.learning_rate = 3e-3;
    }
    if evidence.info.multi_label && overrides.recipe.is_none() {
        reasons.push(
            "several labels an image: crops keep the whole image, no mixing of images, no label smoothing"
                .to_owned(),
        );
    }
    if rounds(&recipe, overrides, evidence) {
        recipe.precision = Precision::Bf16;
        reasons.push(
            "products of matrices in bfloat16, which this processor multiplies faster (--precision f32: in float32)"
                .to_owned(),
        );
    }
    overrides.options.apply(&mut recipe);
    recipe.metric.get_or_insert(usual);
    recipe.probe_first |= head_fit::comes_first(overrides, evidence, model, reasons);
    if !is_file {
        reasons.extend(flips_reason(&recipe, overrides, evidence).map(str::to_owned));
    }
    if let Some(progressive) = &recipe.progressive_learning {
        reasons.push(describe_progressive(progressive, &recipe, model));
    }
    Ok(recipe)
}

/// Whether products are rounded without being asked for: where time is what the user states, and that buys more of it. A run of stated
/// epochs computes in float32, as on other processors.
fn rounds(recipe: &Recipe, overrides: &Overrides, evidence: &Evidence<'_>) -> bool {
    let is_open = overrides.recipe_file().is_none() && overrides.options.precision.is_none();
    let is_by_time = overrides.length.seconds.is_some() && overrides.length.epochs.is_none();
    is_open && is_by_time && evidence.multiplies_bfloat16 && !recipe.fit_head
}

/// The recipe to measure the speed of training with: the requested one, or else `short`.
///
/// # Errors
/// When the requested recipe does not exist.
pub(super) fn to_measure(
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    model: &ModelConfig,
) -> Result<Recipe> {
    let mut recipe = match overrides.recipe_file() {
        Some(file) => from_file(file, evidence)?,
        None => suited(find(overrides.recipe.as_deref().unwrap_or("short"))?, evidence, model),
    };
    if rounds(&recipe, overrides, evidence) {
        recipe.precision = Precision::Bf16;
    }
    overrides.options.apply(&mut recipe);
    Ok(recipe)
}

/// The number of epochs that the run will have: the stated number, the number for which the time suffices, or the lower
/// one of both. `None` if neither is known.
fn affordable_epochs(stated: Option<usize>, evidence: &Evidence<'_>, model: &ModelConfig) -> Option<f64> {
    let paid = evidence.budget.map(|budget| budget.epochs(model, evidence.train) * images_for_one(model));
    let stated = stated.map(|epochs| epochs as f64);
    paid.into_iter().chain(stated).reduce(f64::min)
}

/// About the number of epochs of a run with images of the user, each of one class, of which the length alone is stated. `None` for
/// other runs.
pub(super) fn usual_epochs(
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    model: &ModelConfig,
) -> Option<f64> {
    let is_open = *overrides == Overrides { length: overrides.length, ..Overrides::default() };
    let is_usual = evidence.pretrained.is_none()
        && !evidence.info.multi_label
        && evidence.info.source != SourceKind::Shapes;
    let epochs = affordable_epochs(overrides.length.epochs, evidence, model);
    (is_open && is_usual).then(|| epochs.unwrap_or_else(|| epochs_for(evidence) as f64))
}

/// The reason why flips are on, off, or left to the validation images; `None` if the user decided.
fn flips_reason(recipe: &Recipe, overrides: &Overrides, evidence: &Evidence<'_>) -> Option<&'static str> {
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

/// Describes the first phase of progressive learning for the list of reasons.
fn describe_progressive(progressive: &ProgressiveLearning, recipe: &Recipe, model: &ModelConfig) -> String {
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
    if recipe.fit_head {
        return Ok(recipe.fitting_head());
    }
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

fn requested(
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

/// Number of epochs from which `long`, with its strong augmentation, is chosen. After 24 epochs of CIFAR-10, `short` is
/// still ahead: 87.0% against 86.5% with `long`.
const STRONG_EPOCHS: f64 = 26.0;

fn by_default(
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    model: &ModelConfig,
    reasons: &mut Vec<String>,
) -> NamedRecipe {
    let known = affordable_epochs(overrides.length.epochs, evidence, model);
    let epochs = known.unwrap_or_else(|| epochs_for(evidence) as f64);
    let name = match epochs {
        _ if evidence.pretrained.is_some() => "fine-tune",
        STRONG_EPOCHS.. => "long",
        _ => "short",
    };
    if overrides.length.epochs.is_none() && overrides.length.seconds.is_none() {
        reasons.push(format!(
            "{}: {}",
            count(epochs.round() as usize, "epoch"),
            count(evidence.train, "training image")
        ));
    }
    reasons.push(match known {
        None if overrides.length.seconds.is_some() => format!("recipe {name} for the time there is"),
        _ => format!("recipe {name} for {} epochs", super::rounded(epochs)),
    });
    NamedRecipe::find(name).expect("a recipe of this program")
}

/// How many images `short` and `long` process in the time of one image at full size; more than one, because they begin
/// with smaller images.
fn images_for_one(model: &ModelConfig) -> f64 {
    let short = NamedRecipe::find("short").expect("a recipe of this program").recipe;
    let first = short.progressive_learning.and_then(|wanted| progressive(wanted, &short.augmentation, model));
    first.map_or(1.0, |first| first.images_for_one(model))
}

/// The highest learning rate for fine-tuning a ViT-S, of 384 channels; wider models get less. It suits the more delicate of two
/// sizes: with a DINOv2 ViT-S on 50 images a class of CIFAR-10 at 224 pixels, validation accuracy is 56% by a probe, and after
/// two epochs 58% with 5e-5 and 53% with 1e-4; 2e-4 and more destroy the features. At 112 pixels, even 2e-4 does not.
const FINE_TUNING_RATE: f64 = 5e-5;

/// The channels of tokens from which a hybrid model is trained in batches of 128 where there are many images: it is chosen for many updates, and
/// with half of them, at a higher rate, learns as much per epoch, in nine tenths of the time (92.3 and 92.5% after nine epochs of CIFAR-10, test
/// losses of 0.297 and 0.297; `hybrid_micro`, of 192 channels, loses 0.3 points in six epochs).
const WIDE: usize = 256;

/// Adapts a named recipe to the data: removes augmentation that would change the class or have no effect. Unless the
/// recipe must be kept whole, it also sets crop, learning rate, batch size, and number of epochs.
fn suited(named: NamedRecipe, evidence: &Evidence<'_>, model: &ModelConfig) -> Recipe {
    let is_whole = named.is_whole();
    let mut recipe = named.recipe;
    let augmentation = &mut recipe.augmentation;
    if !evidence.info.flip_safe {
        *augmentation = augmentation.without_flips();
    }
    if evidence.is_gray_to(model) {
        *augmentation = Augmentation { saturation: 0.0, hue: 0.0, ..augmentation.clone() };
    }
    if is_whole {
        return recipe;
    }
    recipe.judge_flips =
        recipe.augmentation.horizontal_flip > 0.0 && !is_flip_effect_known(evidence.info.source);
    recipe.mirror_views = recipe.augmentation.horizontal_flip > 0.0;
    let is_residual = matches!(model.tokenizer, Tokenizer::Residual { .. });
    recipe.whitened_stem &= is_residual && evidence.pretrained.is_none();
    // After `long`, whose crops may become shifts, too, shifted views gain nothing (`benches/peers/README.md`).
    recipe.shifted_views = matches!(recipe.augmentation.crop, Crop::Pad { .. });
    recipe.augmentation.crop = crop(recipe.augmentation.crop, evidence, model);
    if model.embed_dim > 128 {
        recipe.learning_rate = match evidence.pretrained {
            Some(_) => recipe.learning_rate.min(FINE_TUNING_RATE * 384.0 / model.embed_dim as f64),
            // The wide models of `benches/peers/README.md` were trained at the whole rate.
            None if is_residual => recipe.learning_rate,
            None => recipe.learning_rate / 2.0,
        };
    }
    recipe.batch_size = if evidence.train < 20_000 { 32 } else { 64 };
    let is_wide = is_residual && model.embed_dim >= WIDE && evidence.pretrained.is_none();
    if is_wide && recipe.batch_size == 64 {
        (recipe.batch_size, recipe.learning_rate) = (128, recipe.learning_rate * 4.0 / 3.0);
    }
    recipe.epochs = Some(epochs_for(evidence));
    recipe.progressive_learning =
        recipe.progressive_learning.and_then(|wanted| progressive(wanted, &recipe.augmentation, model));
    recipe
}

/// Adapts a default recipe to images of several labels each. What a crop cuts off or a mixed image covers may be what a
/// label stands for, and smoothing assumes classes that exclude each other.
fn for_labels(recipe: Recipe, evidence: &Evidence<'_>) -> Recipe {
    if !evidence.info.multi_label {
        return recipe;
    }
    let crop = match recipe.augmentation.crop {
        Crop::Resized { ratio, .. } => Crop::Resized { scale: WHOLE_IMAGE, ratio },
        crop @ (Crop::None | Crop::Pad { .. }) => crop,
    };
    let Augmentation { mixup, cutmix, mix_probability, mix_mode, mix_until, .. } = Augmentation::none();
    let augmentation =
        Augmentation { crop, mixup, cutmix, mix_probability, mix_mode, mix_until, ..recipe.augmentation };
    Recipe { augmentation, label_smoothing: 0.0, ..recipe }
}

/// The share of an image's area that crops keep where every part of it counts.
const WHOLE_IMAGE: [f64; 2] = [0.7, 1.0];

/// Whether [`DatasetInfo::flip_safe`](vitrine_datasets::DatasetInfo::flip_safe) can be trusted for this source. A
/// folder of the user may contain letters, whose class changes when they are mirrored.
fn is_flip_effect_known(source: SourceKind) -> bool {
    match source {
        SourceKind::Shapes | SourceKind::Cifar => true,
        SourceKind::Folder | SourceKind::Manifest | SourceKind::Archive | SourceKind::Idx => false,
    }
}

/// Progressive learning as far as the model and the augmentation allow it: at full size if the model is bound to one
/// size.
fn progressive(
    wanted: ProgressiveLearning,
    augmentation: &Augmentation,
    model: &ModelConfig,
) -> Option<ProgressiveLearning> {
    let scale = if model.fits_all_sizes() { wanted.scale } else { 1.0 };
    let possible = ProgressiveLearning { scale, ..wanted };
    possible.check_model(model, augmentation).is_ok().then_some(possible)
}

/// The crop of a recipe for the image size: random resized crops only for photos, otherwise shifts by up to a sixteenth
/// of the side.
fn crop(wanted: Crop, evidence: &Evidence<'_>, model: &ModelConfig) -> Crop {
    let photos = !evidence.has_squares() || evidence.survey.sizes.width.median > 96;
    match wanted {
        Crop::None => Crop::None,
        Crop::Resized { .. } if photos => wanted,
        Crop::Resized { .. } | Crop::Pad { .. } => {
            let side = model.image_size.height.min(model.image_size.width);
            Crop::Pad { pixels: (side / 16).max(1) as u32, reflect: true }
        }
    }
}

/// The number of epochs for the size of the data set: more for small ones, while the total number of images stays
/// affordable on a CPU.
fn epochs_for(evidence: &Evidence<'_>) -> usize {
    if evidence.pretrained.is_some() {
        return (50_000 / evidence.train.max(1)).clamp(5, 50);
    }
    if evidence.info.source == SourceKind::Shapes {
        return 2;
    }
    (200_000 / evidence.train.max(1)).clamp(5, 60)
}
