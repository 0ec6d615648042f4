//! Depth-wise convolution, which convolves each channel separately, over maps with the channels last.

#[cfg(feature = "flex")]
use crate::cpu::{convolution as fused, flex, operation};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Tensor, module};

/// A convolution of each channel with its own kernel, of stride 1, with the padding of zeros that keeps the number of
/// rows and columns.
///
/// # Shapes
///
/// - x, output: `[batch, rows, columns, channels]`
/// - weight: `[kernel_size * kernel_size, channels]` for an odd `kernel_size`, with the elements of a kernel in reading
///   order
/// - bias: `[channels]`
///
/// # Panics
///
/// If the shapes do not fit, or the kernel is not a square of odd size.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::default();
/// // One row of three pixels, two channels.
/// let x = Tensor::<2>::from_floats([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]], &device).reshape([1, 1, 3, 2]);
/// // The first channel is the sum of both neighbors, the second the pixel itself.
/// let middle = Tensor::<2>::from_floats([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], &device);
/// let others = Tensor::<2>::zeros([3, 2], &device); // no row above, and none below
/// let weight = Tensor::cat(vec![others.clone(), middle, others], 0);
/// let bias = Tensor::<1>::from_floats([0.5, 0.0], &device);
/// let y = vitrine_kernels::depthwise_convolution(x, weight, Some(bias));
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [2.5, 10.0, 4.5, 20.0, 2.5, 30.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn depthwise_convolution(x: Tensor<4>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<4> {
    let (channels, [taps, of_weight]) = (x.dims()[3], weight.dims());
    let size = kernel_size(&weight);
    assert!(
        size * size == taps && size % 2 == 1,
        "depth-wise convolution: {taps} weights per channel are not a square of odd size"
    );
    assert_eq!(channels, of_weight, "depth-wise convolution: channels of the input and of the weight");
    assert!(
        bias.as_ref().is_none_or(|bias| bias.dims() == [channels]),
        "depth-wise convolution: channels of the input and of the bias"
    );
    crate::counting::count(&[x.shape().num_elements(), taps]);
    #[cfg(feature = "flex")]
    if flex::takes(&x) && flex::takes(&weight) && flex::takes_option(&bias) {
        let kernel = fused::Kernel { size, stride: 1, padding: size / 2 };
        let inputs = operation::WithBias::new(x, weight, bias);
        return operation::apply(fused::DepthwiseConvolution { kernel }, inputs);
    }
    depthwise_convolution_composed(x, weight, bias)
}

/// The definition of [`depthwise_convolution`], in burn's own operations.
pub fn depthwise_convolution_composed(x: Tensor<4>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<4> {
    let (channels, size) = (x.dims()[3], kernel_size(&weight));
    let weight = weight.transpose().reshape([channels, 1, size, size]);
    let options = ConvOptions::new([1, 1], [size / 2; 2], [1, 1], channels);
    module::conv2d(x.permute([0, 3, 1, 2]), weight, bias, options).permute([0, 2, 3, 1])
}

fn kernel_size(weight: &Tensor<2>) -> usize {
    weight.dims()[0].isqrt()
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::testing::{assert_derivative, assert_same, assert_same_special, numbers};
    use burn::tensor::Device;

    type DepthwiseFn = fn(Tensor<4>, Tensor<2>, Option<Tensor<1>>) -> Tensor<4>;

    fn flat(operation: DepthwiseFn, shape: [usize; 4], bias: bool) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let weight = leaf[1].clone().reshape([-1, shape[3] as i32]);
            operation(leaf[0].clone().reshape(shape), weight, bias.then(|| leaf[2].clone())).flatten(0, 3)
        }
    }

    #[test]
    fn depthwise_convolution_agrees_with_its_definition() {
        for (shape, size) in [
            ([2, 8, 8, 16], 3),
            ([3, 7, 5, 33], 3),
            ([1, 1, 4, 5], 3),
            ([2, 2, 1, 20], 5),
            ([5, 9, 6, 3], 7),
            ([64, 8, 8, 24], 3),
            ([2, 3, 4, 32], 1),
        ] {
            let channels = shape[3];
            let lengths = [shape.iter().product(), size * size * channels, channels];
            let [fused, composed]: [DepthwiseFn; 2] = [depthwise_convolution, depthwise_convolution_composed];
            assert_same(&lengths, flat(fused, shape, true), flat(composed, shape, true));
            assert_same(&lengths[..2], flat(fused, shape, false), flat(composed, shape, false));
        }
    }

    #[test]
    fn an_empty_batch_has_gradients_of_zero() {
        let device = Device::flex().autodiff();
        let weight = Tensor::<2>::ones([9, 4], &device).require_grad();
        let y = depthwise_convolution(Tensor::zeros([0, 3, 3, 4], &device), weight.clone(), None);
        assert_eq!(y.dims(), [0, 3, 3, 4]);
        let gradients = y.sum().backward();
        let dweight = weight.grad(&gradients).expect("a gradient").into_data();
        assert_eq!(dweight.try_into_vec_as::<f32>().expect("float32"), [0.0; 36]);
    }

    #[test]
    fn depthwise_convolution_reads_views() {
        let view = |operation: DepthwiseFn| {
            move |leaf: &[Tensor<1>]| {
                let x = leaf[0].clone().reshape([2, 18, 6, 7]).permute([0, 2, 3, 1]).narrow(2, 1, 5);
                let weight = leaf[1].clone().reshape([18, 9]).transpose();
                operation(x, weight, Some(leaf[2].clone())).swap_dims(1, 3).flatten(0, 3)
            }
        };
        let lengths = [2 * 18 * 6 * 7, 9 * 18, 18];
        assert_same(&lengths, view(depthwise_convolution), view(depthwise_convolution_composed));
    }

    #[test]
    fn depthwise_convolution_has_the_derivative_of_central_differences() {
        let shape = [2, 4, 3, 5];
        assert_derivative(&[2 * 4 * 3 * 5, 9 * 5, 5], flat(depthwise_convolution, shape, true));
    }

    /// NaN and infinities in the input and the bias. The weight stays finite, because the definition multiplies it with
    /// the padding, too.
    #[test]
    fn depthwise_convolution_keeps_special_values() {
        let shape = [2, 5, 4, 17];
        let run = |operation: DepthwiseFn| {
            move |leaf: &[Tensor<1>]| {
                let weight = Tensor::from_floats(numbers(9 * 17, 8).as_slice(), &leaf[0].device());
                flat(operation, shape, true)(&[leaf[0].clone(), weight, leaf[1].clone()])
            }
        };
        let lengths = [shape.iter().product(), 17];
        assert_same_special(&lengths, run(depthwise_convolution), run(depthwise_convolution_composed));
    }

    #[test]
    #[should_panic(expected = "not a square of odd size")]
    fn an_even_kernel_is_refused() {
        let device = Device::flex();
        depthwise_convolution(Tensor::zeros([1, 4, 4, 1], &device), Tensor::zeros([4, 1], &device), None);
    }
}
