//! Comparison of a fused operation with its composed definition: values, gradients, special values, repeatability.

use super::numbers;
use burn::tensor::{Device, Tensor};

/// An operation as a function of flat tensors, which it reshapes, to a flat output.
pub(crate) trait Flat: Fn(&[Tensor<1>]) -> Tensor<1> {}
impl<F: Fn(&[Tensor<1>]) -> Tensor<1>> Flat for F {}

/// Checks that `fused` and `composed` agree on inputs of these lengths, with and without autodiff, in their outputs and
/// in every gradient, and that a second run gives the same bits.
///
/// # Panics
///
/// If they differ.
pub(crate) fn assert_same(lengths: &[usize], fused: impl Flat, composed: impl Flat) {
    assert_same_within(1e-5, lengths, fused, composed);
}

/// [`assert_same`] with a tolerance, which is a share of the largest value.
///
/// # Panics
///
/// If they differ by more.
pub(crate) fn assert_same_within(tolerance: f32, lengths: &[usize], fused: impl Flat, composed: impl Flat) {
    let inputs: Vec<Vec<f32>> =
        lengths.iter().enumerate().map(|(index, &length)| numbers(length, index as u64 + 1)).collect();
    let (expected, expected_gradients) = differentiate(&inputs, &composed);
    let (found, gradients) = differentiate(&inputs, &fused);
    assert_close("output", &found, &expected, tolerance);
    for (index, (found, expected)) in gradients.iter().zip(&expected_gradients).enumerate() {
        assert_close(&format!("gradient of input {index}"), found, expected, tolerance);
    }
    assert_eq!(differentiate(&inputs, &fused), (found.clone(), gradients), "a second run");

    let plain = fused(&leaves(&inputs, &Device::flex()));
    assert_close("output without autodiff", &data(plain), &found, 1e-6);
    for (index, expected) in expected_gradients.iter().enumerate() {
        let partial = differentiate_one(&inputs, index, &fused);
        assert_close(&format!("gradient of input {index} alone"), &partial, expected, tolerance);
    }
}

/// Checks the gradients of `fused` against central differences.
///
/// # Panics
///
/// If they differ.
pub(crate) fn assert_derivative(lengths: &[usize], fused: impl Flat) {
    const STEP: f32 = 1e-2;
    let inputs: Vec<Vec<f32>> =
        lengths.iter().enumerate().map(|(index, &length)| numbers(length, index as u64 + 7)).collect();
    let (output, gradients) = differentiate(&inputs, &fused);
    let weights = numbers(output.len(), 99);
    let weighted = |inputs: &[Vec<f32>]| -> f64 {
        let output = data(fused(&leaves(inputs, &Device::flex())));
        output.iter().zip(&weights).map(|(output, weight)| f64::from(*output) * f64::from(*weight)).sum()
    };
    for (index, gradient) in gradients.iter().enumerate() {
        let expected: Vec<f32> = (0..inputs[index].len())
            .map(|element| {
                let mut moved = inputs.clone();
                moved[index][element] += STEP;
                let above = weighted(&moved);
                moved[index][element] = inputs[index][element] - STEP;
                ((above - weighted(&moved)) / f64::from(2.0 * STEP)) as f32
            })
            .collect();
        assert_close(&format!("derivative by input {index}"), gradient, &expected, 3e-3);
    }
}

/// Checks that both outputs are NaN, infinite and finite at the same elements when an input holds a NaN or an infinity.
///
/// # Panics
///
/// If they differ.
pub(crate) fn assert_same_special(lengths: &[usize], fused: impl Flat, composed: impl Flat) {
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for index in 0..lengths.len() {
            let mut inputs: Vec<Vec<f32>> = lengths
                .iter()
                .enumerate()
                .map(|(index, &length)| numbers(length, index as u64 + 1))
                .collect();
            let middle = lengths[index] / 2;
            inputs[index][middle] = special;
            let kind = |value: &f32| (value.is_nan(), value.is_infinite().then_some(*value > 0.0));
            // On a device with autodiff, because flex's own attention, which runs on devices without it, loses NaN.
            let expected: Vec<_> =
                data(composed(&leaves(&inputs, &Device::flex().autodiff()))).iter().map(kind).collect();
            let found: Vec<_> = data(fused(&leaves(&inputs, &Device::flex()))).iter().map(kind).collect();
            assert_eq!(found, expected, "{special} in input {index}");
            let recorded: Vec<_> =
                data(fused(&leaves(&inputs, &Device::flex().autodiff()))).iter().map(kind).collect();
            assert_eq!(recorded, expected, "{special} in input {index}, recorded");
        }
    }
}

fn leaves(inputs: &[Vec<f32>], device: &Device) -> Vec<Tensor<1>> {
    inputs.iter().map(|input| Tensor::from_floats(input.as_slice(), device)).collect()
}

fn data(tensor: Tensor<1>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as::<f32>().expect("float32")
}

fn differentiate(inputs: &[Vec<f32>], operation: &impl Flat) -> (Vec<f32>, Vec<Vec<f32>>) {
    let leaves: Vec<_> =
        leaves(inputs, &Device::flex().autodiff()).into_iter().map(Tensor::require_grad).collect();
    let output = operation(&leaves);
    let weights = Tensor::from_floats(numbers(output.dims()[0], 99).as_slice(), &output.device());
    let gradients = (output.clone() * weights).sum().backward();
    (
        data(output.inner()),
        leaves.iter().map(|leaf| data(leaf.grad(&gradients).expect("a gradient"))).collect(),
    )
}

/// The gradient of one input if autodiff follows no other input.
fn differentiate_one(inputs: &[Vec<f32>], index: usize, operation: &impl Flat) -> Vec<f32> {
    let mut leaves = leaves(inputs, &Device::flex().autodiff());
    leaves[index] = leaves[index].clone().require_grad();
    let output = operation(&leaves);
    let weights = Tensor::from_floats(numbers(output.dims()[0], 99).as_slice(), &output.device());
    let gradients = (output * weights).sum().backward();
    data(leaves[index].grad(&gradients).expect("a gradient"))
}

/// Checks that values differ by at most `tolerance` times the largest expected value.
fn assert_close(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    let scale = expected.iter().fold(1e-3f32, |largest, value| largest.max(value.abs()));
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() <= tolerance * scale,
            "{what}: element {index} is {found}, expected {expected} (scale {scale})"
        );
    }
}
