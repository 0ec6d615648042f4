//! Typed values from JSON, with errors that say which type a configuration's key needs.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use vitrine_models::{ImageSize, MlpKind, PerStage};

/// A whole number, at least 0.
pub(super) fn number(value: &Value) -> Result<usize> {
    value.as_u64().and_then(|number| usize::try_from(number).ok()).context("a whole number is needed")
}

/// A whole number, or a list of them.
pub(super) fn numbers(value: &Value) -> Result<Vec<usize>> {
    match value {
        Value::Array(values) => values.iter().map(number).collect(),
        value => Ok(vec![number(value)?]),
    }
}

/// The side of a square: a whole number, or a list in which all numbers are equal.
pub(super) fn side(value: &Value) -> Result<usize> {
    match numbers(value)?[..] {
        [side, ref others @ ..] if others.iter().all(|other| *other == side) => Ok(side),
        _ => bail!("{value}: only squares are supported"),
    }
}

/// A number, whole or not.
pub(super) fn real(value: &Value) -> Result<f64> {
    value.as_f64().context("a number is needed")
}

/// A boolean.
pub(super) fn truth(value: &Value) -> Result<bool> {
    value.as_bool().context("true or false is needed")
}

/// A string.
pub(super) fn text(value: &Value) -> Result<&str> {
    value.as_str().context("a text is needed")
}

/// Height and width in pixels: one number for both or two.
pub(super) fn image_size(value: &Value) -> Result<ImageSize> {
    let sides = numbers(value)?;
    if sides.iter().any(|side| *side > 16_384) {
        bail!("image_size is {sides:?}: at most 16384 pixels per side are possible");
    }
    match sides[..] {
        [side] => Ok(ImageSize::square(side)),
        [height, width] => Ok(ImageSize { height, width }),
        _ => bail!("image_size: one number or two are needed"),
    }
}

/// The activation of the MLPs, by the names that timm and Hugging Face use.
pub(super) fn activation(value: &Value) -> Result<MlpKind> {
    match text(value)? {
        "gelu" | "GELU" | "gelu_python" => Ok(MlpKind::Gelu),
        "gelu_tanh" | "GELUTanh" | "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" | "gelu_python_tanh"
        | "gelu_accurate" => Ok(MlpKind::GeluTanh),
        "quick_gelu" | "QuickGELU" => Ok(MlpKind::QuickGelu),
        other => bail!(
            "the activation {other} is not supported: GELU is, exact, in its tanh form, and as quick_gelu"
        ),
    }
}

/// The sides of the windows of a Swin v2 before they were enlarged, per stage; zeros in all say that they were not.
pub(super) fn pretrained_windows(value: &Value) -> Result<PerStage> {
    let sides = numbers(value)?;
    if sides.iter().any(|side| *side > 0) && sides.iter().any(|side| !(2..=1024).contains(side)) {
        bail!("{sides:?}: sides from 2 to 1024 tokens are supported, or 0 in all stages");
    }
    Ok(PerStage(sides))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_another_type_are_refused() {
        assert_eq!(number(&json!(3)).unwrap(), 3);
        assert_eq!(numbers(&json!(3)).unwrap(), [3]);
        assert_eq!(numbers(&json!([2, 2, 6])).unwrap(), [2, 2, 6]);
        assert_eq!(real(&json!(4)).unwrap(), 4.0);
        assert!(truth(&json!(true)).unwrap());
        assert_eq!(text(&json!("learn")).unwrap(), "learn");
        for value in [json!(-1), json!(1.5), json!("3"), json!(true), json!(null)] {
            assert!(number(&value).is_err() && numbers(&value).is_err(), "{value}");
        }
        assert!(numbers(&json!([2, "2"])).is_err());
        assert!(real(&json!("4")).is_err());
        assert!(truth(&json!(1)).is_err());
        assert!(text(&json!(1)).is_err());
    }

    #[test]
    fn patches_must_be_square_and_images_need_not_be() {
        assert_eq!(side(&json!(16)).unwrap(), 16);
        assert_eq!(side(&json!([16, 16])).unwrap(), 16);
        for value in [json!([16, 8]), json!([])] {
            assert!(side(&value).is_err(), "{value}");
        }
        assert_eq!(image_size(&json!(32)).unwrap(), ImageSize::square(32));
        assert_eq!(image_size(&json!([32, 48])).unwrap(), ImageSize { height: 32, width: 48 });
        for value in [json!([3, 32, 48]), json!([]), json!(16_385), json!([32, u64::MAX])] {
            let error = image_size(&value).unwrap_err().to_string();
            assert!(error.contains("image_size"), "{value}: {error}");
        }
    }

    #[test]
    fn activations_have_the_names_of_both_libraries() {
        for (name, kind) in [
            ("gelu", MlpKind::Gelu),
            ("GELU", MlpKind::Gelu),
            ("gelu_tanh", MlpKind::GeluTanh),
            ("gelu_pytorch_tanh", MlpKind::GeluTanh),
            ("quick_gelu", MlpKind::QuickGelu),
        ] {
            assert_eq!(activation(&json!(name)).unwrap(), kind, "{name}");
        }
        for name in ["relu", "silu", ""] {
            assert!(activation(&json!(name)).is_err(), "{name}");
        }
    }
}
