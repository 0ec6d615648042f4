//! Products that burn computes everywhere: batches of matrices, and convolutions that keep the size.

use burn::tensor::ops::ConvOptions;
use burn::tensor::{Tensor, module};

/// The product of matrices, pair by pair.
///
/// # Shapes
///
/// - a: `[batch, heads, rows, inner]`
/// - b: `[batch or 1, heads, inner, columns]`
/// - output: `[batch, heads, rows, columns]`
pub(crate) fn matmul(a: Tensor<4>, b: Tensor<4>) -> Tensor<4> {
    #[cfg(test)]
    super::counting::count(&[a.shape().num_elements(), b.dims()[3]]);
    a.matmul(b)
}

/// A convolution of stride 1, padded with zeros so that rows and columns stay as many. The number of groups follows from the shapes.
///
/// # Shapes
///
/// - x: `[batch, in_channels, rows, columns]`
/// - weight: `[out_channels, in_channels / groups, kernel_rows, kernel_columns]`, both odd
/// - bias: `[out_channels]`
/// - output: `[batch, out_channels, rows, columns]`
pub(crate) fn same_conv2d(x: Tensor<4>, weight: Tensor<4>, bias: Option<Tensor<1>>) -> Tensor<4> {
    let [_batch, channels, _rows, _columns] = x.dims();
    let [_, per_group, kernel_rows, kernel_columns] = weight.dims();
    #[cfg(test)]
    super::counting::count(&[_batch, _rows, _columns, weight.shape().num_elements()]);
    let padding = [kernel_rows / 2, kernel_columns / 2];
    module::conv2d(x, weight, bias, ConvOptions::new([1, 1], padding, [1, 1], channels / per_group))
}
