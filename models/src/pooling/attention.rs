//! Pooling by learned queries that attend to the patches.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::{attention_of, patches, trace_patches};
use crate::attention::CrossAttention;
use crate::graph::{Graph, Value};
use crate::linear::normal;
use crate::mlp::Mlp;
use crate::norm::LayerNorm;
use crate::{MlpKind, ModelConfig, Score};

/// Attention of a learned query to the patches, then a residual MLP (Zhai et al. 2022, 'Scaling Vision Transformers';
/// SigLIP). Dropout and the options of the blocks' attention and MLP do not apply to it, except for the
/// approximations of GELU.
#[derive(Module, Debug)]
pub struct AttentionPooling {
    prefix: usize,
    /// The query: `[1, 1, dim]`.
    pub latent: Param<Tensor<3>>,
    /// The attention of the query to the patches.
    pub attention: CrossAttention,
    norm: LayerNorm,
    mlp: Mlp,
}

impl AttentionPooling {
    /// Fresh parameters, with as many heads as the last stage.
    pub(super) fn new(config: &ModelConfig, device: &Device) -> Self {
        let (stage, dim) = (config.num_stages() - 1, config.last_dim());
        let kind = match config.mlp {
            MlpKind::GeluTanh => MlpKind::GeluTanh,
            MlpKind::QuickGelu => MlpKind::QuickGelu,
            MlpKind::Gelu | MlpKind::Relu | MlpKind::SwiGlu | MlpKind::DepthwiseChannel => MlpKind::Gelu,
        };
        Self {
            prefix: config.num_prefix_tokens(),
            latent: query(1, dim, device),
            attention: attention_of(config, Score::ScaledDot, device),
            norm: LayerNorm::new(dim, config.norm_epsilon, device),
            mlp: Mlp::new(kind, [dim, config.mlp_dim(stage)], false, 0.0, device),
        }
    }

    pub(super) fn forward(&self, tokens: Tensor<3>) -> Tensor<2> {
        let pooled = self.attention.forward(self.latent.val(), patches(tokens, self.prefix));
        (pooled.clone() + self.mlp.forward(self.norm.forward(pooled), 1, [0, 0])).squeeze_dim(1)
    }

    pub(super) fn trace(&self, graph: &mut Graph, tokens: &Value) -> Value {
        let patches = trace_patches(graph, tokens, self.prefix);
        let latent = graph.constant("latent", self.latent.val());
        let pooled = self.attention.trace(graph, &latent, &patches);
        let normalized = self.norm.trace(graph, "norm", &pooled);
        let mapped = self.mlp.trace(graph, &normalized, 1, [0, 0]);
        let pooled = graph.add(&pooled, &mapped);
        graph.reshape(&pooled, &[1, pooled.dims[2]])
    }

    /// The weights of the patches: `[batch, heads, 1, patches]`.
    pub(super) fn weights(&self, tokens: Tensor<3>) -> Tensor<4> {
        self.attention.forward_with_weights(self.latent.val(), patches(tokens, self.prefix)).1
    }
}

/// Attention of several learned queries to the patches, whose results are concatenated (after Lee et al. 2019,
/// 'Set Transformer', section 3.2, pooling by multi-head attention, without its MLP).
#[derive(Module, Debug)]
pub struct QueriesPooling {
    prefix: usize,
    /// The queries: `[1, queries, dim]`.
    pub queries: Param<Tensor<3>>,
    /// The attention of the queries to the patches.
    pub attention: CrossAttention,
}

impl QueriesPooling {
    /// Fresh parameters, with as many heads as the last stage.
    pub(super) fn new(config: &ModelConfig, queries: usize, device: &Device) -> Self {
        Self {
            prefix: config.num_prefix_tokens(),
            queries: query(queries, config.last_dim(), device),
            attention: attention_of(config, Score::ScaledDot, device),
        }
    }

    /// # Shapes
    /// - tokens: `[batch, tokens, dim]`
    /// - output: `[batch, queries * dim]`
    pub(super) fn forward(&self, tokens: Tensor<3>) -> Tensor<2> {
        self.attention.forward(self.queries.val(), patches(tokens, self.prefix)).flatten(1, 2)
    }

    pub(super) fn trace(&self, graph: &mut Graph, tokens: &Value) -> Value {
        let patches = trace_patches(graph, tokens, self.prefix);
        let queries = graph.constant("queries", self.queries.val());
        let pooled = self.attention.trace(graph, &queries, &patches);
        graph.reshape(&pooled, &[1, pooled.dims[1] * pooled.dims[2]])
    }

    /// The weights of the patches: `[batch, heads, queries, patches]`.
    pub(super) fn weights(&self, tokens: Tensor<3>) -> Tensor<4> {
        self.attention.forward_with_weights(self.queries.val(), patches(tokens, self.prefix)).1
    }
}

/// Learned queries, of about unit length: `[1, count, dim]`.
pub(super) fn query(count: usize, dim: usize, device: &Device) -> Param<Tensor<3>> {
    normal([1, count, dim], (dim as f64).powf(-0.5), device)
}
