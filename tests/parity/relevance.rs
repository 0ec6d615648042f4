//! Maps of what a model looked at: those of timm's models, written out in PyTorch (`tests/reference/make_relevance.py`).

use burn::tensor::Tensor;
use vitrine_models::VisionTransformer;

use super::imported;
use super::reference::{arrays, assert_close, tensor, tested_device, values};

/// The map of a method, named as in the fixture, of the images' classes: its shape and its values.
fn map(
    method: &str,
    model: &VisionTransformer,
    images: Tensor<4>,
    classes: &[usize],
) -> (Vec<usize>, Vec<f32>) {
    let last = model.config().depth.sum() - 1;
    let of_batch = |map: Tensor<3>| (map.dims().to_vec(), values(map));
    let of_layers = |map: Tensor<4>| (map.dims().to_vec(), values(map));
    match method {
        "attention" => of_layers(model.attention_map(images, last).unwrap()),
        "attention_mean" => {
            of_batch(model.attention_map(images, last).unwrap().mean_dim(1).squeeze_dim::<3>(1))
        }
        "rollout" => of_batch(model.rollout(images).unwrap()),
        "gradient_attention" => of_batch(model.gradient_attention(images, classes).unwrap()),
        "grad_cam" => of_batch(model.grad_cam(images, classes)),
        "pooling" => of_layers(model.pooling_map(images, classes).unwrap()),
        "patch_logits" => of_layers(model.patch_logits(images)),
        other => panic!("{other}"),
    }
}

#[test]
fn maps_of_every_method() {
    let (device, tolerance) = tested_device();
    let device = device.autodiff();
    let mut reference = arrays("relevance", "io.safetensors");
    let classes: Vec<usize> =
        reference.remove("classes").unwrap().values.iter().map(|&class| class as usize).collect();
    assert_eq!(reference.len(), 17);
    for (name, expected) in reference {
        let (case, method) = name.split_once('.').unwrap();
        let model = imported(case, "weights.safetensors", None).model(&device).unwrap();
        let images = tensor::<4>(&arrays(case, "io.safetensors")["input"], &device);
        let (shape, found) = map(method, &model, images, &classes);
        assert_eq!(shape, expected.shape, "{name}");
        // Maps have no scale of their own: they are compared relative to their largest value.
        let largest =
            expected.values.iter().copied().fold(0.0, |largest: f32, value| largest.max(value.abs()));
        let relative = |values: &[f32]| -> Vec<f32> { values.iter().map(|value| value / largest).collect() };
        assert_close(&name, &relative(&found), &relative(&expected.values), tolerance);
    }
}
