//! Fused attention: from [packed](packed) or from [separate](separate) queries, keys and values, and of patches to those
//! [around them](neighborhood).
//!
//! Queries, keys and values are read through their strides, and outputs and gradients are laid out as the neighboring
//! linear layers read them, so that no permuted copy is ever made. Self-attention also rotates, normalizes or scales
//! queries and keys as it reads them ([`prepare`]). The arithmetic is in [`problem`].

#[cfg(target_arch = "x86_64")]
mod bfloat16;
mod heads;
mod neighborhood;
mod packed;
mod prepare;
mod problem;
mod separate;
mod softmax;

#[cfg(target_arch = "x86_64")]
pub(crate) use super::gemm::amx::direct::Bfloat16;
pub(crate) use neighborhood::NeighborhoodAttention;
pub(crate) use packed::{PackedInputs, SelfAttention};
pub(crate) use separate::{Attention, SeparateInputs};

use super::flex;
use super::threads::Buffer;
use burn::backend::flex::FlexTensor;
use heads::{Heads, HeadsMut};
use problem::Problem;

/// What the backward pass of either attention reads.
#[derive(Clone, Debug)]
pub(crate) struct SavedAttention<Inputs> {
    inputs: Inputs,
    /// `[batch, heads, queries, padded keys]`, unless they are computed again.
    probabilities: Option<FlexTensor>,
}

impl<Inputs> SavedAttention<Inputs> {
    fn probabilities(&self) -> Option<&[f32]> {
        self.probabilities.as_ref().map(|probabilities| probabilities.storage::<f32>())
    }
}

/// The output, `[batch, queries, heads, head_dim]`, and the probabilities if the forward pass is `saving` and they are
/// worth the memory.
fn forward(problem: &Problem<'_>, qkv: [Heads<'_>; 3], saving: bool) -> (Vec<f32>, Option<FlexTensor>) {
    let mut output = Buffer::new(problem.length(problem.queries, 1));
    let mut kept = if saving { problem.kept_probabilities() } else { None };
    let target = HeadsMut { data: output.shared(), offset: 0, strides: problem.strides(problem.queries, 1) };
    problem.forward(qkv, target, kept.as_mut().map(Buffer::shared));
    let probabilities = kept.map(|kept| {
        // SAFETY: the rows of scores have no gaps, and `Problem::forward` wrote all of them, padding included.
        let kept = unsafe { kept.written() };
        let length = kept.len();
        flex::tensor(kept, [length])
    });
    // SAFETY: the heads of a token lie next to each other without a gap, and `Problem::forward` wrote all heads of all
    // queries.
    (unsafe { output.written() }, probabilities)
}
