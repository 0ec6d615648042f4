//! Cross-covariance attention, between the channels of a head instead of between tokens (El-Nouby et al. 2021, XCiT,
//! section 3.2).

use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Device, Tensor, activation};

use super::multi_head::{drops, join, trace_join};
use super::score::l2_normalize;
use super::{AttentionSpec, MixerCost, product};
use crate::graph::{Graph, Value};
use crate::linear::{Linear, constant};
use crate::{AttentionOptions, ConfigError, ModelConfig};

/// Attention between channels. Its cost is proportional to the number of tokens, not to the square of it.
#[derive(Module, Debug)]
pub struct CrossCovarianceAttention {
    /// The layer to queries, keys and values, as in [`MultiHeadAttention`](super::MultiHeadAttention).
    pub qkv: Linear,
    /// The factor of the cosines between channels: `[heads, 1, 1]`.
    pub temperature: Param<Tensor<3>>,
    /// The layer from the joined heads back to a token.
    pub proj: Linear,
    num_heads: usize,
    attention_dropout: Dropout,
    proj_dropout: Dropout,
}

impl CrossCovarianceAttention {
    /// Fresh parameters.
    pub fn new(spec: &AttentionSpec, device: &Device) -> Self {
        Self {
            qkv: Linear::new(spec.dim, 3 * spec.dim, spec.qkv_bias, device),
            temperature: constant([spec.num_heads, 1, 1], 1.0, device),
            proj: Linear::new(spec.dim, spec.dim, true, device),
            num_heads: spec.num_heads,
            attention_dropout: DropoutConfig::new(spec.attention_dropout).init(),
            proj_dropout: DropoutConfig::new(spec.dropout).init(),
        }
    }

    /// The projections of all tokens.
    pub(crate) fn linear_layers(&mut self) -> [&mut Linear; 2] {
        [&mut self.qkv, &mut self.proj]
    }

    /// # Shapes
    /// - x, output: `[batch, tokens, dim]`
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        if drops(&self.attention_dropout, &x.device()) {
            return self.forward_with_weights(x).0;
        }
        let [q, k, v] = self.heads(x);
        self.finish(vitrine_kernels::attention(q, k, v, 1.0, None))
    }

    /// [`Self::forward`], which also returns the attention weights of each channel of a head (row) to the others:
    /// `[batch, heads, head_dim, head_dim]`.
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use vitrine_models::attention::{AttentionSpec, CrossCovarianceAttention};
    /// use vitrine_models::preset;
    ///
    /// let device = Device::default();
    /// let spec = AttentionSpec::of_stage(&preset::find("vit_pico_patch4_32").expect("listed"), 0);
    /// let layer = CrossCovarianceAttention::new(&spec, &device);
    /// for tokens in [16, 64] {
    ///     let x = Tensor::<3>::random([1, tokens, 96], Distribution::Normal(0.0, 1.0), &device);
    ///     let (y, weights) = layer.forward_with_weights(x);
    ///     assert_eq!(y.dims(), [1, tokens, 96]);
    ///     // The number of weights does not depend on the number of tokens; those of a channel sum to 1.
    ///     assert_eq!(weights.dims(), [1, 3, 32, 32]);
    ///     assert!((weights.sum_dim(3) - 1.0).abs().max().into_scalar::<f32>() < 1e-5);
    /// }
    /// ```
    pub fn forward_with_weights(&self, x: Tensor<3>) -> (Tensor<3>, Tensor<4>) {
        let [q, k, v] = self.heads(x);
        let weights = activation::softmax(q.matmul(k.swap_dims(2, 3)), 3);
        (self.finish(self.attention_dropout.forward(weights.clone()).matmul(v)), weights)
    }

    /// Queries, keys and values: `[batch, heads, head_dim, tokens]`. A channel is a vector over the tokens. The vectors
    /// of queries and keys are normalized, and queries are multiplied by the temperature.
    fn heads(&self, x: Tensor<3>) -> [Tensor<4>; 3] {
        let [batch, tokens, dim] = x.dims();
        let packed = self.qkv.forward(x);
        let [q, k, v] = [0, 1, 2].map(|part| {
            packed
                .clone()
                .narrow(2, part * dim, dim)
                .reshape([batch, tokens, self.num_heads, dim / self.num_heads])
                .permute([0, 2, 3, 1])
        });
        [
            vitrine_kernels::l2_normalize(q) * self.temperature.val().unsqueeze(),
            vitrine_kernels::l2_normalize(k),
            v,
        ]
    }

    fn finish(&self, mixed: Tensor<4>) -> Tensor<3> {
        self.proj_dropout.forward(self.proj.forward(join(mixed.swap_dims(2, 3))))
    }

    /// [`Self::forward`] as operators.
    pub(crate) fn trace(&self, graph: &mut Graph, x: &Value) -> Value {
        let [batch, tokens, dim] = x.dims[..] else { panic!("tokens have three dimensions") };
        let packed = self.qkv.trace(graph, "qkv", x);
        let parts: [Value; 3] = graph.split(&packed, 2);
        let [q, k, v] = parts.map(|part| {
            let heads = graph.reshape(&part, &[batch, tokens, self.num_heads, dim / self.num_heads]);
            graph.transpose(&heads, &[0, 2, 3, 1])
        });
        let temperature = graph.constant("temperature", self.temperature.val().unsqueeze::<4>());
        let (q, k) = (l2_normalize(graph, &q), l2_normalize(graph, &k));
        let q = graph.multiply(&q, &temperature);
        let k = graph.transpose(&k, &[0, 1, 3, 2]);
        let scores = graph.matmul(&q, &k);
        let weights = graph.softmax(&scores);
        let mixed = graph.matmul(&weights, &v);
        let mixed = graph.transpose(&mixed, &[0, 1, 3, 2]);
        let joined = trace_join(graph, &mixed);
        self.proj.trace(graph, "proj", &joined)
    }
}

/// Checks that no other score is chosen: cross-covariance attention has its own.
pub(super) fn check(config: &ModelConfig) -> Result<(), ConfigError> {
    let given = AttentionOptions { relative_position: None, ..config.attention };
    if given == AttentionOptions::default() {
        return Ok(());
    }
    Err(ConfigError(
        "`cross_covariance` in `mixers` has its own score: `attention` may state no `score`, `normalizer`, `qk_norm` or \
         `talking_heads`"
            .into(),
    ))
}

/// The cost, which is proportional to the number of tokens.
pub(super) fn cost(spec: &AttentionSpec, tokens: usize) -> MixerCost {
    let (dim, head_dim) = (spec.dim, spec.head_dim());
    MixerCost {
        projections: 4 * product([tokens, dim, dim]),
        attention: 2 * product([tokens, dim, head_dim]),
        attention_weights: product([spec.num_heads, head_dim, head_dim]),
    }
}
