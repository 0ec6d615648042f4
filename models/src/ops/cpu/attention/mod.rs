//! Attention on flex: what goes in and out of the [`kernel`].
//!
//! Queries, keys and values are read through their strides, and outputs and gradients are laid out as the neighboring linear layers
//! want them, so that no permuted copy is ever made. Self-attention also rotates, normalizes or scales queries and keys as it reads
//! them ([`prepare`]).

mod kernel;
mod prepare;

use super::flex::{self, Operation, contiguous, sizes};
use super::parallel::{Buffer, Shared};
use burn::backend::{TensorMetadata, flex::FlexTensor};
use kernel::{Heads, Layout, Problem, Target};
use prepare::Preparation;

#[derive(Clone, Debug)]
pub(in crate::ops) struct SelfAttention {
    pub(in crate::ops) num_heads: usize,
    pub(in crate::ops) scale: f32,
    pub(in crate::ops) normalize: bool,
}

/// What self-attention reads, apart from a bias.
#[derive(Clone, Debug)]
pub(in crate::ops) struct Packed {
    qkv: FlexTensor,
    /// `[heads]`
    factors: Option<FlexTensor>,
    /// `[2, tokens, head_dim / 2]`
    rotation: Option<FlexTensor>,
}

#[derive(Clone, Debug)]
pub(in crate::ops) struct Attention {
    pub(in crate::ops) scale: f32,
}

#[derive(Clone, Debug)]
pub(in crate::ops) struct Saved<Inputs> {
    inputs: Inputs,
    bias: Option<FlexTensor>,
    /// `[batch, heads, queries, padded keys]`
    probabilities: Option<FlexTensor>,
}

impl SelfAttention {
    fn problem<'a>(&self, inputs: &'a Packed) -> Problem<'a> {
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
            preparation: prepares.then_some(Preparation { factors, rotation, normalize: self.normalize }),
        }
    }

    fn run(
        &self,
        inputs: &Packed,
        bias: Option<&FlexTensor>,
        probabilities: Option<Shared<'_>>,
    ) -> FlexTensor {
        let problem = self.problem(inputs);
        let layout = Layout::packed(&problem, problem.queries, 1);
        let mut output = Buffer::new(layout.length(&problem));
        let [q, k, v] = packed_heads(&inputs.qkv, &problem);
        problem.forward([q, k, v], bias, Target { data: output.shared(), offset: 0, layout }, probabilities);
        // SAFETY: the heads of all tokens lie side by side without a gap, and each was written.
        let output = unsafe { output.written() };
        flex::tensor(output, [problem.batch, problem.queries, problem.heads * problem.head_dim])
    }
}

impl Operation<4> for SelfAttention {
    type Saved = Saved<Packed>;

    fn forward(&self, inputs: [Option<FlexTensor>; 4]) -> FlexTensor {
        let (inputs, bias) = taken_apart(inputs);
        self.run(&inputs, bias.as_ref(), None)
    }

    fn forward_saving(
        &self,
        inputs: [Option<FlexTensor>; 4],
        _wanted: [bool; 4],
    ) -> (FlexTensor, Self::Saved) {
        let (inputs, bias) = taken_apart(inputs);
        let mut probabilities = self.problem(&inputs).kept_probabilities();
        let output = self.run(&inputs, bias.as_ref(), probabilities.as_mut().map(Buffer::shared));
        // SAFETY: `run` has returned.
        let probabilities = probabilities.map(|data| unsafe { kept(data) });
        (output, Saved { inputs, bias, probabilities })
    }

    fn backward(
        self,
        saved: Self::Saved,
        gradient: FlexTensor,
        [wanted, bias_wanted, factors_wanted, _]: [bool; 4],
    ) -> [Option<FlexTensor>; 4] {
        let Saved { inputs, bias, probabilities } = saved;
        let problem = self.problem(&inputs);
        let gradient = contiguous(gradient);
        let output = Layout::packed(&problem, problem.queries, 1);
        let packed = Layout::packed(&problem, problem.queries, 3);
        let dim = problem.heads * problem.head_dim;
        // the gradient of the factors is made of that of the queries
        let computed = wanted || factors_wanted;
        let mut dqkv = Buffer::new(if computed { packed.length(&problem) } else { 0 });
        let (dbias, dfactors) = {
            let data = dqkv.shared();
            let targets =
                [0, 1, 2].map(|part| computed.then_some(Target { data, offset: part * dim, layout: packed }));
            let dy = Heads { data: gradient.storage(), layout: output };
            problem.backward(
                packed_heads(&inputs.qkv, &problem),
                bias.as_ref(),
                probabilities,
                dy,
                targets,
                bias_wanted,
            )
        };
        // SAFETY: where it is wanted, the gradients of the queries, keys and values of all heads were written.
        let dqkv = wanted.then(|| flex::tensor(unsafe { dqkv.written() }, inputs.qkv.shape()));
        let dfactors = factors_wanted.then(|| flex::tensor(dfactors, [problem.heads]));
        [dqkv, dbias, dfactors, None]
    }
}

/// What self-attention reads, and its bias.
fn taken_apart(inputs: [Option<FlexTensor>; 4]) -> (Packed, Option<FlexTensor>) {
    let [qkv, bias, factors, rotation] = inputs.map(|input| input.map(contiguous));
    (Packed { qkv: qkv.expect("qkv is given"), factors, rotation }, bias)
}

fn packed_heads<'a>(qkv: &'a FlexTensor, problem: &Problem<'_>) -> [Heads<'a>; 3] {
    let data = qkv.storage::<f32>();
    let dim = problem.heads * problem.head_dim;
    [0, 1, 2].map(|part| Heads {
        data: &data[(part * dim).min(data.len())..],
        layout: Layout::packed(problem, problem.queries, 3),
    })
}

impl Attention {
    fn problem(&self, [q, k, _]: &[FlexTensor; 3]) -> Problem<'static> {
        let [batch, heads, queries, head_dim] = sizes(q);
        let [_, _, keys, _] = sizes(k);
        Problem { batch, heads, queries, keys, head_dim, scale: self.scale, preparation: None }
    }

    fn run(
        &self,
        inputs: &[FlexTensor; 3],
        bias: Option<&FlexTensor>,
        probabilities: Option<Shared<'_>>,
    ) -> FlexTensor {
        let problem = self.problem(inputs);
        let layout = Layout::packed(&problem, problem.queries, 1);
        let mut output = Buffer::new(layout.length(&problem));
        problem.forward(
            inputs.each_ref().map(strided_heads),
            bias,
            Target { data: output.shared(), offset: 0, layout },
            probabilities,
        );
        // SAFETY: the heads of all queries lie side by side without a gap, and each was written.
        token_major(unsafe { output.written() }, &problem, problem.queries)
    }
}

impl Operation<4> for Attention {
    type Saved = Saved<[FlexTensor; 3]>;

    fn forward(&self, [q, k, v, bias]: [Option<FlexTensor>; 4]) -> FlexTensor {
        let inputs = [q, k, v].map(|input| positive(input.expect("q, k and v are given")));
        self.run(&inputs, bias.map(contiguous).as_ref(), None)
    }

    fn forward_saving(
        &self,
        [q, k, v, bias]: [Option<FlexTensor>; 4],
        _wanted: [bool; 4],
    ) -> (FlexTensor, Self::Saved) {
        let inputs = [q, k, v].map(|input| positive(input.expect("q, k and v are given")));
        let bias = bias.map(contiguous);
        let mut probabilities = self.problem(&inputs).kept_probabilities();
        let output = self.run(&inputs, bias.as_ref(), probabilities.as_mut().map(Buffer::shared));
        // SAFETY: `run` has returned.
        let probabilities = probabilities.map(|data| unsafe { kept(data) });
        (output, Saved { inputs, bias, probabilities })
    }

    fn backward(
        self,
        saved: Self::Saved,
        gradient: FlexTensor,
        wanted: [bool; 4],
    ) -> [Option<FlexTensor>; 4] {
        let Saved { inputs, bias, probabilities } = saved;
        let problem = self.problem(&inputs);
        let gradient = positive(gradient);
        let [queries, keys] = [problem.queries, problem.keys];
        let space = |tokens| Buffer::new(problem.batch * tokens * problem.heads * problem.head_dim);
        let (mut dq, mut dk, mut dv) = (space(queries), space(keys), space(keys));
        let (dbias, _) = {
            let targets = [
                wanted[0].then(|| token_major_target(dq.shared(), &problem, queries)),
                wanted[1].then(|| token_major_target(dk.shared(), &problem, keys)),
                wanted[2].then(|| token_major_target(dv.shared(), &problem, keys)),
            ];
            let heads = inputs.each_ref().map(strided_heads);
            let dy = strided_heads(&gradient);
            problem.backward(heads, bias.as_ref(), probabilities, dy, targets, wanted[3])
        };
        let finish = |wanted: bool, data: Buffer, tokens| {
            // SAFETY: a gradient that is wanted has a target, which all of its heads were written to.
            wanted.then(|| token_major(unsafe { data.written() }, &problem, tokens))
        };
        [finish(wanted[0], dq, queries), finish(wanted[1], dk, keys), finish(wanted[2], dv, keys), dbias]
    }
}

/// Where heads go whose memory is `[batch, tokens, heads, head_dim]`.
fn token_major_target<'a>(data: Shared<'a>, problem: &Problem<'_>, tokens: usize) -> Target<'a> {
    Target { data, offset: 0, layout: Layout::packed(problem, tokens, 1) }
}

/// `[batch, heads, tokens, head_dim]` whose memory is `[batch, tokens, heads, head_dim]`: joining the heads then copies nothing.
fn token_major(data: Vec<f32>, problem: &Problem<'_>, tokens: usize) -> FlexTensor {
    flex::tensor(data, [problem.batch, tokens, problem.heads, problem.head_dim]).permute(&[0, 2, 1, 3])
}

/// A tensor whose heads can be read where they lie: only a flipped one is copied.
fn positive(tensor: FlexTensor) -> FlexTensor {
    if tensor.layout().strides().iter().all(|&stride| stride >= 0) { tensor } else { contiguous(tensor) }
}

fn strided_heads(tensor: &FlexTensor) -> Heads<'_> {
    let strides = tensor.layout().strides();
    let stride = |dimension: usize| usize::try_from(strides[dimension]).expect("positive strides");
    let layout = Layout {
        batch_stride: stride(0),
        head_stride: stride(1),
        row_stride: stride(2),
        column_stride: stride(3),
    };
    let data = tensor.storage::<f32>();
    Heads { data: &data[tensor.layout().start_offset().min(data.len())..], layout }
}

/// The probabilities that the forward pass kept.
///
/// # Safety
///
/// The forward pass is over.
unsafe fn kept(data: Buffer) -> FlexTensor {
    // SAFETY: the rows of scores have no gaps, and the forward pass wrote all, padding included.
    let data = unsafe { data.written() };
    let length = data.len();
    flex::tensor(data, [length])
}
