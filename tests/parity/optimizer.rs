//! Parity of three optimizer steps with PyTorch's AdamW and Muon.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use vitrine::learner::optimizer;
use vitrine::recipe::{Optimizer, Recipe};
use vitrine_models::VisionTransformer;
use vitrine_models::linear::Linear;
use vitrine_models::weights::to_timm;

use super::reference::{Arrays, arrays, assert_close, param, tensor, tested_device, values};
use super::{imported, one_hot};

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
        let loss = vitrine_kernels::cross_entropy(
            model.forward(images),
            one_hot(labels, &device.clone().autodiff(), 0.1),
        );
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
        let linear = |path: &str| {
            let bias = io.get(&format!("before.{path}.bias")).map(|bias| param(bias, device));
            Linear::of(param(&io[&format!("before.{path}.weight")], device), bias)
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
