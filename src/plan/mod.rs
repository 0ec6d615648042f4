//! The plan of a run: chooses image size, architecture, and recipe from the data where the user leaves them open, and
//! states the reason for each choice.

mod adjacency;
mod architecture;
mod budget;
mod class_balance;
mod head_fit;
mod pooling;
mod recipe;
mod resize;
mod smaller_size;
#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::{Context, Error, Result, anyhow, bail};
use vitrine_datasets::{
    Augmentation, ClassSizes, Crop, CropRounding, DatasetInfo, Interpolation, Preprocessing, Survey,
};
use vitrine_models::{ModelConfig, Tokenizer};

pub use architecture::{named_model, read_model};
pub use budget::Budget;
pub use pooling::Pooling;
pub use resize::Resize;

use crate::device::FoundDevice;
use crate::files::has_extension;
use crate::import;
use crate::memory::{self, Work};
use crate::model_file::ModelCard;
use crate::recipe::{AskedLength, Freeze, Metric, Optimizer, Recipe, RecipeOverrides};
use crate::text::count;
use crate::usage::usage;

/// Settings of a run that the user states. The others are chosen from the data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Architecture: a preset's name or the path of a TOML file.
    pub model: Option<String>,
    /// Height and width of the input in pixels.
    pub image_size: Option<usize>,
    /// What the head of a pretrained backbone reads.
    pub pool: Option<Pooling>,
    /// How images with other aspect ratios are brought to that size.
    pub resize: Option<Resize>,
    /// Recipe: a name or the path of a TOML file.
    pub recipe: Option<String>,
    /// Number of epochs, time limit, or both.
    pub length: AskedLength,
    /// Values that replace those of the recipe.
    pub options: RecipeOverrides,
}

impl Overrides {
    /// The path of the recipe, if it is a file.
    fn recipe_file(&self) -> Option<&Path> {
        self.recipe.as_deref().map(Path::new).filter(|recipe| has_extension(recipe, "toml"))
    }
}

/// The settings of a run before it starts.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name of the model in folder names and titles.
    pub model_name: String,
    /// The architecture, with the number of classes of the data set.
    pub model: ModelConfig,
    /// Preprocessing of every image.
    pub preprocessing: Preprocessing,
    /// The training recipe.
    pub recipe: Recipe,
    /// The choices with their reasons, one choice per line.
    pub reasons: Vec<String>,
    /// About the number of epochs of a run of which the user states no more than the length: its accuracy can be expected.
    pub usual_epochs: Option<f64>,
}

/// The facts on which the choices depend.
pub struct Evidence<'a> {
    /// Names, classes, and kind of the data set, and whether images may be mirrored.
    pub info: &'a DatasetInfo,
    /// Image sizes, aspect ratios, and colors.
    pub survey: &'a Survey,
    /// Number of training images.
    pub train: usize,
    /// Number of training images in each class.
    pub class_sizes: &'a ClassSizes,
    /// Name and metadata of the pretrained weights that training starts from.
    pub pretrained: Option<(&'a str, &'a ModelCard)>,
    /// The measured compute budget, if the run has a time limit on which the choices depend.
    pub budget: Option<Budget>,
    /// Whether the device multiplies [bfloat16](crate::recipe::Precision::Bf16) numbers faster.
    pub multiplies_bfloat16: bool,
}

impl Plan {
    /// Chooses all settings that `overrides` leave open.
    ///
    /// # Errors
    /// When a preset, recipe, or file does not exist or is not valid, or the overrides contradict each other.
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
        let recipe = recipe::choose(overrides, evidence, &model, &mut reasons)?;
        let preprocessing = preprocessing((&model, &recipe), overrides.resize, evidence, &mut reasons);
        let model = pooling::choose(model, &recipe, overrides, evidence, &mut reasons)?;
        // Recipe files and named recipes were validated when they were read, so the error is in the command-line
        // options.
        if let Err(error) = recipe.validate() {
            usage!("{error:#}");
        }
        check_recipe(&recipe, overrides, evidence, &model, &mut reasons)
            .map_err(|error| attributed(error, overrides, evidence, &model))?;
        check_mirroring(overrides, evidence, &model)?;
        reasons.extend(architecture::pretrained_hint(overrides, evidence).map(str::to_owned));
        let usual_epochs = recipe::usual_epochs(overrides, evidence, &model);
        Ok(Self { model_name, model, preprocessing, recipe, reasons, usual_epochs })
    }

    /// The plan for a device: if nothing was stated about training, and the memory does not suffice for the fine-tuning that
    /// would follow a probe, the probe alone.
    ///
    /// # Errors
    /// As those of [`new`](Self::new).
    pub fn for_device(overrides: &Overrides, evidence: &Evidence<'_>, device: &FoundDevice) -> Result<Self> {
        let plan = Self::new(overrides, evidence)?;
        // The features of a probe are needed in either case.
        let steps = Recipe { probe_first: false, ..plan.recipe.clone() };
        let work = Work::Training(&steps, evidence.train);
        let is_open = head_fit::option_for_steps(overrides).is_none() && overrides.options.freeze.is_none();
        if !plan.recipe.probe_first || !is_open || memory::check(&plan.model, work, device).is_ok() {
            return Ok(plan);
        }
        let mut alone = overrides.clone();
        alone.options.freeze = Some(Freeze::Backbone);
        if alone.options.flips != Some(true) {
            // A fitted head mirrors nothing then, so that leaving mirror images out would be refused as without effect.
            (alone.options.one_view, alone.options.flips) = (false, None);
        }
        let mut plan = Self::new(&alone, evidence)?;
        plan.reasons.push(
            "a probe alone: fine-tuning would need more memory than there is (--gradient-checkpointing, or a smaller --batch-size \
             with --epochs, need less)"
                .to_owned(),
        );
        Ok(plan)
    }
}

impl Evidence<'_> {
    /// Whether the model gets gray images.
    fn is_gray_to(&self, model: &ModelConfig) -> bool {
        self.survey.gray || model.channels == 1
    }

    /// Number of channels of the images: 1 if all are gray, otherwise 3.
    fn channels(&self) -> usize {
        if self.survey.gray { 1 } else { 3 }
    }

    /// About the shorter side of the images, in pixels.
    fn native_side(&self) -> u32 {
        self.survey.sizes.width.median.min(self.survey.sizes.height.median)
    }

    /// Whether all images are squares, so that scaling to a square neither crops nor distorts them.
    fn has_squares(&self) -> bool {
        let (width, height) = (self.survey.sizes.width, self.survey.sizes.height);
        width == height && width.min == width.max
    }
}

/// Checks that the values of the recipe suit each other, the model, and the data. Adds to `reasons` a hint about classes that
/// differ in size.
///
/// # Errors
/// Names the key or the option.
fn check_recipe(
    recipe: &Recipe,
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    model: &ModelConfig,
    reasons: &mut Vec<String>,
) -> Result<()> {
    check_effect(recipe, overrides, evidence.is_gray_to(model))?;
    check_accumulate(recipe, evidence.train)?;
    check_shift(recipe, model)?;
    check_labels(recipe, evidence)?;
    if let Some(progressive) = &recipe.progressive_learning {
        progressive.check_model(model, &recipe.augmentation)?;
    }
    check_stem(recipe, model, evidence)?;
    class_balance::check(recipe, evidence, reasons)?;
    check_freeze(recipe, model, evidence)?;
    head_fit::check(recipe, model, evidence)
}

/// The error of [`check_recipe`] for the user. One that the recipe's file causes without any option names the file, and is as
/// little wrong usage of the options as a file that cannot be read.
fn attributed(error: Error, overrides: &Overrides, evidence: &Evidence<'_>, model: &ModelConfig) -> Error {
    let Some(file) = overrides.recipe_file() else { return error };
    let alone = Overrides { recipe: overrides.recipe.clone(), ..Overrides::default() };
    let by_itself = recipe::choose(&alone, evidence, model, &mut Vec::new())
        .and_then(|recipe| check_recipe(&recipe, &alone, evidence, model, &mut Vec::new()));
    let message = format!("{error:#}");
    match by_itself {
        Err(of_file) if format!("{of_file:#}") == message => {
            anyhow!("--recipe {}: {message}", file.display())
        }
        Err(_) | Ok(()) => error,
    }
}

/// Checks that a shifted image keeps some of its pixels.
///
/// # Errors
/// When shifts by `crop.pad.pixels` may leave nothing but padding.
fn check_shift(recipe: &Recipe, model: &ModelConfig) -> Result<()> {
    let side = model.image_size.height.min(model.image_size.width);
    match recipe.augmentation.crop {
        Crop::Pad { pixels, reflect: false } if pixels as usize >= side => bail!(
            "`augmentation.crop.pad.pixels` is {pixels}, and images are {}: a shift by as much leaves nothing of an image; \
             a sixteenth of the side is usual",
            model.image_size
        ),
        _ => Ok(()),
    }
}

/// Returns an error if a requested setting would have no effect.
fn check_effect(recipe: &Recipe, overrides: &Overrides, is_gray: bool) -> Result<()> {
    let Augmentation { saturation, hue, mixup, cutmix, repeats, .. } = recipe.augmentation;
    for (key, strength) in [("saturation", saturation), ("hue", hue)] {
        if is_gray && strength > 0.0 {
            bail!("`augmentation.{key}` is {strength} and has no effect on gray images: leave it out");
        }
    }
    for (key, alpha) in [("mixup", mixup), ("cutmix", cutmix)] {
        // A recipe that the program itself chose may include mixing without effect; one that the user named may not.
        if overrides.recipe.is_some() && recipe.batch_size == 1 && alpha > 0.0 {
            usage!(
                "`batch_size` (--batch-size) is 1, so `augmentation.{key}`, which mixes the images of a batch, has no effect: use at \
                 least 2, or a recipe without it, such as --recipe short"
            );
        }
        if repeats > 1 && repeats >= recipe.batch_size && alpha > 0.0 {
            usage!(
                "`augmentation.repeats` is {repeats} and `batch_size` (--batch-size) {}, so `augmentation.{key}` mixes images with copies \
                 of themselves: use a batch size of at least {}, fewer repeats, or a recipe without `{key}`",
                recipe.batch_size,
                2 * repeats
            );
        }
    }
    let patience = recipe.patience;
    // A stated number of epochs may be lower than a recipe's patience.
    let is_of_file = overrides.options.patience.is_none() && overrides.length.epochs.is_none();
    match recipe.epochs {
        Some(epochs) if patience >= epochs && (is_of_file || overrides.options.patience.is_some()) => {
            let name = if is_of_file { "`patience` " } else { "--patience " };
            usage!(
                "{name}{patience} has no effect, because the run ends after epoch {epochs}: state a patience of fewer epochs, or leave it \
                 out"
            )
        }
        _ => Ok(()),
    }
}

/// Checks that no more batches are summed for an update than an epoch of `images` images has.
///
/// # Errors
/// When there are fewer, because an epoch ends with an update in any case.
fn check_accumulate(recipe: &Recipe, images: usize) -> Result<()> {
    let Recipe { accumulate, batch_size, .. } = *recipe;
    let batches = images.div_ceil(batch_size).max(1);
    if accumulate <= batches {
        return Ok(());
    }
    let way_out = if batches == 1 { "leave it out".to_owned() } else { format!("use at most {batches}") };
    usage!(
        "`accumulate` (--accumulate) is {accumulate}, and an epoch, which ends with an update in any case, has only {} of \
         {batch_size} images (--batch-size): {way_out}, or make the batches smaller",
        count(batches, "batch")
    )
}

/// Checks that leaving mirror images out has an effect, when training or when asking the finished model.
///
/// # Errors
/// When no image would be mirrored, or the model would not be asked about mirror images, anyway.
fn check_mirroring(overrides: &Overrides, evidence: &Evidence<'_>, model: &ModelConfig) -> Result<()> {
    let without = |option: fn(&mut RecipeOverrides)| {
        let mut open = overrides.clone();
        option(&mut open.options);
        recipe::choose(&open, evidence, model, &mut Vec::new())
    };
    let RecipeOverrides { one_view, flips, .. } = overrides.options;
    if one_view {
        let recipe = without(|options| options.one_view = false)?;
        if !recipe.mirror_views && !recipe.shifted_views {
            usage!(
                "--no-tta has no effect: this model would be asked about each image as it is anyway; leave it out"
            );
        }
    }
    if flips == Some(false) && without(|options| options.flips = None)?.augmentation.horizontal_flip == 0.0 {
        usage!("--no-flips has no effect: no image would be mirrored anyway; leave it out");
    }
    Ok(())
}

/// Checks that whitening has an effect.
///
/// # Errors
/// When the model has no first convolution to whiten, or starts from pretrained weights.
fn check_stem(recipe: &Recipe, model: &ModelConfig, evidence: &Evidence<'_>) -> Result<()> {
    if !recipe.whitened_stem {
        return Ok(());
    }
    if evidence.pretrained.is_some() {
        bail!(
            "`whitened_stem` has no effect on pretrained weights, which are kept as they are: leave it out"
        );
    }
    if !matches!(model.tokenizer, Tokenizer::Residual { .. }) {
        bail!("`whitened_stem` has no effect on a model without a residual tokenizer: leave it out");
    }
    Ok(())
}

/// Checks that the frozen part exists, that it has pretrained weights, and that freezing it does not make another
/// option useless.
fn check_freeze(recipe: &Recipe, model: &ModelConfig, evidence: &Evidence<'_>) -> Result<()> {
    let blocks = model.depth.sum() + model.class_depth;
    match recipe.freeze {
        Some(_) if evidence.pretrained.is_none() => {
            usage!("`freeze` needs --pretrained: otherwise it would freeze random weights")
        }
        Some(Freeze::Blocks(count)) if count > blocks => {
            usage!("`freeze` (--freeze) is {count}, and the model has only {blocks} blocks")
        }
        Some(Freeze::Blocks(count)) if recipe.gradient_checkpointing && count >= model.depth.sum() => {
            usage!(
                "`gradient_checkpointing` (--gradient-checkpointing) saves nothing if the first {count} blocks are frozen (--freeze), because \
                 frozen blocks store no activations: leave it out"
            )
        }
        Some(Freeze::Blocks(count)) if recipe.optimizer == Optimizer::Muon && count >= blocks => {
            usage!(
                "`optimizer = \"muon\"` (--optimizer) has no effect if all {count} blocks are frozen (--freeze), because what follows them \
                 learns by AdamW in any case: leave it out"
            )
        }
        _ => Ok(()),
    }
}

/// Checks that the recipe suits the number of labels of an image.
fn check_labels(recipe: &Recipe, evidence: &Evidence<'_>) -> Result<()> {
    if !evidence.info.multi_label {
        if recipe.metric() == Metric::MeanAveragePrecision {
            usage!(
                "`metric` (--metric) is mean-average-precision, which needs images of several labels each (--label-separator); {} has one \
                 label an image",
                evidence.info.name
            );
        }
        return Ok(());
    }
    for (option, is_on) in
        [("--class-weights", recipe.class_weights), ("--balanced-sampling", recipe.balanced_sampling)]
    {
        if is_on {
            usage!(
                "{option} needs one label an image, and images of {} have several: leave it out",
                evidence.info.name
            );
        }
    }
    Ok(())
}

fn preprocessing(
    (model, recipe): (&ModelConfig, &Recipe),
    asked: Option<Resize>,
    evidence: &Evidence<'_>,
    reasons: &mut Vec<String>,
) -> Preprocessing {
    let resize = resize::choose(asked, evidence, (model, recipe), reasons);
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

/// A number of epochs rounded for messages.
fn rounded(epochs: f64) -> String {
    match epochs {
        ..0.1 => "less than 0.1".to_owned(),
        ..10.0 => format!("{epochs:.1}"),
        _ => format!("{epochs:.0}"),
    }
}
