//! The same weights and the same input give PyTorch's features, logits, loss, gradients and updated weights.
//!
//! `tests/fixtures` holds what timm and PyTorch computed. `VITRINE_DEVICE` chooses the device, and with it the
//! tolerance: 1e-4 on flex, 1e-3 on every other backend.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::{ModuleMapper, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use safetensors::{Dtype, SafeTensors};
use vitrine::device;
use vitrine::recipe::Recipe;
use vitrine::train::optimiser;
use vitrine_models::weights::{NamedTensor, from_timm, to_timm};
use vitrine_models::{ImageSize, ModelConfig, Pool, VisionTransformer, ops, position};

/// Arrays by name.
type Arrays = BTreeMap<String, NamedTensor>;

fn fixture(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(case)
}

fn arrays(case: &str, file: &str) -> Arrays {
    let bytes = std::fs::read(fixture(case).join(file)).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.iter()
        .map(|(name, view)| {
            let values = match view.dtype() {
                Dtype::F32 => {
                    view.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
                }
                Dtype::I64 => {
                    view.data().chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f32).collect()
                }
                other => panic!("{name}: {other:?}"),
            };
            (name.to_owned(), NamedTensor { name: name.to_owned(), shape: view.shape().to_vec(), values })
        })
        .collect()
}

fn tested_device() -> (Device, f32) {
    let name = std::env::var("VITRINE_DEVICE").ok();
    let (found, _) = device::select(name.as_deref().or(Some("cpu"))).unwrap();
    let tolerance = if found.name == "flex" { 1e-4 } else { 1e-3 };
    (found.device, tolerance)
}

fn tensor<const D: usize>(array: &NamedTensor, device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(array.values.clone(), array.shape.clone()), device)
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().iter::<f32>().collect()
}

/// Every value within `tolerance`, absolute for small values and relative for large ones.
fn assert_close(what: &str, ours: &[f32], theirs: &[f32], tolerance: f32) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (index, (a, b)) in ours.iter().zip(theirs).enumerate() {
        let gap = (a - b).abs() / b.abs().max(1.0);
        assert!(gap <= tolerance, "{what}[{index}]: {a} here, {b} there");
    }
}

/// The architecture of the fixtures, as `config.json` describes it.
fn config() -> ModelConfig {
    ModelConfig {
        image_size: ImageSize::square(32),
        patch_size: 8,
        embed_dim: 48,
        depth: 2,
        num_heads: 3,
        num_classes: 10,
        ..vitrine_models::preset::find("vit_tiny_patch16_224").unwrap()
    }
}

fn one_hot(labels: &[f32], device: &Device, smoothing: f32) -> Tensor<2> {
    let classes = 10;
    let rows = labels.iter().flat_map(|&label| {
        (0..classes).map(move |class| {
            smoothing / classes as f32 + if class == label as usize { 1.0 - smoothing } else { 0.0 }
        })
    });
    Tensor::from_data(TensorData::new(rows.collect::<Vec<_>>(), [labels.len(), classes]), device)
}

/// Puts each parameter's gradient in its place, so that gradients can be read under timm's names.
struct Gradient<'a>(&'a Gradients);

impl ModuleMapper for Gradient<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let grad = param.val().grad(self.0).unwrap_or_else(|| param.val().inner().zeros_like());
        Param::initialized(param.id, Tensor::from_data(grad.into_data(), &param.val().device()))
    }
}

fn forward_and_backward(case: &str, config: &ModelConfig) {
    let (device, tolerance) = tested_device();
    let (weights, io) = (arrays(case, "weights.safetensors"), arrays(case, "io.safetensors"));
    let fresh = config.init(&device.clone().autodiff()).unwrap();
    let model = from_timm(fresh, weights.into_values().collect()).unwrap();
    let images = tensor::<4>(&io["input"], &device.clone().autodiff());
    let close = |what: &str, ours: Vec<f32>| assert_close(what, &ours, &io[what].values, tolerance);
    close("features", values(model.features(images.clone())));
    let logits = model.forward(images);
    close("logits", values(logits.clone()));
    let loss = ops::cross_entropy(logits, one_hot(&io["target"].values, &device.autodiff(), 0.0));
    close("loss", values(loss.clone()));
    let grads = loss.backward();
    let model = burn::module::Module::map(model, &mut Gradient(&grads));
    let mut compared = 0;
    for grad in to_timm(&model) {
        let name = format!("grad.{}", grad.name);
        if let Some(expected) = io.get(&name) {
            assert_eq!(grad.shape, expected.shape);
            assert_close(&name, &grad.values, &expected.values, tolerance);
            compared += 1;
        }
    }
    assert_eq!(compared, io.keys().filter(|key| key.starts_with("grad.")).count());
    assert!(compared > 0);
}

#[test]
fn timm_vit() {
    forward_and_backward("timm_vit", &config());
}

#[test]
fn timm_vit_with_mean_pooling_registers_and_layer_scale() {
    let config = ModelConfig { pool: Pool::Mean, registers: 4, layer_scale: Some(0.1), ..config() };
    forward_and_backward("timm_vit_avgpool_reg_layerscale", &config);
}

#[test]
fn three_steps_of_adamw_with_global_norm_clipping() {
    let (device, tolerance) = tested_device();
    let io = arrays("train_step", "io.safetensors");
    let fresh = config().init(&device.clone().autodiff()).unwrap();
    let weights = arrays("train_step", "weights.safetensors");
    let mut model: VisionTransformer = from_timm(fresh, weights.into_values().collect()).unwrap();
    let recipe = Recipe { learning_rate: 1e-3, weight_decay: 0.05, ..Recipe::default() };
    // PyTorch's reference decays every parameter, so no group is spared here.
    let mut optimiser = optimiser::base(&recipe).init();
    let inputs = tensor::<5>(&io["inputs"], &device.clone().autodiff());
    let targets = &io["targets"];
    for step in 0..3 {
        let images = inputs.clone().narrow(0, step, 1).squeeze_dim::<4>(0);
        let labels = &targets.values[step * 8..(step + 1) * 8];
        let loss =
            ops::cross_entropy(model.forward(images), one_hot(labels, &device.clone().autodiff(), 0.1));
        assert_close("loss", &values(loss.clone()), &io["losses"].values[step..=step], tolerance);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let grads = optimiser::clip_global_norm(&model, grads, 1.0);
        model = optimiser.step(recipe.learning_rate, model, grads);
    }
    let after = arrays("train_step", "weights_after.safetensors");
    let (mut beyond, mut total) = (0, 0);
    for mut parameter in to_timm(&model) {
        let mut expected = after[&parameter.name].values.clone();
        if parameter.name.ends_with("attn.qkv.bias") {
            // Softmax does not see what a key's bias adds: its gradient is 0 but for rounding, which AdamW then
            // scales up to full steps. The middle third is noise on both sides.
            let dim = expected.len() / 3;
            parameter.values.drain(dim..2 * dim);
            expected.drain(dim..2 * dim);
        }
        // For the same reason a parameter whose gradient happens to be near 0 may step the other way, three times.
        assert_close(&parameter.name, &parameter.values, &expected, 6.0 * recipe.learning_rate as f32);
        total += expected.len();
        beyond += parameter.values.iter().zip(&expected).filter(|(a, b)| (*a - *b).abs() > tolerance).count();
    }
    // As few as the tolerance is small: one in 10,000 on flex.
    assert!(
        beyond as f32 <= tolerance * total as f32,
        "{beyond} of {total} parameters are off by more than {tolerance}"
    );
}

#[test]
fn the_sinusoidal_table() {
    let table = &arrays("layers", "io.safetensors")["sinusoidal.table"];
    assert_close("table", &position::sinusoidal(50, 48), &table.values, 1e-6);
}
