//! A decoder with a learned query for each class, which attends to the patches.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::attention::query;
use super::{attention_of, patches, spec, trace_patches};
use crate::attention::{AttentionSpec, Context, CrossAttention, MultiHeadAttention, product};
use crate::graph::{Graph, Value};
use crate::mlp::Mlp;
use crate::norm::LayerNorm;
use crate::{AttentionOptions, BlockStyle, ModelConfig, Score};

/// Queries, one per class, in layers of attention among them, attention to the patches, and an MLP (Vaswani et al. 2017,
/// section 3.1; the learned queries of Carion et al. 2020, DETR, section 3.2; one per class as in Liu et al. 2021,
/// Query2Label, section 3.2). The head computes the logit of a class from its own query.
///
/// Dropout and the options of the blocks' attention do not apply to it. Unlike in DETR, positions are not added to its
/// keys: the patches have them already. It belongs to the head: it learns with a frozen backbone, and Muon leaves it to
/// AdamW.
#[derive(Module, Debug)]
pub struct ClassQueries {
    prefix: usize,
    /// The queries: `[1, classes, dim]`.
    pub class_queries: Param<Tensor<3>>,
    /// The layers.
    pub layers: Vec<DecoderLayer>,
    /// The norm after the last layer; absent if the layers normalize after their branches.
    pub final_norm: Option<LayerNorm>,
}

/// A layer of the decoder, in the form of PyTorch's `TransformerDecoderLayer`. With [`BlockStyle::PostNorm`] it
/// normalizes after each branch, with the other styles before.
#[derive(Module, Debug)]
pub struct DecoderLayer {
    /// The norm of the attention among queries.
    pub self_norm: LayerNorm,
    /// The attention among queries.
    pub self_attention: MultiHeadAttention,
    /// The norm of the attention to the patches.
    pub cross_norm: LayerNorm,
    /// The attention to the patches.
    pub cross_attention: CrossAttention,
    /// The norm of the MLP.
    pub feed_forward_norm: LayerNorm,
    /// The MLP of each query.
    pub mlp: Mlp,
    normalizes_after: bool,
}

impl ClassQueries {
    /// Fresh parameters, with the width and the heads of the last stage.
    pub(super) fn new(config: &ModelConfig, depth: usize, device: &Device) -> Self {
        let dim = config.last_dim();
        let normalizes_after = config.block == BlockStyle::PostNorm;
        Self {
            prefix: config.num_prefix_tokens(),
            class_queries: query(config.num_classes, dim, device),
            layers: (0..depth).map(|_| DecoderLayer::new(config, device)).collect(),
            final_norm: (!normalizes_after).then(|| LayerNorm::new(dim, config.norm_epsilon, device)),
        }
    }

    /// The queries after the last layer.
    ///
    /// # Shapes
    /// - tokens: `[batch, tokens, dim]`
    /// - output: `[batch, classes, dim]`
    pub fn forward(&self, tokens: Tensor<3>) -> Tensor<3> {
        let (queries, patches) = self.start(tokens);
        self.finish(
            self.layers.iter().fold(queries, |queries, layer| layer.forward(queries, patches.clone())),
        )
    }

    /// The attention weights of the last layer: `[batch, heads, classes, patches]`.
    pub(super) fn weights(&self, tokens: Tensor<3>) -> Tensor<4> {
        let (mut queries, patches) = self.start(tokens);
        let mut weights = None;
        for layer in &self.layers {
            let (next, seen) = layer.forward_with_weights(queries, patches.clone());
            (queries, weights) = (next, Some(seen));
        }
        weights.expect("a validated configuration has a layer")
    }

    /// The mean of the patches: `[batch, dim]`.
    pub(super) fn mean_of_patches(&self, tokens: Tensor<3>) -> Tensor<2> {
        patches(tokens, self.prefix).mean_dim(1).squeeze_dim(1)
    }

    /// The tokens before the patches.
    pub(super) fn prefix(&self) -> usize {
        self.prefix
    }

    fn start(&self, tokens: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        let batch = tokens.dims()[0];
        (self.class_queries.val().repeat_dim(0, batch), patches(tokens, self.prefix))
    }

    fn finish(&self, queries: Tensor<3>) -> Tensor<3> {
        match &self.final_norm {
            Some(norm) => norm.forward(queries),
            None => queries,
        }
    }

    /// [`Self::forward`] as operators.
    pub(crate) fn trace(&self, graph: &mut Graph, tokens: &Value) -> Value {
        graph.within("head", |graph| {
            let patches = trace_patches(graph, tokens, self.prefix);
            let queries = graph.constant("queries", self.class_queries.val());
            let queries = self.layers.iter().enumerate().fold(queries, |queries, (index, layer)| {
                graph.within(format!("layers.{index}"), |graph| layer.trace(graph, &queries, &patches))
            });
            match &self.final_norm {
                Some(norm) => norm.trace(graph, "norm", &queries),
                None => queries,
            }
        })
    }

    /// The multiply-adds of `depth` layers with this number of patches.
    pub(super) fn cost(config: &ModelConfig, depth: usize, patches: usize) -> u64 {
        let (stage, dim, classes) = (config.num_stages() - 1, config.last_dim(), config.num_classes);
        let among = 4 * product([classes, dim, dim]) + 2 * product([classes, classes, dim]);
        let to_patches = CrossAttention::cost(&spec(config, Score::ScaledDot), [classes, patches]);
        let mlp = product([config.mlp.matrices(), classes, dim, config.mlp_dim(stage)]);
        depth as u64 * (among + to_patches + mlp)
    }
}

impl DecoderLayer {
    fn new(config: &ModelConfig, device: &Device) -> Self {
        let (stage, dim) = (config.num_stages() - 1, config.last_dim());
        let norm = || LayerNorm::new(dim, config.norm_epsilon, device);
        let options = AttentionOptions::default(); // plain attention among queries, whatever `pool_score` is
        let plain = AttentionSpec { options, ..spec(config, Score::ScaledDot) };
        Self {
            self_norm: norm(),
            self_attention: MultiHeadAttention::new(&plain, device),
            cross_norm: norm(),
            cross_attention: attention_of(config, Score::ScaledDot, device),
            feed_forward_norm: norm(),
            mlp: Mlp::new(config.mlp.without_neighbors(), [dim, config.mlp_dim(stage)], false, 0.0, device),
            normalizes_after: config.block == BlockStyle::PostNorm,
        }
    }

    /// # Shapes
    /// - queries, output: `[batch, queries, dim]`
    /// - patches: `[batch, patches, dim]`
    pub fn forward(&self, queries: Tensor<3>, patches: Tensor<3>) -> Tensor<3> {
        self.run(queries, |x| self.cross_attention.forward(x, patches))
    }

    /// [`Self::forward`], which also returns the weights of the patches: `[batch, heads, queries, patches]`.
    pub fn forward_with_weights(&self, queries: Tensor<3>, patches: Tensor<3>) -> (Tensor<3>, Tensor<4>) {
        let mut weights = None;
        let queries = self.run(queries, |x| {
            let (seen, of_patches) = self.cross_attention.forward_with_weights(x, patches);
            weights = Some(of_patches);
            seen
        });
        (queries, weights.expect("the layer attends to the patches once"))
    }

    /// The layer, with `attend` for its attention to the patches.
    fn run(&self, queries: Tensor<3>, attend: impl FnOnce(Tensor<3>) -> Tensor<3>) -> Tensor<3> {
        let among = |x| self.self_attention.forward(x, &Context::default());
        let map = |x| self.mlp.forward(x, 1, [0, 0]);
        if self.normalizes_after {
            let x = self.self_norm.forward(queries.clone() + among(queries));
            let x = self.cross_norm.forward(x.clone() + attend(x));
            self.feed_forward_norm.forward(x.clone() + map(x))
        } else {
            let x = queries.clone() + among(self.self_norm.forward(queries));
            let x = x.clone() + attend(self.cross_norm.forward(x));
            x.clone() + map(self.feed_forward_norm.forward(x))
        }
    }

    fn trace(&self, graph: &mut Graph, queries: &Value, patches: &Value) -> Value {
        let x = self.trace_branch(graph, queries, ("norm1", &self.self_norm), |graph, x| {
            let context = Context::default();
            graph.within("self_attn", |graph| self.self_attention.trace(graph, x, &context, None))
        });
        let x = self.trace_branch(graph, &x, ("norm2", &self.cross_norm), |graph, x| {
            graph.within("cross_attn", |graph| self.cross_attention.trace(graph, x, patches))
        });
        let norm = ("norm3", &self.feed_forward_norm);
        self.trace_branch(graph, &x, norm, |graph, x| self.mlp.trace(graph, x, 1, [0, 0]))
    }

    fn trace_branch(
        &self,
        graph: &mut Graph,
        x: &Value,
        (name, norm): (&str, &LayerNorm),
        branch: impl FnOnce(&mut Graph, &Value) -> Value,
    ) -> Value {
        if self.normalizes_after {
            let added = branch(graph, x);
            let sum = graph.add(x, &added);
            norm.trace(graph, name, &sum)
        } else {
            let normalized = norm.trace(graph, name, x);
            let added = branch(graph, &normalized);
            graph.add(x, &added)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::weights::{NamedTensor, from_timm, to_timm};
    use crate::{Pool, testing};
    use burn::tensor::{Distribution, Tolerance};

    #[test]
    fn permuting_the_classes_permutes_the_logits() {
        let device = Device::default();
        let config = ModelConfig { pool: Pool::ClassQueries { depth: 2 }, ..testing::base() };
        let config = ModelConfig { class_token: false, ..config };
        let model = config.init(&device).unwrap();
        let reversed = |tensor: NamedTensor| {
            let width = if tensor.name == "head.bias" { 1 } else { config.embed_dim };
            let values = match tensor.name.as_str() {
                "head.queries" | "head.weight" | "head.bias" => {
                    tensor.values.chunks_exact(width).rev().flatten().copied().collect()
                }
                _ => tensor.values,
            };
            NamedTensor { values, ..tensor }
        };
        let tensors = to_timm(&model).into_iter().map(reversed).collect();
        let permuted = from_timm(config.init(&device).unwrap(), tensors).unwrap();
        let images = Tensor::<4>::random([3, 2, 8, 12], Distribution::Normal(0.0, 1.0), &device);
        let expected = model.forward(images.clone()).flip([1]).into_data();
        permuted.forward(images).into_data().assert_approx_eq::<f32>(&expected, Tolerance::absolute(1e-5));
    }
}
