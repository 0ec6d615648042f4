//! Fused sequence pooling.
//!
//! A task computes one sample at a time, whose tokens stay in the cache from the scores to the mean. The backward pass
//! keeps the weights of the tokens, and reads the tokens again for the gradients of the scores and of the weight.

use crate::cpu::flex::{self, contiguous, sizes};
use crate::cpu::operation::{Inputs, Operation, WithBias};
use crate::cpu::simd::{exp, largest, mul_add, sum, sum_of_rows, vectorized};
use crate::cpu::threads::{Buffer, Chunks, Shared, parallel};
use burn::backend::flex::FlexTensor;

#[derive(Clone, Debug)]
pub(crate) struct SequencePool;

#[derive(Clone, Debug)]
pub(crate) struct SavedShares {
    x: FlexTensor,
    weight: FlexTensor,
    /// The weights of the tokens in the mean: `[batch, tokens]`.
    shares: Vec<f32>,
}

impl Operation<3> for SequencePool {
    type Inputs = WithBias;
    type Saved = SavedShares;

    fn forward(&self, inputs: WithBias<FlexTensor>) -> FlexTensor {
        self.forward_saving(inputs, [false; 3]).0
    }

    fn forward_saving(&self, inputs: WithBias<FlexTensor>, _wanted: [bool; 3]) -> (FlexTensor, SavedShares) {
        let WithBias { x, weight, bias } = WithBias::map(inputs, contiguous);
        let [batch, tokens, dim] = sizes(&x);
        let bias = bias.map_or(0.0, |bias| bias.storage::<f32>()[0]);
        let mut output = Buffer::new(batch * dim);
        let mut shares = vec![0.0; batch * tokens];
        {
            let (output, shares) = (output.shared(), Shared::new(&mut shares));
            let (x, weight) = (x.storage::<f32>(), weight.storage::<f32>());
            parallel(batch, |sample| {
                // SAFETY: each task has its own sample.
                let (output, shares) = unsafe {
                    (
                        output.slice(sample * dim..(sample + 1) * dim),
                        shares.slice(sample * tokens..(sample + 1) * tokens),
                    )
                };
                pool(&x[sample * tokens * dim..(sample + 1) * tokens * dim], weight, bias, shares, output);
            });
        }
        // SAFETY: each sample's task wrote its row.
        let output = unsafe { output.written() };
        (flex::tensor(output, [batch, dim]), SavedShares { x, weight, shares })
    }

    fn backward(
        self,
        SavedShares { x, weight, shares }: SavedShares,
        gradient: FlexTensor,
        wanted: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let gradient = contiguous(gradient);
        let [batch, tokens, dim] = sizes(&x);
        let chunks = Chunks::new(batch, 1);
        let mut dx = Buffer::new(if wanted[0] { batch * tokens * dim } else { 0 });
        // The gradient of the weight, followed by that of the bias.
        let mut partial = vec![0.0; chunks.count() * (dim + 1)];
        {
            let dx = wanted[0].then(|| dx.shared());
            let partial = Shared::new(&mut partial);
            let (dy, x, weight) = (gradient.storage::<f32>(), x.storage::<f32>(), weight.storage::<f32>());
            parallel(chunks.count(), |index| {
                // SAFETY: each chunk has its own sums.
                let sums = unsafe { partial.slice(index * (dim + 1)..(index + 1) * (dim + 1)) };
                let mut dscores = vec![0.0; tokens];
                for sample in chunks.range(index) {
                    let elements = sample * tokens * dim..(sample + 1) * tokens * dim;
                    let (dy, x) = (&dy[sample * dim..(sample + 1) * dim], &x[elements.clone()]);
                    let shares = &shares[sample * tokens..(sample + 1) * tokens];
                    pool_backward(dy, x, shares, &mut dscores, sums);
                    if let Some(dx) = &dx {
                        // SAFETY: the chunks are disjoint, and with them their samples.
                        token_gradients(dy, weight, shares, &dscores, unsafe { dx.slice(elements) });
                    }
                }
            });
        }
        let sums = sum_of_rows(&partial, dim + 1);
        let dweight = wanted[1].then(|| flex::tensor(sums[..dim].to_vec(), [dim, 1]));
        let dbias = wanted[2].then(|| flex::tensor(vec![sums[dim]], [1]));
        // SAFETY: the gradient is wanted, so the task of each chunk wrote the tokens of its samples, and the chunks
        // cover all samples.
        let dx = wanted[0].then(|| flex::tensor(unsafe { dx.written() }, [batch, tokens, dim]));
        [dx, dweight, dbias]
    }
}

vectorized! {
    /// Writes the weighted mean of a sample's tokens `x`, and the weights to `shares`.
    fn pool(x: &[f32], weight: &[f32], bias: f32, shares: &mut [f32], output: &mut [f32]) {
        let dim = weight.len();
        for (token, share) in shares.iter_mut().enumerate() {
            *share = sum(&x[token * dim..(token + 1) * dim], weight, |x, weight| x * weight) + bias;
        }
        let largest = largest(shares);
        for share in shares.iter_mut() {
            *share = exp::<FMA>(*share - largest);
        }
        let rate = 1.0 / sum(shares, shares, |share, _| share);
        output.fill(0.0);
        for (token, share) in shares.iter_mut().enumerate() {
            *share *= rate;
            for (output, x) in output.iter_mut().zip(&x[token * dim..(token + 1) * dim]) {
                *output = mul_add::<FMA>(*share, *x, *output);
            }
        }
    }

    /// Writes the gradients of a sample's scores to `dscores`, and adds the sample's part to `sums`: the gradients of
    /// the weight and the bias.
    fn pool_backward(dy: &[f32], x: &[f32], shares: &[f32], dscores: &mut [f32], sums: &mut [f32]) {
        let dim = dy.len();
        for (token, dscore) in dscores.iter_mut().enumerate() {
            *dscore = sum(&x[token * dim..(token + 1) * dim], dy, |x, dy| x * dy);
        }
        let common = sum(shares, dscores, |share, dshare| share * dshare);
        let (dweight, dbias) = sums.split_at_mut(dim);
        for (token, (dscore, share)) in dscores.iter_mut().zip(shares).enumerate() {
            *dscore = share * (*dscore - common);
            dbias[0] += *dscore;
            for (dweight, x) in dweight.iter_mut().zip(&x[token * dim..(token + 1) * dim]) {
                *dweight = mul_add::<FMA>(*dscore, *x, *dweight);
            }
        }
    }

    /// Writes the gradients of a sample's tokens.
    fn token_gradients(dy: &[f32], weight: &[f32], shares: &[f32], dscores: &[f32], dx: &mut [f32]) {
        let dim = weight.len();
        for (token, (share, dscore)) in shares.iter().zip(dscores).enumerate() {
            for ((dx, dy), weight) in dx[token * dim..(token + 1) * dim].iter_mut().zip(dy).zip(weight) {
                *dx = mul_add::<FMA>(*dscore, *weight, share * dy);
            }
        }
    }
}
