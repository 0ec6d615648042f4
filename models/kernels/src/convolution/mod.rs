//! Kernels that slide over maps with the channels last, as tokens have them: convolution, depth-wise convolution and
//! max pooling.

mod depthwise;
mod max_pool;

pub use depthwise::{depthwise_convolution, depthwise_convolution_composed};
pub use max_pool::{MaxPool, max_pool, max_pool_composed};

#[cfg(feature = "flex")]
use crate::cpu::{convolution as fused, flex, operation};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Tensor, module};

/// The geometry of a convolution: a square kernel, moved in steps of `stride` over a map with `padding` zeros around
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// The number of rows, and of columns, of the kernel.
    pub kernel_size: usize,
    /// The distance in the input between neighboring outputs.
    pub stride: usize,
    /// The number of rows and columns of zeros on each side.
    pub padding: usize,
}

impl Convolution {
    /// A kernel of odd size that keeps the number of rows and columns.
    pub const fn same(kernel_size: usize) -> Self {
        Self { kernel_size, stride: 1, padding: kernel_size / 2 }
    }

    /// The number of rows of the output for this number of rows of the input; the same for columns.
    ///
    /// # Panics
    ///
    /// If the kernel is larger than the padded input.
    pub fn output_size(&self, size: usize) -> usize {
        let padded = size + 2 * self.padding;
        assert!(padded >= self.kernel_size, "convolution: a kernel of {} on {padded}", self.kernel_size);
        (padded - self.kernel_size) / self.stride + 1
    }
}

/// Convolution (in the sense of deep learning, without flipping the kernel) over maps with the channels last:
/// `y[b, r, c, o]` is the sum of `x[b, r * stride + i - padding, c * stride + j - padding, k] * weight[o, k, i, j]` over
/// the rows `i` and columns `j` of the kernel and the input channels `k`.
///
/// # Shapes
///
/// - x: `[batch, rows, columns, in_channels]`
/// - weight: `[out_channels, in_channels, kernel_size, kernel_size]`
/// - output: `[batch, output rows, output columns, out_channels]`
///
/// # Panics
///
/// If the shapes do not fit.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use vitrine_kernels::Convolution;
///
/// let device = Device::default();
/// let x = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &device).reshape([1, 2, 2, 1]);
/// // The sum of a pixel and its neighbors.
/// let y = vitrine_kernels::convolution(x.clone(), Tensor::ones([1, 1, 3, 3], &device), Convolution::same(3));
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [10.0; 4]);
/// // A pixel and the one below it, times ten.
/// let weight = Tensor::<4>::from_floats([[[[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 10.0, 0.0]]]], &device);
/// let y = vitrine_kernels::convolution(x, weight, Convolution::same(3));
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [31.0, 42.0, 3.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn convolution(x: Tensor<4>, weight: Tensor<4>, shape: Convolution) -> Tensor<4> {
    let [batch, rows, columns, in_channels] = x.dims();
    let out_channels = weight.dims()[0];
    assert_eq!(
        weight.dims(),
        [out_channels, in_channels, shape.kernel_size, shape.kernel_size],
        "convolution: the weight does not fit the kernel and the channels of the map"
    );
    assert!(shape.stride > 0, "convolution: the stride is 0");
    let output = [batch, shape.output_size(rows), shape.output_size(columns), out_channels];
    crate::counting::count(&[output.iter().product(), shape.kernel_size * shape.kernel_size * in_channels]);
    #[cfg(feature = "flex")]
    if flex::takes(&x) && flex::takes(&weight) {
        let inputs = [x.into_dispatch(), weight.into_dispatch()];
        let kernel = fused::Kernel { size: shape.kernel_size, stride: shape.stride, padding: shape.padding };
        return operation::apply(fused::FullConvolution::new(kernel), inputs);
    }
    let _ = output;
    convolution_composed(x, weight, shape)
}

/// [`max_pool`] of [`convolution`]. The CPU needs no memory for the map between them if the kernel is 3 by 3 and keeps the size of the map,
/// the pooling halves it, and the convolution is computed in tiles: not on AMX, with at least an image for every thread, and with
/// multiples of 8 channels, at least 16.
///
/// # Shapes
///
/// Those of the two operations.
///
/// # Panics
///
/// If the shapes do not fit.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use vitrine_kernels::{Convolution, MaxPool};
///
/// let device = Device::default();
/// let x = Tensor::<2>::from_floats([[1.0, 2.0, 0.0, 1.0], [3.0, 4.0, 9.0, 5.0]], &device).reshape([1, 2, 4, 1]);
/// let halve = MaxPool { kernel_size: 2, stride: 2, padding: 0 };
/// let weight = Tensor::ones([1, 1, 1, 1], &device); // the pixel itself
/// let y = vitrine_kernels::convolution_max_pool(x, weight, Convolution::same(1), halve);
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [4.0, 9.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn convolution_max_pool(x: Tensor<4>, weight: Tensor<4>, shape: Convolution, pool: MaxPool) -> Tensor<4> {
    #[cfg(feature = "flex")]
    {
        let [.., rows, columns, in_channels] = x.dims();
        if flex::takes(&x)
            && flex::takes(&weight)
            && (shape, pool) == (Convolution::same(3), MaxPool::HALVING)
            && rows.min(columns) > 1
            && weight.dims()[1..] == [in_channels, 3, 3]
            && let Some(fused) = fused::PooledConvolution::new(x.dims(), weight.dims())
        {
            crate::counting::count(&[x.shape().num_elements(), 9, weight.dims()[0]]);
            return operation::apply(fused, [x.into_dispatch(), weight.into_dispatch()]);
        }
    }
    max_pool(convolution(x, weight, shape), pool)
}

/// The definition of [`convolution_max_pool`], in burn's own operations.
pub fn convolution_max_pool_composed(
    x: Tensor<4>,
    weight: Tensor<4>,
    shape: Convolution,
    pool: MaxPool,
) -> Tensor<4> {
    max_pool_composed(convolution_composed(x, weight, shape), pool)
}

/// The definition of [`convolution`], in burn's own operations.
pub fn convolution_composed(x: Tensor<4>, weight: Tensor<4>, shape: Convolution) -> Tensor<4> {
    let options = ConvOptions::new([shape.stride; 2], [shape.padding; 2], [1; 2], 1);
    module::conv2d(x.permute([0, 3, 1, 2]), weight, None, options).permute([0, 2, 3, 1])
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::testing::{assert_derivative, assert_same, assert_same_special, numbers};
    use burn::tensor::Device;

    type ConvolutionFn = fn(Tensor<4>, Tensor<4>, Convolution) -> Tensor<4>;

    fn run(
        operation: ConvolutionFn,
        [batch, rows, columns, inputs, outputs]: [usize; 5],
        shape: Convolution,
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let y = operation(
                leaf[0].clone().reshape([batch, rows, columns, inputs]),
                leaf[1].clone().reshape([outputs, inputs, shape.kernel_size, shape.kernel_size]),
                shape,
            );
            let length = y.shape().num_elements();
            y.reshape([length])
        }
    }

    /// Sizes, and where the kernel reads; the last two are large enough for AMX where there is one.
    const CASES: [([usize; 5], Convolution); 8] = [
        ([2, 5, 7, 3, 4], Convolution::same(3)),
        ([1, 1, 1, 2, 3], Convolution::same(3)),
        ([3, 6, 4, 5, 2], Convolution::same(1)),
        ([2, 9, 8, 3, 5], Convolution { kernel_size: 3, stride: 2, padding: 1 }),
        ([2, 8, 8, 3, 5], Convolution { kernel_size: 2, stride: 2, padding: 0 }),
        ([1, 9, 11, 2, 3], Convolution { kernel_size: 7, stride: 3, padding: 3 }),
        ([40, 8, 8, 16, 70], Convolution::same(3)),
        ([9, 20, 13, 64, 64], Convolution::same(3)),
    ];

    fn lengths([batch, rows, columns, inputs, outputs]: [usize; 5], shape: Convolution) -> [usize; 2] {
        [batch * rows * columns * inputs, shape.kernel_size * shape.kernel_size * inputs * outputs]
    }

    #[test]
    fn convolution_agrees_with_its_definition() {
        for (sizes, shape) in CASES {
            let lengths = lengths(sizes, shape);
            assert_same(&lengths, run(convolution, sizes, shape), run(convolution_composed, sizes, shape));
        }
        let nothing = [0, 4, 4, 2, 3];
        let shape = Convolution::same(3);
        assert_same(
            &lengths(nothing, shape),
            run(convolution, nothing, shape),
            |leaf: &[Tensor<1>]| leaf[0].clone() * leaf[1].clone().sum(), // burn's own convolution panics on an empty batch
        );
    }

    /// A convolution and a pooling that halves its map.
    fn halved(
        operation: impl Fn(Tensor<4>, Tensor<4>) -> Tensor<4>,
        [batch, rows, columns, inputs, outputs]: [usize; 5],
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let x = leaf[0].clone().reshape([batch, rows, columns, inputs]);
            operation(x, leaf[1].clone().reshape([outputs, inputs, 3, 3])).flatten(0, 3)
        }
    }

    /// Sizes for large and small tiles, channels for whole images and for single places at a time, and odd sides, with images for all
    /// threads; the last ones are too few channels for tiles.
    fn sizes_to_halve() -> [[usize; 5]; 7] {
        [
            [4, 8, 8, 16, 24],
            [5, 7, 9, 24, 16],
            [3, 2, 3, 16, 16],
            [3, 6, 5, 40, 32],
            [9, 9, 8, 128, 48],
            [33, 4, 4, 128, 48],
            [2, 6, 6, 3, 4],
        ]
        .map(|[images, rest @ ..]| {
            let [rows, columns, inputs, outputs] = rest;
            [images.max(rayon::current_num_threads()), rows, columns, inputs, outputs]
        })
    }

    #[test]
    fn a_pooled_convolution_agrees_with_its_definition() {
        let definition =
            |x, weight| convolution_max_pool_composed(x, weight, Convolution::same(3), MaxPool::HALVING);
        let fused = |x, weight| convolution_max_pool(x, weight, Convolution::same(3), MaxPool::HALVING);
        for sizes in sizes_to_halve() {
            let lengths = lengths(sizes, Convolution::same(3));
            assert_same(&lengths, halved(fused, sizes), halved(definition, sizes));
        }
    }

    #[test]
    fn a_pooled_convolution_has_the_bits_of_both_operations() {
        let fused = |x, weight| convolution_max_pool(x, weight, Convolution::same(3), MaxPool::HALVING);
        let apart = |x, weight| max_pool(convolution(x, weight, Convolution::same(3)), MaxPool::HALVING);
        for precision in [crate::Precision::Float32, crate::Precision::Bfloat16] {
            for sizes in sizes_to_halve() {
                let results = |operation: &dyn Fn(&[Tensor<1>]) -> Tensor<1>| {
                    let leaf = |length, seed| {
                        let values = numbers(length, seed);
                        Tensor::<1>::from_floats(values.as_slice(), &Device::flex().autodiff()).require_grad()
                    };
                    let [x, weight] = lengths(sizes, Convolution::same(3));
                    let leaves = [leaf(x, 1), leaf(weight, 2)];
                    precision.during(|| {
                        let y = operation(&leaves);
                        let weights = Tensor::from_floats(numbers(y.dims()[0], 3).as_slice(), &y.device());
                        let gradients = (y.clone() * weights).sum().backward();
                        let of = |leaf: &Tensor<1>| leaf.grad(&gradients).expect("a gradient").into_data();
                        [y.into_data(), of(&leaves[0]), of(&leaves[1])]
                    })
                };
                let (found, expected) = (results(&halved(fused, sizes)), results(&halved(apart, sizes)));
                assert_eq!(found, expected, "{sizes:?}, {precision:?}");
                let inference = |operation: &dyn Fn(&[Tensor<1>]) -> Tensor<1>| {
                    let [x, weight] = lengths(sizes, Convolution::same(3));
                    let leaves = [(x, 1), (weight, 2)].map(|(length, seed)| {
                        Tensor::<1>::from_floats(numbers(length, seed).as_slice(), &Device::flex())
                    });
                    precision.during(|| operation(&leaves)).into_data()
                };
                assert_eq!(inference(&halved(fused, sizes)), expected[0], "{sizes:?}, {precision:?}");
            }
        }
    }

    #[test]
    fn a_pooled_convolution_keeps_nan() {
        let sizes = [rayon::current_num_threads().max(2), 6, 5, 16, 16];
        let [x, weight] = lengths(sizes, Convolution::same(3));
        let mut values = numbers(x, 1);
        values[3] = f32::NAN;
        let leaf = |values: &[f32]| Tensor::<1>::from_floats(values, &Device::flex());
        let leaves = [leaf(&values), leaf(&numbers(weight, 2))];
        let fused = |x, weight| convolution_max_pool(x, weight, Convolution::same(3), MaxPool::HALVING);
        let y: Vec<f32> = halved(fused, sizes)(&leaves).into_data().try_into_vec_as().expect("float32");
        assert!(y[..16].iter().all(|value| value.is_nan()), "{:?}", &y[..16]);
        assert!(y[y.len() - 16..].iter().all(|value| value.is_finite()));
    }

    #[test]
    fn convolution_reads_views() {
        let view = |operation: ConvolutionFn| {
            move |leaf: &[Tensor<1>]| {
                let x = leaf[0].clone().reshape([2, 3, 6, 5]).permute([0, 2, 3, 1]); // channels were first
                let weight = leaf[1].clone().reshape([3, 3, 3, 4]).permute([3, 2, 0, 1]);
                operation(x, weight, Convolution::same(3)).permute([0, 3, 1, 2]).reshape([2 * 4 * 30])
            }
        };
        assert_same(&[180, 108], view(convolution), view(convolution_composed));
    }

    #[test]
    fn convolution_has_the_derivative_of_central_differences() {
        for shape in [Convolution::same(3), Convolution { kernel_size: 3, stride: 2, padding: 1 }] {
            let sizes = [2, 4, 3, 2, 3];
            assert_derivative(&lengths(sizes, shape), run(convolution, sizes, shape));
        }
    }

    #[test]
    fn convolution_keeps_special_values() {
        // Without padding: burn's own convolution skips padding, and here zero times infinity is NaN.
        let (sizes, shape) = ([2, 4, 4, 3, 2], Convolution { kernel_size: 2, stride: 1, padding: 0 });
        assert_same_special(
            &lengths(sizes, shape),
            run(convolution, sizes, shape),
            run(convolution_composed, sizes, shape),
        );
    }
}
