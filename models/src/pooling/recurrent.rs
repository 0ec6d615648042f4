//! Pooling by a recurrent query that reads the patches several times, as the decoders of the first attention papers do.

use burn::module::Module;
use burn::tensor::{Device, Tensor, activation};

use super::{attention_of, patches, spec, trace_patches};
use crate::attention::{CrossAttention, product};
use crate::graph::{Graph, Value};
use crate::linear::{Linear, uniform};
use crate::{ModelConfig, Score};

/// In each step the state asks the patches by attention, and a GRU cell updates it with the answer (Bahdanau et al. 2015,
/// appendix A.2.2; Xu et al. 2015, 'Show, Attend and Tell', section 3.1). The pooled vector is the last state.
#[derive(Module, Debug)]
pub struct RecurrentPooling {
    prefix: usize,
    steps: usize,
    /// The layer from the mean of the patches to the first state, followed by tanh (Xu et al. 2015, section 3.1.2).
    pub initial: Linear,
    /// The attention of the state to the patches.
    pub attention: CrossAttention,
    /// The update of the state.
    pub gru: GruCell,
}

impl RecurrentPooling {
    /// Fresh parameters, with as many heads as the last stage.
    pub(super) fn new(config: &ModelConfig, steps: usize, device: &Device) -> Self {
        let dim = config.last_dim();
        Self {
            prefix: config.num_prefix_tokens(),
            steps,
            initial: Linear::new(dim, dim, true, device),
            attention: attention_of(config, Score::Additive, device),
            gru: GruCell::new(dim, device),
        }
    }

    pub(super) fn forward(&self, tokens: Tensor<3>) -> Tensor<2> {
        self.read(tokens, |state, keys, values| self.attention.attend(state, keys, values))
    }

    /// The weights of the patches: `[batch, heads, steps, patches]`.
    pub(super) fn weights(&self, tokens: Tensor<3>) -> Tensor<4> {
        let mut weights = Vec::with_capacity(self.steps);
        self.read(tokens, |state, keys, values| {
            let (answer, of_patches) = self.attention.attend_with_weights(state, keys, values);
            weights.push(of_patches);
            answer
        });
        Tensor::cat(weights, 2)
    }

    /// The multiply-adds for one image: keys and values once, everything else in each step.
    pub(super) fn cost(config: &ModelConfig, steps: usize, patches: usize) -> u64 {
        let (dim, spec) = (config.last_dim(), spec(config, Score::Additive));
        let keys_and_values = 2 * product([patches, dim, dim]);
        let reading = CrossAttention::cost(&spec, [1, patches]) - keys_and_values;
        product([dim, dim]) + keys_and_values + steps as u64 * (reading + GruCell::cost(dim))
    }

    /// The last state, with `attend` for the answer of keys and values to a state.
    fn read(
        &self,
        tokens: Tensor<3>,
        mut attend: impl FnMut(Tensor<3>, Tensor<4>, Tensor<4>) -> Tensor<3>,
    ) -> Tensor<2> {
        let patches = patches(tokens, self.prefix);
        let mut state = self.initial.forward(patches.clone().mean_dim(1)).tanh(); // [batch, 1, dim]
        let (keys, values) = self.attention.keys_and_values(patches);
        for _ in 0..self.steps {
            let answer = attend(state.clone(), keys.clone(), values.clone());
            state = self.gru.forward(answer, state);
        }
        state.squeeze_dim(1)
    }

    pub(super) fn trace(&self, graph: &mut Graph, tokens: &Value) -> Value {
        let patches = trace_patches(graph, tokens, self.prefix);
        let mean = graph.reduce("ReduceMean", &patches, 1);
        let initial = self.initial.trace(graph, "initial", &mean);
        let mut state = graph.unary("Tanh", &initial);
        let [keys, values] = self.attention.trace_keys_and_values(graph, &patches);
        for _ in 0..self.steps {
            let answer = self.attention.trace_attend(graph, &state, &keys, &values);
            state = self.gru.trace(graph, &answer, &state);
        }
        graph.reshape(&state, &[1, state.dims[2]])
    }
}

/// A gated recurrent unit (Cho et al. 2014, section 2.3), in the form of PyTorch's `GRUCell`: the reset gate multiplies
/// the state after its linear layer.
#[derive(Module, Debug)]
pub struct GruCell {
    /// The layer from the input to the reset gate, the update gate, and the candidate: `[dim, 3 * dim]`.
    pub input: Linear,
    /// The same from the state.
    pub state: Linear,
}

impl GruCell {
    /// Fresh parameters from PyTorch's distribution.
    pub fn new(dim: usize, device: &Device) -> Self {
        let bound = (dim as f64).powf(-0.5);
        let layer =
            || Linear::of(uniform([dim, 3 * dim], bound, device), Some(uniform([3 * dim], bound, device)));
        Self { input: layer(), state: layer() }
    }

    /// # Shapes
    /// - input, state, output: `[batch, 1, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::module::Param;
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::pooling::GruCell;
    ///
    /// let device = Device::default();
    /// let mut cell = GruCell::new(1, &device);
    /// for layer in [&mut cell.input, &mut cell.state] {
    ///     layer.weight = Param::from_tensor(Tensor::zeros([1, 3], &device));
    ///     layer.bias = Some(Param::from_tensor(Tensor::zeros([3], &device)));
    /// }
    /// // The update gate is 1/2 and the candidate 0: half of the state remains.
    /// let state = cell.forward(Tensor::ones([1, 1, 1], &device), Tensor::full([1, 1, 1], 4.0, &device));
    /// assert_eq!(state.into_scalar::<f32>(), 2.0);
    /// ```
    pub fn forward(&self, input: Tensor<3>, state: Tensor<3>) -> Tensor<3> {
        let dim = state.dims()[2];
        let (from_input, from_state) = (self.input.forward(input), self.state.forward(state.clone()));
        let part = |x: &Tensor<3>, index: usize| x.clone().narrow(2, index * dim, dim);
        let gate = |index: usize| activation::sigmoid(part(&from_input, index) + part(&from_state, index));
        let (reset, update) = (gate(0), gate(1));
        let candidate = (part(&from_input, 2) + reset * part(&from_state, 2)).tanh();
        candidate.clone() + update * (state - candidate)
    }

    fn trace(&self, graph: &mut Graph, input: &Value, state: &Value) -> Value {
        let from_input = self.input.trace(graph, "input", input);
        let from_state = self.state.trace(graph, "state", state);
        let [reset_input, update_input, candidate_input] = graph.split(&from_input, 2);
        let [reset_state, update_state, candidate_state] = graph.split(&from_state, 2);
        let [reset, update] =
            [(reset_input, reset_state), (update_input, update_state)].map(|(input, state)| {
                let sum = graph.add(&input, &state);
                graph.unary("Sigmoid", &sum)
            });
        let kept = graph.multiply(&reset, &candidate_state);
        let candidate = graph.add(&candidate_input, &kept);
        let candidate = graph.unary("Tanh", &candidate);
        let change = graph.binary("Sub", state, &candidate);
        let change = graph.multiply(&update, &change);
        graph.add(&candidate, &change)
    }

    /// The multiply-adds of one step.
    pub(super) fn cost(dim: usize) -> u64 {
        6 * (dim * dim) as u64
    }
}
