//! Products without a fused form, which burn computes on every device: batches of matrices, and convolutions that keep
//! the size of a map.

use burn::tensor::ops::ConvOptions;
use burn::tensor::{Tensor, module};

/// The products of pairs of matrices.
///
/// # Shapes
///
/// - a: `[batch, heads, rows, inner]`
/// - b: `[batch or 1, heads, inner, columns]`
/// - output: `[batch, heads, rows, columns]`
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
/// let a = Tensor::<4>::from_floats([[[[1.0, 2.0]]]], &device);
/// let b = Tensor::<4>::from_floats([[[[3.0], [4.0]]]], &device);
/// assert_eq!(vitrine_kernels::matmul(a, b).into_scalar::<f32>(), 11.0);
/// ```
pub fn matmul(a: Tensor<4>, b: Tensor<4>) -> Tensor<4> {
    crate::counting::count(&[a.shape().num_elements(), b.dims()[3]]);
    a.matmul(b)
}

/// A convolution of stride 1 with the padding of zeros that keeps the number of rows and columns. The number of groups
/// follows from the shapes.
///
/// # Shapes
///
/// - x: `[batch, in_channels, rows, columns]`
/// - weight: `[out_channels, in_channels / groups, kernel_rows, kernel_columns]`; the kernel's sizes are odd
/// - bias: `[out_channels]`
/// - output: `[batch, out_channels, rows, columns]`
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
/// let x = Tensor::<4>::from_floats([[[[1.0, 2.0, 3.0]]]], &device);
/// let weight = Tensor::<4>::ones([1, 1, 1, 3], &device); // the sum of a pixel and its neighbors on both sides
/// let y = vitrine_kernels::same_conv2d(x, weight, None);
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [3.0, 6.0, 5.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn same_conv2d(x: Tensor<4>, weight: Tensor<4>, bias: Option<Tensor<1>>) -> Tensor<4> {
    let [batch, channels, rows, columns] = x.dims();
    let [_, per_group, kernel_rows, kernel_columns] = weight.dims();
    crate::counting::count(&[batch, rows, columns, weight.shape().num_elements()]);
    let padding = [kernel_rows / 2, kernel_columns / 2];
    module::conv2d(x, weight, bias, ConvOptions::new([1, 1], padding, [1, 1], channels / per_group))
}
