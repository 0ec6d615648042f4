//! The residual connection on flex.
//!
//! One pass for the output, one for all gradients; without LayerScale and drop path the gradients are the output's, uncopied.

use super::flex::{self, Operation, contiguous, sizes};
use super::parallel::{Buffer, Chunks, Shared, parallel, parallel_elements};
use super::simd::{self, vectorized};
use burn::backend::flex::FlexTensor;

#[derive(Clone, Debug)]
pub(in crate::ops) struct Residual;

#[derive(Clone, Debug)]
pub(in crate::ops) struct Saved {
    /// For gamma's gradient.
    branch: Option<FlexTensor>,
    gamma: Option<FlexTensor>,
    keep: Option<FlexTensor>,
}

impl Operation<4> for Residual {
    type Saved = Saved;

    fn forward(&self, inputs: [Option<FlexTensor>; 4]) -> FlexTensor {
        self.forward_saving(inputs, [false; 4]).0
    }

    fn forward_saving(&self, inputs: [Option<FlexTensor>; 4], wanted: [bool; 4]) -> (FlexTensor, Saved) {
        let [Some(x), Some(branch), gamma, keep] = inputs.map(|input| input.map(contiguous)) else {
            unreachable!("x and branch are given")
        };
        let output = add(x, &branch, gamma.as_ref(), keep.as_ref());
        (output, Saved { branch: wanted[2].then_some(branch), gamma, keep })
    }

    fn backward(self, saved: Saved, gradient: FlexTensor, wanted: [bool; 4]) -> [Option<FlexTensor>; 4] {
        let gradient = contiguous(gradient);
        let Saved { branch, gamma, keep } = saved;
        let (dbranch, dgamma) = if gamma.is_none() && keep.is_none() {
            (wanted[1].then(|| gradient.clone()), None)
        } else {
            scaled_backward(&gradient, branch.as_ref(), gamma.as_ref(), keep.as_ref(), wanted[1])
        };
        [wanted[0].then_some(gradient), dbranch, dgamma, None]
    }
}

/// The sum, in x's memory where nobody else needs it.
fn add(
    mut x: FlexTensor,
    branch: &FlexTensor,
    gamma: Option<&FlexTensor>,
    keep: Option<&FlexTensor>,
) -> FlexTensor {
    let [_batch, tokens, dim] = sizes(branch);
    let branch = branch.storage::<f32>();
    let in_place = x.is_unique();
    let mut fresh = Buffer::new(if in_place { 0 } else { branch.len() });
    let shape: [usize; 3] = sizes(&x);
    {
        let source = if in_place { None } else { Some(x.clone()) };
        let source = source.as_ref().map(|source| source.storage::<f32>());
        let output = if in_place { Shared::new(x.storage_mut()) } else { fresh.shared() };
        let task = |range: std::ops::Range<usize>| {
            // SAFETY: the ranges are disjoint.
            let output = unsafe { output.slice(range.clone()) };
            if let Some(source) = source {
                output.copy_from_slice(&source[range.clone()]);
            }
            let branch = &branch[range.clone()];
            if gamma.is_none() && keep.is_none() {
                simd::add(output, branch);
                return;
            }
            let gamma = gamma.map(|gamma| gamma.storage::<f32>());
            for (row, (output, branch)) in
                output.chunks_exact_mut(dim).zip(branch.chunks_exact(dim)).enumerate()
            {
                add_scaled(
                    output,
                    branch,
                    gamma,
                    keep.map_or(1.0, |keep| keep.storage::<f32>()[(range.start / dim + row) / tokens]),
                );
            }
        };
        if gamma.is_none() && keep.is_none() {
            parallel_elements(branch.len(), task);
        } else {
            let chunks = Chunks::new(branch.len().checked_div(dim).unwrap_or(0), 16);
            parallel(chunks.count(), |index| {
                task(chunks.range(index).start * dim..chunks.range(index).end * dim)
            });
        }
    }
    if in_place {
        return x;
    }
    // SAFETY: the tasks cover all elements, and each copied the source to its own first.
    flex::tensor(unsafe { fresh.written() }, shape)
}

/// The gradients of the branch, if `wanted`, and of gamma, if its branch was saved.
fn scaled_backward(
    gradient: &FlexTensor,
    branch: Option<&FlexTensor>,
    gamma: Option<&FlexTensor>,
    keep: Option<&FlexTensor>,
    wanted: bool,
) -> (Option<FlexTensor>, Option<FlexTensor>) {
    let [batch, tokens, dim] = sizes(gradient);
    let chunks = Chunks::new(if dim == 0 { 0 } else { batch * tokens }, 16);
    let mut dbranch = Buffer::new(if wanted { batch * tokens * dim } else { 0 });
    let mut partial = vec![0.0; if branch.is_some() { chunks.count() * dim } else { 0 }];
    {
        let (dbranch, partial) = (dbranch.shared(), Shared::new(&mut partial));
        let dy = gradient.storage::<f32>();
        parallel(chunks.count(), |index| {
            for row in chunks.range(index) {
                let elements = row * dim..(row + 1) * dim;
                let dy = &dy[elements.clone()];
                let keep = keep.map_or(1.0, |keep| keep.storage::<f32>()[row / tokens]);
                if wanted {
                    // SAFETY: the rows are disjoint.
                    let dbranch = unsafe { dbranch.slice(elements.clone()) };
                    scale(dbranch, dy, gamma.map(|gamma| gamma.storage::<f32>()), keep);
                }
                if let Some(branch) = branch {
                    // SAFETY: each chunk has its own sums.
                    let sums = unsafe { partial.slice(index * dim..(index + 1) * dim) };
                    let branch = &branch.storage::<f32>()[elements];
                    add_scaled(sums, dy, Some(branch), keep);
                }
            }
        });
    }
    let dgamma = branch.map(|_| {
        let mut sums = vec![0.0; dim];
        for partial in partial.chunks_exact(dim.max(1)) {
            sums.iter_mut().zip(partial).for_each(|(sum, partial)| *sum += partial);
        }
        flex::tensor(sums, [dim])
    });
    // SAFETY: where it is wanted, each row was written.
    let dbranch = wanted.then(|| flex::tensor(unsafe { dbranch.written() }, [batch, tokens, dim]));
    (dbranch, dgamma)
}

vectorized! {
    /// `output += values * factors * factor`
    fn add_scaled(output: &mut [f32], values: &[f32], factors: Option<&[f32]>, factor: f32) {
        match factors {
            Some(factors) => output.iter_mut().zip(values).zip(factors).for_each(|((output, value), other)| *output += value * other * factor),
            None => output.iter_mut().zip(values).for_each(|(output, value)| *output += value * factor),
        }
    }

    /// `output = values * factors * factor`
    fn scale(output: &mut [f32], values: &[f32], factors: Option<&[f32]>, factor: f32) {
        match factors {
            Some(factors) => output.iter_mut().zip(values).zip(factors).for_each(|((output, value), other)| *output = value * other * factor),
            None => output.iter_mut().zip(values).for_each(|(output, value)| *output = value * factor),
        }
    }
}
