//! Cross entropy with soft targets, as label smoothing, mixup and CutMix make them: each row is a distribution, not a
//! label.

#[cfg(feature = "flex")]
use crate::cpu::{cross_entropy as fused, flex, operation};
use burn::tensor::{Tensor, activation};

/// The mean over the batch of `-sum(targets * log_softmax(logits))`.
///
/// # Shapes
///
/// - logits: `[batch, classes]`
/// - targets: `[batch, classes]`, each row sums to 1, or to the weight of its image; they get no gradient
/// - output: `[1]`
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
/// let logits = Tensor::<2>::from_floats([[0.0, 0.0, 0.0, 0.0]], &device); // even: a quarter for each class
/// let targets = Tensor::<2>::from_floats([[0.0, 1.0, 0.0, 0.0]], &device);
/// let loss = vitrine_kernels::cross_entropy(logits, targets).into_scalar::<f32>();
/// assert!((loss - 4.0f32.ln()).abs() < 1e-6);
/// ```
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
    assert_eq!(logits.dims(), targets.dims(), "cross entropy: sizes of logits and targets");
    #[cfg(feature = "flex")]
    if flex::takes(&logits) && flex::takes(&targets) {
        let inputs = [logits.into_dispatch(), targets.detach().into_dispatch()];
        return operation::apply(fused::CrossEntropy, inputs);
    }
    cross_entropy_composed(logits, targets)
}

/// The definition of [`cross_entropy`], in burn's own operations.
pub fn cross_entropy_composed(logits: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
    let [batch, _classes] = logits.dims();
    (activation::log_softmax(logits, 1) * targets.detach()).sum().div_scalar(-(batch as f64))
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::testing::{assert_derivative, assert_same, assert_same_special, numbers};
    use burn::tensor::Device;

    /// The loss that `operation` computes of logits for `classes` classes. A quarter of the targets are 0, and each row
    /// sums to 1.
    fn loss(
        classes: usize,
        operation: fn(Tensor<2>, Tensor<2>) -> Tensor<1>,
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let rows = leaf[0].dims()[0] / classes;
            let targets: Vec<f32> = numbers(rows * classes, 5)
                .iter()
                .map(|number| if number.fract().abs() < 0.25 { 0.0 } else { number.abs() })
                .collect();
            let targets =
                Tensor::<1>::from_floats(targets.as_slice(), &leaf[0].device()).reshape([rows, classes]);
            let targets = targets.clone() / targets.sum_dim(1).add_scalar(1e-6);
            operation(leaf[0].clone().reshape([rows, classes]) * 3.0, targets)
        }
    }

    #[test]
    fn cross_entropy_agrees_with_its_definition() {
        for (rows, classes) in [(1, 1), (1, 2), (3, 4), (33, 17), (64, 10), (9, 1000)] {
            let length = [rows * classes];
            assert_same(&length, loss(classes, cross_entropy), loss(classes, cross_entropy_composed));
        }
        let view = |operation: fn(Tensor<2>, Tensor<2>) -> Tensor<1>| {
            move |leaf: &[Tensor<1>]| {
                let transposed = |tensor: Tensor<1>| tensor.reshape([5, 8]).transpose();
                let targets = Tensor::from_floats(numbers(40, 6).as_slice(), &leaf[0].device());
                operation(transposed(leaf[0].clone()), transposed(targets))
            }
        };
        assert_same(&[40], view(cross_entropy), view(cross_entropy_composed));
    }

    #[test]
    fn cross_entropy_keeps_special_values() {
        for classes in [3, 18] {
            assert_same_special(
                &[2 * classes],
                loss(classes, cross_entropy),
                loss(classes, cross_entropy_composed),
            );
        }
    }

    #[test]
    fn cross_entropy_of_no_images_is_nan() {
        let none = Tensor::<2>::zeros([0, 4], &Device::flex());
        assert!(cross_entropy(none.clone(), none).into_scalar::<f32>().is_nan());
    }

    #[test]
    fn cross_entropy_of_even_logits_is_the_logarithm_of_the_classes() {
        let device = Device::flex();
        let targets = Tensor::<2>::from_floats([[1.0, 0.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]], &device);
        let loss = cross_entropy(Tensor::ones([2, 4], &device), targets).into_scalar::<f32>();
        assert!((loss - 4.0f32.ln()).abs() < 1e-6, "{loss}");
    }

    /// Each row sums to the weight of its image. The probabilities are (1/4, 3/4), and the derivative of a row is its
    /// sum times the probabilities, minus the row.
    #[test]
    fn a_row_is_weighted_by_its_sum() {
        for operation in [cross_entropy, cross_entropy_composed] {
            let device = Device::flex().autodiff();
            let logits =
                Tensor::<2>::from_floats([[0.0, 3.0f32.ln()], [0.0, 3.0f32.ln()]], &device).require_grad();
            let targets = Tensor::<2>::from_floats([[2.0, 0.0], [0.25, 0.25]], &device);
            let loss = operation(logits.clone(), targets);
            let expected = (2.0 * 4.0f32.ln() + 0.25 * 4.0f32.ln() + 0.25 * (4.0f32 / 3.0).ln()) / 2.0;
            let gradient = logits.grad(&loss.backward()).unwrap().into_data();
            assert!((loss.into_scalar::<f32>() - expected).abs() < 1e-6);
            for (value, expected) in gradient.iter::<f32>().zip([-0.75, 0.75, -0.0625, 0.0625]) {
                assert!((value - expected).abs() < 1e-6, "{gradient:?}");
            }
        }
    }

    #[test]
    fn cross_entropy_has_the_derivative_of_central_differences() {
        assert_derivative(&[12], |leaf| {
            let targets = Tensor::<2>::from_floats(
                [[1.0, 0.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.5, 0.0]],
                &leaf[0].device(),
            );
            cross_entropy(leaf[0].clone().reshape([3, 4]), targets)
        });
    }
}
