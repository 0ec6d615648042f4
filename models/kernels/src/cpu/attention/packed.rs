//! Self-attention from one tensor that holds the queries, keys and values of each token.

#[cfg(target_arch = "x86_64")]
use super::bfloat16;
use super::heads::{Heads, HeadsMut};
use super::prepare::Preparation;
use super::problem::{BackwardInputs, Problem};
use super::{SavedAttention, forward};
use crate::cpu::flex::{self, contiguous, sizes};
#[cfg(target_arch = "x86_64")]
use crate::cpu::gemm::amx::direct::Bfloat16;
use crate::cpu::operation::{Inputs, Operation};
use crate::cpu::threads::Buffer;
use burn::backend::{TensorMetadata, flex::FlexTensor};

#[derive(Clone, Debug)]
pub(crate) struct SelfAttention {
    pub(crate) num_heads: usize,
    pub(crate) scale: f32,
    pub(crate) normalize: bool,
}

/// The inputs of [`SelfAttention`].
#[derive(Clone, Debug)]
pub(crate) struct PackedInputs<T = ()> {
    /// `[batch, tokens, 3 * dim]`
    pub(crate) qkv: T,
    /// `[bias_batch, 1 or heads, tokens, tokens]`
    pub(crate) bias: Option<T>,
    /// `[heads]`
    pub(crate) factors: Option<T>,
    /// `[2, tokens, head_dim / 2]`
    pub(crate) rotation: Option<T>,
}

impl Inputs<4> for PackedInputs {
    type Of<T> = PackedInputs<T>;

    fn map<T, U>(inputs: PackedInputs<T>, mut change: impl FnMut(T) -> U) -> PackedInputs<U> {
        let PackedInputs { qkv, bias, factors, rotation } = inputs;
        PackedInputs {
            qkv: change(qkv),
            bias: bias.map(&mut change),
            factors: factors.map(&mut change),
            rotation: rotation.map(change),
        }
    }

    fn in_order<T>(PackedInputs { qkv, bias, factors, rotation }: &PackedInputs<T>) -> [Option<&T>; 4] {
        [Some(qkv), bias.as_ref(), factors.as_ref(), rotation.as_ref()]
    }
}

impl SelfAttention {
    /// The attention of all tokens to all tokens.
    pub(super) fn problem<'a>(&self, inputs: &'a PackedInputs<FlexTensor>) -> Problem<'a> {
        let [batch, tokens, packed] = sizes(&inputs.qkv);
        let head_dim = packed / 3 / self.num_heads;
        let rotation = inputs.rotation.as_ref().map(|rotation| {
            let (cos, sin) = rotation.storage::<f32>().split_at(tokens * head_dim / 2);
            [cos, sin]
        });
        let factors = inputs.factors.as_ref().map(|factors| factors.storage::<f32>());
        let prepares = self.normalize || rotation.is_some() || factors.is_some();
        Problem {
            batch,
            heads: self.num_heads,
            queries: tokens,
            keys: tokens,
            head_dim,
            scale: self.scale,
            bias: inputs.bias.as_ref(),
            preparation: prepares.then_some(Preparation { factors, rotation, normalize: self.normalize }),
        }
    }

    fn run(&self, inputs: &PackedInputs<FlexTensor>, saving: bool) -> (FlexTensor, Option<FlexTensor>) {
        let problem = self.problem(inputs);
        let (output, probabilities) = forward(&problem, packed_heads(&inputs.qkv, &problem), saving);
        let dim = problem.heads * problem.head_dim;
        (flex::tensor(output, [problem.batch, problem.queries, dim]), probabilities)
    }
}

#[cfg(target_arch = "x86_64")]
impl SelfAttention {
    /// The output for factors that are rounded to bfloat16; `None` if the sizes are not worth it.
    pub(crate) fn on_bfloat16(
        &self,
        bfloat16: Bfloat16,
        inputs: PackedInputs<FlexTensor>,
    ) -> Option<FlexTensor> {
        let [_, tokens, packed] = sizes(&inputs.qkv);
        if !bfloat16::suits(tokens, packed / 3 / self.num_heads) {
            return None;
        }
        let inputs = PackedInputs::map(inputs, contiguous);
        let problem = self.problem(&inputs);
        let output = bfloat16::forward(bfloat16, &problem, packed_heads(&inputs.qkv, &problem));
        Some(flex::tensor(output, [problem.batch, problem.queries, problem.heads * problem.head_dim]))
    }
}

impl Operation<4> for SelfAttention {
    type Inputs = PackedInputs;
    type Saved = SavedAttention<PackedInputs<FlexTensor>>;

    fn forward(&self, inputs: PackedInputs<FlexTensor>) -> FlexTensor {
        self.run(&PackedInputs::map(inputs, contiguous), false).0
    }

    fn forward_saving(
        &self,
        inputs: PackedInputs<FlexTensor>,
        _wanted: [bool; 4],
    ) -> (FlexTensor, Self::Saved) {
        let inputs = PackedInputs::map(inputs, contiguous);
        let (output, probabilities) = self.run(&inputs, true);
        (output, SavedAttention { inputs, probabilities })
    }

    fn backward(
        self,
        saved: Self::Saved,
        dy: FlexTensor,
        [qkv_wanted, bias_wanted, factors_wanted, _]: [bool; 4],
    ) -> [Option<FlexTensor>; 4] {
        let problem = self.problem(&saved.inputs);
        let dy = contiguous(dy);
        let tokens = problem.queries;
        // The gradient of the factors is computed from the gradient of the queries.
        let computed = qkv_wanted || factors_wanted;
        let mut dqkv = Buffer::new(if computed { problem.length(tokens, 3) } else { 0 });
        let (dbias, dfactors) = {
            let data = dqkv.shared();
            let targets = [0, 1, 2].map(|part| {
                let offset = part * problem.heads * problem.head_dim;
                computed.then_some(HeadsMut { data, offset, strides: problem.strides(tokens, 3) })
            });
            let inputs = BackwardInputs {
                qkv: packed_heads(&saved.inputs.qkv, &problem),
                dy: Heads { data: dy.storage(), strides: problem.strides(tokens, 1) },
                probabilities: saved.probabilities(),
            };
            problem.backward(&inputs, targets, bias_wanted)
        };
        // SAFETY: the gradient is wanted, so all three parts have a target, to which the gradients of all heads were
        // written.
        let dqkv = qkv_wanted.then(|| flex::tensor(unsafe { dqkv.written() }, saved.inputs.qkv.shape()));
        let dfactors = factors_wanted.then(|| flex::tensor(dfactors, [problem.heads]));
        [dqkv, dbias, dfactors, None]
    }
}

/// The heads of the queries, keys and values in `qkv`.
pub(super) fn packed_heads<'a>(qkv: &'a FlexTensor, problem: &Problem<'_>) -> [Heads<'a>; 3] {
    let data = qkv.storage::<f32>();
    let dim = problem.heads * problem.head_dim;
    [0, 1, 2].map(|part| Heads {
        data: &data[(part * dim).min(data.len())..],
        strides: problem.strides(problem.queries, 3),
    })
}
