//! The training loss: cross-entropy for one label an image, and binary cross-entropy for several.

use burn::tensor::Tensor;
use burn::tensor::activation::log_sigmoid;

/// The training loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loss {
    /// Softmax and cross-entropy, for classes that exclude each other.
    #[default]
    CrossEntropy,
    /// Logistic function and binary cross-entropy of every class by itself, for any number of labels an image.
    BinaryCrossEntropy,
}

impl Loss {
    /// The loss for images of any number of labels each, or else of one.
    pub fn of(multi_label: bool) -> Self {
        if multi_label { Self::BinaryCrossEntropy } else { Self::CrossEntropy }
    }

    /// The mean loss over the batch, `[1]`.
    ///
    /// # Shapes
    /// - logits: `[batch, classes]`
    /// - targets: `[batch, classes]`. For cross-entropy, each row sums to 1 or to the weight of its image. For binary
    ///   cross-entropy, each value is the probability of the class; the loss is the mean over the classes, too (PyTorch's
    ///   `binary_cross_entropy_with_logits`).
    pub fn mean(self, logits: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
        match self {
            Self::CrossEntropy => vitrine_kernels::cross_entropy(logits, targets),
            // -y ln s(x) - (1 - y) ln (1 - s(x)), with ln (1 - s(x)) = ln s(x) - x
            Self::BinaryCrossEntropy => {
                let without = targets.neg().add_scalar(1.0) * logits.clone();
                (without - log_sigmoid(logits)).mean()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn binary_cross_entropy_and_its_gradient_are_those_of_pytorch() {
        // torch 2.15.0: binary_cross_entropy_with_logits of these tensors, and its gradient.
        let device = Device::default().autodiff();
        let logits =
            Tensor::<2>::from_floats([[0.0, 2.0, -3.0], [30.0, -100.0, 0.5]], &device).require_grad();
        let targets = Tensor::<2>::from_floats([[1.0, 0.0, 0.25], [0.0, 1.0, 0.5]], &device);
        let loss = Loss::BinaryCrossEntropy.mean(logits.clone(), targets);
        let value: f32 = loss.clone().into_scalar();
        assert!((value - 22.390_457).abs() < 1e-4, "{value}");
        const GRADIENT: [f32; 6] =
            [-0.083_333_34, 0.146_799_5, -0.033_762_354, 0.166_666_67, -0.166_666_67, 0.020_409_891];
        let gradient = logits.grad(&loss.backward()).unwrap().into_data();
        for (found, expected) in gradient.iter::<f32>().zip(GRADIENT) {
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        }
    }
}
