//! Hugging Face's `preprocessor_config.json`: scaling, cropping, and normalization, with the defaults of each image
//! processor class.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use vitrine_datasets::{Interpolation, ResizeRule};

use super::metadata::{CLIP, HALF, IMAGENET, ModelMetadata, squash};
use crate::files::read_text;

/// The defaults of a supported class of image processors.
struct ProcessorClass {
    /// The class's name without `ImageProcessor`.
    name: &'static str,
    size: ScaledSize,
    /// Whether a `size` of a single number is the shorter side of the scaled image rather than both sides.
    number_is_shorter_side: bool,
    /// The side of the center crop in pixels; `None` for classes that do not crop.
    crop: Option<f64>,
    interpolation: Interpolation,
    /// Mean and standard deviation of the three channels.
    normalization: ([f32; 3], [f32; 3]),
}

/// The size that an image is scaled to, in pixels.
#[derive(Clone, Copy)]
enum ScaledSize {
    /// Height and width, whatever the image's shape.
    Both([f64; 2]),
    /// The shorter side; the aspect ratio is kept.
    Shorter(f64),
}

/// The supported classes, with the defaults of transformers 5.
const CLASSES: [ProcessorClass; 8] = [
    class("ViT", ScaledSize::Both([224.0; 2]), None, Interpolation::Bilinear, HALF),
    class("DeiT", ScaledSize::Both([256.0; 2]), Some(224.0), Interpolation::Bicubic, HALF),
    class("Beit", ScaledSize::Both([224.0; 2]), None, Interpolation::Bicubic, HALF),
    ProcessorClass {
        number_is_shorter_side: true,
        ..class("Siglip", ScaledSize::Both([224.0; 2]), None, Interpolation::Bicubic, HALF)
    },
    class("Bit", ScaledSize::Shorter(224.0), Some(224.0), Interpolation::Bicubic, CLIP),
    class("CLIP", ScaledSize::Shorter(224.0), Some(224.0), Interpolation::Bicubic, CLIP),
    class("DINOv3ViT", ScaledSize::Both([224.0; 2]), None, Interpolation::Bilinear, IMAGENET),
    class(CONVNEXT, ScaledSize::Shorter(384.0), None, Interpolation::Bicubic, HALF),
];

/// This class crops by the share `crop_pct` instead of `crop_size`, and only below 384 pixels.
const CONVNEXT: &str = "ConvNext";

const fn class(
    name: &'static str,
    size: ScaledSize,
    crop: Option<f64>,
    interpolation: Interpolation,
    normalization: ([f32; 3], [f32; 3]),
) -> ProcessorClass {
    let number_is_shorter_side = matches!(size, ScaledSize::Shorter(_));
    ProcessorClass { name, size, number_is_shorter_side, crop, interpolation, normalization }
}

/// Steps without effect: images are decoded with three channels, and there are no segmentation labels.
const HARMLESS: [&str; 2] = ["do_convert_rgb", "do_reduce_labels"];
/// The supported steps.
const KNOWN: [&str; 4] = ["do_resize", "do_rescale", "do_normalize", "do_center_crop"];

/// Adds the preprocessing of a `preprocessor_config.json`, with its class's defaults for missing keys.
///
/// # Errors
/// If the class, a step, or a value is not supported. The message names the file and the key.
pub(super) fn read(path: &Path, value: &Value, metadata: &mut ModelMetadata) -> Result<()> {
    let Some(file) = value.as_object() else {
        bail!("{}: not a configuration: a JSON object is needed", path.display());
    };
    // Early files do not name the class, which then follows from the model's `config.json`.
    let model_type = || -> Option<String> {
        let text = read_text(&path.with_file_name("config.json")).ok()?;
        let config: Value = serde_json::from_str(&text).ok()?;
        Some(config.get("model_type")?.as_str()?.to_owned())
    };
    add(file, model_type, metadata).with_context(|| path.display().to_string())
}

/// Adds the keys of a file. `model_type` reads the model's kind from its configuration, and is called only if the file
/// does not name its class.
fn add(
    file: &Map<String, Value>,
    model_type: impl Fn() -> Option<String>,
    metadata: &mut ModelMetadata,
) -> Result<()> {
    let class = class_of(file, model_type)?;
    check_steps(file)?;
    if flag(file, "do_normalize", true)? {
        metadata.mean = Some(per_channel(file, "image_mean", class.normalization.0)?);
        metadata.std = Some(per_channel(file, "image_std", class.normalization.1)?);
    } else {
        (metadata.mean, metadata.std) = (Some(vec![0.0; 3]), Some(vec![1.0; 3]));
    }
    if let Some(factor) = stated(file, "rescale_factor") {
        let factor = factor.as_f64().context("`rescale_factor`: a number is needed")?;
        if (factor * 255.0 - 1.0).abs() > 1e-6 {
            bail!("`rescale_factor` is {factor}: only 1/255 is supported");
        }
    }
    metadata.interpolation = Some(interpolation(file, class)?);
    let (rule, size) = resizing(file, class)?;
    metadata.resize = Some(rule);
    metadata.image_size = Some(size.map(|side| side as usize));
    Ok(())
}

/// The filter for scaling, which files state by PIL's number.
fn interpolation(file: &Map<String, Value>, class: &ProcessorClass) -> Result<Interpolation> {
    match stated(file, "resample").map(Value::as_u64) {
        None => Ok(class.interpolation),
        Some(Some(1)) => Ok(Interpolation::Lanczos),
        Some(Some(2)) => Ok(Interpolation::Bilinear),
        Some(Some(3)) => Ok(Interpolation::Bicubic),
        Some(_) => {
            bail!(
                "`resample` is {}: only 1 (Lanczos), 2 (bilinear) and 3 (bicubic) are supported",
                file["resample"]
            )
        }
    }
}

/// The file's class of processors, or the usual one of the model if the file names none.
fn class_of(
    file: &Map<String, Value>,
    model_type: impl Fn() -> Option<String>,
) -> Result<&'static ProcessorClass> {
    let named = ["image_processor_type", "feature_extractor_type"]
        .iter()
        .find_map(|key| file.get(*key)?.as_str().map(str::to_owned));
    let by_model = || match model_type().as_deref() {
        Some("deit") => "DeiT",
        Some("dinov2" | "dinov2_with_registers") => "Bit",
        Some("siglip" | "siglip_vision_model") => "Siglip",
        Some("clip" | "clip_vision_model") => "CLIP",
        Some("dinov3_vit") => "DINOv3ViT",
        _ => "ViT",
    };
    let name = named.unwrap_or_else(|| by_model().to_owned());
    let class = ["Fast", "Pil", "ImageProcessor", "FeatureExtractor"]
        .into_iter()
        .fold(name.as_str(), |name, end| name.strip_suffix(end).unwrap_or(name));
    let known = CLASSES.iter().find(|known| known.name == class);
    known.with_context(|| {
        let names: Vec<&str> = CLASSES.iter().map(|class| class.name).collect();
        format!(
            "`image_processor_type` is {name}: what it does is not known here; only those of {} are known",
            names.join(", ")
        )
    })
}

/// The value of a key, unless it is null.
fn stated<'a>(file: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    file.get(key).filter(|value| !value.is_null())
}

fn flag(file: &Map<String, Value>, key: &str, default: bool) -> Result<bool> {
    stated(file, key).map_or(Ok(default), |value| {
        value.as_bool().with_context(|| format!("`{key}` is {value}: true or false is needed"))
    })
}

/// Refuses processors that leave out scaling or rescaling, or have a step that is not supported.
fn check_steps(file: &Map<String, Value>) -> Result<()> {
    for step in ["do_resize", "do_rescale"] {
        if !flag(file, step, true)? {
            bail!("`{step}` is false: a processor that leaves this step out is not supported");
        }
    }
    for key in file.keys().filter(|key| key.starts_with("do_")) {
        let is_known = KNOWN.contains(&key.as_str()) || HARMLESS.contains(&key.as_str());
        if !is_known && flag(file, key, false)? {
            bail!("`{key}` is true: this step is not supported");
        }
    }
    Ok(())
}

/// A number per channel, or a single one for all three.
fn per_channel(file: &Map<String, Value>, key: &str, default: [f32; 3]) -> Result<Vec<f32>> {
    let number = |value: &Value| value.as_f64().map(|value| value as f32);
    let values = match stated(file, key) {
        None => Some(default.to_vec()),
        Some(Value::Array(values)) => values.iter().map(number).collect(),
        Some(value) => number(value).map(|value| vec![value; 3]),
    };
    values
        .filter(|values| matches!(values.len(), 1 | 3))
        .with_context(|| format!("`{key}`: a number or one for each of three channels is needed"))
}

/// The rule for scaling and cropping, and the height and width of the result in pixels.
fn resizing(file: &Map<String, Value>, class: &ProcessorClass) -> Result<(ResizeRule, [f64; 2])> {
    let size = match stated(file, "size") {
        Some(size) => scaled_size(size, class)?,
        None => class.size,
    };
    let crop = match flag(file, "do_center_crop", class.crop.is_some())? {
        true => Some(crop_size(file, class)?),
        false => None,
    };
    let (scaled, cropped) = match size {
        ScaledSize::Shorter(side) if class.name == CONVNEXT => return convnext(file, side, crop),
        ScaledSize::Both(sides) => (sides, crop.unwrap_or(sides)),
        ScaledSize::Shorter(side) => match crop {
            Some(crop) if crop[0] == crop[1] => ([side; 2], crop),
            Some(_) => bail!("`crop_size` is not square, and `size` names the shorter side: not supported"),
            None => bail!(
                "`size` names the shorter side, and nothing is cropped: images of changing shapes are not supported"
            ),
        },
    };
    let share = cropped[0] / scaled[0];
    if !(share > 0.0 && share <= 1.0 && cropped[1] <= scaled[1]) {
        bail!("`crop_size` is larger than `size`, which is not supported");
    }
    if matches!(size, ScaledSize::Shorter(_)) {
        return Ok((ResizeRule::ShorterSide { crop: share }, cropped));
    }
    if (cropped[1] / scaled[1] - share).abs() > 1e-6 {
        bail!("`crop_size` and `size` have different shapes, which is not supported");
    }
    Ok((squash(share), cropped))
}

/// A whole number of pixels, at least 1.
fn side(value: Option<&Value>) -> Option<f64> {
    value?.as_f64().filter(|side| *side >= 1.0 && side.fract() == 0.0)
}

/// Height and width from an object or a list.
fn height_and_width(value: &Value) -> Option<[f64; 2]> {
    match value {
        Value::Array(sides) if sides.len() == 2 => Some([side(sides.first())?, side(sides.last())?]),
        value => Some([side(value.get("height"))?, side(value.get("width"))?]),
    }
}

/// The value of `size`.
fn scaled_size(size: &Value, class: &ProcessorClass) -> Result<ScaledSize> {
    if let Some(number) = side(Some(size)) {
        return Ok(if class.number_is_shorter_side {
            ScaledSize::Shorter(number)
        } else {
            ScaledSize::Both([number; 2])
        });
    }
    match (
        height_and_width(size),
        side(size.get("shortest_edge")),
        size.get("longest_edge").is_some_and(|edge| !edge.is_null()),
    ) {
        (Some(sides), ..) => Ok(ScaledSize::Both(sides)),
        (None, Some(shorter), false) => Ok(ScaledSize::Shorter(shorter)),
        _ => bail!("`size` is {size}: only height and width, or shortest_edge alone, are supported"),
    }
}

/// Height and width of the center crop.
fn crop_size(file: &Map<String, Value>, class: &ProcessorClass) -> Result<[f64; 2]> {
    match (stated(file, "crop_size"), class.crop) {
        (Some(size), _) => side(Some(size))
            .map(|side| [side; 2])
            .or_else(|| height_and_width(size))
            .or_else(|| side(size.get("shortest_edge")).map(|side| [side; 2]))
            .with_context(|| format!("`crop_size` is {size}: height and width are needed")),
        (None, Some(side)) => Ok([side; 2]),
        (None, None) => bail!("`do_center_crop` is true, and `crop_size` is missing"),
    }
}

/// The rule of the ConvNext processor: below 384 pixels it crops a share of the scaled image; from 384 on it scales to
/// a square.
fn convnext(file: &Map<String, Value>, side: f64, crop: Option<[f64; 2]>) -> Result<(ResizeRule, [f64; 2])> {
    if crop.is_some_and(|crop| crop != [side; 2]) {
        bail!("`do_center_crop` after the crop by `crop_pct` is not supported");
    }
    if side >= 384.0 {
        return Ok((ResizeRule::Squash, [side; 2]));
    }
    let share = match stated(file, "crop_pct") {
        Some(share) => share.as_f64().filter(|share| *share > 0.0 && *share <= 1.0),
        None => Some(224.0 / 256.0),
    };
    let share = share.context("`crop_pct`: a share above 0 and at most 1 is needed")?;
    Ok((ResizeRule::ShorterSide { crop: side / (side / share).floor() }, [side; 2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<ModelMetadata> {
        let value: Value = serde_json::from_str(text).unwrap();
        let mut metadata = ModelMetadata::default();
        add(value.as_object().unwrap(), || None, &mut metadata)?;
        Ok(metadata)
    }

    #[test]
    fn missing_keys_have_the_defaults_of_the_class() {
        let shorter = |crop| ResizeRule::ShorterSide { crop };
        let cases = [
            (
                r#"{"image_processor_type": "ViTImageProcessor"}"#,
                ResizeRule::Squash,
                224,
                Interpolation::Bilinear,
                0.5,
            ),
            (
                r#"{"image_processor_type": "DeiTImageProcessorFast"}"#,
                ResizeRule::SquashCrop { crop: 0.875 },
                224,
                Interpolation::Bicubic,
                0.5,
            ),
            (
                r#"{"feature_extractor_type": "CLIPFeatureExtractor", "size": 256}"#,
                shorter(0.875),
                224,
                Interpolation::Bicubic,
                0.481_454_66,
            ),
            (
                r#"{"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 224}, "crop_pct": 0.9}"#,
                shorter(224.0 / 248.0),
                224,
                Interpolation::Bicubic,
                0.5,
            ),
            (
                r#"{"image_processor_type": "ConvNextImageProcessor", "image_mean": 0.25}"#,
                ResizeRule::Squash,
                384,
                Interpolation::Bicubic,
                0.25,
            ),
            (
                r#"{"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}, "do_normalize": false}"#,
                shorter(0.875),
                224,
                Interpolation::Bicubic,
                0.0,
            ),
        ];
        for (text, rule, side, interpolation, mean) in cases {
            let metadata = read_text(text).unwrap();
            assert_eq!(metadata.resize, Some(rule), "{text}");
            assert_eq!(metadata.image_size, Some([side; 2]), "{text}");
            assert_eq!(metadata.interpolation, Some(interpolation), "{text}");
            assert_eq!(metadata.mean.unwrap()[0], mean, "{text}");
        }
    }

    #[test]
    fn errors_name_the_unsupported_step_or_value() {
        for (text, part) in [
            (r#"{"do_pad": true}"#, "`do_pad`"),
            (r#"{"do_flip_channel_order": true}"#, "`do_flip_channel_order`"),
            (r#"{"do_resize": false}"#, "`do_resize`"),
            (r#"{"do_rescale": false}"#, "`do_rescale`"),
            (r#"{"do_center_crop": "yes"}"#, "`do_center_crop`"),
            (r#"{"do_center_crop": true}"#, "`crop_size`"),
            (r#"{"resample": 0}"#, "`resample` is 0"),
            (r#"{"resample": "bicubic"}"#, "`resample`"),
            (r#"{"rescale_factor": 0.5}"#, "`rescale_factor`"),
            (r#"{"image_std": [0.5, 0.5]}"#, "`image_std`"),
            (r#"{"size": {"shortest_edge": 224}}"#, "changing shapes"),
            (r#"{"size": {"shortest_edge": 224, "longest_edge": 300}}"#, "`size`"),
            (
                r#"{"size": {"shortest_edge": 256}, "do_center_crop": true, "crop_size": {"height": 224, "width": 192}}"#,
                "`crop_size` is not square",
            ),
            (r#"{"image_processor_type": "DPTImageProcessor"}"#, "DPTImageProcessor"),
        ] {
            let error = read_text(text).err().unwrap().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
