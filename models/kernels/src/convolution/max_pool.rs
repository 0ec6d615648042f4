//! Max pooling over maps with the channels last.

#[cfg(feature = "flex")]
use crate::cpu::{convolution as fused, flex, operation};
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Tensor, module};

/// The geometry of [`max_pool`]: a square kernel, moved in steps of `stride` over a map with padding around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPool {
    /// The number of rows, and of columns, of the kernel: 1 to 16.
    pub kernel_size: usize,
    /// The distance in the input between neighboring outputs: at least 1.
    pub stride: usize,
    /// The number of rows and columns of minus infinity on each side: at most half of the kernel size.
    pub padding: usize,
}

impl MaxPool {
    /// The largest of each two by two values, which halves the rows and columns.
    pub const HALVING: Self = Self { kernel_size: 2, stride: 2, padding: 0 };
}

/// The largest value under the kernel, for each channel; NaN if a value is NaN. The gradient goes to the first of equal
/// values.
///
/// # Shapes
///
/// - x: `[batch, rows, columns, channels]`
/// - output: `[batch, (rows + 2 * padding - kernel_size) / stride + 1, the same of columns, channels]`, rounded down
///
/// # Panics
///
/// If a number is not in its range, or the kernel is larger than the map with its padding.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use vitrine_kernels::MaxPool;
///
/// let device = Device::default();
/// let map = Tensor::<2>::from_floats([[1.0, 5.0, 2.0, 0.0], [3.0, 4.0, 8.0, 7.0]], &device);
/// let x = map.reshape([1, 2, 4, 1]);
/// let y = vitrine_kernels::max_pool(x.clone(), MaxPool { kernel_size: 2, stride: 2, padding: 0 });
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [5.0, 8.0]);
/// let y = vitrine_kernels::max_pool(x, MaxPool { kernel_size: 3, stride: 2, padding: 1 });
/// assert_eq!(y.dims(), [1, 1, 2, 1]);
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [5.0, 8.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn max_pool(x: Tensor<4>, pool: MaxPool) -> Tensor<4> {
    let [_, rows, columns, _] = x.dims();
    let MaxPool { kernel_size, stride, padding } = pool;
    assert!(
        (1..=16).contains(&kernel_size) && stride > 0 && 2 * padding <= kernel_size,
        "max pool: {pool:?} is out of range"
    );
    let smallest = rows.min(columns);
    assert!(
        smallest > 0 && smallest + 2 * padding >= kernel_size,
        "max pool: {rows} by {columns} are too small for {pool:?}"
    );
    #[cfg(feature = "flex")]
    if flex::takes(&x) {
        let kernel = fused::Kernel { size: kernel_size, stride, padding };
        return operation::apply(fused::MaxPooling { kernel }, [x.into_dispatch()]);
    }
    max_pool_composed(x, pool)
}

/// The definition of [`max_pool`], in burn's own operations.
pub fn max_pool_composed(x: Tensor<4>, pool: MaxPool) -> Tensor<4> {
    let options = MaxPoolOptions {
        stride: [pool.stride; 2],
        padding: [(pool.padding, pool.padding); 2],
        ..MaxPoolOptions::new([pool.kernel_size; 2])
    };
    module::max_pool2d(x.permute([0, 3, 1, 2]), options).permute([0, 2, 3, 1])
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::testing::{assert_derivative, assert_same, assert_same_special, numbers};
    use burn::tensor::Device;

    type MaxPoolFn = fn(Tensor<4>, MaxPool) -> Tensor<4>;

    fn flat(
        operation: MaxPoolFn,
        shape: [usize; 4],
        [kernel_size, stride, padding]: [usize; 3],
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let x = leaf[0].clone().reshape(shape);
            operation(x, MaxPool { kernel_size, stride, padding }).flatten(0, 3)
        }
    }

    #[test]
    fn max_pool_agrees_with_its_definition() {
        for (shape, pool) in [
            ([2, 8, 8, 16], [3, 2, 1]),
            ([3, 7, 5, 33], [3, 2, 1]),
            ([1, 6, 9, 5], [2, 2, 0]),
            ([2, 5, 5, 20], [3, 1, 1]),
            ([2, 4, 7, 3], [1, 2, 0]),
            ([1, 17, 16, 1], [16, 1, 8]),
            ([9, 1, 2, 64], [3, 3, 1]),
            ([0, 4, 4, 6], [3, 2, 1]),
        ] {
            let length = shape.iter().product();
            assert_same(&[length], flat(max_pool, shape, pool), flat(max_pool_composed, shape, pool));
        }
    }

    #[test]
    fn max_pool_reads_views() {
        let view = |operation: MaxPoolFn| {
            move |leaf: &[Tensor<1>]| {
                let x = leaf[0].clone().reshape([2, 18, 6, 7]).permute([0, 2, 3, 1]).narrow(2, 1, 5);
                operation(x, MaxPool { kernel_size: 3, stride: 2, padding: 1 }).swap_dims(1, 3).flatten(0, 3)
            }
        };
        assert_same(&[2 * 18 * 6 * 7], view(max_pool), view(max_pool_composed));
    }

    #[test]
    fn max_pool_has_the_derivative_of_central_differences() {
        let shape = [2, 5, 4, 3];
        let length = shape.iter().product::<usize>();
        // Values far enough apart that a step changes no maximum.
        let apart: Vec<f32> = (0..length).map(|index| (index * 37 % length) as f32 * 3.0).collect();
        assert_derivative(&[length], move |leaf| {
            let x = leaf[0].clone() + Tensor::from_floats(apart.as_slice(), &leaf[0].device());
            flat(max_pool, shape, [3, 2, 1])(&[x])
        });
    }

    #[test]
    fn max_pool_keeps_special_values() {
        let shape = [2, 6, 5, 17];
        let length = shape.iter().product();
        let pool = [3, 2, 1];
        assert_same_special(&[length], flat(max_pool, shape, pool), flat(max_pool_composed, shape, pool));
    }

    #[test]
    fn of_equal_values_the_first_has_the_gradient() {
        let shape = [2, 7, 6, 18];
        let length = shape.iter().product();
        for levels in [
            vec![f32::NEG_INFINITY; length],
            numbers(length, 3).into_iter().map(|x| (2.0 * x).round()).collect(),
        ] {
            let gradient = |operation: MaxPoolFn| {
                let x =
                    Tensor::<1>::from_floats(levels.as_slice(), &Device::flex().autodiff()).require_grad();
                let y = flat(operation, shape, [3, 2, 1])(std::slice::from_ref(&x));
                let weights = Tensor::from_floats(numbers(y.dims()[0], 5).as_slice(), &y.device());
                let gradients = (y * weights).sum().backward();
                x.grad(&gradients).expect("a gradient").into_data()
            };
            assert_eq!(gradient(max_pool), gradient(max_pool_composed));
        }
    }

    #[test]
    #[should_panic(expected = "too small")]
    fn a_map_smaller_than_the_kernel_is_refused() {
        let x = Tensor::zeros([1, 4, 0, 1], &Device::flex());
        max_pool(x, MaxPool { kernel_size: 2, stride: 2, padding: 1 });
    }
}
