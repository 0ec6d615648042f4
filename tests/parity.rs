//! The same weights and the same input give PyTorch's features, logits, loss, gradients and updated weights.
//!
//! `tests/fixtures` holds what timm and PyTorch computed. `VITRINE_DEVICE` chooses the device, and with it the
//! tolerance: 1e-4 on flex, 1e-3 on every other backend. `tests/parity_layers.rs` compares single layers.

#![allow(clippy::unwrap_used)]

#[path = "support/reference.rs"]
mod reference;

use burn::module::{ModuleMapper, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use reference::{Arrays, arrays, assert_close, tensor, tested_device, values};
use vitrine::recipe::Recipe;
use vitrine::train::optimiser;
use vitrine_models::weights::{NamedTensor, from_timm, hugging_face, to_timm, torchvision};
use vitrine_models::{
    AttentionOptions, BlockStyle, ImageSize, Mixer, ModelConfig, Pool, Position, RelativePosition, Score,
    VisionTransformer, ops,
};

/// The architecture of the fixtures, as `config.json` describes it.
fn config() -> ModelConfig {
    ModelConfig {
        image_size: ImageSize::square(32),
        patch_size: 8,
        embed_dim: 48,
        depth: 2.into(),
        num_heads: 3.into(),
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

/// The weights of a case, with their names changed to timm's, give its features, logits, loss and gradients.
fn forward_and_backward(case: &str, config: &ModelConfig, rename: fn(Vec<NamedTensor>) -> Vec<NamedTensor>) {
    let (device, tolerance) = tested_device();
    let (weights, io) = (arrays(case, "weights.safetensors"), arrays(case, "io.safetensors"));
    let fresh = config.init(&device.clone().autodiff()).unwrap();
    let model = from_timm(fresh, rename(weights.into_values().collect())).unwrap();
    let images = tensor::<4>(&io["input"], &device.clone().autodiff());
    let close = |what: &str, ours: Vec<f32>| assert_close(what, &ours, &io[what].values, tolerance);
    if io.contains_key("features") {
        close("features", values(model.features(images.clone())));
    }
    let logits = model.forward(images);
    close("logits", values(logits.clone()));
    let loss = ops::cross_entropy(logits, one_hot(&io["target"].values, &device.autodiff(), 0.0));
    close("loss", values(loss.clone()));
    let grads = loss.backward();
    let model = burn::module::Module::map(model, &mut Gradient(&grads));
    let ours: Arrays = to_timm(&model).into_iter().map(|grad| (grad.name.clone(), grad)).collect();
    let theirs = io.iter().filter_map(|(name, grad)| {
        let name = name.strip_prefix("grad.")?;
        Some(NamedTensor { name: name.to_owned(), ..grad.clone() })
    });
    for expected in rename(theirs.collect()) {
        let grad = &ours[&expected.name];
        assert_eq!(grad.shape, expected.shape);
        assert_close(&expected.name, &grad.values, &expected.values, tolerance);
    }
}

/// timm's own names.
fn timm(tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    tensors
}

#[test]
fn timm_vit() {
    forward_and_backward("timm_vit", &config(), timm);
}

#[test]
fn timm_vit_with_mean_pooling_registers_and_layer_scale() {
    let config = ModelConfig { pool: Pool::Mean, registers: 4, layer_scale: Some(0.1), ..config() };
    forward_and_backward("timm_vit_avgpool_reg_layerscale", &config, timm);
}

#[test]
fn timm_vit_with_attention_pooling_and_normalised_queries_and_keys() {
    let attention = AttentionOptions { qk_norm: true, ..AttentionOptions::default() };
    let config = ModelConfig { pool: Pool::Attention, class_token: false, attention, ..config() };
    forward_and_backward("timm_vit_map_qknorm", &config, timm);
}

#[test]
fn timm_deit_with_a_distillation_token() {
    forward_and_backward("timm_deit_distilled", &ModelConfig { distillation_token: true, ..config() }, timm);
}

#[test]
fn torchvision_vit() {
    forward_and_backward("torchvision_vit", &config(), torchvision::to_timm_names);
}

#[test]
fn hugging_face_vit() {
    forward_and_backward(
        "hf_vit",
        &ModelConfig { norm_epsilon: 1e-12, ..config() },
        hugging_face::to_timm_names,
    );
}

/// Two stages of windows of four by four, as the fixtures of Swin have them.
fn swin(side: usize) -> ModelConfig {
    ModelConfig {
        image_size: ImageSize::square(side),
        patch_size: 2,
        embed_dim: 24,
        depth: [2, 2].into(),
        num_heads: [2, 4].into(),
        class_token: false,
        pool: Pool::Mean,
        position: Position::None,
        norm_epsilon: 1e-5,
        embed_norm: true,
        mixers: vec![Mixer::Window(4), Mixer::ShiftedWindow(4)],
        ..config()
    }
}

#[test]
fn timm_swin() {
    forward_and_backward("timm_swin", &swin(32), timm);
}

#[test]
fn timm_swin_on_a_grid_that_windows_do_not_divide() {
    forward_and_backward("timm_swin_padded", &swin(28), timm);
}

#[test]
fn timm_swin_v2() {
    let config = ModelConfig {
        block: BlockStyle::ResidualPostNorm,
        attention: AttentionOptions {
            score: Score::Cosine,
            relative_position: Some(RelativePosition::Continuous),
            ..AttentionOptions::default()
        },
        ..swin(32)
    };
    forward_and_backward("timm_swinv2", &config, timm);
}

#[test]
fn torchvision_swin() {
    forward_and_backward("torchvision_swin", &swin(32), torchvision::to_timm_names);
}

#[test]
fn hugging_face_swin() {
    forward_and_backward("hf_swin", &swin(32), hugging_face::to_timm_names);
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
