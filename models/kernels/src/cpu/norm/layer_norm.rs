//! Fused layer normalization.
//!
//! Each row is read from memory once. The backward pass keeps the mean and deviation of each row, and needs no further
//! pass for them.

use crate::cpu::flex::{self, contiguous, rows, sizes};
use crate::cpu::operation::Operation;
use crate::cpu::simd::{mul_add, sum, sum_of_rows, vectorized};
use crate::cpu::threads::{Buffer, Chunks, Shared, parallel};
use burn::backend::{TensorMetadata, flex::FlexTensor};

#[derive(Clone, Debug)]
pub(crate) struct LayerNormalization {
    pub(crate) epsilon: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct SavedRows {
    x: FlexTensor,
    gamma: FlexTensor,
    /// The mean of each row, and the inverse of its standard deviation.
    statistics: Vec<[f32; 2]>,
}

impl Operation<3> for LayerNormalization {
    type Inputs = [(); 3];
    type Saved = SavedRows;

    fn forward(&self, inputs: [FlexTensor; 3]) -> FlexTensor {
        self.forward_saving(inputs, [false; 3]).0
    }

    fn forward_saving(&self, inputs: [FlexTensor; 3], _wanted: [bool; 3]) -> (FlexTensor, SavedRows) {
        let [x, gamma, beta] = inputs.map(contiguous);
        let shape = x.shape();
        let [features] = sizes(&gamma);
        let rows = rows(&shape);
        let mut output = Buffer::new(rows * features);
        let mut statistics = vec![0.0; rows * 2];
        let chunks = Chunks::new(rows, 16);
        {
            let (outputs, statistics) = (output.shared(), Shared::new(&mut statistics));
            let (x, gamma, beta) = (x.storage::<f32>(), gamma.storage::<f32>(), beta.storage::<f32>());
            parallel(chunks.count(), |index| {
                let range = chunks.range(index);
                // SAFETY: the chunks are disjoint, and with them their rows.
                let (outputs, statistics) = unsafe {
                    (
                        outputs.slice(range.start * features..range.end * features),
                        statistics.slice(range.start * 2..range.end * 2),
                    )
                };
                let x = &x[range.start * features..range.end * features];
                normalize(x, gamma, beta, self.epsilon as f32, outputs, statistics.as_chunks_mut().0);
            });
        }
        let statistics = statistics.as_chunks().0.to_vec();
        // SAFETY: the chunks cover all rows, and each row was written by the task of its chunk.
        let output = unsafe { output.written() };
        (flex::tensor(output, shape), SavedRows { x, gamma, statistics })
    }

    fn backward(self, saved: SavedRows, gradient: FlexTensor, wanted: [bool; 3]) -> [Option<FlexTensor>; 3] {
        let gradient = contiguous(gradient);
        let shape = gradient.shape();
        let [features] = sizes(&saved.gamma);
        let chunks = Chunks::new(rows(&shape), 16);
        let mut dx = Buffer::new(gradient.shape().num_elements());
        let mut partial = vec![0.0; chunks.count() * 2 * features];
        {
            let (dx, partial) = (dx.shared(), Shared::new(&mut partial));
            let (dy, x, gamma) =
                (gradient.storage::<f32>(), saved.x.storage::<f32>(), saved.gamma.storage::<f32>());
            parallel(chunks.count(), |index| {
                let range = chunks.range(index);
                let elements = range.start * features..range.end * features;
                // SAFETY: the chunks are disjoint, and with them their rows; each chunk has its own sums.
                let (dx, partial) = unsafe {
                    (
                        dx.slice(elements.clone()),
                        partial.slice(index * 2 * features..(index + 1) * 2 * features),
                    )
                };
                let (dgamma, dbeta) = partial.split_at_mut(features);
                let (dy, x, statistics) = (&dy[elements.clone()], &x[elements], &saved.statistics[range]);
                normalize_backward(dy, x, gamma, statistics, dx, dgamma, dbeta);
            });
        }
        let mut sums = sum_of_rows(&partial, 2 * features);
        let dbeta = wanted[2].then(|| flex::tensor(sums[features..].to_vec(), [features]));
        sums.truncate(features);
        let dgamma = wanted[1].then(|| flex::tensor(sums, [features]));
        // SAFETY: the chunks cover all rows, and each row was written by the task of its chunk.
        let dx = unsafe { dx.written() };
        [wanted[0].then(|| flex::tensor(dx, shape)), dgamma, dbeta]
    }
}

vectorized! {
    /// Writes normalized rows, and the statistics of each row.
    fn normalize(x: &[f32], gamma: &[f32], beta: &[f32], epsilon: f32, output: &mut [f32], statistics: &mut [[f32; 2]]) {
        let features = gamma.len();
        for (row, statistics) in statistics.iter_mut().enumerate() {
            let elements = row * features..(row + 1) * features;
            let (x, output) = (&x[elements.clone()], &mut output[elements]);
            let mean = sum(x, x, |x, _| x) / features as f32;
            let variance = sum(x, x, |x, _| (x - mean) * (x - mean)) / features as f32;
            let rate = 1.0 / (variance + epsilon).sqrt();
            *statistics = [mean, rate];
            for (((output, x), gamma), beta) in output.iter_mut().zip(x).zip(gamma).zip(beta) {
                *output = mul_add::<FMA>((x - mean) * rate, *gamma, *beta);
            }
        }
    }

    /// Writes the gradient of rows, and adds their part to the gradients of gamma and beta.
    fn normalize_backward(dy: &[f32], x: &[f32], gamma: &[f32], statistics: &[[f32; 2]], dx: &mut [f32], dgamma: &mut [f32], dbeta: &mut [f32]) {
        let features = gamma.len();
        for (row, &[mean, rate]) in statistics.iter().enumerate() {
            let elements = row * features..(row + 1) * features;
            let (dy, x, dx) = (&dy[elements.clone()], &x[elements.clone()], &mut dx[elements]);
            // The row of `dx` holds the gradient of the normalized row first.
            for ((dx, dy), gamma) in dx.iter_mut().zip(dy).zip(gamma) {
                *dx = dy * gamma;
            }
            let common = sum(dx, x, |dx, _| dx) / features as f32;
            let along = sum(dx, x, |dx, x| dx * ((x - mean) * rate)) / features as f32;
            for ((((dx, dy), x), dgamma), dbeta) in dx.iter_mut().zip(dy).zip(x).zip(dgamma.iter_mut()).zip(dbeta.iter_mut()) {
                let normalized = (x - mean) * rate;
                *dx = rate * (*dx - common - normalized * along);
                *dgamma += dy * normalized;
                *dbeta += dy;
            }
        }
    }
}
