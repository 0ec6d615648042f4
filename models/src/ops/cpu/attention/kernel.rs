//! The arithmetic of fused attention: one task for each sample and head, which reads and writes the heads where they lie.
//!
//! Rows of scores are padded to whole vectors.

use super::prepare::{Preparation, Prepared, Scratch};
use crate::ops::cpu::flex::{self, sizes};
use crate::ops::cpu::gemm::{Epilogue, Matrix, MatrixMut, product};
use crate::ops::cpu::parallel::{Buffer, Shared, parallel, parallel_with};
use crate::ops::cpu::simd::{LANES, add, exp, fold, largest, sum, vectorized};
use burn::backend::flex::FlexTensor;
use std::ops::Range;

/// Up to this many keys the probabilities are kept for the backward pass; beyond, they are computed again.
const KEPT_KEYS: usize = 256;

/// Where the elements of `[batch, heads, rows, columns]` lie.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Layout {
    pub(in crate::ops) batch_stride: usize,
    pub(in crate::ops) head_stride: usize,
    pub(in crate::ops) row_stride: usize,
    pub(in crate::ops) column_stride: usize,
}

impl Layout {
    /// Heads side by side in a token of `parts` vectors: 1 for an output, 3 for q, k and v.
    pub(in crate::ops) fn packed(problem: &Problem<'_>, tokens: usize, parts: usize) -> Self {
        let token = parts * problem.heads * problem.head_dim;
        Self {
            batch_stride: tokens * token,
            head_stride: problem.head_dim,
            row_stride: token,
            column_stride: 1,
        }
    }

    pub(in crate::ops) fn length(&self, problem: &Problem<'_>) -> usize {
        problem.batch * self.batch_stride
    }

    fn offset(&self, sample: usize, head: usize, row: usize) -> usize {
        sample * self.batch_stride + head * self.head_stride + row * self.row_stride
    }
}

/// Heads to read.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Heads<'a> {
    pub(in crate::ops) data: &'a [f32],
    pub(in crate::ops) layout: Layout,
}

impl<'a> Heads<'a> {
    /// Some rows of one head.
    fn rows(&self, sample: usize, head: usize, rows: Range<usize>, columns: usize) -> Matrix<'a> {
        let data = &self.data[self.layout.offset(sample, head, rows.start).min(self.data.len())..];
        Matrix::new(data, [rows.len(), columns], [self.layout.row_stride, self.layout.column_stride])
    }
}

/// Heads to write, by several tasks at once; the columns lie side by side.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Target<'a> {
    pub(in crate::ops) data: Shared<'a>,
    pub(in crate::ops) offset: usize,
    pub(in crate::ops) layout: Layout,
}

impl<'a> Target<'a> {
    /// Some rows of one head.
    ///
    /// # Safety
    ///
    /// No other task may have the same ones.
    unsafe fn rows(&self, sample: usize, head: usize, rows: Range<usize>, columns: usize) -> MatrixMut<'a> {
        let offset = self.offset + self.layout.offset(sample, head, rows.start);
        // SAFETY: as the caller promises.
        unsafe { MatrixMut::shared(self.data, offset, [rows.len(), columns], self.layout.row_stride) }
    }
}

/// Sizes, scale, and what happens to queries and keys before they meet.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Problem<'a> {
    pub(in crate::ops) batch: usize,
    pub(in crate::ops) heads: usize,
    pub(in crate::ops) queries: usize,
    pub(in crate::ops) keys: usize,
    pub(in crate::ops) head_dim: usize,
    pub(in crate::ops) scale: f32,
    pub(in crate::ops) preparation: Option<Preparation<'a>>,
}

impl Problem<'_> {
    /// The length of a row of scores: whole vectors.
    fn width(&self) -> usize {
        self.keys.next_multiple_of(LANES)
    }

    /// The factor of a head's scores.
    fn scale(&self, head: usize) -> f32 {
        let factors = self.preparation.and_then(|preparation| preparation.factors);
        self.scale * factors.map_or(1.0, |factors| factors[head])
    }

    /// Memory for the prepared queries, of which there are so many at a time, and keys of a head.
    fn scratch(&self, queries: usize) -> [Scratch; 2] {
        [queries, self.keys].map(|rows| Scratch::new(self.preparation.map_or(0, |_| rows), self.head_dim))
    }

    /// Some queries and all keys of one pair, as they meet.
    fn prepared<'s>(
        &self,
        [q, k]: [Heads<'s>; 2],
        [sample, head]: [usize; 2],
        rows: Range<usize>,
        [of_q, of_k]: &'s mut [Scratch; 2],
    ) -> [Prepared<'s>; 2] {
        let first = rows.start;
        let q = q.rows(sample, head, rows, self.head_dim);
        let k = k.rows(sample, head, 0..self.keys, self.head_dim);
        match self.preparation {
            Some(preparation) => [preparation.apply(q, first, of_q), preparation.apply(k, 0, of_k)],
            None => [q, k].map(Prepared::as_they_are),
        }
    }

    /// Room for the probabilities, if they are to be kept.
    pub(in crate::ops) fn kept_probabilities(&self) -> Option<Buffer> {
        (self.keys <= KEPT_KEYS).then(|| Buffer::new(self.batch * self.heads * self.queries * self.width()))
    }

    pub(in crate::ops) fn forward(
        &self,
        [q, k, v]: [Heads<'_>; 3],
        bias: Option<&FlexTensor>,
        output: Target<'_>,
        kept: Option<Shared<'_>>,
    ) {
        let pairs = self.batch * self.heads;
        // few pairs: cut the queries, so that every thread has work
        let blocks = if pairs >= 4 * rayon::current_num_threads() { 1 } else { self.queries.div_ceil(64) };
        let block = self.queries.div_ceil(blocks.max(1));
        parallel_with(
            pairs * blocks,
            || (vec![0.0; if kept.is_some() { 0 } else { block * self.width() }], self.scratch(block)),
            |(own_scores, scratch), task| {
                let (sample, head) = (task / blocks / self.heads, task / blocks % self.heads);
                let rows = (task % blocks * block).min(self.queries)
                    ..((task % blocks + 1) * block).min(self.queries);
                let scores = match &kept {
                    // SAFETY: every task has its own rows.
                    Some(kept) => unsafe { kept.slice(self.scores(task / blocks, rows.clone())) },
                    None => &mut own_scores[..rows.len() * self.width()],
                };
                let [q, k] = self.prepared([q, k], [sample, head], rows.clone(), scratch);
                self.probabilities(scores, [q.rows, k.rows], bias, [sample, head], rows.clone());
                let scores = Matrix::new(scores, [rows.len(), self.keys], [self.width(), 1]);
                // SAFETY: every task has its own rows.
                let output = unsafe { output.rows(sample, head, rows, self.head_dim) };
                product(
                    output,
                    Epilogue::Overwrite,
                    1.0,
                    scores,
                    v.rows(sample, head, 0..self.keys, self.head_dim),
                );
            },
        );
    }

    /// Where the scores of some queries of one pair lie among all.
    fn scores(&self, pair: usize, rows: Range<usize>) -> Range<usize> {
        (pair * self.queries + rows.start) * self.width()..(pair * self.queries + rows.end) * self.width()
    }

    /// Fills `scores` with the attention probabilities of some queries; 0 in the padding.
    fn probabilities(
        &self,
        scores: &mut [f32],
        [q, k]: [Matrix<'_>; 2],
        bias: Option<&FlexTensor>,
        [sample, head]: [usize; 2],
        rows: Range<usize>,
    ) {
        let target = MatrixMut::with_gaps(scores, rows.len(), self.keys, self.width());
        product(target, Epilogue::Overwrite, self.scale(head), q, k.transposed());
        let bias = bias.map(|bias| {
            let [bias_batch, bias_heads, _, _] = sizes(bias);
            let matrix = (sample % bias_batch) * bias_heads + if bias_heads == 1 { 0 } else { head };
            &bias.storage::<f32>()[(matrix * self.queries + rows.start) * self.keys
                ..(matrix * self.queries + rows.end) * self.keys]
        });
        softmax(scores, self.keys, bias);
    }

    /// Writes the gradients of q, k and v where there is a target; returns that of the bias if it is `bias_wanted`, and those of the
    /// factors, for which the gradient of q must have a target.
    pub(in crate::ops) fn backward(
        &self,
        inputs: [Heads<'_>; 3],
        bias: Option<&FlexTensor>,
        kept: Option<FlexTensor>,
        dy: Heads<'_>,
        targets: [Option<Target<'_>>; 3],
        bias_wanted: bool,
    ) -> (Option<FlexTensor>, Vec<f32>) {
        let (pairs, size) = (self.batch * self.heads, self.queries * self.width());
        let kept = kept.as_ref().map(|kept| kept.storage::<f32>());
        let mut all = Buffer::new(if bias_wanted { pairs * size } else { 0 });
        let mut dfactors = vec![0.0; pairs];
        {
            let dscores = bias_wanted.then(|| all.shared());
            let dfactors = Shared::new(&mut dfactors);
            let scratch = |needed: bool| vec![0.0; if needed { size } else { 0 }];
            parallel_with(
                pairs,
                || (scratch(kept.is_none()), scratch(dscores.is_none()), self.scratch(self.queries)),
                |(own_probabilities, own_dscores, scratch), index| {
                    let (pair, [q, k, v]) = ([index / self.heads, index % self.heads], inputs);
                    let meeting = self.prepared([q, k], pair, 0..self.queries, scratch);
                    let scores = self.scores(index, 0..self.queries);
                    let probabilities = match kept {
                        Some(kept) => &kept[scores.clone()],
                        None => {
                            let meeting = meeting.map(|prepared| prepared.rows);
                            self.probabilities(own_probabilities, meeting, bias, pair, 0..self.queries);
                            own_probabilities
                        }
                    };
                    let dscores = match &dscores {
                        // SAFETY: every task has its own pair.
                        Some(dscores) => unsafe { dscores.slice(scores) },
                        None => own_dscores,
                    };
                    let dfactor = self.backward_pair(pair, meeting, [v, dy], probabilities, dscores, targets);
                    // SAFETY: every task has its own pair.
                    unsafe { dfactors.slice(index..index + 1) }.fill(dfactor);
                },
            );
        }
        // SAFETY: where the gradient of the bias is wanted, each pair's task wrote its scores' gradient, padding included.
        let dbias =
            bias.filter(|_| bias_wanted).map(|bias| self.bias_gradient(bias, &unsafe { all.written() }));
        (dbias, self.over_samples(&dfactors))
    }

    /// The backward pass of one sample and head; leaves the gradient of its scores in `dscores` and returns that of its factor.
    fn backward_pair(
        &self,
        pair: [usize; 2],
        [q, k]: [Prepared<'_>; 2],
        values: [Heads<'_>; 2],
        probabilities: &[f32],
        dscores: &mut [f32],
        [dq, dk, dv]: [Option<Target<'_>>; 3],
    ) -> f32 {
        let (width, [sample, head]) = (self.width(), pair);
        let [v, dy] = values;
        let v = v.rows(sample, head, 0..self.keys, self.head_dim);
        let dy = dy.rows(sample, head, 0..self.queries, self.head_dim);
        let target = MatrixMut::with_gaps(dscores, self.queries, self.keys, width);
        product(target, Epilogue::Overwrite, 1.0, dy, v.transposed());
        softmax_backward(probabilities, dscores, self.keys);

        let [probabilities, dscores] =
            [probabilities, dscores].map(|data| Matrix::new(data, [self.queries, self.keys], [width, 1]));
        // SAFETY: every task has its own pair.
        let [dq, dk, dv] = [(dq, self.queries), (dk, self.keys), (dv, self.keys)]
            .map(|(target, rows)| Some(unsafe { target?.rows(sample, head, 0..rows, self.head_dim) }));
        let dq = written(dq, self.scale, dscores, k.rows);
        let dk = written(dk, self.scale(head), dscores.transposed(), q.rows);
        written(dv, 1.0, probabilities.transposed(), dy);
        self.preparation.map_or(0.0, |preparation| preparation.backward(head, [dq, dk], [q, k]))
    }

    /// What each pair has, summed over the samples in order: one sum for each head.
    fn over_samples(&self, pairs: &[f32]) -> Vec<f32> {
        let mut sums = vec![0.0; self.heads];
        pairs.chunks_exact(self.heads.max(1)).for_each(|sample| add(&mut sums, sample));
        sums
    }

    /// The scores' gradient summed over the samples, and where they share it the heads, that a bias was added to; in their order.
    fn bias_gradient(&self, bias: &FlexTensor, dscores: &[f32]) -> FlexTensor {
        let shape: [usize; 4] = sizes(bias);
        let [bias_batch, bias_heads, _, _] = shape;
        let mut data = vec![0.0; shape.iter().product()];
        let rows = Shared::new(&mut data);
        parallel(rows.len().checked_div(self.keys).unwrap_or(0), |task| {
            // SAFETY: every task has its own row.
            let sums = unsafe { rows.slice(task * self.keys..(task + 1) * self.keys) };
            let (query, matrix) = (task % self.queries, task / self.queries);
            let heads =
                if bias_heads == 1 { 0..self.heads } else { matrix % bias_heads..matrix % bias_heads + 1 };
            for sample in (matrix / bias_heads..self.batch).step_by(bias_batch) {
                for head in heads.clone() {
                    add(
                        sums,
                        &dscores[self.scores(sample * self.heads + head, query..query + 1)][..self.keys],
                    );
                }
            }
        });
        flex::tensor(data, shape)
    }
}

/// The target, if there is one, with a product written to it.
fn written<'a>(
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

vectorized! {
    /// Softmax of rows of `keys` scores padded to whole vectors, after a bias without padding is added; 0 in the padding.
    fn softmax(rows: &mut [f32], keys: usize, bias: Option<&[f32]>) {
        for (index, row) in rows.chunks_exact_mut(keys.next_multiple_of(LANES).max(1)).enumerate() {
            if let Some(bias) = bias {
                row.iter_mut().zip(&bias[index * keys..(index + 1) * keys]).for_each(|(score, bias)| *score += bias);
            }
            row[keys..].fill(f32::NEG_INFINITY);
            let largest = largest(row);
            let mut total = [0.0f32; LANES];
            for group in row.as_chunks_mut::<LANES>().0 {
                for lane in 0..LANES {
                    group[lane] = exp::<FMA>(group[lane] - largest);
                    total[lane] += group[lane];
                }
            }
            let rate = 1.0 / fold(total, |left, right| left + right);
            for group in row.as_chunks_mut::<LANES>().0 {
                for value in group {
                    *value *= rate;
                }
            }
        }
    }

    /// Turns the gradient of rows of probabilities into that of their scores.
    fn softmax_backward(probabilities: &[f32], gradient: &mut [f32], keys: usize) {
        let width = keys.next_multiple_of(LANES).max(1);
        for (probabilities, gradient) in probabilities.chunks_exact(width).zip(gradient.chunks_exact_mut(width)) {
            gradient[keys..].fill(0.0);
            let common = sum(probabilities, gradient, |probability, gradient| probability * gradient);
            for (probabilities, gradient) in probabilities.as_chunks::<LANES>().0.iter().zip(gradient.as_chunks_mut::<LANES>().0) {
                for lane in 0..LANES {
                    gradient[lane] = probabilities[lane] * (gradient[lane] - common);
                }
            }
        }
    }
}
