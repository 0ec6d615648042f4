//! Attention of queries to keys and values that are tensors of their own.

use super::heads::{Heads, HeadsMut};
use super::problem::{BackwardInputs, Problem};
use super::{SavedAttention, forward};
use crate::cpu::flex::{self, contiguous, sizes};
use crate::cpu::operation::{Inputs, Operation};
use crate::cpu::threads::Buffer;
use burn::backend::flex::FlexTensor;

#[derive(Clone, Debug)]
pub(crate) struct Attention {
    pub(crate) scale: f32,
}

/// The inputs of [`Attention`].
#[derive(Clone, Debug)]
pub(crate) struct SeparateInputs<T = ()> {
    /// `[batch, heads, queries, head_dim]`
    pub(crate) q: T,
    /// `[batch, heads, keys, head_dim]`
    pub(crate) k: T,
    /// `[batch, heads, keys, head_dim]`
    pub(crate) v: T,
    /// `[bias_batch, 1 or heads, queries, keys]`
    pub(crate) bias: Option<T>,
}

impl Inputs<4> for SeparateInputs {
    type Of<T> = SeparateInputs<T>;

    fn map<T, U>(inputs: SeparateInputs<T>, mut change: impl FnMut(T) -> U) -> SeparateInputs<U> {
        let SeparateInputs { q, k, v, bias } = inputs;
        SeparateInputs { q: change(q), k: change(k), v: change(v), bias: bias.map(change) }
    }

    fn in_order<T>(SeparateInputs { q, k, v, bias }: &SeparateInputs<T>) -> [Option<&T>; 4] {
        [Some(q), Some(k), Some(v), bias.as_ref()]
    }
}

impl SeparateInputs<FlexTensor> {
    /// The inputs as [`Problem`] reads them: heads with positive strides, a contiguous bias.
    fn readable(self) -> Self {
        let Self { q, k, v, bias } = self;
        let [q, k, v] = [q, k, v].map(positive);
        Self { q, k, v, bias: bias.map(contiguous) }
    }

    fn heads(&self) -> [Heads<'_>; 3] {
        [&self.q, &self.k, &self.v].map(Heads::of)
    }
}

impl Attention {
    fn problem<'a>(&self, inputs: &'a SeparateInputs<FlexTensor>) -> Problem<'a> {
        let [batch, heads, queries, head_dim] = sizes(&inputs.q);
        let [_, _, keys, _] = sizes(&inputs.k);
        let bias = inputs.bias.as_ref();
        Problem { batch, heads, queries, keys, head_dim, scale: self.scale, bias, preparation: None }
    }

    fn run(&self, inputs: &SeparateInputs<FlexTensor>, saving: bool) -> (FlexTensor, Option<FlexTensor>) {
        let problem = self.problem(inputs);
        let (output, probabilities) = forward(&problem, inputs.heads(), saving);
        (token_major(output, &problem, problem.queries), probabilities)
    }
}

impl Operation<4> for Attention {
    type Inputs = SeparateInputs;
    type Saved = SavedAttention<SeparateInputs<FlexTensor>>;

    fn forward(&self, inputs: SeparateInputs<FlexTensor>) -> FlexTensor {
        self.run(&inputs.readable(), false).0
    }

    fn forward_saving(
        &self,
        inputs: SeparateInputs<FlexTensor>,
        _wanted: [bool; 4],
    ) -> (FlexTensor, Self::Saved) {
        let inputs = inputs.readable();
        let (output, probabilities) = self.run(&inputs, true);
        (output, SavedAttention { inputs, probabilities })
    }

    fn backward(self, saved: Self::Saved, dy: FlexTensor, wanted: [bool; 4]) -> [Option<FlexTensor>; 4] {
        let problem = self.problem(&saved.inputs);
        let dy = positive(dy);
        let [q_wanted, k_wanted, v_wanted, bias_wanted] = wanted;
        let parts = [(q_wanted, problem.queries), (k_wanted, problem.keys), (v_wanted, problem.keys)];
        let mut buffers = parts.map(|(_, tokens)| Buffer::new(problem.length(tokens, 1)));
        let (dbias, _) = {
            let [dq, dk, dv] = buffers.each_mut().map(Buffer::shared);
            let [dq_part, dk_part, dv_part] = parts;
            let targets = [(dq, dq_part), (dk, dk_part), (dv, dv_part)].map(|(data, (wanted, tokens))| {
                wanted.then(|| HeadsMut { data, offset: 0, strides: problem.strides(tokens, 1) })
            });
            let inputs = BackwardInputs {
                qkv: saved.inputs.heads(),
                dy: Heads::of(&dy),
                probabilities: saved.probabilities(),
            };
            problem.backward(&inputs, targets, bias_wanted)
        };
        let finish = |data: Buffer, (wanted, tokens): (bool, usize)| {
            // SAFETY: a wanted gradient has a target, to which the gradients of all heads were written.
            wanted.then(|| token_major(unsafe { data.written() }, &problem, tokens))
        };
        let ([dq, dk, dv], [q, k, v]) = (buffers, parts);
        [finish(dq, q), finish(dk, k), finish(dv, v), dbias]
    }
}

/// `[batch, heads, tokens, head_dim]` over memory laid out as `[batch, tokens, heads, head_dim]`: joining the heads
/// then copies nothing.
fn token_major(data: Vec<f32>, problem: &Problem<'_>, tokens: usize) -> FlexTensor {
    flex::tensor(data, [problem.batch, tokens, problem.heads, problem.head_dim]).permute(&[0, 2, 1, 3])
}

/// The tensor with positive strides, so that [`Heads::of`] can read it; copies only a flipped one.
fn positive(tensor: FlexTensor) -> FlexTensor {
    if tensor.layout().strides().iter().all(|&stride| stride >= 0) { tensor } else { contiguous(tensor) }
}
