//! Layer normalization over the last dimension (Ba et al., arXiv:1607.06450).

#[cfg(feature = "flex")]
use crate::cpu::{flex, norm as fused, operation};
use burn::tensor::{Tensor, module};

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, with the mean and the biased variance over the last
/// dimension.
///
/// # Shapes
///
/// - x: `[..., features]`
/// - gamma, beta: `[features]`
/// - output: `[..., features]`
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
/// let [gamma, beta] = [[1.0, 10.0], [0.0, 5.0]].map(|row| Tensor::<1>::from_floats(row, &device));
/// let x = Tensor::<2>::from_floats([[1.0, 3.0], [8.0, 2.0]], &device);
/// let y = vitrine_kernels::layer_norm(x, gamma, beta, 0.0);
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [-1.0, 15.0, 1.0, -5.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    let features = x.dims()[D - 1];
    assert!(
        gamma.dims() == [features] && beta.dims() == [features],
        "layer norm: {features} features, gamma {:?}, beta {:?}",
        gamma.dims(),
        beta.dims()
    );
    #[cfg(feature = "flex")]
    if flex::takes(&x) && flex::takes(&gamma) && flex::takes(&beta) {
        let inputs = [x.into_dispatch(), gamma.into_dispatch(), beta.into_dispatch()];
        return operation::apply(fused::LayerNormalization { epsilon }, inputs);
    }
    layer_norm_composed(x, gamma, beta, epsilon)
}

/// The definition of [`layer_norm`], in burn's own operations.
pub fn layer_norm_composed<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    module::layer_norm(x, gamma, Some(beta), epsilon)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::testing::{assert_derivative, assert_same, assert_same_special};

    type LayerNormFn = fn(Tensor<3>, Tensor<1>, Tensor<1>, f64) -> Tensor<3>;

    fn run(
        operation: LayerNormFn,
        [batch, tokens, features]: [usize; 3],
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            operation(
                leaf[0].clone().reshape([batch, tokens, features]),
                leaf[1].clone(),
                leaf[2].clone(),
                1e-6,
            )
            .reshape([batch * tokens * features])
        }
    }

    #[test]
    fn layer_norm_agrees_with_its_definition() {
        for [batch, tokens, features] in
            [[2, 5, 7], [1, 1, 16], [64, 65, 24], [3, 17, 193], [0, 4, 5], [7, 1, 3]]
        {
            let lengths = [batch * tokens * features, features, features];
            assert_same(
                &lengths,
                run(layer_norm, [batch, tokens, features]),
                run(layer_norm_composed, [batch, tokens, features]),
            );
        }
    }

    #[test]
    fn layer_norm_reads_views() {
        let view = |operation: LayerNormFn| {
            move |leaf: &[Tensor<1>]| {
                let x = leaf[0].clone().reshape([4, 6, 5]).permute([1, 2, 0]); // [6, 5, 4]
                operation(x, leaf[1].clone(), leaf[2].clone(), 1e-5).swap_dims(0, 2).reshape([120])
            }
        };
        assert_same(&[120, 4, 4], view(layer_norm), view(layer_norm_composed));
    }

    #[test]
    fn layer_norm_has_the_derivative_of_central_differences() {
        assert_derivative(&[2 * 3 * 8, 8, 8], run(layer_norm, [2, 3, 8]));
    }

    #[test]
    fn layer_norm_keeps_special_values() {
        assert_same_special(
            &[2 * 3 * 5, 5, 5],
            run(layer_norm, [2, 3, 5]),
            run(layer_norm_composed, [2, 3, 5]),
        );
    }
}
