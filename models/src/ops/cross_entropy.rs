//! Cross entropy against soft targets: label smoothing, mixup and cutmix give rows that are distributions, not labels.

use burn::tensor::{Tensor, activation};

/// The mean over the batch of `-sum(targets * log_softmax(logits))`.
///
/// # Shapes
///
/// - logits: `[batch, classes]`
/// - targets: `[batch, classes]`, each row sums to 1; gets no gradient
/// - output: `[1]`
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
    cross_entropy_composed(logits, targets)
}

/// The definition of [`cross_entropy`], in burn's own operations: fast enough, as it sees one row of classes for a whole image.
pub fn cross_entropy_composed(logits: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
    let [batch, _classes] = logits.dims();
    (activation::log_softmax(logits, 1) * targets.detach()).sum().div_scalar(-(batch as f64))
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::testing::assert_derivative;
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn cross_entropy_of_even_logits_is_the_logarithm_of_the_classes() {
        let device = Device::flex();
        let targets = Tensor::<2>::from_floats([[1.0, 0.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]], &device);
        let loss = cross_entropy(Tensor::ones([2, 4], &device), targets).into_scalar::<f32>();
        assert!((loss - 4.0f32.ln()).abs() < 1e-6, "{loss}");
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
