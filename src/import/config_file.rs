//! Configuration files of other libraries: `config.json` of Hugging Face and of timm, `preprocessor_config.json`, and the
//! arguments of a constructor as JSON.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use vitrine_datasets::{Interpolation, ResizeRule};
use vitrine_models::weights::{Facts, Layout};

use super::values::numbers;
use super::{constructor, hugging_face_config, timm_config};

/// What configuration files say; everything may be missing.
#[derive(Debug, Default)]
pub(super) struct Description {
    /// Of the architecture.
    pub(super) facts: Facts,
    /// timm's name of the architecture.
    pub(super) name: Option<String>,
    /// Whose configuration it is, where that tells whose names the keys have.
    pub(super) layout: Option<Layout>,
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
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&text);
    serde_json::from_slice(text).with_context(|| format!("{}: not JSON", path.display()))
}

/// Reads a model's configuration.
///
/// # Errors
/// When it is no JSON object, or says what is not supported; the message names the file and the key.
pub(super) fn read(path: &Path) -> Result<Description> {
    let value = json(path)?;
    let Some(file) = value.as_object() else {
        bail!("{}: not a configuration: a JSON object is needed", path.display());
    };
    let mut description = describe(file).with_context(|| path.display().to_string())?;
    description.classes = class_names(&value);
    if let Some(pipeline) = value.get("pretrained_cfg") {
        timm_pipeline(pipeline, &mut description).with_context(|| path.display().to_string())?;
    }
    Ok(description)
}

/// What a file of each of the three kinds states of the architecture.
fn describe(file: &Map<String, Value>) -> Result<Description> {
    let timms = ["architecture", "pretrained_cfg", "model_args"];
    if hugging_face_config::is_one(file) {
        let facts = hugging_face_config::read(file)?;
        return Ok(Description { facts, layout: Some(Layout::HuggingFace), ..Description::default() });
    }
    if timms.iter().any(|key| file.contains_key(*key)) {
        let facts = timm_config::read(file)?;
        let name = file.get("architecture").and_then(Value::as_str).map(str::to_owned);
        return Ok(Description { facts, name, ..Description::default() });
    }
    let mut facts = match file.get("model").and_then(Value::as_str) {
        Some(class) => constructor::of_class(class).context("`model`")?,
        None => Facts::default(),
    };
    constructor::add(file, &mut facts)?;
    Ok(Description { facts, ..Description::default() })
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

pub(super) fn squash(crop: f64) -> ResizeRule {
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
