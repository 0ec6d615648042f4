//! The exact GELU: x times the cumulative probability of the normal distribution at x (Hendrycks and Gimpel,
//! arXiv:1606.08415).

#[cfg(feature = "flex")]
use crate::cpu::{flex, gelu as fused, operation};
use burn::tensor::{Tensor, activation};

/// `x / 2 * (1 + erf(x / sqrt(2)))`, element by element.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<1>::from_floats([-100.0, 0.0, 1.0, 100.0], &Device::default());
/// let y = vitrine_kernels::gelu(x).into_data().try_into_vec_as::<f32>()?;
/// assert_eq!((y[0], y[1], y[3]), (0.0, 0.0, 100.0));
/// assert!((y[2] - 0.841_344_7).abs() < 1e-6); // the cumulative probability at 1
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    #[cfg(feature = "flex")]
    if flex::takes(&x) {
        return operation::apply(fused::Gelu, [x.into_dispatch()]);
    }
    gelu_composed(x)
}

/// The definition of [`gelu`], in burn's own operations.
pub fn gelu_composed<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    activation::gelu(x)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::testing::{assert_derivative, assert_same, assert_same_special};

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
    fn gelu_does_not_change_an_input_that_another_tensor_shares() {
        let x = Tensor::<1>::from_floats([1.0, -2.0], &burn::tensor::Device::flex());
        let _ = gelu(x.clone());
        assert_eq!(x.into_data().try_into_vec_as::<f32>().unwrap(), [1.0, -2.0]);
    }

    #[test]
    fn the_negative_tail_keeps_its_precision() {
        // Computed from the complementary error function with 50 digits.
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
