//! Configuration files of other libraries: `config.json` of Hugging Face and of timm, `preprocessor_config.json`, and the
//! arguments of a constructor as JSON.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use vitrine_datasets::{Interpolation, ResizeRule};
use vitrine_models::weights::{Facts, Layout};

use super::description::{Description, squash};
use super::values::numbers;
use super::{constructor, hugging_face_config, processor, timm_config};
use crate::files::read_text;

fn json(path: &Path) -> Result<Value> {
    let text = read_text(path).with_context(|| path.display().to_string())?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    serde_json::from_str(text).with_context(|| format!("{}: not JSON", path.display()))
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
    let text = |key: &str| -> Result<Option<&str>> {
        let value = pipeline.get(key).filter(|value| !value.is_null());
        value
            .map(|value| {
                value.as_str().with_context(|| format!("`pretrained_cfg.{key}` is {value}: a name is needed"))
            })
            .transpose()
    };
    description.interpolation = text("interpolation")?.map(interpolation).transpose()?;
    let mode = text("crop_mode")?.unwrap_or("center");
    if !["center", "squash"].contains(&mode) {
        bail!("`pretrained_cfg.crop_mode` is {mode}: only center and squash are supported");
    }
    if let Some(crop) = pipeline.get("crop_pct").filter(|crop| !crop.is_null()) {
        let crop = crop.as_f64().context("`pretrained_cfg.crop_pct`: a number is needed")?;
        description.resize =
            Some(if mode == "squash" { squash(crop) } else { ResizeRule::ShorterSide { crop } });
    }
    Ok(())
}

fn floats(value: Option<&Value>) -> Option<Vec<f32>> {
    value?.as_array()?.iter().map(|value| value.as_f64().map(|value| value as f32)).collect()
}

fn interpolation(name: &str) -> Result<Interpolation> {
    match name {
        "bilinear" => Ok(Interpolation::Bilinear),
        "bicubic" => Ok(Interpolation::Bicubic),
        "lanczos" => Ok(Interpolation::Lanczos),
        other => {
            bail!(
                "`pretrained_cfg.interpolation` is {other}: only bilinear, bicubic and lanczos are supported"
            )
        }
    }
}

/// Adds what a `preprocessor_config.json` says.
///
/// # Errors
/// When it says what is not supported; the message names the file and the key.
pub(super) fn read_preprocessor(path: &Path, description: &mut Description) -> Result<()> {
    processor::read(path, &json(path)?, description)
}
