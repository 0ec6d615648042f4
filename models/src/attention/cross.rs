//! Attention of one sequence to another: class attention (Touvron et al. 2021, CaiT, section 2.2) and pooling by
//! queries.

use burn::module::Module;
use burn::tensor::{Device, Tensor, activation};

use super::multi_head::{join, split, trace_join, trace_split};
use super::score::{DotScore, ScoreFunction, Scored};
use super::{AttentionSpec, product};
use crate::graph::{Graph, Value};
use crate::linear::Linear;

/// Multi-head attention with queries from one sequence, and keys and values from another.
#[derive(Module, Debug)]
pub struct CrossAttention {
    /// The layer from a token of the first sequence to its query.
    pub q: Linear,
    /// The layer from a token of the second sequence to its key.
    pub k: Linear,
    /// The layer from a token of the second sequence to its value.
    pub v: Linear,
    /// The layer from the joined heads back to a token.
    pub proj: Linear,
    /// The score of a query and a key.
    pub score: ScoreFunction,
    num_heads: usize,
}

impl CrossAttention {
    /// Fresh parameters for tokens of `dim` values and the score of scaled dot products; `bias` says whether the layers
    /// to query, key and value have a bias.
    pub fn new(dim: usize, num_heads: usize, bias: bool, device: &Device) -> Self {
        let scale = ((dim / num_heads) as f64).powf(-0.5);
        Self::with_score([dim, num_heads], bias, ScoreFunction::Dot(scale), device)
    }

    /// Fresh parameters, with the width, the heads, the bias and the score of `spec`. Its other settings do not apply.
    pub fn of_spec(spec: &AttentionSpec, device: &Device) -> Self {
        let score = ScoreFunction::new(spec, device);
        Self::with_score([spec.dim, spec.num_heads], spec.qkv_bias, score, device)
    }

    fn with_score([dim, num_heads]: [usize; 2], bias: bool, score: ScoreFunction, device: &Device) -> Self {
        let linear = |bias| Linear::new(dim, dim, bias, device);
        Self { q: linear(bias), k: linear(bias), v: linear(bias), proj: linear(true), score, num_heads }
    }

    /// # Shapes
    /// - queries: `[batch or 1, queries, dim]`
    /// - tokens: `[batch, tokens, dim]`
    /// - output: `[batch, queries, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor, Tolerance};
    /// use vitrine_models::attention::CrossAttention;
    ///
    /// let device = Device::default();
    /// let layer = CrossAttention::new(8, 2, true, &device);
    /// let queries = Tensor::<3>::random([1, 3, 8], Distribution::Normal(0.0, 1.0), &device);
    /// let token = Tensor::<3>::random([5, 1, 8], Distribution::Normal(0.0, 1.0), &device);
    /// let y = layer.forward(queries, token.clone());
    /// assert_eq!(y.dims(), [5, 3, 8]);
    /// // A single token has all the weight: its value is the answer to every query.
    /// let value = layer.proj.forward(layer.v.forward(token)).repeat_dim(1, 3);
    /// y.into_data().assert_approx_eq::<f32>(&value.into_data(), Tolerance::absolute(1e-6));
    /// ```
    pub fn forward(&self, queries: Tensor<3>, tokens: Tensor<3>) -> Tensor<3> {
        let (keys, values) = self.keys_and_values(tokens);
        self.attend(queries, keys, values)
    }

    /// [`Self::forward`], which also returns the attention weights: `[batch, heads, queries, tokens]`.
    pub fn forward_with_weights(&self, queries: Tensor<3>, tokens: Tensor<3>) -> (Tensor<3>, Tensor<4>) {
        let (keys, values) = self.keys_and_values(tokens);
        self.attend_with_weights(queries, keys, values)
    }

    /// The keys and the values of tokens, for several calls of [`Self::attend`]: each `[batch, heads, tokens, head_dim]`.
    pub(crate) fn keys_and_values(&self, tokens: Tensor<3>) -> (Tensor<4>, Tensor<4>) {
        let keys = split(self.k.forward(tokens.clone()), self.num_heads);
        (keys, split(self.v.forward(tokens), self.num_heads))
    }

    /// [`Self::forward`] with computed keys and values.
    pub(crate) fn attend(&self, queries: Tensor<3>, keys: Tensor<4>, values: Tensor<4>) -> Tensor<3> {
        let queries = self.queries(queries, keys.dims()[0]);
        let mixed = match self.score.score(queries, keys) {
            Scored::Product(DotScore { q, k, scale, bias }) => {
                vitrine_kernels::attention(q, k, values, scale, bias)
            }
            scored => vitrine_kernels::matmul(activation::softmax(scored.values(), 3), values),
        };
        self.proj.forward(join(mixed))
    }

    /// [`Self::attend`], which also returns the attention weights.
    pub(crate) fn attend_with_weights(
        &self,
        queries: Tensor<3>,
        keys: Tensor<4>,
        values: Tensor<4>,
    ) -> (Tensor<3>, Tensor<4>) {
        let queries = self.queries(queries, keys.dims()[0]);
        let weights = activation::softmax(self.score.forward(queries, keys), 3);
        (self.proj.forward(join(vitrine_kernels::matmul(weights.clone(), values))), weights)
    }

    /// The queries of all heads, repeated for each sample if they are the same.
    fn queries(&self, queries: Tensor<3>, batch: usize) -> Tensor<4> {
        let same = queries.dims()[0] < batch;
        let queries = split(self.q.forward(queries), self.num_heads);
        if same { queries.repeat_dim(0, batch) } else { queries }
    }

    /// [`Self::forward`] as operators.
    pub(crate) fn trace(&self, graph: &mut Graph, queries: &Value, tokens: &Value) -> Value {
        let [keys, values] = self.trace_keys_and_values(graph, tokens);
        self.trace_attend(graph, queries, &keys, &values)
    }

    /// [`Self::keys_and_values`] as operators.
    pub(crate) fn trace_keys_and_values(&self, graph: &mut Graph, tokens: &Value) -> [Value; 2] {
        [("k", &self.k), ("v", &self.v)].map(|(name, layer)| {
            let projected = layer.trace(graph, name, tokens);
            trace_split(graph, &projected, self.num_heads)
        })
    }

    /// [`Self::attend`] as operators.
    pub(crate) fn trace_attend(
        &self,
        graph: &mut Graph,
        queries: &Value,
        keys: &Value,
        values: &Value,
    ) -> Value {
        let queries = self.q.trace(graph, "q", queries);
        let queries = trace_split(graph, &queries, self.num_heads);
        let scores = self.score.trace(graph, &queries, keys);
        let weights = graph.softmax(&scores);
        let mixed = graph.matmul(&weights, values);
        let joined = trace_join(graph, &mixed);
        self.proj.trace(graph, "proj", &joined)
    }

    /// The multiply-adds of `queries` queries to `keys` keys.
    pub(crate) fn cost(spec: &AttentionSpec, [queries, keys]: [usize; 2]) -> u64 {
        let layers = 2 * product([queries + keys, spec.dim, spec.dim]);
        layers + spec.options.score.cross_cost(spec, [queries, keys]) + product([queries, keys, spec.dim])
    }
}
