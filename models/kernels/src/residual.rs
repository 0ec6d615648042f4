//! The residual connection with LayerScale (Touvron et al., arXiv:2103.17239) and stochastic depth (Huang et al.,
//! arXiv:1603.09382).

#[cfg(feature = "flex")]
use crate::cpu::{flex, operation, residual as fused};
use burn::tensor::Tensor;

/// `x + branch * gamma * keep`.
///
/// # Shapes
///
/// - x, branch, output: `[batch, tokens, dim]`
/// - gamma: `[dim]`, LayerScale
/// - keep: `[batch]`, stochastic depth: 0 for samples that drop the branch, `1 / (1 - rate)` for the others; it gets no
///   gradient
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
/// let x = Tensor::<3>::from_floats([[[1.0, 2.0]], [[3.0, 4.0]]], &device); // two samples of one token
/// let branch = Tensor::<3>::ones([2, 1, 2], &device);
/// let gamma = Tensor::<1>::from_floats([10.0, 20.0], &device);
/// let keep = Tensor::<1>::from_floats([0.0, 2.0], &device); // the first sample drops the branch
/// let y = vitrine_kernels::residual(x, branch, Some(gamma), Some(keep));
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [1.0, 2.0, 23.0, 44.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn residual(
    x: Tensor<3>,
    branch: Tensor<3>,
    gamma: Option<Tensor<1>>,
    keep: Option<Tensor<1>>,
) -> Tensor<3> {
    let [batch, _tokens, dim] = x.dims();
    assert_eq!(x.dims(), branch.dims(), "residual: the shapes of the input and the branch differ");
    assert!(
        gamma.as_ref().is_none_or(|gamma| gamma.dims() == [dim]),
        "residual: LayerScale must have a factor for each feature"
    );
    assert!(
        keep.as_ref().is_none_or(|keep| keep.dims() == [batch]),
        "residual: stochastic depth must have a factor for each sample"
    );
    let keep = keep.map(Tensor::detach);
    #[cfg(feature = "flex")]
    if flex::takes(&x) && flex::takes(&branch) && flex::takes_option(&gamma) && flex::takes_option(&keep) {
        let [x, branch] = [x, branch].map(Tensor::into_dispatch);
        let [gamma, keep] = [gamma, keep].map(|factors| factors.map(Tensor::into_dispatch));
        return operation::apply(fused::Residual, fused::ResidualInputs { x, branch, gamma, keep });
    }
    residual_composed(x, branch, gamma, keep)
}

/// The definition of [`residual`], in burn's own operations.
pub fn residual_composed(
    x: Tensor<3>,
    branch: Tensor<3>,
    gamma: Option<Tensor<1>>,
    keep: Option<Tensor<1>>,
) -> Tensor<3> {
    let branch = match gamma {
        Some(gamma) => branch * gamma.unsqueeze(),
        None => branch,
    };
    let branch = match keep {
        Some(keep) => branch * keep.reshape([-1, 1, 1]),
        None => branch,
    };
    x + branch
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::testing::{assert_derivative, assert_same, assert_same_special};

    type ResidualFn = fn(Tensor<3>, Tensor<3>, Option<Tensor<1>>, Option<Tensor<1>>) -> Tensor<3>;

    fn run(
        operation: ResidualFn,
        [batch, tokens, dim]: [usize; 3],
        gamma: bool,
        keep: bool,
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let factors: Vec<f32> =
                (0..batch).map(|sample| if sample % 3 == 1 { 0.0 } else { 1.25 }).collect();
            let keep = keep.then(|| Tensor::from_floats(factors.as_slice(), &leaf[0].device()));
            let [x, branch] = [0, 1].map(|index| leaf[index].clone().reshape([batch, tokens, dim]));
            operation(x, branch, gamma.then(|| leaf[2].clone()), keep).reshape([batch * tokens * dim])
        }
    }

    #[test]
    fn residual_agrees_with_its_definition() {
        for shape in [[2, 5, 7], [1, 1, 16], [64, 65, 24], [0, 4, 5], [5, 3, 64]] {
            let length = shape.iter().product();
            for (gamma, keep) in [(false, false), (false, true), (true, false), (true, true)] {
                let lengths = [length, length, shape[2]];
                let lengths = if gamma { &lengths[..] } else { &lengths[..2] };
                assert_same(
                    lengths,
                    run(residual, shape, gamma, keep),
                    run(residual_composed, shape, gamma, keep),
                );
            }
        }
    }

    #[test]
    fn residual_reads_views() {
        let view = |operation: ResidualFn| {
            move |leaf: &[Tensor<1>]| {
                let x = leaf[0].clone().reshape([4, 6, 5]).permute([1, 2, 0]); // [6, 5, 4]
                let branch = leaf[1].clone().reshape([5, 6, 4]).swap_dims(0, 1);
                operation(x, branch, Some(leaf[2].clone()), None).swap_dims(0, 2).reshape([120])
            }
        };
        assert_same(&[120, 120, 4], view(residual), view(residual_composed));
    }

    #[test]
    fn residual_of_a_tensor_with_itself() {
        let twice = |operation: ResidualFn| {
            move |leaf: &[Tensor<1>]| {
                let x = leaf[0].clone().reshape([2, 3, 4]);
                operation(x.clone(), x, None, None).reshape([24])
            }
        };
        assert_same(&[24], twice(residual), twice(residual_composed));
    }

    #[test]
    fn residual_has_the_derivative_of_central_differences() {
        assert_derivative(&[24, 24, 4], run(residual, [2, 3, 4], true, true));
    }

    #[test]
    fn residual_keeps_special_values() {
        assert_same_special(
            &[24, 24, 4],
            run(residual, [2, 3, 4], true, true),
            run(residual_composed, [2, 3, 4], true, true),
        );
    }
}
