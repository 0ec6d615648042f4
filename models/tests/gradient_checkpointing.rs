//! Gradient checkpointing with dropout. It is a test program of its own, because dropout draws from a generator that
//! all threads share.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../src/testing.rs"]
mod testing;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use vitrine_models::{ModelConfig, VisionTransformer};

/// Moves every parameter along its gradient.
struct Along<'a> {
    parts: &'a [Gradients],
    step: f64,
    /// The squared norm of all gradients.
    squared_norm: f64,
}

impl ModuleMapper for Along<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = param.val();
        let gradient = self.parts.iter().find_map(|grads| value.grad(grads)).unwrap();
        self.squared_norm += f64::from(gradient.clone().square().sum().into_scalar::<f32>());
        let moved = value.inner() + gradient.mul_scalar(self.step);
        Param::initialized(param.id, Tensor::from_inner(moved).require_grad())
    }
}

#[test]
fn both_forward_passes_drop_the_same_values() {
    let device = Device::default().autodiff();
    let config = ModelConfig {
        dropout: 0.3,
        attention_dropout: 0.3,
        drop_path: 0.5,
        depth: 3.into(),
        ..testing::base()
    };
    let model = config.init(&device).unwrap();
    model.initialize();
    let shape = [3, config.channels, config.image_size.height, config.image_size.width];
    let images = TensorData::new(vitrine_kernels::testing::numbers(shape.iter().product(), 6), shape);
    let images = Tensor::<4>::from_data(images, &device);
    let run = |model: &VisionTransformer, seed: u64| {
        let (mut value, mut parts) = (0.0, Vec::new());
        let loss = |logits: Tensor<2>| {
            let weights = TensorData::new(vitrine_kernels::testing::numbers(15, 5), [3, 5]);
            let loss = (logits * Tensor::from_data(weights, &device)).sum();
            value = f64::from(loss.clone().into_scalar::<f32>());
            loss
        };
        model.checkpointed_gradients(images.clone(), seed, loss, |grads| parts.push(grads));
        (value, parts)
    };
    let (value, parts) = run(&model, 9);
    assert_eq!(run(&model, 9).0, value);
    assert_ne!(run(&model, 10).0, value);
    let moved = |step: f64| {
        let mut along = Along { parts: &parts, step, squared_norm: 0.0 };
        let moved = model.clone().map(&mut along);
        (run(&moved, 9).0, along.squared_norm)
    };
    let (_, squared_norm) = moved(0.0);
    let step = 5e-3 / squared_norm.sqrt();
    let derivative = (moved(step).0 - moved(-step).0) / (2.0 * step);
    assert!(
        (derivative / squared_norm - 1.0).abs() < 0.02,
        "{derivative} by differences, {squared_norm} by gradients"
    );
}
