//! timm's names and layouts (`timm/models/vision_transformer.py`, `deit.py`, `cait.py`, `swin_transformer.py`,
//! `swin_transformer_v2.py`).

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};

use super::{NamedTensor, WeightsError};
use crate::{ModelConfig, Tokenizer, VisionTransformer};

/// All parameters under timm's keys, in the model's order. A linear weight is stored `[output, input]`, the patch
/// embedding as the convolution `[dim, channels, patch_size, patch_size]`. What timm does not have keeps our own names.
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

/// The model with all parameters replaced by those stored under timm's keys; ids and gradient tracking stay.
///
/// # Errors
/// Lists every key that is missing, unexpected or of another shape; the model is then unchanged and lost.
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
    let tensors =
        tensors.into_iter().flat_map(split_keys_and_values).map(|tensor| (tensor.name.clone(), tensor));
    let mut import = Import {
        path: Path::new(model.config()),
        tensors: tensors.collect(),
        errors: WeightsError::default(),
    };
    let model = model.map(&mut import);
    let mut errors = import.errors;
    errors.unexpected.extend(import.tensors.into_keys());
    if errors == WeightsError::default() { Ok(model) } else { Err(errors) }
}

/// The parameters as timm stores them, with their values or without.
fn stored(model: &VisionTransformer, with_values: bool) -> Vec<NamedTensor> {
    let mut export = Export { path: Path::new(model.config()), with_values, tensors: Vec::new() };
    model.visit(&mut export);
    join_keys_and_values(export.tensors)
}

/// Whether a timm key is of the classifier.
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

/// Compares keys and shapes of tensors with those that [`from_timm`] will want, without touching a value; a key may come once.
///
/// # Errors
/// Lists every key that is missing, unexpected or of another shape.
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

fn mismatch(key: &str, stored: &[usize], needed: &[usize]) -> String {
    format!("{key} (stored {stored:?}, needed {needed:?})")
}

/// timm keeps the pooling's keys and values in one layer.
const JOINED: &str = "attn_pool.kv.";

fn join_keys_and_values(tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    let mut joined: Vec<NamedTensor> = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        if let Some(kind) = tensor.name.strip_prefix("attn_pool.k.") {
            joined.push(NamedTensor { name: format!("{JOINED}{kind}"), ..tensor });
        } else if let Some(kind) = tensor.name.strip_prefix("attn_pool.v.") {
            let name = format!("{JOINED}{kind}");
            let keys = joined.iter_mut().find(|other| other.name == name).expect("keys come before values");
            keys.shape[0] += tensor.shape[0];
            keys.values.extend(tensor.values);
        } else {
            joined.push(tensor);
        }
    }
    joined
}

fn split_keys_and_values(tensor: NamedTensor) -> Vec<NamedTensor> {
    match (tensor.name.strip_prefix(JOINED), tensor.shape.first()) {
        (Some(kind), Some(rows)) if rows.is_multiple_of(2) => {
            let shape: Vec<usize> = [&[rows / 2], &tensor.shape[1..]].concat();
            let (keys, values) = tensor.values.split_at(tensor.values.len() / 2);
            [("k", keys), ("v", values)]
                .map(|(part, values)| NamedTensor {
                    name: format!("attn_pool.{part}.{kind}"),
                    shape: shape.clone(),
                    values: values.to_vec(),
                })
                .into()
        }
        _ => vec![tensor],
    }
}

/// What our fields, named by their role, are called in timm's keys.
const NAMES: &[(&str, &str)] = &[
    (".pooling.attention.", ".attn_pool."),
    (".pooling.latent.", ".attn_pool.latent."),
    (".pooling.norm.", ".attn_pool.norm."),
    (".pooling.mlp.", ".attn_pool.mlp."),
    (".pooling.sequence.", ".attention_pool."),
    (".pooling.", "."),
    (".class_token.", ".cls_token."),
    (".distillation_token.", ".dist_token."),
    (".registers.", ".reg_token."),
    (".position.learned.", ".pos_embed."),
    (".tokenizer.", "."),
    (".class_blocks.", ".blocks_token_only."),
    (".mixer_norm.", ".norm1."),
    (".mixer_scale.", ".ls1."),
    (".mlp_norm.", ".norm2."),
    (".mlp_scale.", ".ls2."),
    (".mixer.", ".attn."),
    (".inner.", "."),
    (".separate_bias.", "."),
    (".qk_norm.", "."),
    (".score.query.", ".additive.query."),
    (".score.key.", ".additive.key."),
    (".score.vector.", ".additive.vector."),
    (".score.", "."),
    (".talking_heads.scores.", ".proj_l."),
    (".talking_heads.weights.", ".proj_w."),
    (".relative_position.offsets.table.", ".relative_position_bias_table."),
    (".relative_position.offsets.hidden.", ".cpb_mlp.0."),
    (".relative_position.offsets.output.", ".cpb_mlp.2."),
];

/// Where a traversal is: the names of the modules around a parameter and what contains it.
struct Path {
    names: Vec<String>,
    containers: Vec<String>,
    /// Names that depend on the architecture, after [`NAMES`].
    special: Vec<(&'static str, &'static str)>,
    /// Channels of the image, where the patch embedding is stored as a convolution.
    convolution: Option<usize>,
}

impl Path {
    fn new(config: &ModelConfig) -> Self {
        let mut special = match config.num_stages() {
            1 => vec![
                (".stages.0.", "."),
                (".distillation_head.output.", ".head_dist."),
                (".distillation_head.", ".head_dist."),
                (".head.output.", ".head."),
            ],
            _ => vec![(".stages.", ".layers."), (".head.output.", ".head.fc.")],
        };
        if config.class_depth > 0 {
            special.extend([(".ls1.gamma.", ".gamma_1."), (".ls2.gamma.", ".gamma_2.")]);
        }
        let convolution = (config.tokenizer == Tokenizer::Patch).then_some(config.channels);
        Self { names: Vec::new(), containers: Vec::new(), special, convolution }
    }

    fn enter(&mut self, name: &str, container: &str) {
        self.names.push(name.to_owned());
        self.containers.push(container.to_owned());
    }

    fn exit(&mut self) {
        self.names.pop();
        self.containers.pop();
    }

    /// timm's key of the parameter.
    fn key(&self) -> String {
        // Variants of enums have capitals; they are no part of a name.
        let fields: Vec<&str> = self
            .names
            .iter()
            .map(String::as_str)
            .filter(|name| !name.starts_with(|c: char| c.is_ascii_uppercase()))
            .collect();
        let key = format!(".{}.", fields.join("."));
        let renamed = NAMES.iter().fold(key, |key, (ours, theirs)| key.replace(ours, theirs));
        // Tokenizers have stages, too: only the model's own are at the start.
        let renamed =
            self.special.iter().fold(renamed, |key, (ours, theirs)| match ours.strip_prefix(".stages") {
                Some(_) => key.strip_prefix(ours).map(|rest| format!("{theirs}{rest}")).unwrap_or(key),
                None => key.replace(ours, theirs),
            });
        renamed.trim_matches('.').to_owned()
    }

    /// Whether the parameter is the `[input, output]` matrix of a linear layer.
    fn is_linear_weight(&self, rank: usize) -> bool {
        rank == 2 && self.containers.iter().any(|container| container == "Struct:Linear")
    }

    /// The shape in the file of a parameter that has `shape` here.
    fn stored_shape(&self, shape: &[usize]) -> Vec<usize> {
        match *shape {
            [input, output] if self.is_linear_weight(2) => match self.convolution {
                Some(channels) if self.names.first().is_some_and(|name| name == "patch_embed") => {
                    let side = (input / channels).isqrt();
                    vec![output, channels, side, side]
                }
                _ => vec![output, input],
            },
            _ => shape.to_vec(),
        }
    }
}

/// Collects keys and shapes, and values where they are wanted.
struct Export {
    path: Path,
    with_values: bool,
    tensors: Vec<NamedTensor>,
}

impl ModuleVisitor for Export {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shape = self.path.stored_shape(&param.lazy_shape().to_vec());
        if !self.with_values {
            self.tensors.push(NamedTensor { name: self.path.key(), shape, values: Vec::new() });
            return;
        }
        let value = param.val();
        let value = if self.path.is_linear_weight(D) { value.swap_dims(0, 1) } else { value };
        let values = value.into_data().convert::<f32>().try_into_vec::<f32>().expect("converted to f32");
        self.tensors.push(NamedTensor { name: self.path.key(), shape, values });
    }
}

struct Import {
    path: Path,
    tensors: BTreeMap<String, NamedTensor>,
    errors: WeightsError,
}

impl ModuleMapper for Import {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let key = self.path.key();
        let Some(tensor) = self.tensors.remove(&key) else {
            self.errors.missing.push(key);
            return param;
        };
        let shape = param.lazy_shape().to_vec();
        let expected = self.path.stored_shape(&shape);
        if tensor.shape != expected || tensor.values.len() != expected.iter().product::<usize>() {
            self.errors.mismatched.push(mismatch(&key, &tensor.shape, &expected));
            return param;
        }
        let device = param.lazy_device();
        let value = if self.path.is_linear_weight(D) {
            let mut transposed = vec![0.0; tensor.values.len()];
            transpose(&tensor.values, shape[0], &mut transposed);
            Tensor::from_data(TensorData::new(transposed, shape), &device)
        } else {
            Tensor::from_data(TensorData::new(tensor.values, shape), &device)
        };
        let id = param.id;
        param.transform_for_load(value, id)
    }
}

/// `[output, input]` to `[input, output]`, in square tiles that fit the cache.
fn transpose(from: &[f32], input: usize, to: &mut [f32]) {
    const TILE: usize = 32;
    let output = from.len().checked_div(input).unwrap_or(0);
    for rows in (0..output).step_by(TILE) {
        for columns in (0..input).step_by(TILE) {
            for row in rows..(rows + TILE).min(output) {
                for column in columns..(columns + TILE).min(input) {
                    to[column * output + row] = from[row * input + column];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::preset;
    use burn::tensor::Device;

    fn config() -> ModelConfig {
        ModelConfig {
            class_token: true,
            position: crate::Position::Learned,
            registers: 1,
            layer_scale: Some(0.1),
            head_hidden: vec![5],
            depth: 1.into(),
            ..preset::find("vit_pico_patch4_28").unwrap()
        }
    }

    #[test]
    fn stages_of_a_tokenizer_keep_their_numbers() {
        let config = crate::preset::find("hybrid_pico_patch4_32").unwrap();
        let tensors = to_timm(&config.init(&Device::default()).unwrap());
        let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        for name in [
            "patch_embed.stem.weight",
            "patch_embed.stages.0.conv1.weight",
            "patch_embed.stages.1.norm2.running_var",
            "blocks.0.norm1.weight",
        ] {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_names_are_timms() {
        let device = Device::default();
        let tensors = to_timm(&config().init(&device).unwrap());
        let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        for name in [
            "patch_embed.proj.weight",
            "cls_token",
            "reg_token",
            "pos_embed",
            "blocks.0.norm1.weight",
            "blocks.0.attn.qkv.bias",
            "blocks.0.ls1.gamma",
            "blocks.0.norm2.bias",
            "blocks.0.mlp.fc1.weight",
            "blocks.0.ls2.gamma",
            "fc_norm.weight",
            "head.hidden.0.weight",
            "head.weight",
        ] {
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
        let proj = tensors.iter().find(|tensor| tensor.name == "patch_embed.proj.weight").unwrap();
        assert_eq!(proj.shape, [96, 1, 4, 4]);
        let fresh = config().init(&device).unwrap();
        assert_ne!(to_timm(&fresh), tensors);
        let loaded = from_timm(fresh, tensors.clone()).unwrap();
        assert_eq!(to_timm(&loaded), tensors);
    }

    #[test]
    fn every_variant_is_written_under_names_of_its_own_and_read_back() {
        let device = Device::default();
        for config in crate::testing::variants() {
            let tensors = to_timm(&config.init(&device).unwrap());
            let names: std::collections::BTreeSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
            assert_eq!(names.len(), tensors.len(), "{config:?}");
            let fresh = config.init(&device).unwrap();
            assert_eq!(check(&fresh, &tensors), Ok(()), "{config:?}");
            let loaded = from_timm(fresh, tensors.clone()).unwrap();
            assert_eq!(to_timm(&loaded), tensors, "{config:?}");
        }
    }

    #[test]
    fn cait_and_swin_have_timms_names() {
        let device = Device::default();
        let names = |preset: &str| -> Vec<String> {
            let config = preset::find(preset).unwrap();
            let config = ModelConfig { depth: crate::PerStage(vec![2; config.num_stages()]), ..config };
            to_timm(&config.init(&device).unwrap()).into_iter().map(|tensor| tensor.name).collect()
        };
        let expected: [(&str, &[&str]); 3] = [
            (
                "cait_xxs24_224",
                &[
                    "cls_token",
                    "pos_embed",
                    "blocks.1.gamma_1",
                    "blocks.1.gamma_2",
                    "blocks.0.attn.proj_l.weight",
                    "blocks.0.attn.proj_w.bias",
                    "blocks_token_only.1.gamma_1",
                    "blocks_token_only.0.attn.q.weight",
                    "blocks_token_only.0.attn.k.bias",
                    "blocks_token_only.0.attn.v.weight",
                    "blocks_token_only.0.attn.proj.bias",
                    "blocks_token_only.0.mlp.fc2.weight",
                    "norm.weight",
                    "head.weight",
                ],
            ),
            (
                "swin_tiny_patch4_window7_224",
                &[
                    "patch_embed.norm.weight",
                    "layers.0.blocks.1.attn.relative_position_bias_table",
                    "layers.3.downsample.reduction.weight",
                    "layers.3.downsample.norm.bias",
                    "norm.bias",
                    "head.fc.weight",
                ],
            ),
            (
                "swinv2_tiny_window8_256",
                &[
                    "layers.0.blocks.0.attn.logit_scale",
                    "layers.0.blocks.0.attn.q_bias",
                    "layers.0.blocks.0.attn.v_bias",
                    "layers.0.blocks.0.attn.cpb_mlp.0.bias",
                    "layers.0.blocks.0.attn.cpb_mlp.2.weight",
                ],
            ),
        ];
        for (preset, keys) in expected {
            let names = names(preset);
            for key in keys {
                assert!(names.iter().any(|name| name == key), "{preset}: {key} is not in {names:?}");
            }
        }
    }

    #[test]
    fn every_key_at_fault_is_listed() {
        let device = Device::default();
        let model = config().init(&device).unwrap();
        let mut tensors = to_timm(&model);
        tensors.retain(|tensor| tensor.name != "cls_token");
        tensors.iter_mut().find(|tensor| tensor.name == "head.bias").unwrap().shape = vec![2, 5];
        tensors.push(NamedTensor { name: "extra".into(), shape: vec![1], values: vec![0.0] });
        let early = check(&model, &tensors).unwrap_err();
        let error = from_timm(model, tensors).unwrap_err();
        assert_eq!(early, error);
        assert_eq!(
            (error.missing, error.unexpected),
            (vec!["cls_token".to_owned()], vec!["extra".to_owned()])
        );
        assert!(
            error.mismatched[0].contains("head.bias (stored [2, 5], needed [10])"),
            "{:?}",
            error.mismatched
        );
    }
}
