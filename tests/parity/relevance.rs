//! Maps of what a model looked at: those of timm's models, written out in PyTorch (`tests/reference/make_relevance.py`).

use burn::tensor::Tensor;
use vitrine_models::VisionTransformer;

use super::imported;
use super::reference::{arrays, assert_close, tensor, tested_device, values};

/// The map of a method, named as in the fixture, of the images' classes.
fn map(method: &str, model: &VisionTransformer, images: Tensor<4>, classes: &[usize]) -> Tensor<3> {
    match method {
        "rollout" => model.rollout(images).unwrap(),
        "gradient_attention" => model.gradient_attention(images, classes).unwrap(),
        "grad_cam" => model.grad_cam(images, classes),
        other => panic!("{other}"),
    }
}

#[test]
fn rollout_gradient_weighted_attention_and_grad_cam() {
    let (device, tolerance) = tested_device();
    let device = device.autodiff();
    let mut reference = arrays("relevance", "io.safetensors");
    let classes: Vec<usize> =
        reference.remove("classes").unwrap().values.iter().map(|&class| class as usize).collect();
    assert_eq!(reference.len(), 8);
    for (name, expected) in reference {
        let (case, method) = name.split_once('.').unwrap();
        let model = imported(case, "weights.safetensors", None).model(&device).unwrap();
        let images = tensor::<4>(&arrays(case, "io.safetensors")["input"], &device);
        let found = map(method, &model, images, &classes);
        assert_eq!(found.dims()[..], expected.shape[..], "{name}");
        // Maps have no scale of their own: they are compared relative to their largest value.
        let largest = expected.values.iter().copied().fold(0.0, f32::max);
        let relative = |values: &[f32]| -> Vec<f32> { values.iter().map(|value| value / largest).collect() };
        assert_close(&name, &relative(&values(found)), &relative(&expected.values), tolerance);
    }
}
