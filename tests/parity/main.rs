//! Parity with PyTorch: the same weights and input give the same features, logits, loss, gradients, and updated
//! weights.
//!
//! `tests/fixtures` holds the values that timm, torchvision, transformers, and PyTorch computed. `VITRINE_DEVICE` selects
//! the device. The tolerance is 1e-4 on flex and 1e-3 on other backends.

#![allow(clippy::unwrap_used)]

mod backbones;
mod layers;
mod logistic;
mod optimizer;
mod outputs;
#[path = "../support/reference.rs"]
mod reference;
mod relevance;
mod variants;

use burn::module::{ModuleMapper, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use reference::{
    Arrays, arrays, assert_close, assert_gradient_close, fixture, tensor, tested_device, values,
};
use vitrine::import::{self, Imported, Options};
use vitrine_models::weights::{NamedTensor, to_timm};

/// Imports the weights of a fixture with its `config.json`, to which an image size may be added.
fn imported(case: &str, file: &str, image_size: Option<usize>) -> Imported {
    let folder = tempfile::tempdir().unwrap();
    let config = image_size.map(|side| {
        let text = std::fs::read_to_string(fixture(case).join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config["image_size"] = side.into();
        let path = folder.path().join("config.json");
        std::fs::write(&path, config.to_string()).unwrap();
        path.display().to_string()
    });
    import::load(&fixture(case).join(file), &Options { config, ..Options::default() }).unwrap()
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

/// Replaces each parameter by its gradient, so that gradients can be read under timm's names.
struct Gradient<'a>(&'a Gradients);

impl ModuleMapper for Gradient<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let grad = param.val().grad(self.0).unwrap_or_else(|| param.val().inner().zeros_like());
        Param::initialized(param.id, Tensor::from_data(grad.into_data(), &param.val().device()))
    }
}

/// Checks that a model has the features, logits, loss, and gradients of a fixture.
fn assert_parity(case: &str, imported: Imported) {
    let (device, tolerance) = tested_device();
    let io = arrays(case, "io.safetensors");
    let layout = imported.account.layout;
    let model = imported.model(&device.clone().autodiff()).unwrap();
    let images = tensor::<4>(&io["input"], &device.clone().autodiff());
    let close = |what: &str, ours: Vec<f32>| assert_close(what, &ours, &io[what].values, tolerance);
    if io.contains_key("features") {
        close("features", values(model.features(images.clone())));
    }
    let logits = model.forward(images);
    close("logits", values(logits.clone()));
    let loss = vitrine_kernels::cross_entropy(logits, one_hot(&io["target"].values, &device.autodiff(), 0.0));
    close("loss", values(loss.clone()));
    let grads = loss.backward();
    let model = burn::module::Module::map(model, &mut Gradient(&grads));
    let ours: Arrays = to_timm(&model).into_iter().map(|grad| (grad.name.clone(), grad)).collect();
    let theirs = io.iter().filter_map(|(name, grad)| {
        let name = name.strip_prefix("grad.")?;
        Some(NamedTensor { name: name.to_owned(), ..grad.clone() })
    });
    for expected in layout.to_timm(theirs.collect()) {
        let grad = &ours[&expected.name];
        assert_eq!(grad.shape, expected.shape);
        assert_gradient_close(&expected.name, &grad.values, &expected.values, tolerance);
    }
}

/// Checks a fixture's `weights.safetensors`.
fn case(name: &str) {
    assert_parity(name, imported(name, "weights.safetensors", None));
}

#[test]
fn timm_vit() {
    case("timm_vit");
}

#[test]
fn timm_vit_from_a_pytorch_file() {
    assert_parity("timm_vit", imported("timm_vit", "weights.pth", None));
}

#[test]
fn timm_vit_with_mean_pooling_registers_and_layer_scale() {
    case("timm_vit_avgpool_reg_layerscale");
}

#[test]
fn timm_vit_with_attention_pooling_and_normalized_queries_and_keys() {
    case("timm_vit_map_qknorm");
}

#[test]
fn timm_deit_with_a_distillation_token() {
    case("timm_deit_distilled");
}

#[test]
fn torchvision_vit() {
    case("torchvision_vit");
}

#[test]
fn torchvision_vit_from_a_pytorch_file() {
    assert_parity("torchvision_vit", imported("torchvision_vit", "weights.pth", None));
}

#[test]
fn hugging_face_vit() {
    case("hf_vit");
}

#[test]
fn timm_swin() {
    case("timm_swin");
}

#[test]
fn timm_swin_on_a_grid_that_windows_do_not_divide() {
    case("timm_swin_padded");
}

#[test]
fn timm_swin_v2() {
    case("timm_swinv2");
}

#[test]
fn torchvision_swin() {
    // torchvision's Swin takes images of any size, so its configuration states none.
    assert_parity("torchvision_swin", imported("torchvision_swin", "weights.safetensors", Some(32)));
}

#[test]
fn hugging_face_swin() {
    case("hf_swin");
}
