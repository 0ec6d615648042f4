//! What nobody said is chosen from the data: image size, architecture, recipe; every choice with its reason.

use anyhow::{Context, Result, bail};
use std::path::Path;
use vitrine_datasets::{
    Augmentation, Crop, CropRounding, DatasetInfo, Interpolation, Preprocessing, ResizeRule, SourceKind,
    Survey,
};
use vitrine_models::{ImageSize, ModelConfig, Tokeniser, preset};

use super::layers::Freeze;
use crate::files::read_text;
use crate::import;
use crate::model_file::ModelCard;
use crate::recipe::Recipe;
use crate::usage::{did_you_mean, usage};

/// What the user asked for; all of it may be left out.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// A preset's name or a TOML file.
    pub model: Option<String>,
    /// The part of a pretrained model that does not learn.
    pub freeze: Option<Freeze>,
    /// The factor between the learning rates of neighbouring blocks.
    pub layer_decay: Option<f64>,
    /// A recipe's name or a TOML file.
    pub recipe: Option<String>,
    /// Side of the input in pixels.
    pub image_size: Option<usize>,
    /// Passes over the training pictures.
    pub epochs: Option<usize>,
    /// Length of the run in seconds.
    pub time_seconds: Option<f64>,
    /// Pictures a step.
    pub batch_size: Option<usize>,
    /// The highest learning rate.
    pub learning_rate: Option<f64>,
    /// Weight decay.
    pub weight_decay: Option<f64>,
    /// Epochs without improvement before the run stops.
    pub patience: Option<usize>,
    /// Share of unreadable pictures that is put up with.
    pub bad_file_limit: Option<f64>,
    /// Memory saved by computing blocks twice, if the recipe does not say so already.
    pub gradient_checkpointing: bool,
}

/// What will be trained and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the model is called in folder names and titles.
    pub model_name: String,
    /// The architecture, for the data's classes.
    pub model: ModelConfig,
    /// What is done to every picture.
    pub preprocessing: Preprocessing,
    /// How it is trained.
    pub recipe: Recipe,
    /// What was chosen and why, a line each.
    pub reasons: Vec<String>,
}

/// What the choices depend on.
pub struct Facts<'a> {
    /// Names, classes, what may be done to the pictures.
    pub info: &'a DatasetInfo,
    /// Sizes and colours.
    pub survey: &'a Survey,
    /// Number of training pictures.
    pub train: usize,
    /// The weights that training begins with: what they are called, and what is known of them.
    pub pretrained: Option<(&'a str, &'a ModelCard)>,
}

impl Plan {
    /// Fills what `wishes` leave open.
    ///
    /// # Errors
    /// When a preset, recipe or file is not there or not valid, or wishes do not fit together.
    pub fn new(wishes: &Wishes, facts: &Facts<'_>) -> Result<Self> {
        let mut reasons = Vec::new();
        let (model_name, mut model) = match facts.pretrained {
            Some((name, card)) => pretrained(wishes, facts, name, card, &mut reasons),
            None => architecture(wishes, facts, &mut reasons)?,
        };
        model.num_classes = classes_of(&model, wishes, facts)?;
        match (model.validate(), wishes.image_size) {
            (Ok(()), _) => {}
            (Err(error), Some(side)) => usage!("--image-size {side}: {error}"),
            (Err(error), None) => return Err(error).context("the model does not fit the data set"),
        }
        let preprocessing = preprocessing(&model, facts, &mut reasons);
        let mut recipe = recipe(wishes, facts, &model, &mut reasons)?;
        overrule(&mut recipe, wishes);
        // A recipe's file was valid, and so are named ones: what is wrong now was typed.
        if let Err(error) = recipe.validate() {
            usage!("{error:#}");
        }
        check_effect(&recipe, wishes, is_grey(&model, facts))?;
        check_freeze(&recipe, &model, facts)?;
        Ok(Self { model_name, model, preprocessing, recipe, reasons })
    }
}

/// The architecture of pretrained weights, for the data's size and colours.
fn pretrained(
    wishes: &Wishes,
    facts: &Facts<'_>,
    name: &str,
    card: &ModelCard,
    reasons: &mut Vec<String>,
) -> (String, ModelConfig) {
    // The filters of plain patches can be joined or repeated.
    let channels = match (card.model.tokeniser, facts.survey.grey) {
        (Tokeniser::Patch, true) => 1,
        (Tokeniser::Patch, false) => 3,
        (Tokeniser::ShiftedPatch | Tokeniser::Convolution { .. }, _) => card.model.channels,
    };
    let image_size = wishes.image_size.map_or(card.model.image_size, ImageSize::square);
    let config = ModelConfig { image_size, channels, ..card.model.clone() };
    reasons.push(format!("pretrained {name}: {}", import::summary(&config)));
    (name.to_owned(), config)
}

/// As many classes as the data have; a file of an architecture that states another number is not meant for them.
fn classes_of(model: &ModelConfig, wishes: &Wishes, facts: &Facts<'_>) -> Result<usize> {
    let classes = facts.info.classes.len();
    let stated = match &wishes.model {
        Some(file) if preset::find(file).is_none() => Path::new(file),
        _ => return Ok(classes),
    };
    if model.num_classes != classes && model.num_classes != ModelConfig::DEFAULT_CLASSES {
        bail!(
            "{}: `num_classes` is {}, and the data set has {classes} classes: leave it out",
            stated.display(),
            model.num_classes
        );
    }
    Ok(classes)
}

/// What the recipe file or the command line asks for must be able to do something.
fn check_effect(recipe: &Recipe, wishes: &Wishes, is_grey: bool) -> Result<()> {
    let Augmentation { saturation, hue, .. } = recipe.augmentation;
    for (key, strength) in [("saturation", saturation), ("hue", hue)] {
        if is_grey && strength > 0.0 {
            bail!("`augmentation.{key}` is {strength} and has no effect on grey images: leave it out");
        }
    }
    match (wishes.patience, recipe.epochs) {
        (Some(patience), Some(epochs)) if patience >= epochs => {
            usage!(
                "--patience {patience} has no effect, as the run ends after epoch {epochs}: give fewer, or leave it out"
            )
        }
        _ => Ok(()),
    }
}

/// Whether the model sees no colors.
fn is_grey(model: &ModelConfig, facts: &Facts<'_>) -> bool {
    facts.survey.grey || model.channels == 1
}

/// What is frozen must be there, and must not be random.
fn check_freeze(recipe: &Recipe, model: &ModelConfig, facts: &Facts<'_>) -> Result<()> {
    let blocks = model.depth.sum() + model.class_depth;
    match recipe.freeze {
        Some(_) if facts.pretrained.is_none() => {
            usage!("`freeze` without --pretrained would keep what is random as it is: leave it out")
        }
        Some(Freeze::Blocks(count)) if count > blocks => {
            usage!("--freeze {count}: the model has {blocks} blocks")
        }
        Some(Freeze::Blocks(count)) if recipe.gradient_checkpointing && count >= model.depth.sum() => {
            usage!(
                "--gradient-checkpointing saves nothing with --freeze {count}, as nothing of frozen blocks is kept: leave it out"
            )
        }
        _ => Ok(()),
    }
}

fn architecture(
    wishes: &Wishes,
    facts: &Facts<'_>,
    reasons: &mut Vec<String>,
) -> Result<(String, ModelConfig)> {
    let channels = if facts.survey.grey { 1 } else { 3 };
    if let Some(wanted) = &wishes.model {
        let (name, mut config, is_preset) = named_model(wanted)?;
        if is_preset {
            config.channels = channels;
        }
        if let Some(side) = wishes.image_size {
            config.image_size = ImageSize::square(side);
        }
        return Ok((name, config));
    }
    let side = facts.survey.sizes.width.median.min(facts.survey.sizes.height.median) as usize;
    let (image, patch, why) = match (wishes.image_size, side) {
        (Some(size), _) => (size, patch_for(size), format!("patch {} divides it", patch_for(size))),
        (None, ..=40) => (side.next_multiple_of(4).max(16), 4, format!("the pictures have {side} pixels")),
        (None, ..=96) => (64, 8, format!("the pictures have about {side} pixels")),
        (None, _) => {
            (96, 8, format!("the pictures have about {side} pixels, and training from scratch needs few"))
        }
    };
    let large = facts.train >= 100_000 && !facts.survey.grey;
    let name = if large { "vit_nano_patch4_32" } else { "vit_pico_patch4_32" };
    let size_why = match (large, facts.survey.grey) {
        (true, _) => format!("{} colour pictures fill it", facts.train),
        (false, true) => "grey pictures need no more".to_owned(),
        (false, false) => format!("{} pictures; a larger one wants 100,000 or many hours", facts.train),
    };
    let base = preset::find(name).context("the default preset is not listed")?;
    let config = ModelConfig { image_size: ImageSize::square(image), patch_size: patch, channels, ..base };
    let family = if large { "vit_nano" } else { "vit_pico" };
    reasons.push(format!("image size {image}, patch {patch}: {why}"));
    reasons.push(format!(
        "model {family}: dim {}, depth {}, {} heads: {size_why}",
        config.embed_dim, config.depth, config.num_heads
    ));
    Ok((format!("{family}_patch{patch}_{image}"), config))
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

fn preprocessing(model: &ModelConfig, facts: &Facts<'_>, reasons: &mut Vec<String>) -> Preprocessing {
    if let Some((_, card)) = facts.pretrained {
        return import::preprocessing_for(&card.preprocessing, model);
    }
    let resize =
        if is_square(facts.survey) { ResizeRule::Squash } else { ResizeRule::ShorterSide { crop: 1.0 } };
    if !is_square(facts.survey) {
        reasons.push("pictures are scaled on their shorter side and cropped: their shapes differ".to_owned());
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

/// Whether all pictures are squares, so that nothing is lost by scaling them to one.
fn is_square(survey: &Survey) -> bool {
    let (width, height) = (survey.sizes.width, survey.sizes.height);
    width == height && width.min == width.max
}

/// The recipes that `--recipe` names.
pub const RECIPES: [(&str, &str); 4] = [
    (
        "plain",
        "flips alone, where they keep the class: for a few epochs, or pictures that must not be changed",
    ),
    ("short", "crop, flip and light colour jitter: for a few dozen epochs"),
    (
        "long",
        "short, with RandAugment, mixup, cutmix, erasing and averaged weights: for a hundred epochs and more",
    ),
    (
        "fine-tune",
        "short, with a learning rate that falls by a quarter with every block towards the input: for pretrained weights",
    ),
];

fn recipe(
    wishes: &Wishes,
    facts: &Facts<'_>,
    model: &ModelConfig,
    reasons: &mut Vec<String>,
) -> Result<Recipe> {
    if let Some(wanted) = &wishes.recipe {
        if let Some((name, _)) = RECIPES.iter().find(|(name, _)| name == wanted) {
            let mut recipe = named_recipe(name, facts, model);
            recipe.epochs = Some(epochs_for(facts));
            return Ok(recipe);
        }
        if !wanted.ends_with(".toml") {
            let names: Vec<&str> = RECIPES.iter().map(|(name, _)| *name).collect();
            usage!(
                "--recipe {wanted}: there is no such recipe; choose {}, or name a .toml file{}",
                names.join(", "),
                did_you_mean(wanted, names)
            );
        }
        let mut recipe = Recipe::read(Path::new(wanted))?;
        if recipe.epochs.is_none() && recipe.time_seconds.is_none() {
            recipe.epochs = Some(epochs_for(facts));
        }
        return Ok(recipe);
    }
    let epochs = epochs_for(facts);
    let name = match wishes.epochs.unwrap_or(epochs) {
        _ if facts.pretrained.is_some() => "fine-tune",
        _ if facts.info.source == SourceKind::Shapes => "plain",
        60.. => "long",
        _ => "short",
    };
    let mut recipe = named_recipe(name, facts, model);
    recipe.epochs = Some(epochs);
    if wishes.epochs.is_none() && wishes.time_seconds.is_none() {
        reasons.push(format!("{epochs} epochs: {} training pictures", facts.train));
    }
    let flips =
        if facts.info.flip_safe { "with flips" } else { "without flips, which would change the class" };
    reasons.push(format!("recipe {name}, {flips}"));
    Ok(recipe)
}

/// Few pictures want many passes; the views of all passes together stay affordable on a processor.
fn epochs_for(facts: &Facts<'_>) -> usize {
    if facts.pretrained.is_some() {
        return (50_000 / facts.train.max(1)).clamp(5, 50);
    }
    if facts.info.source == SourceKind::Shapes {
        return 7;
    }
    (400_000 / facts.train.max(1)).clamp(8, 100)
}

fn named_recipe(name: &str, facts: &Facts<'_>, model: &ModelConfig) -> Recipe {
    let side = model.image_size.height.min(model.image_size.width);
    let flip = if facts.info.flip_safe { 0.5 } else { 0.0 };
    let shift = Crop::Pad { pixels: (side / 8).max(1) as u32 };
    let photos = !is_square(facts.survey) || facts.survey.sizes.width.median > 96;
    let crop = if photos { Crop::Resized { scale: [0.5, 1.0], ratio: [0.75, 4.0 / 3.0] } } else { shift };
    let plain = Recipe {
        batch_size: if facts.train < 20_000 { 32 } else { 64 },
        learning_rate: if model.embed_dim <= 128 { 2e-3 } else { 1e-3 },
        warmup: 0.1,
        augmentation: Augmentation { horizontal_flip: flip, ..Augmentation::none() },
        label_smoothing: 0.0,
        ..Recipe::default()
    };
    let jitter = if is_grey(model, facts) { 0.0 } else { 0.2 };
    let short = Recipe {
        label_smoothing: 0.1,
        augmentation: Augmentation { crop, horizontal_flip: flip, ..Augmentation::none() }
            .with_jitter(jitter),
        ..plain.clone()
    };
    match name {
        "plain" => plain,
        "fine-tune" => Recipe { learning_rate: plain.learning_rate / 2.0, layer_decay: 0.75, ..short },
        "long" => Recipe { ema_decay: 0.999, augmentation: short.augmentation.clone().strong(), ..short },
        _ => short,
    }
}

fn overrule(recipe: &mut Recipe, wishes: &Wishes) {
    if wishes.time_seconds.is_some() {
        recipe.time_seconds = wishes.time_seconds;
        // The clock ends the run; epochs count beside it only where they were asked for too.
        recipe.epochs = None;
    }
    if wishes.epochs.is_some() {
        recipe.epochs = wishes.epochs;
    }
    let set = |target: &mut f64, wish: Option<f64>| *target = wish.unwrap_or(*target);
    set(&mut recipe.weight_decay, wishes.weight_decay);
    set(&mut recipe.bad_file_limit, wishes.bad_file_limit);
    recipe.gradient_checkpointing |= wishes.gradient_checkpointing;
    recipe.freeze = wishes.freeze.or(recipe.freeze);
    let is_own = wishes.recipe.as_ref().is_some_and(|recipe| recipe.ends_with(".toml"));
    if recipe.freeze == Some(Freeze::Backbone) && !is_own {
        // A single layer learns.
        recipe.layer_decay = 1.0;
        recipe.learning_rate = 3e-3;
    }
    set(&mut recipe.layer_decay, wishes.layer_decay);
    set(&mut recipe.learning_rate, wishes.learning_rate);
    recipe.batch_size = wishes.batch_size.unwrap_or(recipe.batch_size);
    recipe.patience = wishes.patience.unwrap_or(recipe.patience);
}

#[cfg(test)]
mod tests {
    use super::*;
    use vitrine_datasets::{Extent, SizeRange, ValidationOrigin};

    struct Case {
        info: DatasetInfo,
        survey: Survey,
        train: usize,
    }

    fn case(source: SourceKind, side: [u32; 2], grey: bool, train: usize) -> Case {
        let extent = |side| Extent { min: side, median: side, max: side };
        Case {
            info: DatasetInfo {
                name: "data".to_owned(),
                classes: ["a", "b", "c"].map(str::to_owned).to_vec(),
                source,
                validation: ValidationOrigin::Given,
                flip_safe: !grey,
            },
            survey: Survey {
                sizes: SizeRange { width: extent(side[0]), height: extent(side[1]) },
                grey,
                decoded: 1,
                failed: 0,
            },
            train,
        }
    }

    fn plan(case: &Case, wishes: &Wishes) -> Result<Plan> {
        let facts = Facts { info: &case.info, survey: &case.survey, train: case.train, pretrained: None };
        Plan::new(wishes, &facts)
    }

    #[test]
    fn digits_colour_pictures_and_photos_get_what_suits_them() {
        let digits = plan(&case(SourceKind::Idx, [28, 28], true, 48_000), &Wishes::default()).unwrap();
        assert_eq!((digits.model.channels, digits.model.image_size), (1, ImageSize::square(28)));
        assert_eq!(digits.recipe.augmentation.horizontal_flip, 0.0, "a mirrored digit is another one");
        let small = plan(&case(SourceKind::Cifar, [32, 32], false, 40_000), &Wishes::default()).unwrap();
        assert_eq!((small.model.channels, small.model.patch_size), (3, 4));
        assert_eq!(small.recipe.augmentation.horizontal_flip, 0.5);
        let many = plan(&case(SourceKind::Folder, [32, 32], false, 200_000), &Wishes::default()).unwrap();
        assert!(many.model.embed_dim > small.model.embed_dim);
        let photos = plan(&case(SourceKind::Folder, [640, 480], false, 300), &Wishes::default()).unwrap();
        assert_eq!(photos.preprocessing.resize, ResizeRule::ShorterSide { crop: 1.0 });
        assert!(photos.recipe.epochs > small.recipe.epochs, "few pictures want many epochs");
        assert!(photos.recipe.ema_decay > 0.0);
        for plan in [digits, small, photos] {
            assert_eq!(plan.model.num_classes, 3);
            assert!(plan.reasons.len() >= 4, "{:?}", plan.reasons);
        }
    }

    #[test]
    fn wishes_come_before_choices() {
        let wishes = Wishes {
            model: Some("vit_tiny_patch16_224".to_owned()),
            recipe: Some("plain".to_owned()),
            image_size: Some(64),
            epochs: Some(4),
            batch_size: Some(7),
            learning_rate: Some(0.5),
            weight_decay: Some(0.25),
            patience: Some(3),
            ..Wishes::default()
        };
        let plan = plan(&case(SourceKind::Folder, [640, 480], true, 300), &wishes).unwrap();
        assert_eq!(plan.model_name, "vit_tiny_patch16_224");
        assert_eq!((plan.model.image_size, plan.model.channels), (ImageSize::square(64), 1));
        assert_eq!(plan.preprocessing.image_size, [64, 64]);
        let recipe = plan.recipe;
        assert_eq!((recipe.epochs, recipe.batch_size, recipe.patience), (Some(4), 7, 3));
        assert_eq!((recipe.learning_rate, recipe.weight_decay), (0.5, 0.25));
    }

    #[test]
    fn what_has_no_effect_is_refused_and_never_chosen() {
        let folder = tempfile::tempdir().unwrap();
        let recipe = |text: &str| {
            let path = folder.path().join("recipe.toml");
            std::fs::write(&path, text).unwrap();
            Some(path.display().to_string())
        };
        let grey = case(SourceKind::Folder, [32, 32], true, 300);
        let color = case(SourceKind::Folder, [32, 32], false, 300);
        for text in ["[augmentation]\nhue = 0.1", "[augmentation]\nsaturation = 0.3"] {
            let wishes = Wishes { recipe: recipe(text), ..Wishes::default() };
            let error = plan(&grey, &wishes).unwrap_err().to_string();
            assert!(error.contains("no effect on grey images"), "{error}");
            plan(&color, &wishes).unwrap();
        }
        let grey_model = folder.path().join("grey.toml");
        std::fs::write(
            &grey_model,
            "image_size = 32\npatch_size = 8\nchannels = 1\nembed_dim = 16\ndepth = 1\nnum_heads = 2\n",
        )
        .unwrap();
        for name in RECIPES.map(|(name, _)| name) {
            let wishes = Wishes { recipe: Some(name.to_owned()), ..Wishes::default() };
            plan(&grey, &wishes).unwrap();
            let model = Some(grey_model.display().to_string());
            plan(&color, &Wishes { model, ..wishes }).unwrap();
        }
        let patient = |patience| Wishes { patience: Some(patience), epochs: Some(3), ..Wishes::default() };
        assert!(plan(&color, &patient(3)).unwrap_err().to_string().contains("--patience 3"));
        plan(&color, &patient(2)).unwrap();
    }

    #[test]
    fn a_time_budget_takes_the_place_of_epochs() {
        let data = case(SourceKind::Folder, [32, 32], false, 300);
        let time = Wishes { time_seconds: Some(60.0), ..Wishes::default() };
        assert_eq!(plan(&data, &time).unwrap().recipe.epochs, None);
        let both = Wishes { epochs: Some(5), ..time };
        let recipe = plan(&data, &both).unwrap().recipe;
        assert_eq!((recipe.epochs, recipe.time_seconds), (Some(5), Some(60.0)));
    }

    #[test]
    fn an_image_size_gets_a_patch_that_divides_it_or_an_error() {
        let sized = |side| {
            let wishes = Wishes { image_size: Some(side), ..Wishes::default() };
            plan(&case(SourceKind::Folder, [640, 480], false, 300), &wishes)
        };
        for side in (16..300_usize).step_by(4) {
            assert!(side.is_multiple_of(sized(side).unwrap().model.patch_size));
        }
        let error = format!("{:#}", sized(101).unwrap_err());
        assert!(error.contains("--image-size") && error.contains("101"), "{error}");
    }
}
