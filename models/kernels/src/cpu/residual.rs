//! The fused residual connection: one pass over memory for the output, one for all gradients.
//!
//! Without LayerScale and stochastic depth, the gradients of both inputs are the gradient of the output itself, which
//! is not copied.

use super::flex::{self, contiguous, sizes};
use super::operation::{Inputs, Operation};
use super::simd::{self, vectorized};
use super::threads::{Buffer, Chunks, Shared, parallel, parallel_elements};
use burn::backend::{TensorMetadata, flex::FlexTensor};
use std::ops::Range;

#[derive(Clone, Debug)]
pub(crate) struct Residual;

/// The inputs of [`Residual`].
#[derive(Clone, Debug)]
pub(crate) struct ResidualInputs<T = ()> {
    /// `[batch, tokens, dim]`
    pub(crate) x: T,
    /// `[batch, tokens, dim]`
    pub(crate) branch: T,
    /// LayerScale, `[dim]`
    pub(crate) gamma: Option<T>,
    /// Stochastic depth's factor of each sample, `[batch]`
    pub(crate) keep: Option<T>,
}

impl Inputs<4> for ResidualInputs {
    type Of<T> = ResidualInputs<T>;

    fn map<T, U>(inputs: ResidualInputs<T>, mut change: impl FnMut(T) -> U) -> ResidualInputs<U> {
        let ResidualInputs { x, branch, gamma, keep } = inputs;
        ResidualInputs {
            x: change(x),
            branch: change(branch),
            gamma: gamma.map(&mut change),
            keep: keep.map(change),
        }
    }

    fn in_order<T>(ResidualInputs { x, branch, gamma, keep }: &ResidualInputs<T>) -> [Option<&T>; 4] {
        [Some(x), Some(branch), gamma.as_ref(), keep.as_ref()]
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SavedBranch {
    /// Read for the gradient of gamma; absent if that is not wanted.
    branch: Option<FlexTensor>,
    gamma: Option<FlexTensor>,
    keep: Option<FlexTensor>,
}

impl Operation<4> for Residual {
    type Inputs = ResidualInputs;
    type Saved = SavedBranch;

    fn forward(&self, inputs: ResidualInputs<FlexTensor>) -> FlexTensor {
        self.forward_saving(inputs, [false; 4]).0
    }

    fn forward_saving(
        &self,
        inputs: ResidualInputs<FlexTensor>,
        [_, _, gamma_wanted, _]: [bool; 4],
    ) -> (FlexTensor, SavedBranch) {
        let ResidualInputs { x, branch, gamma, keep } = ResidualInputs::map(inputs, contiguous);
        let output = add(x, &branch, Factors::new(&branch, &gamma, &keep));
        (output, SavedBranch { branch: gamma_wanted.then_some(branch), gamma, keep })
    }

    fn backward(self, saved: SavedBranch, dy: FlexTensor, wanted: [bool; 4]) -> [Option<FlexTensor>; 4] {
        let [x_wanted, branch_wanted, _, _] = wanted;
        let dy = contiguous(dy);
        let factors = Factors::new(&dy, &saved.gamma, &saved.keep);
        let (dbranch, dgamma) = if factors.are_one() {
            (branch_wanted.then(|| dy.clone()), None)
        } else {
            scaled_backward(&dy, saved.branch.as_ref(), factors, branch_wanted)
        };
        [x_wanted.then_some(dy), dbranch, dgamma, None]
    }
}

/// The factors of a branch: `gamma[column] * keep[sample]`.
#[derive(Clone, Copy)]
struct Factors<'a> {
    gamma: Option<&'a [f32]>,
    keep: Option<&'a [f32]>,
    tokens: usize,
    dim: usize,
}

impl<'a> Factors<'a> {
    /// The factors of a tensor of the shape of `branch`.
    fn new(branch: &FlexTensor, gamma: &'a Option<FlexTensor>, keep: &'a Option<FlexTensor>) -> Self {
        let [_batch, tokens, dim] = sizes(branch);
        let [gamma, keep] =
            [gamma, keep].map(|factors| factors.as_ref().map(|factors| factors.storage::<f32>()));
        Self { gamma, keep, tokens, dim }
    }

    fn are_one(&self) -> bool {
        self.gamma.is_none() && self.keep.is_none()
    }

    /// The factor of a row's sample.
    fn keep(&self, row: usize) -> f32 {
        self.keep.map_or(1.0, |keep| keep[row / self.tokens])
    }

    /// Adds whole rows of the branch to the output, from the row `first` on; any elements if all factors are 1.
    fn add(&self, output: &mut [f32], branch: &[f32], first: usize) {
        if self.are_one() {
            return simd::add(output, branch);
        }
        let rows = output.chunks_exact_mut(self.dim).zip(branch.chunks_exact(self.dim));
        for (row, (output, branch)) in rows.enumerate() {
            add_scaled(output, branch, self.gamma, self.keep(first + row));
        }
    }
}

/// The sum of x and the scaled branch, in the memory of x if no other tensor shares it.
fn add(mut x: FlexTensor, branch: &FlexTensor, factors: Factors<'_>) -> FlexTensor {
    let branch = branch.storage::<f32>();
    if x.is_unique() {
        add_in_parallel(Shared::new(x.storage_mut()), None, branch, factors);
        return x;
    }
    let mut output = Buffer::new(branch.len());
    add_in_parallel(output.shared(), Some(x.storage()), branch, factors);
    // SAFETY: the tasks cover all elements, and each began by copying its part of x there.
    flex::tensor(unsafe { output.written() }, x.shape())
}

/// Adds the scaled branch to `x`, or to what `output` holds if there is no `x`.
fn add_in_parallel(output: Shared<'_>, x: Option<&[f32]>, branch: &[f32], factors: Factors<'_>) {
    let task = |range: Range<usize>| {
        // SAFETY: the ranges of the tasks are disjoint.
        let output = unsafe { output.slice(range.clone()) };
        if let Some(x) = x {
            output.copy_from_slice(&x[range.clone()]);
        }
        factors.add(output, &branch[range.clone()], range.start.checked_div(factors.dim).unwrap_or(0));
    };
    if factors.are_one() {
        parallel_elements(branch.len(), task);
    } else {
        let chunks = Chunks::new(branch.len().checked_div(factors.dim).unwrap_or(0), 16);
        parallel(chunks.count(), |index| {
            task(chunks.range(index).start * factors.dim..chunks.range(index).end * factors.dim)
        });
    }
}

/// The gradients of the branch, if it is wanted, and of gamma, if `branch` was saved for it.
fn scaled_backward(
    dy: &FlexTensor,
    branch: Option<&FlexTensor>,
    factors: Factors<'_>,
    branch_wanted: bool,
) -> (Option<FlexTensor>, Option<FlexTensor>) {
    let [batch, tokens, dim] = sizes(dy);
    let chunks = Chunks::new(if dim == 0 { 0 } else { batch * tokens }, 16);
    let mut dbranch = Buffer::new(if branch_wanted { batch * tokens * dim } else { 0 });
    let mut partial = vec![0.0; if branch.is_some() { chunks.count() * dim } else { 0 }];
    {
        let (dbranch, partial) = (dbranch.shared(), Shared::new(&mut partial));
        let dy = dy.storage::<f32>();
        parallel(chunks.count(), |index| {
            for row in chunks.range(index) {
                let elements = row * dim..(row + 1) * dim;
                let dy = &dy[elements.clone()];
                if branch_wanted {
                    // SAFETY: the rows of the chunks are disjoint.
                    let dbranch = unsafe { dbranch.slice(elements.clone()) };
                    scale(dbranch, dy, factors.gamma, factors.keep(row));
                }
                if let Some(branch) = branch {
                    // SAFETY: each chunk has its own sums.
                    let sums = unsafe { partial.slice(index * dim..(index + 1) * dim) };
                    add_scaled(sums, dy, Some(&branch.storage::<f32>()[elements]), factors.keep(row));
                }
            }
        });
    }
    let dgamma = branch.map(|_| flex::tensor(simd::sum_of_rows(&partial, dim), [dim]));
    // SAFETY: the gradient is wanted, so each row was written by the task of its chunk.
    let dbranch = branch_wanted.then(|| flex::tensor(unsafe { dbranch.written() }, [batch, tokens, dim]));
    (dbranch, dgamma)
}

vectorized! {
    /// `output += values * factors * factor`; without `factors`, `output += values * factor`.
    fn add_scaled(output: &mut [f32], values: &[f32], factors: Option<&[f32]>, factor: f32) {
        match factors {
            Some(factors) => output.iter_mut().zip(values).zip(factors).for_each(|((output, value), other)| *output += value * other * factor),
            None => output.iter_mut().zip(values).for_each(|(output, value)| *output += value * factor),
        }
    }

    /// `output = values * factors * factor`; without `factors`, `output = values * factor`.
    fn scale(output: &mut [f32], values: &[f32], factors: Option<&[f32]>, factor: f32) {
        match factors {
            Some(factors) => output.iter_mut().zip(values).zip(factors).for_each(|((output, value), other)| *output = value * other * factor),
            None => output.iter_mut().zip(values).for_each(|(output, value)| *output = value * factor),
        }
    }
}
