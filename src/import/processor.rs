//! `preprocessor_config.json` of Hugging Face: what its processors do to an image, with the defaults of their classes.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use vitrine_datasets::{Interpolation, ResizeRule};

use super::description::Description;
use crate::files::read_text;

/// A class of processors whose steps are known here.
struct Class {
    /// The beginning of its name.
    name: &'static str,
    size: Size,
    /// Whether one number is the shorter side.
    keeps_shape: bool,
    /// The side of the center that is cut out by default.
    crop: Option<f64>,
    interpolation: Interpolation,
    normalization: ([f32; 3], [f32; 3]),
}

/// What an image is scaled to.
#[derive(Clone, Copy)]
enum Size {
    /// Height and width.
    Both([f64; 2]),
    /// The shorter side; the other one keeps the shape.
    Shorter(f64),
}

const HALF: ([f32; 3], [f32; 3]) = ([0.5; 3], [0.5; 3]);
const CLIP: ([f32; 3], [f32; 3]) =
    ([0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1]);

/// The classes with the defaults of transformers 5.
const CLASSES: [Class; 7] = [
    class("ViT", Size::Both([224.0; 2]), None, Interpolation::Bilinear, HALF),
    class("DeiT", Size::Both([256.0; 2]), Some(224.0), Interpolation::Bicubic, HALF),
    class("Beit", Size::Both([224.0; 2]), None, Interpolation::Bicubic, HALF),
    Class {
        keeps_shape: true,
        ..class("Siglip", Size::Both([224.0; 2]), None, Interpolation::Bicubic, HALF)
    },
    class("Bit", Size::Shorter(224.0), Some(224.0), Interpolation::Bicubic, CLIP),
    class("CLIP", Size::Shorter(224.0), Some(224.0), Interpolation::Bicubic, CLIP),
    class(CONVNEXT, Size::Shorter(384.0), None, Interpolation::Bicubic, HALF),
];

/// Crops a share of what it scales, and squashes large images.
const CONVNEXT: &str = "ConvNext";

const fn class(
    name: &'static str,
    size: Size,
    crop: Option<f64>,
    interpolation: Interpolation,
    normalization: ([f32; 3], [f32; 3]),
) -> Class {
    Class { name, size, keeps_shape: matches!(size, Size::Shorter(_)), crop, interpolation, normalization }
}

/// Steps that change nothing here: images have three channels, and labels of pixels are none.
const HARMLESS: [&str; 2] = ["do_convert_rgb", "do_reduce_labels"];
/// Steps that are carried out.
const KNOWN: [&str; 4] = ["do_resize", "do_rescale", "do_normalize", "do_center_crop"];

/// Adds what a `preprocessor_config.json` says, with its class's defaults for what it leaves out.
///
/// # Errors
/// When it says what is not supported; the message names the file and the key.
pub(super) fn read(path: &Path, value: &Value, description: &mut Description) -> Result<()> {
    let Some(file) = value.as_object() else {
        bail!("{}: not a configuration: a JSON object is needed", path.display());
    };
    // Old files do not name the class; the model next to them does.
    let model_type = || -> Option<String> {
        let text = read_text(&path.with_file_name("config.json")).ok()?;
        let config: Value = serde_json::from_str(&text).ok()?;
        Some(config.get("model_type")?.as_str()?.to_owned())
    };
    apply(file, model_type, description).with_context(|| path.display().to_string())
}

fn apply(
    file: &Map<String, Value>,
    model_type: impl Fn() -> Option<String>,
    description: &mut Description,
) -> Result<()> {
    let class = class_of(file, model_type)?;
    steps(file)?;
    if flag(file, "do_normalize", true)? {
        description.mean = Some(three(file, "image_mean", class.normalization.0)?);
        description.std = Some(three(file, "image_std", class.normalization.1)?);
    } else {
        (description.mean, description.std) = (Some(vec![0.0; 3]), Some(vec![1.0; 3]));
    }
    if let Some(factor) = stated(file, "rescale_factor") {
        let factor = factor.as_f64().context("`rescale_factor`: a number is needed")?;
        if (factor * 255.0 - 1.0).abs() > 1e-6 {
            bail!("`rescale_factor` is {factor}: only 1/255 is supported");
        }
    }
    // PIL's numbers of filters.
    description.interpolation = Some(match stated(file, "resample").map(Value::as_u64) {
        None => class.interpolation,
        Some(Some(1)) => Interpolation::Lanczos,
        Some(Some(2)) => Interpolation::Bilinear,
        Some(Some(3)) => Interpolation::Bicubic,
        Some(_) => {
            bail!(
                "`resample` is {}: only 1 (Lanczos), 2 (bilinear) and 3 (bicubic) are supported",
                file["resample"]
            )
        }
    });
    let (rule, size) = resizing(file, class)?;
    description.resize = Some(rule);
    description.image_size = Some(size.map(|side| side as usize));
    Ok(())
}

fn class_of(file: &Map<String, Value>, model_type: impl Fn() -> Option<String>) -> Result<&'static Class> {
    let named = ["image_processor_type", "feature_extractor_type"]
        .iter()
        .find_map(|key| file.get(*key)?.as_str().map(str::to_owned));
    let by_model = || match model_type().as_deref() {
        Some("deit") => "DeiT",
        Some("dinov2" | "dinov2_with_registers") => "Bit",
        Some("siglip" | "siglip_vision_model") => "Siglip",
        _ => "ViT",
    };
    let name = named.unwrap_or_else(|| by_model().to_owned());
    let kind = ["Fast", "Pil", "ImageProcessor", "FeatureExtractor"]
        .into_iter()
        .fold(name.as_str(), |name, end| name.strip_suffix(end).unwrap_or(name));
    let known = CLASSES.iter().find(|class| class.name == kind);
    known.with_context(|| {
        let names: Vec<&str> = CLASSES.iter().map(|class| class.name).collect();
        format!(
            "`image_processor_type` is {name}: what it does is not known here; only those of {} are known",
            names.join(", ")
        )
    })
}

/// What a key says; null says nothing.
fn stated<'a>(file: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    file.get(key).filter(|value| !value.is_null())
}

fn flag(file: &Map<String, Value>, key: &str, usual: bool) -> Result<bool> {
    stated(file, key).map_or(Ok(usual), |value| {
        value.as_bool().with_context(|| format!("`{key}` is {value}: true or false is needed"))
    })
}

/// Refuses steps that are left out and must not be, and steps that are not carried out here.
fn steps(file: &Map<String, Value>) -> Result<()> {
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

/// Three numbers, or one for all three.
fn three(file: &Map<String, Value>, key: &str, usual: [f32; 3]) -> Result<Vec<f32>> {
    let number = |value: &Value| value.as_f64().map(|value| value as f32);
    let values = match stated(file, key) {
        None => Some(usual.to_vec()),
        Some(Value::Array(values)) => values.iter().map(number).collect(),
        Some(value) => number(value).map(|value| vec![value; 3]),
    };
    values
        .filter(|values| matches!(values.len(), 1 | 3))
        .with_context(|| format!("`{key}`: a number or one for each of three channels is needed"))
}

/// The rule for scaling and cropping, and the height and width that it gives.
fn resizing(file: &Map<String, Value>, class: &Class) -> Result<(ResizeRule, [f64; 2])> {
    let size = match stated(file, "size") {
        Some(size) => size_of(size, class)?,
        None => class.size,
    };
    let crop = match flag(file, "do_center_crop", class.crop.is_some())? {
        true => Some(crop_of(file, class)?),
        false => None,
    };
    let (scaled, inner) = match size {
        Size::Shorter(side) if class.name == CONVNEXT => return convnext(file, side, crop),
        Size::Both(sides) => (sides, crop.unwrap_or(sides)),
        Size::Shorter(side) => match crop {
            Some(crop) if crop[0] == crop[1] => ([side; 2], crop),
            Some(_) => bail!("`crop_size` is not square, and `size` names the shorter side: not supported"),
            None => bail!(
                "`size` names the shorter side, and nothing is cropped: images of changing shapes are not supported"
            ),
        },
    };
    let share = inner[0] / scaled[0];
    if !(share > 0.0 && share <= 1.0 && inner[1] <= scaled[1]) {
        bail!("`crop_size` is larger than `size`, which is not supported");
    }
    if matches!(size, Size::Shorter(_)) {
        return Ok((ResizeRule::ShorterSide { crop: share }, inner));
    }
    if (inner[1] / scaled[1] - share).abs() > 1e-6 {
        bail!("`crop_size` and `size` have different shapes, which is not supported");
    }
    let rule = if share < 1.0 { ResizeRule::SquashCrop { crop: share } } else { ResizeRule::Squash };
    Ok((rule, inner))
}

fn side(value: Option<&Value>) -> Option<f64> {
    value?.as_f64().filter(|side| *side >= 1.0 && side.fract() == 0.0)
}

/// Height and width of an object or a list.
fn both(value: &Value) -> Option<[f64; 2]> {
    match value {
        Value::Array(sides) if sides.len() == 2 => Some([side(sides.first())?, side(sides.last())?]),
        value => Some([side(value.get("height"))?, side(value.get("width"))?]),
    }
}

fn size_of(size: &Value, class: &Class) -> Result<Size> {
    if let Some(number) = side(Some(size)) {
        return Ok(if class.keeps_shape { Size::Shorter(number) } else { Size::Both([number; 2]) });
    }
    match (both(size), side(size.get("shortest_edge")), stated_in(size, "longest_edge")) {
        (Some(sides), ..) => Ok(Size::Both(sides)),
        (None, Some(shorter), false) => Ok(Size::Shorter(shorter)),
        _ => bail!("`size` is {size}: only height and width, or shortest_edge alone, are supported"),
    }
}

fn stated_in(value: &Value, key: &str) -> bool {
    value.get(key).is_some_and(|value| !value.is_null())
}

fn crop_of(file: &Map<String, Value>, class: &Class) -> Result<[f64; 2]> {
    match (stated(file, "crop_size"), class.crop) {
        (Some(size), _) => side(Some(size))
            .map(|side| [side; 2])
            .or_else(|| both(size))
            .or_else(|| side(size.get("shortest_edge")).map(|side| [side; 2]))
            .with_context(|| format!("`crop_size` is {size}: height and width are needed")),
        (None, Some(usual)) => Ok([usual; 2]),
        (None, None) => bail!("`do_center_crop` is true, and `crop_size` is missing"),
    }
}

/// Below 384 pixels a share of the scaled image is kept, from there on images are squashed.
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

    fn read_text(text: &str) -> Result<Description> {
        let value: Value = serde_json::from_str(text).unwrap();
        let mut description = Description::default();
        apply(value.as_object().unwrap(), || None, &mut description)?;
        Ok(description)
    }

    #[test]
    fn what_is_left_out_is_the_default_of_the_class() {
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
            let description = read_text(text).unwrap();
            assert_eq!(description.resize, Some(rule), "{text}");
            assert_eq!(description.image_size, Some([side; 2]), "{text}");
            assert_eq!(description.interpolation, Some(interpolation), "{text}");
            assert_eq!(description.mean.unwrap()[0], mean, "{text}");
        }
    }

    #[test]
    fn steps_that_are_not_carried_out_are_refused_by_name() {
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
