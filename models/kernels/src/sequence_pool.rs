//! Sequence pooling: the mean of the tokens, weighted by a softmax over learned scores (Hassani et al.,
//! arXiv:2104.05704, section 3.2).

use super::linear::linear_composed;
#[cfg(feature = "flex")]
use crate::cpu::{flex, operation, sequence_pool as fused};
use burn::tensor::{Tensor, activation};

/// The sum over the tokens of `softmax(x * weight + bias) * x`, with the softmax over the tokens. The bias changes all
/// scores of a sample by the same amount, so that it does not change the output.
///
/// # Shapes
///
/// - x: `[batch, tokens, dim]`
/// - weight: `[dim, 1]`
/// - bias: `[1]`
/// - output: `[batch, dim]`
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
/// // Two tokens. The score of the second one is larger by ln 3: it has three times the weight.
/// let x = Tensor::<3>::from_floats([[[0.0, 4.0], [1.0, 8.0]]], &device);
/// let weight = Tensor::<2>::from_floats([[3f32.ln()], [0.0]], &device);
/// let y = vitrine_kernels::sequence_pool(x, weight, None).into_data().try_into_vec_as::<f32>()?;
/// assert!((y[0] - 0.75).abs() < 1e-6 && (y[1] - 7.0).abs() < 1e-5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn sequence_pool(x: Tensor<3>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    let [batch, tokens, dim] = x.dims();
    assert_eq!(
        weight.dims(),
        [dim, 1],
        "sequence pooling: the weight must have one column for tokens of width {dim}"
    );
    assert!(
        bias.as_ref().is_none_or(|bias| bias.dims() == [1]),
        "sequence pooling: the bias must be a single number"
    );
    crate::counting::count(&[batch, tokens, dim]);
    #[cfg(feature = "flex")]
    if flex::takes(&x) && flex::takes(&weight) && flex::takes_option(&bias) {
        return operation::apply(fused::SequencePool, operation::WithBias::new(x, weight, bias));
    }
    sequence_pool_composed(x, weight, bias)
}

/// The definition of [`sequence_pool`], in burn's own operations.
pub fn sequence_pool_composed(x: Tensor<3>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    let scores = linear_composed(x.clone(), weight, bias);
    (x * activation::softmax(scores, 1)).sum_dim(1).squeeze_dim(1)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::testing::{assert_derivative, assert_same, assert_same_special};
    use burn::tensor::Device;

    type SequencePoolFn = fn(Tensor<3>, Tensor<2>, Option<Tensor<1>>) -> Tensor<2>;

    fn run(
        operation: SequencePoolFn,
        [batch, tokens, dim]: [usize; 3],
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let x = leaf[0].clone().reshape([batch, tokens, dim]);
            let weight = leaf[1].clone().reshape([dim, 1]);
            let bias = Tensor::from_floats([0.5], &leaf[0].device());
            operation(x * 2.0, weight, Some(bias)).reshape([batch * dim])
        }
    }

    #[test]
    fn sequence_pooling_agrees_with_its_definition() {
        for shape in [[2, 5, 7], [1, 1, 16], [64, 65, 24], [3, 17, 193], [0, 4, 5], [33, 2, 1]] {
            let lengths = [shape.iter().product(), shape[2]];
            assert_same(&lengths, run(sequence_pool, shape), run(sequence_pool_composed, shape));
        }
    }

    #[test]
    fn sequence_pooling_reads_views() {
        let view = |operation: SequencePoolFn| {
            move |leaf: &[Tensor<1>]| {
                let x = leaf[0].clone().reshape([3, 5, 4]).swap_dims(0, 1).narrow(1, 1, 2);
                let weight = leaf[1].clone().reshape([2, 4]).swap_dims(0, 1).narrow(1, 1, 1);
                operation(x, weight, None).reshape([20])
            }
        };
        assert_same(&[60, 8], view(sequence_pool), view(sequence_pool_composed));
    }

    #[test]
    fn the_bias_changes_nothing_and_has_a_gradient_of_zero() {
        let device = Device::flex().autodiff();
        let x = Tensor::<3>::from_floats([[[1.0, -2.0], [0.5, 3.0], [2.0, 0.0]]], &device);
        let weight = Tensor::<2>::from_floats([[0.7], [-0.3]], &device);
        let bias = Tensor::<1>::from_floats([2.0], &device).require_grad();
        let pooled = sequence_pool(x.clone(), weight.clone(), Some(bias.clone()));
        let change = (pooled.clone() - sequence_pool(x, weight, None)).abs().max();
        assert!(change.into_scalar::<f32>() < 1e-6);
        let gradient = bias.grad(&pooled.sum().backward()).expect("a gradient");
        assert!(gradient.abs().into_scalar::<f32>() < 1e-6);
    }

    #[test]
    fn sequence_pooling_has_the_derivative_of_central_differences() {
        assert_derivative(&[2 * 3 * 8, 8], run(sequence_pool, [2, 3, 8]));
    }

    #[test]
    fn sequence_pooling_keeps_special_values() {
        let shape = [2, 3, 5];
        assert_same_special(&[30, 5], run(sequence_pool, shape), run(sequence_pool_composed, shape));
    }
}
