//! The linear layer, alone or followed by GELU, as one matrix product over all tokens.

#[cfg(feature = "flex")]
use crate::cpu::{flex, linear as fused};
use crate::gelu;
use burn::tensor::{Device, Tensor};

/// `x * weight + bias`.
///
/// # Shapes
///
/// - x: `[..., in_features]`
/// - weight: `[in_features, out_features]`
/// - bias: `[out_features]`
/// - output: `[..., out_features]`
///
/// # Panics
///
/// If the shapes do not fit.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::default();
/// let x = Tensor::<2>::from_floats([[1.0, 2.0]], &device);
/// let weight = Tensor::<2>::from_floats([[1.0, 0.0, -1.0], [0.0, 10.0, 1.0]], &device); // [in_features, out_features]
/// let bias = Tensor::<1>::from_floats([0.5, 0.5, -1.0], &device);
/// let y = vitrine_kernels::linear(x, weight, Some(bias));
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [1.5, 20.5, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    check(&x, &weight, &bias);
    crate::counting::count(&[x.shape().num_elements(), weight.dims()[1]]);
    #[cfg(feature = "flex")]
    if flex::takes(&x) && flex::takes(&weight) && flex::takes_option(&bias) {
        return fused::apply(fused::Activation::None, x, weight, bias);
    }
    linear_composed(x, weight, bias)
}

/// `gelu(x * weight + bias)`: the first half of a transformer's MLP. Shapes as for [`linear`].
///
/// # Panics
///
/// If the shapes do not fit.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::default();
/// let x = Tensor::<2>::from_floats([[1.0, 2.0]], &device);
/// let weight = Tensor::<2>::from_floats([[1.0, 0.0, -1.0], [0.0, 10.0, 1.0]], &device); // [in_features, out_features]
/// let bias = Tensor::<1>::from_floats([0.5, 0.5, -1.0], &device);
/// let y = vitrine_kernels::linear_gelu(x.clone(), weight.clone(), Some(bias.clone()));
/// let apart = vitrine_kernels::gelu(vitrine_kernels::linear(x, weight, Some(bias)));
/// assert!((y - apart).abs().max().into_scalar::<f32>() < 1e-5);
/// ```
pub fn linear_gelu<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    check(&x, &weight, &bias);
    crate::counting::count(&[x.shape().num_elements(), weight.dims()[1]]);
    #[cfg(feature = "flex")]
    if flex::takes(&x) && flex::takes(&weight) && flex::takes_option(&bias) {
        return fused::apply(fused::Activation::Gelu, x, weight, bias);
    }
    linear_gelu_composed(x, weight, bias)
}

fn check<const D: usize>(x: &Tensor<D>, weight: &Tensor<2>, bias: &Option<Tensor<1>>) {
    let [in_features, out_features] = weight.dims();
    assert_eq!(x.dims()[D - 1], in_features, "linear: in_features of the input and of the weight differ");
    assert!(
        bias.as_ref().is_none_or(|bias| bias.dims() == [out_features]),
        "linear: out_features of the weight and of the bias differ"
    );
}

/// [`linear`] with a weight `[in_features, out_features]` in a form of its own: `multiply` computes the outputs of so many rows. `None` if
/// `x` is not on flex, is not float32, or is followed by autodiff.
///
/// # Panics
///
/// If the shapes do not fit.
#[cfg(all(feature = "flex", target_arch = "x86_64"))]
pub(crate) fn linear_untracked<const D: usize>(
    x: &Tensor<D>,
    [in_features, out_features]: [usize; 2],
    bias: Option<Tensor<1>>,
    multiply: impl FnOnce(&[f32], usize, Option<&[f32]>) -> Vec<f32>,
) -> Option<Tensor<D>> {
    if !flex::takes_untracked(x) || !bias.as_ref().is_none_or(flex::takes_untracked) {
        return None;
    }
    let mut shape = x.shape();
    assert_eq!(shape[D - 1], in_features, "linear: in_features of the input and of the weight differ");
    assert!(
        bias.as_ref().is_none_or(|bias| bias.dims() == [out_features]),
        "linear: out_features of the weight and of the bias differ"
    );
    let (length, rows) = (shape.num_elements(), flex::rows(&shape));
    shape[D - 1] = out_features;
    crate::counting::count(&[length, out_features]);
    let x = flex::contiguous(flex::untracked(x.clone()));
    let bias = bias.map(|bias| flex::contiguous(flex::untracked(bias)));
    let bias = bias.as_ref().map(|bias| &bias.storage::<f32>()[..out_features]);
    let y = multiply(&x.storage::<f32>()[..length], rows, bias);
    Some(flex::wrap(flex::tensor(y, shape)))
}

/// The definition of [`linear`], in burn's own operations.
pub fn linear_composed<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let [in_features, out_features] = weight.dims();
    let mut shape = x.dims();
    let rows = shape[..D - 1].iter().product::<usize>();
    shape[D - 1] = out_features;
    let y = x.reshape([rows, in_features]).matmul(weight);
    let y = match bias {
        Some(bias) => y + bias.unsqueeze(),
        None => y,
    };
    y.reshape(shape)
}

/// The definition of [`linear_gelu`], in burn's own operations.
pub fn linear_gelu_composed<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    gelu::gelu_composed(linear_composed(x, weight, bias))
}

/// Whether [`linear`] and [`linear_gelu`] read a weight on this device as it lies in memory, so that the transpose of a stored
/// weight is a view that costs nothing.
pub fn reads_transposed_weights(device: &Device) -> bool {
    #[cfg(feature = "flex")]
    return flex::is_flex(device);
    #[cfg(not(feature = "flex"))]
    {
        let _ = device;
        false
    }
}

/// Whether [`Precision::Bfloat16`](crate::Precision::Bfloat16) makes products faster on a device: flex, on a CPU with AVX512-BF16 and without AMX, which multiplies
/// numbers of 24 bits in less time.
///
/// # Examples
///
/// ```
/// use burn::tensor::Device;
///
/// println!("{}", vitrine_kernels::multiplies_bfloat16(&Device::default()));
/// ```
pub fn multiplies_bfloat16(device: &Device) -> bool {
    #[cfg(feature = "flex")]
    return flex::is_flex(device) && crate::cpu::gemm::Bfloat16::useful().is_some();
    #[cfg(not(feature = "flex"))]
    {
        let _ = device;
        false
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::testing::{assert_derivative, assert_same, assert_same_special};

    /// Batch, tokens, inputs and outputs. The last two shapes run on AMX, if the CPU has it: with few rows, and with
    /// many.
    const SHAPES: [[usize; 4]; 8] = [
        [2, 5, 7, 3],
        [1, 1, 8, 10],
        [64, 65, 24, 40],
        [3, 17, 192, 1],
        [0, 4, 5, 6],
        [1, 100, 16, 33],
        [3, 70, 80, 100],
        [64, 65, 72, 100],
    ];

    #[test]
    fn linear_agrees_with_its_definition() {
        for [batch, tokens, inputs, outputs] in SHAPES {
            let run = |operation: fn(Tensor<3>, Tensor<2>, Option<Tensor<1>>) -> Tensor<3>, bias: bool| {
                move |leaf: &[Tensor<1>]| {
                    let [x, weight] = [leaf[0].clone(), leaf[1].clone()];
                    operation(
                        x.reshape([batch, tokens, inputs]),
                        weight.reshape([inputs, outputs]),
                        bias.then(|| leaf[2].clone()),
                    )
                    .reshape([batch * tokens * outputs])
                }
            };
            let lengths = [batch * tokens * inputs, inputs * outputs, outputs];
            assert_same(&lengths, run(linear, true), run(linear_composed, true));
            assert_same(&lengths, run(linear_gelu, true), run(linear_gelu_composed, true));
            assert_same(&lengths[..2], run(linear, false), run(linear_composed, false));
            assert_same(&lengths[..2], run(linear_gelu, false), run(linear_gelu_composed, false));
        }
    }

    #[test]
    fn linear_reads_views() {
        let run = |operation: fn(Tensor<3>, Tensor<2>, Option<Tensor<1>>) -> Tensor<3>| {
            move |leaf: &[Tensor<1>]| {
                let x = leaf[0].clone().reshape([7, 6, 5]).swap_dims(0, 1).narrow(1, 2, 4); // [6, 4, 5]
                let weight = leaf[1].clone().reshape([9, 5]).transpose();
                operation(x, weight, Some(leaf[2].clone())).swap_dims(1, 2).reshape([6 * 4 * 9])
            }
        };
        assert_same(&[210, 45, 9], run(linear), run(linear_composed));
        assert_same(&[210, 45, 9], run(linear_gelu), run(linear_gelu_composed));
        let flipped = |operation: fn(Tensor<3>, Tensor<2>, Option<Tensor<1>>) -> Tensor<3>| {
            move |leaf: &[Tensor<1>]| {
                operation(
                    leaf[0].clone().reshape([7, 6, 5]).flip([0, 2]),
                    leaf[1].clone().reshape([5, 9]).flip([0]),
                    None,
                )
                .reshape([7 * 6 * 9])
            }
        };
        assert_same(&[210, 45], flipped(linear), flipped(linear_composed));
    }

    #[test]
    fn linear_has_the_derivative_of_central_differences() {
        let run = |operation: fn(Tensor<2>, Tensor<2>, Option<Tensor<1>>) -> Tensor<2>| {
            move |leaf: &[Tensor<1>]| {
                operation(
                    leaf[0].clone().reshape([3, 5]),
                    leaf[1].clone().reshape([5, 4]),
                    Some(leaf[2].clone()),
                )
                .reshape([12])
            }
        };
        assert_derivative(&[15, 20, 4], run(linear));
        assert_derivative(&[15, 20, 4], run(linear_gelu));
    }

    #[test]
    fn linear_keeps_special_values() {
        let run = |operation: fn(Tensor<2>, Tensor<2>, Option<Tensor<1>>) -> Tensor<2>| {
            move |leaf: &[Tensor<1>]| {
                operation(
                    leaf[0].clone().reshape([3, 5]),
                    leaf[1].clone().reshape([5, 4]),
                    Some(leaf[2].clone()),
                )
                .reshape([12])
            }
        };
        assert_same_special(&[15, 20, 4], run(linear), run(linear_composed));
        assert_same_special(&[15, 20, 4], run(linear_gelu), run(linear_gelu_composed));
    }
}
