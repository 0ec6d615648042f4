//! Reference values of PyTorch, timm, and other libraries, read from `tests/fixtures`, and comparisons within a
//! tolerance.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::Param;
use burn::tensor::{Device, Tensor, TensorData};
use safetensors::{Dtype, SafeTensors};
use vitrine::device;
use vitrine_models::linear::Linear;
use vitrine_models::weights::NamedTensor;

/// Reference values by name.
pub type Arrays = BTreeMap<String, NamedTensor>;

pub fn fixture(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(case)
}

pub fn arrays(case: &str, file: &str) -> Arrays {
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

/// The device that `VITRINE_DEVICE` names, or the CPU, and the tolerance for its results.
pub fn tested_device() -> (Device, f32) {
    let name = std::env::var("VITRINE_DEVICE").ok();
    let (found, _) = device::select(name.as_deref().or(Some("cpu"))).unwrap();
    let tolerance = if found.name == "flex" { 1e-4 } else { 1e-3 };
    (found.device, tolerance)
}

pub fn tensor<const D: usize>(array: &NamedTensor, device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(array.values.clone(), array.shape.clone()), device)
}

pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().iter::<f32>().collect()
}

/// Asserts that every value is within `tolerance` of the reference: absolute for values up to 1, relative for larger
/// ones.
pub fn assert_close(what: &str, ours: &[f32], theirs: &[f32], tolerance: f32) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (index, (a, b)) in ours.iter().zip(theirs).enumerate() {
        let gap = (a - b).abs() / b.abs().max(1.0);
        assert!(gap <= tolerance, "{what}[{index}]: {a} instead of {b}");
    }
}

/// Asserts that every value of a gradient is within `tolerance` of the reference, relative to the largest value of the
/// reference. What rounding makes of gradients below a thousandth counts as absolute.
pub fn assert_gradient_close(what: &str, ours: &[f32], theirs: &[f32], tolerance: f32) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let largest = theirs.iter().fold(1e-3, |largest: f32, value| largest.max(value.abs()));
    for (index, (a, b)) in ours.iter().zip(theirs).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * largest,
            "{what}[{index}]: {a} instead of {b}, of {largest} at most"
        );
    }
}

/// A parameter with the values of an array.
pub fn param<const D: usize>(array: &NamedTensor, device: &Device) -> Param<Tensor<D>> {
    Param::from_tensor(tensor(array, device))
}

/// A linear layer from `<name>.weight`, `[output, input]` (a convolution of one pixel too), and `<name>.bias`.
pub fn linear(arrays: &Arrays, name: &str, device: &Device) -> Linear {
    linear_of(&arrays[&format!("{name}.weight")], arrays.get(&format!("{name}.bias")), device)
}

/// A linear layer from a weight `[output, input]` and a bias.
pub fn linear_of(weight: &NamedTensor, bias: Option<&NamedTensor>, device: &Device) -> Linear {
    let shape = [weight.shape[0], weight.shape[1]];
    let weight = Tensor::<2>::from_data(TensorData::new(weight.values.clone(), shape), device);
    Linear::of(Param::from_tensor(weight.swap_dims(0, 1)), bias.map(|bias| param(bias, device)))
}
