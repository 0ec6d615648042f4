//! Values of configuration files, with errors that say what is needed.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use vitrine_models::{ImageSize, MlpKind};

/// A whole number.
pub(super) fn number(value: &Value) -> Result<usize> {
    value.as_u64().and_then(|number| usize::try_from(number).ok()).context("a whole number is needed")
}

/// A number, or a list of numbers.
pub(super) fn numbers(value: &Value) -> Result<Vec<usize>> {
    match value {
        Value::Array(values) => values.iter().map(number).collect(),
        value => Ok(vec![number(value)?]),
    }
}

/// A number, or a list of the same number.
pub(super) fn side(value: &Value) -> Result<usize> {
    match numbers(value)?[..] {
        [side, ref others @ ..] if others.iter().all(|other| *other == side) => Ok(side),
        _ => bail!("{value}: squares alone are supported"),
    }
}

pub(super) fn real(value: &Value) -> Result<f64> {
    value.as_f64().context("a number is needed")
}

pub(super) fn truth(value: &Value) -> Result<bool> {
    value.as_bool().context("true or false is needed")
}

pub(super) fn text(value: &Value) -> Result<&str> {
    value.as_str().context("a text is needed")
}

/// Height and width: one number or two.
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

/// The activation of the MLPs by the names that timm and Hugging Face have for it.
pub(super) fn activation(value: &Value) -> Result<MlpKind> {
    match text(value)? {
        "gelu" | "GELU" | "gelu_python" => Ok(MlpKind::Gelu),
        "gelu_tanh" | "GELUTanh" | "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" | "gelu_python_tanh"
        | "gelu_accurate" => Ok(MlpKind::GeluTanh),
        other => bail!("the activation {other} is not supported: GELU is, exact and in its tanh form"),
    }
}
