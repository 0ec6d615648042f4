//! Parameters under timm's names and in timm's shapes (`timm/models/vision_transformer.py`, `deit.py`, `cait.py`,
//! `swin_transformer.py`, `swin_transformer_v2.py`): the form in which models are stored.

mod names;
mod pooling;
#[cfg(test)]
mod tests;
mod traversal;

use super::{LazyTensor, LoadError, NamedTensor, WeightsError};
use crate::VisionTransformer;
use burn::module::Module;
use names::ParameterPath;
use pooling::{join_keys_and_values, split_keys_and_values};
use std::collections::BTreeMap;
use std::convert::Infallible;
use traversal::{Export, Import, mismatch};

/// All parameters under timm's keys, in the model's order. A linear weight is stored as `[output, input]`, the patch
/// embedding as the convolution `[dim, channels, patch_size, patch_size]`. Parameters that timm does not have keep
/// their names in this crate.
///
/// # Examples
///
/// ```
/// use burn::{module::Module, tensor::Device};
/// use vitrine_models::{preset, weights};
///
/// let model = preset::find("vit_pico_patch4_32").expect("listed").init(&Device::default())?;
/// let tensors = weights::to_timm(&model);
/// let find = |name: &str| tensors.iter().find(|tensor| tensor.name == name).expect("the key is timm's");
/// assert_eq!(find("patch_embed.proj.weight").shape, [96, 3, 4, 4]);
/// assert_eq!(find("blocks.3.attn.qkv.weight").shape, [3 * 96, 96]);
/// assert_eq!(tensors.iter().map(|tensor| tensor.values.len()).sum::<usize>(), model.num_params());
/// # Ok::<(), vitrine_models::ConfigError>(())
/// ```
pub fn to_timm(model: &VisionTransformer) -> Vec<NamedTensor> {
    stored(model, true)
}

/// The model with the values of all parameters replaced by those that `tensors` hold under timm's keys. The parameters
/// keep their ids, and whether they require gradients.
///
/// # Errors
/// If a key is missing, unexpected or of another shape; the error lists every such key.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use vitrine_models::{preset, weights};
///
/// let device = Device::default();
/// let config = preset::find("vit_pico_patch4_32").expect("listed");
/// let model = config.init(&device)?;
/// let copy = weights::from_timm(config.init(&device)?, weights::to_timm(&model))?;
/// let images = Tensor::<4>::ones([1, 3, 32, 32], &device);
/// assert_eq!(copy.forward(images.clone()).into_data(), model.forward(images).into_data());
///
/// let error = weights::from_timm(copy, Vec::new()).expect_err("nothing is stored");
/// assert!(error.missing.contains(&"head.weight".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn from_timm(
    model: VisionTransformer,
    tensors: Vec<NamedTensor>,
) -> Result<VisionTransformer, WeightsError> {
    let lazily = tensors.into_iter().map(LazyTensor::<Infallible>::from);
    load(model, lazily, false).map_err(|LoadError::Unfit(error)| error)
}

/// As [`from_timm`], for inference: values are read one parameter after the other, and linear weights stay as they are stored
/// where products can read them so. Hardly more than the model itself is then in memory.
///
/// Results may differ from those of [`from_timm`] in the last bits.
///
/// # Errors
/// If a key is missing, unexpected or of another shape; the error lists every such key. The first error of a reader.
pub fn from_timm_lazily<'a, E>(
    model: VisionTransformer,
    tensors: impl IntoIterator<Item = LazyTensor<'a, E>>,
) -> Result<VisionTransformer, LoadError<E>> {
    load(model, tensors, true)
}

fn load<'a, E>(
    model: VisionTransformer,
    tensors: impl IntoIterator<Item = LazyTensor<'a, E>>,
    views: bool,
) -> Result<VisionTransformer, LoadError<E>> {
    let mut by_name = BTreeMap::new();
    for tensor in tensors {
        for part in split_keys_and_values(tensor).map_err(LoadError::Unreadable)? {
            by_name.insert(part.name.clone(), part);
        }
    }
    let mut import = Import {
        path: ParameterPath::new(model.config()),
        tensors: by_name,
        errors: WeightsError::default(),
        unreadable: None,
        views,
    };
    let model = model.map(&mut import);
    if let Some(error) = import.unreadable {
        return Err(LoadError::Unreadable(error));
    }
    let mut errors = import.errors;
    errors.unexpected.extend(import.tensors.into_keys());
    if errors == WeightsError::default() { Ok(model) } else { Err(LoadError::Unfit(errors)) }
}

/// The parameters as timm stores them, with their values or without.
fn stored(model: &VisionTransformer, with_values: bool) -> Vec<NamedTensor> {
    let mut export = Export { path: ParameterPath::new(model.config()), with_values, tensors: Vec::new() };
    model.visit(&mut export);
    join_keys_and_values(export.tensors)
}

/// A head of zeros under timm's keys, for a model whose weights have none and whose logits nobody reads.
pub fn zero_head(model: &VisionTransformer) -> Vec<NamedTensor> {
    let mut tensors = stored(model, false);
    tensors.retain(|tensor| is_head(&tensor.name));
    for tensor in &mut tensors {
        tensor.values = vec![0.0; tensor.shape.iter().product()];
    }
    tensors
}

/// Whether a timm key belongs to the classifier.
///
/// # Examples
///
/// ```
/// use vitrine_models::weights::is_head;
///
/// assert!(is_head("head.weight") && is_head("head_dist.bias"));
/// assert!(!is_head("norm.weight"));
/// ```
pub fn is_head(name: &str) -> bool {
    name.starts_with("head.") || name.starts_with("head_dist.")
}

/// Checks that tensors have the keys and shapes that [`from_timm`] needs, without reading values. A key must not appear
/// twice.
///
/// # Errors
/// If a key is missing, unexpected or of another shape; the error lists every such key.
///
/// # Examples
///
/// ```
/// use burn::tensor::Device;
/// use vitrine_models::{preset, weights};
///
/// let model = preset::find("vit_pico_patch4_32").expect("listed").init(&Device::default())?;
/// let mut tensors = weights::to_timm(&model);
/// assert_eq!(weights::check(&model, &tensors), Ok(()));
///
/// let last = tensors.last_mut().expect("there are parameters");
/// assert_eq!(last.name, "head.bias");
/// last.name = "head.offset".to_owned();
/// let error = weights::check(&model, &tensors).expect_err("a name has changed");
/// assert_eq!(error.missing, ["head.bias"]);
/// assert_eq!(error.unexpected, ["head.offset"]);
/// # Ok::<(), vitrine_models::ConfigError>(())
/// ```
pub fn check<'a>(
    model: &VisionTransformer,
    tensors: impl IntoIterator<Item = &'a NamedTensor>,
) -> Result<(), WeightsError> {
    let mut given: BTreeMap<&str, &[usize]> = BTreeMap::new();
    let mut errors = WeightsError::default();
    for tensor in tensors {
        if given.insert(tensor.name.as_str(), tensor.shape.as_slice()).is_some() {
            errors.unexpected.push(format!("{} (twice)", tensor.name));
        }
    }
    for wanted in stored(model, false) {
        match given.remove(wanted.name.as_str()) {
            None => errors.missing.push(wanted.name),
            Some(shape) if shape != wanted.shape => {
                errors.mismatched.push(mismatch(&wanted.name, shape, &wanted.shape))
            }
            Some(_) => {}
        }
    }
    errors.unexpected.extend(given.into_keys().map(str::to_owned));
    if errors == WeightsError::default() { Ok(()) } else { Err(errors) }
}
