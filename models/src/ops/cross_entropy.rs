//! Cross entropy against soft targets: label smoothing, mixup and cutmix give rows that are distributions, not labels.

#[cfg(feature = "flex")]
use super::flex;
use burn::tensor::{Tensor, activation};

/// The mean over the batch of `-sum(targets * log_softmax(logits))`.
///
/// # Shapes
///
/// - logits: `[batch, classes]`
/// - targets: `[batch, classes]`, each row sums to 1; gets no gradient
/// - output: `[1]`
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
    #[cfg(feature = "flex")]
    if flex::takes(&logits) && flex::takes(&targets) {
        assert_eq!(logits.dims(), targets.dims(), "cross entropy: sizes of logits and targets");
        let inputs = [Some(logits.into_dispatch()), Some(targets.detach().into_dispatch())];
        return flex::apply(fused::CrossEntropy, inputs);
    }
    cross_entropy_composed(logits, targets)
}

/// The definition of [`cross_entropy`], in burn's own operations.
pub fn cross_entropy_composed(logits: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
    let [batch, _classes] = logits.dims();
    (activation::log_softmax(logits, 1) * targets.detach()).sum().div_scalar(-(batch as f64))
}

#[cfg(feature = "flex")]
mod fused {
    //! The forward pass computes the derivative too, as most of the work is common: of a row, the probabilities times the sum of the targets,
    //! less the targets. The backward pass is then one product.

    use super::super::flex::{self, Operation, contiguous, sizes};
    use super::super::math::{exp, largest, sum, vectorized};
    use super::super::parallel::{Chunks, Shared, buffer, parallel};
    use burn::backend::flex::FlexTensor;

    #[derive(Clone, Debug)]
    pub(super) struct CrossEntropy;

    impl Operation<2> for CrossEntropy {
        /// The derivative by the logits.
        type Saved = FlexTensor;

        fn forward(&self, inputs: [Option<FlexTensor>; 2]) -> FlexTensor {
            self.forward_saving(inputs, [false; 2]).0
        }

        fn forward_saving(
            &self,
            inputs: [Option<FlexTensor>; 2],
            _wanted: [bool; 2],
        ) -> (FlexTensor, FlexTensor) {
            let [Some(logits), Some(targets)] = inputs.map(|input| input.map(contiguous)) else {
                unreachable!("all inputs are given")
            };
            let [batch, classes] = sizes(&logits);
            let (mut losses, mut derivative) = (buffer(batch), buffer(batch * classes));
            let chunks = Chunks::new(batch, 8);
            {
                let (losses, derivative) = (Shared::new(&mut losses), Shared::new(&mut derivative));
                let (logits, targets) = (logits.storage::<f32>(), targets.storage::<f32>());
                parallel(chunks.count(), |index| {
                    let range = chunks.range(index);
                    let elements = range.start * classes..range.end * classes;
                    // SAFETY: the chunks are disjoint.
                    let (losses, derivative) =
                        unsafe { (losses.slice(range), derivative.slice(elements.clone())) };
                    let (logits, targets) = (&logits[elements.clone()], &targets[elements]);
                    rows(logits, targets, 1.0 / batch as f32, losses, derivative);
                });
            }
            let loss = losses.iter().sum::<f32>() / batch as f32;
            (flex::filled(1, [1], loss), flex::tensor(derivative, [batch, classes]))
        }

        fn backward(
            self,
            mut derivative: FlexTensor,
            gradient: FlexTensor,
            _wanted: [bool; 2],
        ) -> [Option<FlexTensor>; 2] {
            let factor = contiguous(gradient).storage::<f32>()[0];
            derivative.storage_mut::<f32>().iter_mut().for_each(|value| *value *= factor);
            [Some(derivative), None]
        }
    }

    vectorized! {
        /// The loss of each row, and `weight` times its derivative.
        fn rows(logits: &[f32], targets: &[f32], weight: f32, losses: &mut [f32], derivative: &mut [f32]) {
            let classes = logits.len() / losses.len().max(1);
            for (row, loss) in losses.iter_mut().enumerate() {
                let row = row * classes..(row + 1) * classes;
                let (logits, targets, derivative) =
                    (&logits[row.clone()], &targets[row.clone()], &mut derivative[row]);
                let largest = largest(logits);
                for (derivative, logit) in derivative.iter_mut().zip(logits) {
                    *derivative = exp::<FMA>(logit - largest);
                }
                let total = sum(derivative, targets, |exponential, _| exponential);
                let logarithm = largest + total.ln();
                *loss = -sum(logits, targets, |logit, target| (logit - logarithm) * target);
                let share = sum(targets, targets, |target, _| target) / total;
                for (derivative, target) in derivative.iter_mut().zip(targets) {
                    *derivative = weight * (*derivative * share - target);
                }
            }
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::testing::{assert_derivative, assert_same, assert_same_special, numbers};
    use super::*;
    use burn::tensor::Device;

    /// The loss by `operation` of logits of `classes`, a quarter of whose targets are 0, in rows that sum to 1.
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
    fn cross_entropy_of_no_images_is_no_number() {
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
