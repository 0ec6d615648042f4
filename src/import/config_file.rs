//! Configuration files of other libraries: `config.json` of Hugging Face and of timm, `preprocessor_config.json`, and the
//! arguments of a constructor as JSON.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use vitrine_datasets::{Interpolation, ResizeRule};
use vitrine_models::weights::Facts;
use vitrine_models::{ImageSize, PerStage, Pool};

/// What configuration files say; everything may be missing.
#[derive(Debug, Default)]
pub(super) struct Description {
    /// Of the architecture.
    pub(super) facts: Facts,
    /// The name of a preset, where the library has the same name for it.
    pub(super) preset: Option<String>,
    /// Class names in the order of the logits.
    pub(super) classes: Option<Vec<String>>,
    /// Height and width.
    pub(super) image_size: Option<[usize; 2]>,
    pub(super) resize: Option<ResizeRule>,
    pub(super) interpolation: Option<Interpolation>,
    pub(super) mean: Option<Vec<f32>>,
    pub(super) std: Option<Vec<f32>>,
    /// For the user.
    pub(super) notes: Vec<String>,
}

fn json(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{}: not JSON", path.display()))
}

/// Reads a model's configuration.
///
/// # Errors
/// When it is no JSON object, or says what is not supported; the message names the file and the key.
pub(super) fn read(path: &Path) -> Result<Description> {
    let value = json(path)?;
    if !value.is_object() {
        bail!("{}: not a configuration: a JSON object is needed", path.display());
    }
    describe(&value).with_context(|| path.display().to_string())
}

fn describe(value: &Value) -> Result<Description> {
    let mut description = Description::default();
    // SigLIP's files describe two models.
    let model = value.get("vision_config").unwrap_or(value);
    let arguments = value.get("model_args");
    for (name, argument) in arguments.and_then(Value::as_object).into_iter().flatten() {
        let says_nothing = argument.is_null() || *argument == Value::Bool(false);
        if !says_nothing && !TIMM_ARGUMENTS.contains(&name.as_str()) {
            bail!("`model_args.{name}` is not supported");
        }
    }
    for part in [Some(model), arguments].into_iter().flatten() {
        architecture(part, &mut description)?;
    }
    if model.get("model_type").and_then(Value::as_str).is_some_and(|kind| kind.starts_with("siglip2")) {
        bail!("`model_type` siglip2: images of changing shapes are not supported");
    }
    if let Some(name) = value.get("architecture").and_then(Value::as_str) {
        let name = name.split('.').next().unwrap_or(name);
        description.preset = vitrine_models::preset::find(name).map(|_| name.to_owned());
        if has_enlarged_windows(name) {
            bail!("`architecture` {name}: windows that were enlarged after pre-training are not supported");
        }
    }
    description.classes = class_names(value);
    if let Some(pipeline) = value.get("pretrained_cfg") {
        timm_pipeline(pipeline, &mut description)?;
    }
    Ok(description)
}

/// Whether the name of a Swin v2 says `window12to16` or its like.
pub(super) fn has_enlarged_windows(name: &str) -> bool {
    name.split('_').any(|part| part.strip_prefix("window").is_some_and(|sizes| sizes.contains("to")))
}

/// What timm's `model_args` may say; all of it shows in the shapes, is read here, or matters in training alone.
const TIMM_ARGUMENTS: [&str; 29] = [
    "num_classes",
    "in_chans",
    "global_pool",
    "img_size",
    "patch_size",
    "embed_dim",
    "depth",
    "depths",
    "num_heads",
    "mlp_ratio",
    "qkv_bias",
    "qk_norm",
    "init_values",
    "class_token",
    "reg_tokens",
    "no_embed_class",
    "fc_norm",
    "window_size",
    "depth_token_only",
    "drop_rate",
    "pos_drop_rate",
    "patch_drop_rate",
    "proj_drop_rate",
    "attn_drop_rate",
    "drop_path_rate",
    "dynamic_img_size",
    "strict_img_size",
    "weight_init",
    "pretrained_window_sizes",
];

fn architecture(model: &Value, description: &mut Description) -> Result<()> {
    let facts = &mut description.facts;
    let key =
        |names: &[&str]| names.iter().find_map(|name| model.get(*name)).filter(|value| !value.is_null());
    if let Some(heads) = key(&["num_attention_heads", "num_heads"]) {
        facts.num_heads = Some(PerStage(numbers(heads).context("`num_heads`")?));
    }
    if let Some(size) = key(&["image_size", "img_size"]) {
        facts.image_size = Some(image_size(size)?);
    }
    if let Some(window) = key(&["window_size"]) {
        let sides = numbers(window).context("`window_size`")?;
        if sides.windows(2).any(|pair| pair[0] != pair[1]) {
            bail!("`window_size` is {sides:?}: square windows are supported");
        }
        facts.window = sides.first().copied();
    }
    if let Some(epsilon) = key(&["layer_norm_eps"]) {
        facts.norm_epsilon = Some(epsilon.as_f64().context("`layer_norm_eps`: a number is needed")?);
    }
    if key(&["pretrained_window_sizes"])
        .and_then(|sizes| numbers(sizes).ok())
        .is_some_and(|s| s.iter().any(|s| *s > 0))
    {
        bail!("`pretrained_window_sizes`: windows that were enlarged after pre-training are not supported");
    }
    match key(&["hidden_act"]).and_then(Value::as_str) {
        None | Some("gelu") => {}
        Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => description.notes.push(
            "`hidden_act`: the tanh form of GELU is computed exactly here; activations differ by up to 5e-4"
                .to_owned(),
        ),
        Some(other) => bail!("`hidden_act` is {other}: models with GELU are supported"),
    }
    facts.pool = match key(&["global_pool"]).and_then(Value::as_str) {
        None | Some("") => facts.pool,
        Some("token") => Some(Pool::ClassToken),
        Some("avg") => Some(Pool::Mean),
        Some("map") => Some(Pool::Attention),
        Some(other) => bail!("`global_pool` is {other}: token, avg and map are supported"),
    };
    for unsupported in
        ["pool_include_prefix", "always_partition", "act_layer", "norm_layer", "pre_norm", "use_swiglu_ffn"]
    {
        if key(&[unsupported]).is_some_and(|value| *value != Value::Bool(false)) {
            bail!("`{unsupported}` is not supported");
        }
    }
    Ok(())
}

/// A number, or a list of numbers.
fn numbers(value: &Value) -> Result<Vec<usize>> {
    let one = |value: &Value| {
        value.as_u64().and_then(|number| usize::try_from(number).ok()).context("a whole number is needed")
    };
    match value {
        Value::Array(values) => values.iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

fn image_size(value: &Value) -> Result<ImageSize> {
    let sides = numbers(value).context("`image_size`")?;
    if sides.iter().any(|side| *side > 16_384) {
        bail!("`image_size` is {sides:?}: at most 16384 pixels a side are possible");
    }
    match sides[..] {
        [side] => Ok(ImageSize::square(side)),
        [height, width] => Ok(ImageSize { height, width }),
        _ => bail!("`image_size`: one number or two are needed"),
    }
}

/// `label_names` of timm, `id2label` of Hugging Face; not the numbers that the latter makes up.
fn class_names(value: &Value) -> Option<Vec<String>> {
    let listed = value.get("label_names").or_else(|| value.get("pretrained_cfg")?.get("label_names"));
    if let Some(names) = listed.and_then(Value::as_array) {
        return names.iter().map(|name| name.as_str().map(str::to_owned)).collect();
    }
    let by_number = value.get("id2label")?.as_object()?;
    let names: Option<Vec<String>> = (0..by_number.len())
        .map(|number| by_number.get(&number.to_string())?.as_str().map(str::to_owned))
        .collect();
    names.filter(|names| !names.iter().enumerate().all(|(number, name)| *name == format!("LABEL_{number}")))
}

fn timm_pipeline(pipeline: &Value, description: &mut Description) -> Result<()> {
    if let Some(size) = pipeline.get("input_size").filter(|value| !value.is_null())
        && let [_, height, width] = numbers(size).context("`pretrained_cfg.input_size`")?[..]
    {
        description.image_size = Some([height, width]);
        description.facts.image_size.get_or_insert(ImageSize { height, width });
    }
    description.mean = floats(pipeline.get("mean"));
    description.std = floats(pipeline.get("std"));
    description.interpolation = pipeline.get("interpolation").and_then(Value::as_str).and_then(interpolation);
    let crop = pipeline.get("crop_pct").and_then(Value::as_f64);
    if let Some(crop) = crop {
        description.resize = Some(match pipeline.get("crop_mode").and_then(Value::as_str) {
            None | Some("center") => ResizeRule::ShorterSide { crop },
            Some("squash") => squash(crop),
            Some(other) => bail!("`pretrained_cfg.crop_mode` is {other}: center and squash are supported"),
        });
    }
    Ok(())
}

fn squash(crop: f64) -> ResizeRule {
    if crop < 1.0 { ResizeRule::SquashCrop { crop } } else { ResizeRule::Squash }
}

fn floats(value: Option<&Value>) -> Option<Vec<f32>> {
    value?.as_array()?.iter().map(|value| value.as_f64().map(|value| value as f32)).collect()
}

fn interpolation(name: &str) -> Option<Interpolation> {
    match name {
        "bilinear" => Some(Interpolation::Bilinear),
        "bicubic" => Some(Interpolation::Bicubic),
        "lanczos" => Some(Interpolation::Lanczos),
        _ => None,
    }
}

/// Adds what a `preprocessor_config.json` says.
///
/// # Errors
/// When it says what is not supported; the message names the file and the key.
pub(super) fn read_preprocessor(path: &Path, description: &mut Description) -> Result<()> {
    preprocessor(&json(path)?, description).with_context(|| path.display().to_string())
}

fn preprocessor(value: &Value, description: &mut Description) -> Result<()> {
    let on = |key: &str| value.get(key).and_then(Value::as_bool);
    for step in ["do_resize", "do_rescale"] {
        if on(step) == Some(false) {
            bail!("`{step}` is false: pictures of the right size and scale alone are not supported");
        }
    }
    if on("do_normalize") == Some(false) {
        (description.mean, description.std) = (Some(vec![0.0; 3]), Some(vec![1.0; 3]));
    } else {
        description.mean = floats(value.get("image_mean"));
        description.std = floats(value.get("image_std"));
    }
    if let Some(factor) = value.get("rescale_factor").and_then(Value::as_f64)
        && (factor * 255.0 - 1.0).abs() > 1e-6
    {
        bail!("`rescale_factor` is {factor}: 1/255 is supported");
    }
    // PIL's numbers of filters.
    description.interpolation = match value.get("resample").and_then(Value::as_u64) {
        None => description.interpolation,
        Some(1) => Some(Interpolation::Lanczos),
        Some(2) => Some(Interpolation::Bilinear),
        Some(3) => Some(Interpolation::Bicubic),
        Some(other) => {
            bail!("`resample` is {other}: 1 (Lanczos), 2 (bilinear) and 3 (bicubic) are supported")
        }
    };
    let side = |part: &Value, key: &str| part.get(key).and_then(Value::as_f64).filter(|side| *side >= 1.0);
    let both = |part: &Value| Some([side(part, "height")?, side(part, "width")?]);
    let Some(size) = value.get("size") else { return Ok(()) };
    let crop_size = value.get("crop_size").filter(|_| on("do_center_crop") == Some(true));
    let crop = crop_size.and_then(|part| both(part).or_else(|| part.as_f64().map(|side| [side; 2])));
    let scaled = both(size).or_else(|| size.as_f64().map(|side| [side; 2]));
    // A single number is the shorter side to processors that do not make squares of it.
    let kind =
        ["image_processor_type", "feature_extractor_type"].iter().find_map(|key| value.get(*key)?.as_str());
    let keeps_shape =
        size.is_number() && kind.is_some_and(|kind| kind.starts_with("CLIP") || kind.starts_with("Bit"));
    let (scaled, shorter) = match (scaled, side(size, "shortest_edge")) {
        (Some(scaled), _) => (scaled, keeps_shape),
        (None, Some(shortest)) => ([shortest; 2], true),
        (None, None) => bail!("`size` names neither height and width nor shortest_edge"),
    };
    let kept = crop.unwrap_or(scaled);
    description.image_size = Some(kept.map(|side| side as usize));
    let share = kept[0] / scaled[0];
    if !(share > 0.0 && share <= 1.0) {
        bail!("`crop_size` is larger than `size`, which is not supported");
    }
    if !shorter && (kept[1] / scaled[1] - share).abs() > 1e-6 {
        bail!("`crop_size` and `size` have other shapes, which is not supported");
    }
    description.resize = Some(if shorter { ResizeRule::ShorterSide { crop: share } } else { squash(share) });
    Ok(())
}
