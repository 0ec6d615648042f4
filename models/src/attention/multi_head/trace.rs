//! Multi-head attention as operators.

use burn::tensor::Device;

use super::super::{Context, normalizer};
use super::MultiHeadAttention;
use crate::graph::{Graph, Value};
use crate::linear::Linear;

impl MultiHeadAttention {
    /// [`Self::forward`] as operators. The bias of the scores is `bias`, which may depend on the input; the context has none.
    pub(crate) fn trace(
        &self,
        graph: &mut Graph,
        x: &Value,
        context: &Context,
        bias: Option<Value>,
    ) -> Value {
        let [q, k, v] = self.trace_heads(graph, x, context);
        let scores = self.score.trace(graph, &q, &k);
        let scores = match &self.talking_heads {
            Some(talking) => trace_between_heads(graph, "talking_heads.scores", &talking.scores, &scores),
            None => scores,
        };
        let mask = self.bias(context, &Device::default()).map(|mask| graph.constant("mask", mask));
        let scores =
            [mask, bias].iter().flatten().fold(scores, |scores, bias| add_bias(graph, &scores, bias));
        let weights = normalizer::trace(graph, &scores, self.normalizer);
        let weights = match &self.talking_heads {
            Some(talking) => trace_between_heads(graph, "talking_heads.weights", &talking.weights, &weights),
            None => weights,
        };
        let mixed = graph.matmul(&weights, &v);
        let joined = trace_join(graph, &mixed);
        self.proj.trace(graph, "proj", &joined)
    }

    /// Queries, keys and values of each head.
    fn trace_heads(&self, graph: &mut Graph, x: &Value, context: &Context) -> [Value; 3] {
        let dim = x.dims[2];
        let parts = match &context.position {
            Some(position) => {
                let position = graph.constant("position", position.clone());
                let placed = graph.add(x, &position);
                [("q", 0, &placed), ("k", 1, &placed), ("v", 2, x)].map(|(name, part, x)| {
                    let weight = self.qkv.weight.val().narrow(1, part * dim, dim);
                    let bias = self.qkv_bias().map(|bias| bias.narrow(0, part * dim, dim));
                    graph.linear(name, x, weight, bias)
                })
            }
            None => {
                let packed = graph.linear("qkv", x, self.qkv.weight.val(), self.qkv_bias());
                graph.split(&packed, 2)
            }
        };
        let [q, k, v] = parts.map(|part| trace_split(graph, &part, self.num_heads));
        let (q, k) = match &self.qk_norm {
            Some(norm) => (norm.q_norm.trace(graph, "q_norm", &q), norm.k_norm.trace(graph, "k_norm", &k)),
            None => (q, k),
        };
        match (&self.rotary, &context.rotary) {
            (Some(own), _) => [own.trace(graph, &q), own.trace(graph, &k), v],
            (None, Some(rotary)) => [rotary.trace(graph, &q), rotary.trace(graph, &k), v],
            (None, None) => [q, k, v],
        }
    }
}

/// The scores with a bias, which may differ between the windows of an image.
fn add_bias(graph: &mut Graph, scores: &Value, bias: &Value) -> Value {
    if bias.dims[0] == 1 {
        return graph.add(scores, bias);
    }
    // The scores of all images stand one after the other, each with one place for every window.
    let split = |dims: &[usize]| [&[1], dims].concat();
    let by_window = graph.reshape(scores, &split(&scores.dims));
    let bias = graph.reshape(bias, &split(&bias.dims));
    let sum = graph.add(&by_window, &bias);
    graph.reshape(&sum, &scores.dims)
}

/// `[batch, tokens, dim]` as `[batch, heads, tokens, head_dim]`.
pub(in crate::attention) fn trace_split(graph: &mut Graph, x: &Value, num_heads: usize) -> Value {
    let [batch, tokens, dim] = x.dims[..] else { panic!("tokens have three dimensions") };
    let heads = graph.reshape(x, &[batch, tokens, num_heads, dim / num_heads]);
    graph.transpose(&heads, &[0, 2, 1, 3])
}

/// `[batch, heads, tokens, head_dim]` as `[batch, tokens, dim]`.
pub(in crate::attention) fn trace_join(graph: &mut Graph, x: &Value) -> Value {
    let [batch, heads, tokens, head_dim] = x.dims[..] else { panic!("heads have four dimensions") };
    let joined = graph.transpose(x, &[0, 2, 1, 3]);
    graph.reshape(&joined, &[batch, tokens, heads * head_dim])
}

fn trace_between_heads(graph: &mut Graph, name: &str, layer: &Linear, x: &Value) -> Value {
    let last = graph.transpose(x, &[0, 2, 3, 1]);
    let mixed = layer.trace(graph, name, &last);
    graph.transpose(&mixed, &[0, 3, 1, 2])
}
