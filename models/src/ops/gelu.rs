//! GELU, exact: x times the normal distribution's probability of less than x (Hendrycks and Gimpel, arXiv:1606.08415).

#[cfg(feature = "flex")]
use super::flex;
use burn::tensor::{Tensor, activation};

/// `x / 2 * (1 + erf(x / sqrt(2)))`, element by element.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    #[cfg(feature = "flex")]
    if flex::takes(&x) {
        return flex::apply(fused::Gelu, [Some(x.into_dispatch())]);
    }
    gelu_composed(x)
}

/// The definition of [`gelu`], in burn's own operations.
pub fn gelu_composed<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    activation::gelu(x)
}

#[cfg(feature = "flex")]
pub(super) use fused::{in_place, in_place_with_derivative};

#[cfg(feature = "flex")]
mod fused {
    //! The forward pass computes the derivative too, as most of the work is common; the backward pass is then one product.

    use super::super::flex::{self, Operation, contiguous};
    use super::super::math::{mul_add, multiply, normal, vectorized};
    use super::super::parallel::{Shared, buffer, parallel_elements};
    use burn::backend::{TensorMetadata, flex::FlexTensor};

    #[derive(Clone, Debug)]
    pub(super) struct Gelu;

    impl Operation<1> for Gelu {
        type Saved = FlexTensor;

        fn forward(&self, [x]: [Option<FlexTensor>; 1]) -> FlexTensor {
            let mut x = contiguous(x.expect("the input is given"));
            let data = Shared::new(x.storage_mut());
            parallel_elements(data.len(), |range| {
                // SAFETY: the ranges are disjoint.
                let values = unsafe { data.slice(range) };
                in_place(values);
            });
            x
        }

        fn forward_saving(
            &self,
            [x]: [Option<FlexTensor>; 1],
            _wanted: [bool; 1],
        ) -> (FlexTensor, FlexTensor) {
            let mut x = contiguous(x.expect("the input is given"));
            let shape = x.shape();
            let mut derivative = buffer(shape.num_elements());
            let (data, slopes) = (Shared::new(x.storage_mut()), Shared::new(&mut derivative));
            parallel_elements(data.len(), |range| {
                // SAFETY: the ranges are disjoint.
                let (values, slopes) = unsafe { (data.slice(range.clone()), slopes.slice(range)) };
                in_place_with_derivative(values, slopes);
            });
            (x, flex::tensor(derivative, shape))
        }

        fn backward(
            self,
            mut derivative: FlexTensor,
            gradient: FlexTensor,
            _wanted: [bool; 1],
        ) -> [Option<FlexTensor>; 1] {
            let gradient = contiguous(gradient);
            let dy = gradient.storage::<f32>();
            let slopes = Shared::new(derivative.storage_mut());
            parallel_elements(dy.len(), |range| {
                // SAFETY: the ranges are disjoint.
                let slopes = unsafe { slopes.slice(range.clone()) };
                multiply(slopes, &dy[range]);
            });
            [Some(derivative)]
        }
    }

    vectorized! {
        /// Replaces each value by its GELU.
        pub(crate) fn in_place(values: &mut [f32]) {
            for value in values {
                let [probability, _] = normal::<FMA>(*value);
                *value *= probability;
            }
        }

        /// Replaces each value by its GELU and writes the derivative there.
        pub(crate) fn in_place_with_derivative(values: &mut [f32], derivative: &mut [f32]) {
            for (value, derivative) in values.iter_mut().zip(derivative) {
                let x = *value;
                let [probability, density] = normal::<FMA>(x);
                *value = x * probability;
                *derivative = mul_add::<FMA>(x, density, probability);
            }
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::testing::{assert_derivative, assert_same, assert_same_special};
    use super::*;

    #[test]
    fn gelu_agrees_with_its_definition() {
        for length in [0, 1, 63, 64, 65, 20_000] {
            assert_same(
                &[length],
                |leaf| gelu(leaf[0].clone() * 4.0),
                |leaf| gelu_composed(leaf[0].clone() * 4.0),
            );
        }
        let view = |operation: fn(Tensor<2>) -> Tensor<2>| {
            move |leaf: &[Tensor<1>]| {
                operation(leaf[0].clone().reshape([5, 9]).transpose()).transpose().reshape([45])
            }
        };
        assert_same(&[45], view(gelu), view(gelu_composed));
    }

    #[test]
    fn gelu_leaves_an_input_alone_that_others_read() {
        let x = Tensor::<1>::from_floats([1.0, -2.0], &burn::tensor::Device::flex());
        let _ = gelu(x.clone());
        assert_eq!(x.into_data().try_into_vec_as::<f32>().unwrap(), [1.0, -2.0]);
    }

    #[test]
    fn the_negative_tail_keeps_its_precision() {
        // from the error function's complement in 50 digits
        let expected = [
            (-1.0, -0.158_655_25),
            (-3.0, -4.049_694e-3),
            (-5.0, -1.433_257_8e-6),
            (-5.6, -6.001_854e-8),
            (-10.0, -7.619_853e-23),
        ];
        for (x, expected) in expected {
            let found =
                gelu(Tensor::<1>::from_floats([x], &burn::tensor::Device::flex())).into_scalar::<f32>();
            assert!((found / expected - 1.0).abs() < 1e-5, "gelu({x}) is {found:e}, not {expected:e}");
        }
    }

    #[test]
    fn gelu_has_the_derivative_of_central_differences() {
        assert_derivative(&[40], |leaf| gelu(leaf[0].clone()));
    }

    #[test]
    fn gelu_keeps_special_values() {
        assert_same_special(&[5], |leaf| gelu(leaf[0].clone()), |leaf| gelu_composed(leaf[0].clone()));
    }
}
