//! The arithmetic of fused attention, which reads and writes the heads where they lie.
//!
//! ```text
//! forward:
//! for a sample and head (few of them: for 64 queries of it)    a task
//!   q, k = rotated, normalized                                 scratch: second-level cache
//!   s = scale * q k^T + bias                                   one row per query, padded to whole vectors
//!   p = softmax(s)                                             in place; kept for the backward pass if keys are few
//!   y = p v
//! backward:
//! for a sample and head                                        a task
//!   p = kept, or computed again
//!   ds = p * (dy v^T - sum of p * dy v^T over the row)         scratch, or kept for the gradient of the bias
//!   dq = scale * ds k, dk = scale * ds^T q, dv = p^T dy
//! ```

use super::heads::{HeadStrides, Heads, HeadsMut, Pair};
use super::prepare::{Preparation, Prepared, Scratch};
use super::softmax::{softmax, softmax_backward};
use crate::cpu::flex::{self, sizes};
use crate::cpu::gemm::{Epilogue, Matrix, MatrixMut, product};
use crate::cpu::simd::{LANES, add};
use crate::cpu::threads::{Buffer, Chunks, Shared, parallel, parallel_with};
use burn::backend::flex::FlexTensor;
use std::ops::Range;

/// Up to this many keys, the probabilities are kept for the backward pass; with more keys they are computed again.
const KEPT_KEYS: usize = 256;

/// The sizes of an attention, its scale and bias, and the preparation of its queries and keys.
#[derive(Clone, Copy)]
pub(super) struct Problem<'a> {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) head_dim: usize,
    pub(super) scale: f32,
    /// `[bias_batch, 1 or heads, queries, keys]`
    pub(super) bias: Option<&'a FlexTensor>,
    pub(super) preparation: Option<Preparation<'a>>,
}

/// What the backward pass reads: the inputs of the forward pass, the gradient of its output, and the probabilities if
/// they were kept.
pub(super) struct BackwardInputs<'a> {
    pub(super) qkv: [Heads<'a>; 3],
    pub(super) dy: Heads<'a>,
    pub(super) probabilities: Option<&'a [f32]>,
}

impl Problem<'_> {
    /// The strides of heads whose memory is `[batch, tokens, parts, heads, head_dim]`.
    pub(super) fn strides(&self, tokens: usize, parts: usize) -> HeadStrides {
        HeadStrides::packed(tokens, parts, [self.heads, self.head_dim])
    }

    /// The elements of `[batch, tokens, parts, heads, head_dim]`.
    pub(super) fn length(&self, tokens: usize, parts: usize) -> usize {
        self.batch * self.strides(tokens, parts).batch
    }

    /// Memory for the probabilities, `[batch, heads, queries, padded keys]`, if they are to be kept.
    pub(super) fn kept_probabilities(&self) -> Option<Buffer> {
        (self.keys <= KEPT_KEYS).then(|| Buffer::new(self.batch * self.heads * self.queries * self.width()))
    }

    /// The length of a row of scores: the keys, padded to whole vectors.
    pub(super) fn width(&self) -> usize {
        self.keys.next_multiple_of(LANES)
    }

    pub(super) fn pair(&self, index: usize) -> Pair {
        Pair { sample: index / self.heads, head: index % self.heads }
    }

    /// The scale of one head's scores.
    pub(super) fn scale(&self, head: usize) -> f32 {
        let factors = self.preparation.and_then(|preparation| preparation.factors);
        self.scale * factors.map_or(1.0, |factors| factors[head])
    }

    /// Scratch memory for `queries` prepared queries and all prepared keys of one head.
    pub(super) fn scratch(&self, queries: usize) -> [Scratch; 2] {
        [queries, self.keys].map(|rows| Scratch::new(self.preparation.map_or(0, |_| rows), self.head_dim))
    }

    /// The queries in `rows` and all keys of one pair, prepared for their dot product.
    pub(super) fn prepared<'s>(
        &self,
        [q, k]: [Heads<'s>; 2],
        pair: Pair,
        rows: Range<usize>,
        [of_q, of_k]: &'s mut [Scratch; 2],
    ) -> [Prepared<'s>; 2] {
        let first = rows.start;
        let q = q.rows(pair, rows, self.head_dim);
        let k = k.rows(pair, 0..self.keys, self.head_dim);
        match self.preparation {
            Some(preparation) => [preparation.apply(q, first, of_q), preparation.apply(k, 0, of_k)],
            None => [q, k].map(Prepared::unchanged),
        }
    }

    /// Where the scores of the queries in `rows` lie among the scores of all pairs.
    fn scores(&self, pair: usize, rows: Range<usize>) -> Range<usize> {
        (pair * self.queries + rows.start) * self.width()..(pair * self.queries + rows.end) * self.width()
    }

    /// The ranges of queries that a task computes: with few pairs of sample and head there are several, so that every thread has work.
    pub(super) fn query_blocks(&self) -> Chunks {
        const BLOCK: usize = 64;
        let is_enough = self.batch * self.heads >= 4 * rayon::current_num_threads();
        Chunks::of(self.queries, if is_enough { self.queries.max(1) } else { BLOCK })
    }

    /// Writes the output of all heads and, if they are to be kept, the probabilities.
    pub(super) fn forward(&self, [q, k, v]: [Heads<'_>; 3], output: HeadsMut<'_>, kept: Option<Shared<'_>>) {
        let blocks = self.query_blocks();
        let block = blocks.longest();
        parallel_with(
            self.batch * self.heads * blocks.count(),
            || (vec![0.0; if kept.is_some() { 0 } else { block * self.width() }], self.scratch(block)),
            |(own_scores, scratch), task| {
                let (index, rows) = (task / blocks.count(), blocks.range(task % blocks.count()));
                let pair = self.pair(index);
                let scores = match &kept {
                    // SAFETY: each task has its own pair or its own queries of a pair, so that their scores are
                    // disjoint.
                    Some(kept) => unsafe { kept.slice(self.scores(index, rows.clone())) },
                    None => &mut own_scores[..rows.len() * self.width()],
                };
                let [q, k] = self.prepared([q, k], pair, rows.clone(), scratch);
                self.probabilities(scores, [q.rows, k.rows], pair, rows.clone());
                let probabilities = Matrix::new(scores, [rows.len(), self.keys], [self.width(), 1]);
                // SAFETY: each task has its own pair or its own queries of a pair, so that their outputs are disjoint.
                let output = unsafe { output.rows(pair, rows, self.head_dim) };
                let v = v.rows(pair, 0..self.keys, self.head_dim);
                product(output, Epilogue::Overwrite, 1.0, probabilities, v);
            },
        );
    }

    /// Fills `scores` with the attention probabilities of the queries in `rows`, and the padding with 0.
    fn probabilities(&self, scores: &mut [f32], [q, k]: [Matrix<'_>; 2], pair: Pair, rows: Range<usize>) {
        let target = MatrixMut::with_gaps(scores, rows.len(), self.keys, self.width());
        product(target, Epilogue::Overwrite, self.scale(pair.head), q, k.transposed());
        softmax(scores, self.keys, self.bias_rows(pair, rows));
    }

    /// The bias of the queries in `rows`, `[rows, keys]`, if there is one.
    pub(super) fn bias_rows(&self, pair: Pair, rows: Range<usize>) -> Option<&[f32]> {
        let bias = self.bias?;
        let [bias_batch, bias_heads, _, _] = sizes(bias);
        let head = if bias_heads == 1 { 0 } else { pair.head };
        let first = ((pair.sample % bias_batch) * bias_heads + head) * self.queries;
        Some(&bias.storage::<f32>()[(first + rows.start) * self.keys..(first + rows.end) * self.keys])
    }

    /// Writes the gradients of q, k and v that have a target. Returns the gradient of the bias, if it is wanted, and of
    /// the factors, for which the gradient of q must have a target.
    pub(super) fn backward(
        &self,
        inputs: &BackwardInputs<'_>,
        targets: [Option<HeadsMut<'_>>; 3],
        bias_wanted: bool,
    ) -> (Option<FlexTensor>, Vec<f32>) {
        let (pairs, size) = (self.batch * self.heads, self.queries * self.width());
        let mut dscores = Buffer::new(if bias_wanted { pairs * size } else { 0 });
        let mut dfactors = vec![0.0; pairs];
        {
            let kept_dscores = bias_wanted.then(|| dscores.shared());
            let dfactors = Shared::new(&mut dfactors);
            let scratch = |needed: bool| vec![0.0; if needed { size } else { 0 }];
            parallel_with(
                pairs,
                || BackwardScratch {
                    probabilities: scratch(inputs.probabilities.is_none()),
                    dscores: scratch(!bias_wanted),
                    prepared: self.scratch(self.queries),
                },
                |scratch, index| {
                    // SAFETY: each task has its own pair, whose scores no other task has.
                    let kept = kept_dscores
                        .map(|dscores| unsafe { dscores.slice(self.scores(index, 0..self.queries)) });
                    let dfactor = self.backward_pair(index, inputs, targets, scratch, kept);
                    // SAFETY: each task has its own pair, and with it one element.
                    unsafe { dfactors.slice(index..index + 1) }.fill(dfactor);
                },
            );
        }
        let dbias = self.bias.filter(|_| bias_wanted).map(|bias| {
            // SAFETY: the gradient of the bias is wanted, so each pair's task wrote the gradients of its scores,
            // padding included.
            self.bias_gradient(bias, &unsafe { dscores.written() })
        });
        (dbias, self.sum_over_samples(&dfactors))
    }

    /// The backward pass of one sample and head. Leaves the gradient of its scores in `kept_dscores`, if given, and
    /// returns the gradient of the head's factor.
    fn backward_pair(
        &self,
        index: usize,
        inputs: &BackwardInputs<'_>,
        targets: [Option<HeadsMut<'_>>; 3],
        scratch: &mut BackwardScratch,
        kept_dscores: Option<&mut [f32]>,
    ) -> f32 {
        let pair = self.pair(index);
        let [q, k, v] = inputs.qkv;
        let [q, k] = self.prepared([q, k], pair, 0..self.queries, &mut scratch.prepared);
        let probabilities = match inputs.probabilities {
            Some(kept) => &kept[self.scores(index, 0..self.queries)],
            None => {
                self.probabilities(&mut scratch.probabilities, [q.rows, k.rows], pair, 0..self.queries);
                &scratch.probabilities
            }
        };
        let v = v.rows(pair, 0..self.keys, self.head_dim);
        let dy = inputs.dy.rows(pair, 0..self.queries, self.head_dim);
        let dscores = kept_dscores.unwrap_or(&mut scratch.dscores);
        let target = MatrixMut::with_gaps(dscores, self.queries, self.keys, self.width());
        product(target, Epilogue::Overwrite, 1.0, dy, v.transposed());
        softmax_backward(probabilities, dscores, self.keys);

        let [probabilities, dscores] = [probabilities, dscores]
            .map(|data| Matrix::new(data, [self.queries, self.keys], [self.width(), 1]));
        let [dq, dk, dv] = targets;
        // SAFETY: each task has its own pair, whose gradients no other task writes.
        let [dq, dk, dv] = [(dq, self.queries), (dk, self.keys), (dv, self.keys)]
            .map(|(target, rows)| Some(unsafe { target?.rows(pair, 0..rows, self.head_dim) }));
        let dq = product_in(dq, self.scale, dscores, k.rows);
        let dk = product_in(dk, self.scale(pair.head), dscores.transposed(), q.rows);
        product_in(dv, 1.0, probabilities.transposed(), dy);
        self.preparation.map_or(0.0, |preparation| preparation.backward(pair.head, [dq, dk], [q, k]))
    }

    /// The values of all pairs, summed over the samples in order: one sum for each head.
    pub(super) fn sum_over_samples(&self, pairs: &[f32]) -> Vec<f32> {
        let mut sums = vec![0.0; self.heads];
        pairs.chunks_exact(self.heads.max(1)).for_each(|sample| add(&mut sums, sample));
        sums
    }

    /// The gradient of the bias: the gradient of the scores, summed in order over the samples (and heads, if they share
    /// one bias) that each element was added to.
    fn bias_gradient(&self, bias: &FlexTensor, dscores: &[f32]) -> FlexTensor {
        let shape: [usize; 4] = sizes(bias);
        let [bias_batch, bias_heads, _, _] = shape;
        let mut data = vec![0.0; shape.iter().product()];
        let rows = Shared::new(&mut data);
        parallel(rows.len().checked_div(self.keys).unwrap_or(0), |task| {
            // SAFETY: each task has its own row of the bias.
            let sums = unsafe { rows.slice(task * self.keys..(task + 1) * self.keys) };
            let (query, matrix) = (task % self.queries, task / self.queries);
            let heads =
                if bias_heads == 1 { 0..self.heads } else { matrix % bias_heads..matrix % bias_heads + 1 };
            for sample in (matrix / bias_heads..self.batch).step_by(bias_batch) {
                for head in heads.clone() {
                    let row = self.scores(sample * self.heads + head, query..query + 1);
                    add(sums, &dscores[row][..self.keys]);
                }
            }
        });
        flex::tensor(data, shape)
    }
}

/// Memory that the backward passes of several pairs use one after the other.
struct BackwardScratch {
    /// Empty if the probabilities were kept.
    probabilities: Vec<f32>,
    /// Empty if the gradients of the scores are kept for the gradient of the bias.
    dscores: Vec<f32>,
    prepared: [Scratch; 2],
}

/// Overwrites the target, if there is one, with `scale * left * right`, and returns it.
fn product_in<'a>(
    target: Option<MatrixMut<'a>>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) -> Option<MatrixMut<'a>> {
    let mut target = target?;
    let all = target.block(0..target.rows, 0..target.columns);
    product(all, Epilogue::Overwrite, scale, left, right);
    Some(target)
}
