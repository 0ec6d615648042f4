//! Parity with PyTorch: the same weights and input give the same features, logits, loss, gradients, and updated
//! weights.
//!
//! `tests/fixtures` holds the values that timm, torchvision, transformers, and PyTorch computed. `VITRINE_DEVICE`
//! selects the device. The tolerance is 1e-4 on flex and 1e-3 on other backends. `tests/parity_layers.rs` compares
//! single layers.

#![allow(clippy::unwrap_used)]

#[path = "support/reference.rs"]
mod reference;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use reference::{Arrays, arrays, assert_close, fixture, param, tensor, tested_device, values};
use vitrine::import::{self, Imported, Options};
use vitrine::recipe::{Optimizer, Recipe};
use vitrine::train::optimizer;
use vitrine_models::linear::Linear;
use vitrine_models::weights::{NamedTensor, to_timm};
use vitrine_models::{VisionTransformer, ops};

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
    let loss = ops::cross_entropy(logits, one_hot(&io["target"].values, &device.autodiff(), 0.0));
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
        assert_close(&expected.name, &grad.values, &expected.values, tolerance);
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

#[test]
fn three_steps_of_adamw_with_global_norm_clipping() {
    let (device, tolerance) = tested_device();
    let io = arrays("train_step", "io.safetensors");
    let weights = imported("train_step", "weights.safetensors", None);
    let mut model: VisionTransformer = weights.model(&device.clone().autodiff()).unwrap();
    let recipe = Recipe { learning_rate: 1e-3, weight_decay: 0.05, ..Recipe::default() };
    // The reference decays every parameter, without exceptions for biases and norms.
    let mut optimizer = optimizer::uniform(&recipe);
    let inputs = tensor::<5>(&io["inputs"], &device.clone().autodiff());
    let targets = &io["targets"];
    for step in 0..3 {
        let images = inputs.clone().narrow(0, step, 1).squeeze_dim::<4>(0);
        let labels = &targets.values[step * 8..(step + 1) * 8];
        let loss =
            ops::cross_entropy(model.forward(images), one_hot(labels, &device.clone().autodiff(), 0.1));
        assert_close("loss", &values(loss.clone()), &io["losses"].values[step..=step], tolerance);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let grads = optimizer::clip_global_norm(&model, grads, 1.0);
        model = optimizer.step(recipe.learning_rate, model, grads);
    }
    let after = arrays("train_step", "weights_after.safetensors");
    let (mut beyond, mut total) = (0, 0);
    for mut parameter in to_timm(&model) {
        let mut expected = after[&parameter.name].values.clone();
        if parameter.name.ends_with("attn.qkv.bias") {
            // A bias of the keys does not change the softmax. Its gradient is rounding error around 0, which AdamW
            // scales to full steps. The keys are the middle third of this tensor.
            let dim = expected.len() / 3;
            parameter.values.drain(dim..2 * dim);
            expected.drain(dim..2 * dim);
        }
        // Other parameters with gradients near 0 may also step in opposite directions in each of the three steps.
        assert_close(&parameter.name, &parameter.values, &expected, 6.0 * recipe.learning_rate as f32);
        total += expected.len();
        beyond += parameter.values.iter().zip(&expected).filter(|(a, b)| (*a - *b).abs() > tolerance).count();
    }
    // The allowed share of such parameters equals the tolerance: one in 10,000 on flex.
    assert!(
        beyond as f32 <= tolerance * total as f32,
        "{beyond} of {total} parameters are off by more than {tolerance}"
    );
}

/// A network whose parameters have the paths by which the optimizer groups them.
#[derive(Module, Debug)]
struct Network {
    stages: Vec<Stage>,
    head: Linear,
}

/// Matrices of all shapes: tall, wide, square, stacked, and a convolution's kernel.
#[derive(Module, Debug)]
struct Stage {
    qkv: Linear,
    tall: Linear,
    wide: Linear,
    square: Linear,
    kernel: Param<Tensor<4>>,
    stack: Param<Tensor<3>>,
}

impl Network {
    fn read(io: &Arrays, device: &Device) -> Self {
        let linear = |path: &str| Linear {
            weight: param(&io[&format!("before.{path}.weight")], device),
            bias: io.get(&format!("before.{path}.bias")).map(|bias| param(bias, device)),
        };
        let stage = Stage {
            qkv: linear("stages.0.qkv"),
            tall: linear("stages.0.tall"),
            wide: linear("stages.0.wide"),
            square: linear("stages.0.square"),
            kernel: param(&io["before.stages.0.kernel"], device),
            stack: param(&io["before.stages.0.stack"], device),
        };
        Self { stages: vec![stage], head: linear("head") }
    }
}

/// A visitor that finds the reference's array for each parameter by its path.
struct ByPath<'a> {
    io: &'a Arrays,
    path: Vec<String>,
    what: String,
    visit: Visit,
}

enum Visit {
    /// Collects the arrays as gradients.
    Read(GradientsParams),
    /// Compares the parameters with the arrays, within a tolerance.
    Compare(f32),
}

impl ModuleVisitor for ByPath<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = format!("{}.{}", self.what, self.path.join("."));
        let array = &self.io[&name];
        match &mut self.visit {
            Visit::Read(gradients) => {
                gradients.register(param.id, tensor::<D>(array, &param.lazy_device().inner()))
            }
            Visit::Compare(tolerance) => {
                assert_close(&name, &values(param.val()), &array.values, *tolerance);
            }
        }
    }
}

#[test]
fn three_steps_of_muon_with_adamw_for_the_rest() {
    let (device, tolerance) = tested_device();
    let io = &arrays("muon", "io.safetensors");
    let mut network = Network::read(io, &device.autodiff());
    let recipe = Recipe { optimizer: Optimizer::Muon, weight_decay: 0.1, ..Recipe::default() };
    let mut optimizer = optimizer::new(&recipe);
    let visitor = |what: String, visit: Visit| ByPath { io, path: Vec::new(), what, visit };
    for step in 0..3 {
        let mut read = visitor(format!("gradients.{step}"), Visit::Read(GradientsParams::new()));
        network.visit(&mut read);
        let Visit::Read(gradients) = read.visit else { unreachable!("the visitor was made to read") };
        network = optimizer.step(0.2, network, gradients);
    }
    network.visit(&mut visitor("after".to_owned(), Visit::Compare(tolerance)));
}
