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
    let crop = pipeline.get("crop_pct").filter(|crop| !crop.is_null());
    let crop = crop
        .map(|crop| crop.as_f64().context("`pretrained_cfg.crop_pct`: a number is needed"))
        .transpose()?;
    description.resize = match text("crop_mode")?.unwrap_or("center") {
        "center" => crop.map(|crop| ResizeRule::ShorterSide { crop }),
        "squash" => crop.map(squash),
        "border" if crop.is_some_and(|crop| crop >= 1.0) => Some(ResizeRule::Letterbox),
        "border" => {
            bail!("`pretrained_cfg.crop_mode` is border: that is only supported with a `crop_pct` of 1")
        }
        mode => bail!("`pretrained_cfg.crop_mode` is {mode}: only center, squash and border are supported"),
    };
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn classes_are_those_of_either_library_but_for_names_that_it_makes_up() {
        let names = |names: [&str; 2]| Some(names.map(str::to_owned).to_vec());
        for (file, expected) in [
            (json!({ "label_names": ["cat", "dog"] }), names(["cat", "dog"])),
            (json!({ "pretrained_cfg": { "label_names": ["cat", "dog"] } }), names(["cat", "dog"])),
            (json!({ "id2label": { "1": "dog", "0": "cat" } }), names(["cat", "dog"])),
            (json!({ "id2label": { "0": "LABEL_0", "1": "dog" } }), names(["LABEL_0", "dog"])),
            (json!({ "id2label": { "0": "LABEL_0", "1": "LABEL_1" } }), None),
            (json!({ "id2label": { "1": "cat", "2": "dog" } }), None),
            (json!({ "label_names": ["cat", 2] }), None),
            (json!({ "num_classes": 2 }), None),
        ] {
            assert_eq!(class_names(&file), expected, "{file}");
        }
    }

    #[test]
    fn timms_pipeline_becomes_ours() {
        for (pipeline, resize) in [
            (json!({ "crop_pct": 0.9 }), Some(ResizeRule::ShorterSide { crop: 0.9 })),
            (json!({ "crop_pct": 1.0, "crop_mode": "center" }), Some(ResizeRule::ShorterSide { crop: 1.0 })),
            (json!({ "crop_pct": 0.9, "crop_mode": "squash" }), Some(ResizeRule::SquashCrop { crop: 0.9 })),
            (json!({ "crop_pct": 1.0, "crop_mode": "squash" }), Some(ResizeRule::Squash)),
            (json!({ "crop_pct": 1.0, "crop_mode": "border" }), Some(ResizeRule::Letterbox)),
            (json!({ "crop_pct": null, "crop_mode": null }), None),
        ] {
            let mut description = Description::default();
            timm_pipeline(&pipeline, &mut description).unwrap();
            assert_eq!(description.resize, resize, "{pipeline}");
        }
        let pipeline = json!({
            "input_size": [3, 32, 48], "mean": [0.25, 0.5, 0.75], "std": [0.5, 0.5, 0.5], "interpolation": "lanczos",
        });
        let mut description = Description::default();
        timm_pipeline(&pipeline, &mut description).unwrap();
        assert_eq!((description.image_size, description.resize), (Some([32, 48]), None));
        assert_eq!((description.mean, description.std), (Some(vec![0.25, 0.5, 0.75]), Some(vec![0.5; 3])));
        assert_eq!(description.interpolation, Some(Interpolation::Lanczos));
        for (key, value) in [
            ("crop_mode", json!("border")),
            ("crop_mode", json!(1)),
            ("interpolation", json!("nearest")),
            ("interpolation", json!(3)),
            ("crop_pct", json!("most")),
            ("input_size", json!("large")),
        ] {
            let mut pipeline = json!({});
            pipeline[key] = value;
            let error = format!("{:#}", timm_pipeline(&pipeline, &mut Description::default()).unwrap_err());
            assert!(error.contains(&format!("`pretrained_cfg.{key}`")), "{pipeline}: {error}");
        }
    }

    #[test]
    fn every_kind_of_file_is_told_by_its_keys() {
        for (file, layout, name, dim) in [
            (json!({ "model_type": "vit" }), Some(Layout::HuggingFace), None, Some(768)),
            (
                json!({ "architecture": "vit_tiny_patch16_224" }),
                None,
                Some("vit_tiny_patch16_224"),
                Some(192),
            ),
            (json!({ "model": "VisionTransformer", "embed_dim": 96 }), None, None, Some(96)),
            (json!({ "embed_dim": 96 }), None, None, Some(96)),
        ] {
            let description = describe(file.as_object().unwrap()).unwrap();
            assert_eq!(description.layout, layout, "{file}");
            assert_eq!(description.name.as_deref(), name, "{file}");
            assert_eq!(description.facts.embed_dim, dim, "{file}");
        }
        let error = format!("{:#}", describe(json!({ "model": "Eva" }).as_object().unwrap()).unwrap_err());
        assert!(error.contains("`model`") && error.contains("Eva"), "{error}");
    }

    #[test]
    fn a_file_is_read_past_its_byte_order_mark_and_named_where_it_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let read_text = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read(&path)
        };
        let text = "\u{feff}{\"architecture\": \"vit_tiny_patch16_224\", \"label_names\": [\"cat\", \"dog\"],
            \"pretrained_cfg\": {\"input_size\": [3, 32, 32]}}";
        let description = read_text(text).unwrap();
        assert_eq!(
            (description.classes.map(|names| names.len()), description.image_size),
            (Some(2), Some([32, 32]))
        );
        for text in ["[1, 2]", "no JSON", "", "{\"surprise\": 1}"] {
            let error = format!("{:#}", read_text(text).unwrap_err());
            assert!(error.contains("config.json"), "{text}: {error}");
        }
    }
}
