//! The precision in which the products of training are computed.

use std::cell::Cell;

/// The numbers that products of matrices and convolutions multiply. Sums, and everything else, are computed in float32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Numbers of 24 significant bits, as they are.
    #[default]
    Float32,
    /// Numbers that are rounded to bfloat16, of eight significant bits, where that is [faster](crate::multiplies_bfloat16); small products, and
    /// those of attention, stay as they are (mixed precision; Micikevicius et al. 2018, section 3; Kalamkar et al. 2019, section 3).
    Bfloat16,
}

thread_local!(static CURRENT: Cell<Precision> = const { Cell::new(Precision::Float32) });

impl Precision {
    /// Runs `task`. The operations that it calls on this thread are computed in this precision, and so are their backward passes, whenever
    /// these run.
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_kernels::{Precision, linear};
    ///
    /// let device = Device::default();
    /// let [x, weight] = [Tensor::<2>::ones([64, 64], &device), Tensor::<2>::ones([64, 64], &device) * 1.001];
    /// let y = Precision::Bfloat16.during(|| linear(x, weight, None));
    /// let y: f32 = y.max().into_scalar();
    /// assert!((y - 64.064).abs() < 1e-3 || y == 64.0); // 1.001 is between two numbers of eight bits, 1 and 1 + 1 / 128
    /// ```
    pub fn during<R>(self, task: impl FnOnce() -> R) -> R {
        struct Restored(Precision);
        impl Drop for Restored {
            fn drop(&mut self) {
                CURRENT.set(self.0);
            }
        }
        let _restored = Restored(CURRENT.replace(self));
        task()
    }

    /// The precision of operations that are called on this thread.
    #[cfg(feature = "flex")]
    pub(crate) fn current() -> Self {
        CURRENT.get()
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::testing::{assert_same_within, numbers};
    use crate::{
        Convolution, convolution, convolution_composed, linear, linear_composed, linear_gelu,
        multiplies_bfloat16,
    };
    use burn::tensor::{Device, Tensor};

    /// What rounding may cost, as a share of the largest value.
    const BOUND: f32 = 0.02;

    // Sizes that AMX, which plain code stands for in tests, does not take.
    #[test]
    fn linear_layers_agree_with_their_definition_to_eight_bits_forward_and_backward() {
        for [rows, inputs, outputs] in [[66, 40, 48], [400, 33, 24], [25, 130, 200]] {
            let run = |operation: fn(Tensor<2>, Tensor<2>, Option<Tensor<1>>) -> Tensor<2>| {
                move |leaf: &[Tensor<1>]| {
                    let (x, weight) = (leaf[0].clone(), leaf[1].clone());
                    let (x, weight) = (x.reshape([rows, inputs]), weight.reshape([inputs, outputs]));
                    let bias = Some(leaf[2].clone());
                    Precision::Bfloat16.during(|| operation(x, weight, bias)).reshape([rows * outputs])
                }
            };
            let lengths = [rows * inputs, inputs * outputs, outputs];
            assert_same_within(BOUND, &lengths, run(linear), run(linear_composed));
            assert_same_within(BOUND, &lengths, run(linear_gelu), run(crate::linear_gelu_composed));
        }
    }

    #[test]
    fn convolutions_agree_with_their_definition_to_eight_bits_forward_and_backward() {
        let images = rayon::current_num_threads().max(4);
        // In large tiles, in small ones, with strides, and with too few channels to round.
        for ([images, side, inputs, outputs], stride, bound) in [
            ([images, 8, 32, 48], 1, 0.03),
            ([images, 5, 48, 24], 1, BOUND),
            ([3, 9, 24, 40], 2, BOUND),
            ([4, 8, 8, 8], 1, 1e-4),
        ] {
            let shape = Convolution { kernel_size: 3, stride, padding: 1 };
            let size = shape.output_size(side);
            let run = |operation: fn(Tensor<4>, Tensor<4>, Convolution) -> Tensor<4>| {
                move |leaf: &[Tensor<1>]| {
                    let x = leaf[0].clone().reshape([images, side, side, inputs]);
                    let weight = leaf[1].clone().reshape([outputs, inputs, 3, 3]);
                    let length = images * size * size * outputs;
                    Precision::Bfloat16.during(|| operation(x, weight, shape)).reshape([length])
                }
            };
            let lengths = [images * side * side * inputs, 9 * inputs * outputs];
            assert_same_within(bound, &lengths, run(convolution), run(convolution_composed));
        }
    }

    #[test]
    fn products_are_rounded_where_that_is_faster_and_while_it_is_asked_for() {
        let device = Device::flex();
        let product = || {
            let [x, weight] = [(66 * 40, 1), (40 * 48, 2)]
                .map(|(length, seed)| numbers(length, seed))
                .map(|numbers| Tensor::<1>::from_floats(numbers.as_slice(), &device));
            linear(x.reshape([66, 40]), weight.reshape([40, 48]), None).into_data()
        };
        let rounded = Precision::Bfloat16.during(|| {
            let rounded = product();
            let exact = Precision::Float32.during(product);
            assert_eq!(rounded == exact, !multiplies_bfloat16(&device));
            assert!(product() == rounded);
            rounded
        });
        let failed =
            std::panic::catch_unwind(|| Precision::Bfloat16.during(|| panic!("while it is asked for")));
        assert!(failed.is_err());
        assert_eq!(product() == rounded, !multiplies_bfloat16(&device));
    }
}
