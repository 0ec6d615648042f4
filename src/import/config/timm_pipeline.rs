//! The preprocessing in a timm configuration's `pretrained_cfg`: image size, interpolation, crop, mean, and standard
//! deviation.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use vitrine_datasets::{Interpolation, ResizeRule};

use super::metadata::{ModelMetadata, squash};
use super::values::numbers;

/// The part of timm's configuration that states the preprocessing. Early versions of timm wrote its keys at the top level.
pub(super) fn of(file: &Value) -> Option<&Value> {
    file.get("pretrained_cfg").or_else(|| file.get("architecture").map(|_| file))
}

/// Adds the preprocessing of a `pretrained_cfg`. A key that is `null` counts as missing.
///
/// # Errors
/// If a value is of another type than timm's or not supported; the message names the key.
pub(super) fn add(pipeline: &Value, metadata: &mut ModelMetadata) -> Result<()> {
    if let Some(size) = stated(pipeline, "input_size")
        && let [_, height, width] = numbers(size).context("`pretrained_cfg.input_size`")?[..]
    {
        metadata.image_size = Some([height, width]);
    }
    metadata.mean = floats(pipeline.get("mean"));
    metadata.std = floats(pipeline.get("std"));
    metadata.interpolation = text(pipeline, "interpolation")?.map(interpolation).transpose()?;
    metadata.resize = resize(pipeline)?;
    Ok(())
}

fn resize(pipeline: &Value) -> Result<Option<ResizeRule>> {
    let crop = stated(pipeline, "crop_pct")
        .map(|crop| crop.as_f64().context("`pretrained_cfg.crop_pct`: a number is needed"))
        .transpose()?;
    Ok(match text(pipeline, "crop_mode")?.unwrap_or("center") {
        "center" => crop.map(|crop| ResizeRule::ShorterSide { crop }),
        "squash" => crop.map(squash),
        "border" if crop.is_some_and(|crop| crop >= 1.0) => Some(ResizeRule::Letterbox),
        "border" => {
            bail!("`pretrained_cfg.crop_mode` is border: that is only supported with a `crop_pct` of 1")
        }
        mode => bail!("`pretrained_cfg.crop_mode` is {mode}: only center, squash and border are supported"),
    })
}

fn stated<'a>(pipeline: &'a Value, key: &str) -> Option<&'a Value> {
    pipeline.get(key).filter(|value| !value.is_null())
}

fn text<'a>(pipeline: &'a Value, key: &str) -> Result<Option<&'a str>> {
    let text = |value: &'a Value| {
        value.as_str().with_context(|| format!("`pretrained_cfg.{key}` is {value}: a name is needed"))
    };
    stated(pipeline, key).map(text).transpose()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn crop_mode_and_crop_pct_become_a_resize_rule() {
        for (pipeline, resize) in [
            (json!({ "crop_pct": 0.9 }), Some(ResizeRule::ShorterSide { crop: 0.9 })),
            (json!({ "crop_pct": 1.0, "crop_mode": "center" }), Some(ResizeRule::ShorterSide { crop: 1.0 })),
            (json!({ "crop_pct": 0.9, "crop_mode": "squash" }), Some(ResizeRule::SquashCrop { crop: 0.9 })),
            (json!({ "crop_pct": 1.0, "crop_mode": "squash" }), Some(ResizeRule::Squash)),
            (json!({ "crop_pct": 1.0, "crop_mode": "border" }), Some(ResizeRule::Letterbox)),
            (json!({ "crop_pct": null, "crop_mode": null }), None),
        ] {
            let mut metadata = ModelMetadata::default();
            add(&pipeline, &mut metadata).unwrap();
            assert_eq!(metadata.resize, resize, "{pipeline}");
        }
    }

    #[test]
    fn size_normalization_and_interpolation_are_read_and_wrong_values_refused() {
        let pipeline = json!({
            "input_size": [3, 32, 48], "mean": [0.25, 0.5, 0.75], "std": [0.5, 0.5, 0.5], "interpolation": "lanczos",
        });
        let mut metadata = ModelMetadata::default();
        add(&pipeline, &mut metadata).unwrap();
        assert_eq!((metadata.image_size, metadata.resize), (Some([32, 48]), None));
        assert_eq!((metadata.mean, metadata.std), (Some(vec![0.25, 0.5, 0.75]), Some(vec![0.5; 3])));
        assert_eq!(metadata.interpolation, Some(Interpolation::Lanczos));
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
            let error = format!("{:#}", add(&pipeline, &mut ModelMetadata::default()).unwrap_err());
            assert!(error.contains(&format!("`pretrained_cfg.{key}`")), "{pipeline}: {error}");
        }
    }
}
