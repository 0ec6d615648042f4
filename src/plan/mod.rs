//! The plan of a run: image size, architecture, and recipe are chosen from the data where the user leaves them open, each with its reason.

mod architecture;
mod budget;
mod class_balance;
mod recipe;
mod resize;
#[cfg(test)]
mod tests;

use anyhow::{Context, Result, bail};
use vitrine_datasets::{
    Augmentation, ClassSizes, CropRounding, DatasetInfo, Interpolation, Preprocessing, Survey,
};
use vitrine_models::ModelConfig;

pub use architecture::{named_model, read_model};
pub use budget::Budget;
pub use resize::Resize;

use crate::import;
use crate::model_file::ModelCard;
use crate::recipe::{AskedLength, Freeze, Optimizer, Recipe, RecipeOverrides};
use crate::usage::usage;

/// What the user states about a run. Whatever is left out is chosen from the data.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Architecture: a preset's name or the path of a TOML file.
    pub model: Option<String>,
    /// Height and width of the input in pixels.
    pub image_size: Option<usize>,
    /// How images of other shapes become that size.
    pub resize: Option<Resize>,
    /// Recipe: a name or the path of a TOML file.
    pub recipe: Option<String>,
    /// How long the run is.
    pub length: AskedLength,
    /// Values that replace those of the recipe.
    pub options: RecipeOverrides,
}

/// What will be trained and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the model is called in folder names and titles.
    pub model_name: String,
    /// The architecture, for the data's classes.
    pub model: ModelConfig,
    /// What is done to every image.
    pub preprocessing: Preprocessing,
    /// How it is trained.
    pub recipe: Recipe,
    /// What was chosen and why, one choice per line.
    pub reasons: Vec<String>,
}

/// What the choices depend on.
pub struct Evidence<'a> {
    /// Names, classes, what may be done to the images.
    pub info: &'a DatasetInfo,
    /// Sizes and colors.
    pub survey: &'a Survey,
    /// Number of training images.
    pub train: usize,
    /// Their number in each class.
    pub class_sizes: &'a ClassSizes,
    /// The weights that training begins with: what they are called, and what is known of them.
    pub pretrained: Option<(&'a str, &'a ModelCard)>,
    /// What the time there is can pay for, where it was stated.
    pub budget: Option<Budget>,
}

impl Plan {
    /// Fills what `overrides` leave open.
    ///
    /// # Errors
    /// When a preset, recipe or file is not there or not valid, or overrides do not fit together.
    pub fn new(overrides: &Overrides, evidence: &Evidence<'_>) -> Result<Self> {
        if let (Some(model), Some(_)) = (&overrides.model, evidence.pretrained) {
            usage!(
                "--model {model} has no effect with --pretrained, which says the architecture: leave one of them out"
            );
        }
        let mut reasons = Vec::new();
        let (model_name, model) = architecture::choose(overrides, evidence, &mut reasons)?;
        match (model.validate(), overrides.image_size) {
            (Ok(()), _) => {}
            (Err(error), Some(side)) => usage!("--image-size {side}: {error}"),
            (Err(error), None) => return Err(error).context("the model does not fit the data set"),
        }
        let preprocessing = preprocessing(&model, overrides.resize, evidence, &mut reasons);
        let recipe = recipe::choose(overrides, evidence, &model, &mut reasons)?;
        // A recipe's file was valid, and so are named ones: what is wrong now was typed.
        if let Err(error) = recipe.validate() {
            usage!("{error:#}");
        }
        check_effect(&recipe, overrides, evidence.is_gray_to(&model))?;
        check_freeze(&recipe, &model, evidence)?;
        if let Some(progressive) = &recipe.progressive_learning {
            progressive.check_model(&model, &recipe.augmentation)?;
        }
        class_balance::check(&recipe, evidence, &mut reasons)?;
        Ok(Self { model_name, model, preprocessing, recipe, reasons })
    }
}

impl Evidence<'_> {
    /// Whether the model sees no colors.
    fn is_gray_to(&self, model: &ModelConfig) -> bool {
        self.survey.gray || model.channels == 1
    }

    /// 1 for gray images, 3 for others.
    fn channels(&self) -> usize {
        if self.survey.gray { 1 } else { 3 }
    }

    /// Whether all images are squares, so that nothing is lost by scaling them to one.
    fn has_squares(&self) -> bool {
        let (width, height) = (self.survey.sizes.width, self.survey.sizes.height);
        width == height && width.min == width.max
    }
}

/// What the recipe file or the command line asks for must be able to do something.
fn check_effect(recipe: &Recipe, overrides: &Overrides, is_gray: bool) -> Result<()> {
    let Augmentation { saturation, hue, mixup, cutmix, .. } = recipe.augmentation;
    for (key, strength) in [("saturation", saturation), ("hue", hue)] {
        if is_gray && strength > 0.0 {
            bail!("`augmentation.{key}` is {strength} and has no effect on gray images: leave it out");
        }
    }
    for (key, alpha) in [("mixup", mixup), ("cutmix", cutmix)] {
        // The program's own choice of a recipe may have nothing to mix; one that was named may not.
        if overrides.recipe.is_some() && recipe.batch_size == 1 && alpha > 0.0 {
            usage!(
                "`batch_size` (--batch-size) is 1, so `augmentation.{key}`, which mixes the images of a batch, has no effect: use at \
                 least 2, or a recipe without it, such as --recipe short"
            );
        }
    }
    match (overrides.options.patience, recipe.epochs) {
        (Some(patience), Some(epochs)) if patience >= epochs => {
            usage!(
                "--patience {patience} has no effect, because the run ends after epoch {epochs}: give fewer epochs, or leave it out"
            )
        }
        _ => Ok(()),
    }
}

/// What is frozen must be there, and must not be random.
fn check_freeze(recipe: &Recipe, model: &ModelConfig, evidence: &Evidence<'_>) -> Result<()> {
    let blocks = model.depth.sum() + model.class_depth;
    match recipe.freeze {
        Some(_) if evidence.pretrained.is_none() => {
            usage!("`freeze` needs --pretrained: otherwise it would freeze random weights")
        }
        Some(Freeze::Blocks(count)) if count > blocks => {
            usage!("--freeze {count}: the model has only {blocks} blocks")
        }
        Some(Freeze::Blocks(count)) if recipe.gradient_checkpointing && count >= model.depth.sum() => {
            usage!(
                "--gradient-checkpointing saves nothing with --freeze {count}, because frozen blocks store no activations; leave it out"
            )
        }
        Some(Freeze::Blocks(count)) if recipe.optimizer == Optimizer::Muon && count >= blocks => {
            usage!(
                "--optimizer muon has no effect with --freeze {count}, because what follows the blocks learns by AdamW in any case; leave it out"
            )
        }
        _ => Ok(()),
    }
}

fn preprocessing(
    model: &ModelConfig,
    asked: Option<Resize>,
    evidence: &Evidence<'_>,
    reasons: &mut Vec<String>,
) -> Preprocessing {
    let resize = resize::choose(asked, evidence, reasons);
    if let Some((_, card)) = evidence.pretrained {
        return Preprocessing { resize, ..import::preprocessing_for(&card.preprocessing, model) };
    }
    Preprocessing {
        image_size: [model.image_size.height, model.image_size.width],
        channels: model.channels,
        resize,
        interpolation: Interpolation::Bicubic,
        mean: vec![0.5; model.channels],
        std: vec![0.25; model.channels],
        crop_rounding: CropRounding::default(),
    }
}

/// A number of epochs as people say it.
fn rounded(epochs: f64) -> String {
    match epochs {
        ..0.1 => "less than 0.1".to_owned(),
        ..10.0 => format!("{epochs:.1}"),
        _ => format!("{epochs:.0}"),
    }
}
