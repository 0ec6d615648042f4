//! Fused cross entropy.
//!
//! The forward pass also computes the derivative by the logits, because most of the work is the same: for each row, the
//! probabilities times the sum of the targets, minus the targets. The backward pass is then a multiplication.

use crate::cpu::flex::{self, contiguous, sizes};
use crate::cpu::operation::Operation;
use crate::cpu::simd::{exp, largest, sum, vectorized};
use crate::cpu::threads::{Buffer, Chunks, Shared, parallel};
use burn::backend::flex::FlexTensor;

#[derive(Clone, Debug)]
pub(crate) struct CrossEntropy;

impl Operation<2> for CrossEntropy {
    type Inputs = [(); 2];
    /// The derivative of the loss by the logits.
    type Saved = FlexTensor;

    fn forward(&self, inputs: [FlexTensor; 2]) -> FlexTensor {
        self.forward_saving(inputs, [false; 2]).0
    }

    fn forward_saving(&self, inputs: [FlexTensor; 2], _wanted: [bool; 2]) -> (FlexTensor, FlexTensor) {
        let [logits, targets] = inputs.map(contiguous);
        let [batch, classes] = sizes(&logits);
        let (mut losses, mut derivative) = (vec![0.0; batch], Buffer::new(batch * classes));
        let chunks = Chunks::new(batch, 8);
        {
            let (losses, derivative) = (Shared::new(&mut losses), derivative.shared());
            let (logits, targets) = (logits.storage::<f32>(), targets.storage::<f32>());
            parallel(chunks.count(), |index| {
                let range = chunks.range(index);
                let elements = range.start * classes..range.end * classes;
                // SAFETY: the chunks are disjoint, and with them their rows.
                let (losses, derivative) =
                    unsafe { (losses.slice(range), derivative.slice(elements.clone())) };
                let (logits, targets) = (&logits[elements.clone()], &targets[elements]);
                rows(logits, targets, 1.0 / batch as f32, losses, derivative);
            });
        }
        // SAFETY: the chunks cover all rows, and each row was written by the task of its chunk.
        let derivative = unsafe { derivative.written() };
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
    /// Writes the loss of each row, and `weight` times its derivative.
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
