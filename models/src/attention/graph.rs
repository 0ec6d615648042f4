//! Attention along the edges of a graph, whose nodes are the patches.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::mask::HIDDEN;
use super::{AttentionSpec, Context, MixerCost, MultiHeadAttention, multi_head, product};
use crate::graph::{Attribute, FLOAT, Graph, Value};
use crate::{ConfigError, ModelConfig};

/// Attention of every patch to itself and to the patches nearest to it in feature space: the graph of Vision GNN (Han et
/// al. 2022, section 3.1), drawn anew in every block, with attention over its edges (Velickovic et al. 2018, GAT, section
/// 2.1) by the configured score. Prefix tokens see all tokens, and all tokens see them.
#[derive(Module, Debug)]
pub struct GraphAttention {
    /// The attention along the edges.
    pub inner: MultiHeadAttention,
    neighbors: usize,
    prefix: usize,
}

impl GraphAttention {
    /// Fresh parameters.
    pub fn new(spec: &AttentionSpec, neighbors: usize, prefix: usize, device: &Device) -> Self {
        Self { inner: MultiHeadAttention::new(spec, device), neighbors, prefix }
    }

    /// # Shapes
    /// - x, output: `[batch, tokens, dim]`
    pub fn forward(&self, x: Tensor<3>, context: &Context) -> Tensor<3> {
        let context = self.with_edges(&x, context);
        self.inner.forward(x, &context)
    }

    /// [`Self::forward`], which also returns the attention weights: `[batch, heads, tokens, tokens]`.
    pub fn forward_with_weights(&self, x: Tensor<3>, context: &Context) -> (Tensor<3>, Tensor<4>) {
        let context = self.with_edges(&x, context);
        self.inner.forward_with_weights(x, &context)
    }

    /// The context with a bias that keeps patches from those that are not their neighbors.
    fn with_edges(&self, x: &Tensor<3>, context: &Context) -> Context {
        let own = nearest(x.clone().detach(), self.neighbors, self.prefix);
        let bias = match context.bias.clone() {
            Some(bias) => own + bias,
            None => own,
        };
        Context { bias: Some(bias), ..context.clone() }
    }

    /// [`Self::forward`] as operators, for a context without a bias.
    pub(crate) fn trace(&self, graph: &mut Graph, x: &Value, context: &Context) -> Value {
        let edges = self.trace_nearest(graph, x);
        self.inner.trace(graph, x, context, Some(edges))
    }

    /// [`nearest`] as operators.
    fn trace_nearest(&self, graph: &mut Graph, x: &Value) -> Value {
        let (tokens, prefix) = (x.dims[1], self.prefix);
        let patches = tokens - prefix;
        let x = graph.narrow(x, 1, prefix, patches);
        let squares = graph.multiply(&x, &x);
        let squares = graph.reduce("ReduceSum", &squares, 2);
        let squares = graph.transpose(&squares, &[0, 2, 1]);
        let turned = graph.transpose(&x, &[0, 2, 1]);
        let products = graph.matmul(&x, &turned);
        let products = graph.scale(&products, -2.0);
        let distances = graph.add(&squares, &products);
        let own = Tensor::<2>::eye(patches, &Device::default()).mul_scalar(HIDDEN).unsqueeze::<3>();
        let own = graph.constant("own", own);
        let distances = graph.add(&distances, &own);
        let last = graph.smallest(&distances, self.neighbors + 1);
        let hidden = graph.binary("Greater", &distances, &last);
        let cast = vec![("to", Attribute::Int(FLOAT))];
        let hidden = graph.node("Cast", &[&hidden], cast, hidden.dims.clone());
        let hidden = graph.scale(&hidden, HIDDEN);
        let hidden = graph.pad(&hidden, &[0, prefix, prefix], &[0, 0, 0]);
        graph.reshape(&hidden, &[1, 1, tokens, tokens])
    }
}

/// The additive mask in which a patch sees itself and its `neighbors` nearest patches, by the Euclidean distance of their
/// vectors. Patches that are as far as the last of them are seen, too.
///
/// # Shapes
/// - x: `[batch, prefix + patches, dim]`, with more than `neighbors` patches
/// - output: `[batch, 1, tokens, tokens]`
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use vitrine_models::attention::nearest;
///
/// let x = Tensor::<3>::from_floats([[[0.0], [1.0], [5.0]]], &Device::default());
/// let bias = nearest(x, 1, 0).into_data().try_into_vec_as::<f32>()?;
/// let seen: Vec<bool> = bias.iter().map(|&bias| bias == 0.0).collect();
/// // The first two see each other; the third sees the second, which does not see it.
/// assert_eq!(seen, [true, true, false, true, true, false, false, true, true]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn nearest(x: Tensor<3>, neighbors: usize, prefix: usize) -> Tensor<4> {
    let [batch, tokens, _] = x.dims();
    let patches = tokens - prefix;
    let x = x.narrow(1, prefix, patches);
    // Without the square of the query, which is the same for all of its keys.
    let squares = x.clone().powf_scalar(2.0).sum_dim(2).swap_dims(1, 2);
    let x = x.unsqueeze_dim::<4>(1);
    let products = vitrine_kernels::matmul(x.clone(), x.swap_dims(2, 3)).squeeze_dim::<3>(1);
    let device = products.device();
    let own = Tensor::<2>::eye(patches, &device).mul_scalar(HIDDEN).unsqueeze::<3>();
    let distances = squares - products.mul_scalar(2.0) + own; // the own patch is nearest
    let last = distances.clone().neg().topk(neighbors + 1, 2).neg().narrow(2, neighbors, 1);
    let hidden = distances.greater(last).float().mul_scalar(HIDDEN).unsqueeze_dim::<4>(1);
    if prefix == 0 {
        return hidden;
    }
    let before = Tensor::zeros([batch, 1, patches, prefix], &device);
    let rows = Tensor::cat(vec![before, hidden], 3);
    Tensor::cat(vec![Tensor::zeros([batch, 1, prefix, tokens], &device), rows], 2)
}

/// Checks that there are patches that are no neighbors, in every stage.
pub(super) fn check_neighbors(neighbors: usize, config: &ModelConfig) -> Result<(), ConfigError> {
    if neighbors == 0 {
        return Err(ConfigError("`mixers`: `graph.neighbors` leaves nothing: it must be at least 1".into()));
    }
    for stage in 0..config.num_stages() {
        let patches: usize = config.stage_grid(stage).iter().product();
        if neighbors + 1 >= patches {
            return Err(ConfigError(format!(
                "`mixers`: `graph.neighbors` {neighbors} are all other patches of a stage ({patches} patches): use `global`"
            )));
        }
    }
    Ok(())
}

/// Checks that the configuration has edges, and that they join patches of its grid.
pub(super) fn check_adjacency(config: &ModelConfig) -> Result<(), ConfigError> {
    let Some(edges) = &config.adjacency else {
        return Err(ConfigError(
            "`mixers`: `adjacency` needs the key `adjacency`: a list of edges, or the name of a file with them".into(),
        ));
    };
    if config.num_stages() > 1 {
        return Err(ConfigError(
            "`mixers`: `adjacency` names patches of one grid and needs a single stage".into(),
        ));
    }
    let [rows, columns] = config.grid();
    match edges.iter().find(|edge| edge.iter().any(|&patch| patch >= rows * columns)) {
        Some([from, to]) => Err(ConfigError(format!(
            "`adjacency`: the edge [{from}, {to}] names a patch beyond those of the grid, {rows} by {columns} patches numbered from 0"
        ))),
        None => Ok(()),
    }
}

/// The cost of [`GraphAttention`]: the distances of all patches, and attention with a mask.
pub(super) fn cost(spec: &AttentionSpec, tokens: usize, prefix: usize) -> MixerCost {
    let patches = tokens - prefix;
    let whole = multi_head::cost(spec, [1, tokens]);
    MixerCost { attention: whole.attention + product([patches, patches, spec.dim]), ..whole }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Distribution, Int};

    #[test]
    fn patches_see_themselves_and_their_nearest_and_prefix_tokens_see_all() {
        let x = Tensor::<3>::random([3, 2 + 20, 4], Distribution::Normal(0.0, 1.0), &Device::default());
        let seen = nearest(x, 5, 2).equal_elem(0.0).int();
        let counts = seen.clone().sum_dim(3).into_data();
        for (token, count) in counts.iter::<i64>().enumerate() {
            assert_eq!(count, if token % 22 < 2 { 22 } else { 2 + 1 + 5 }, "{token}");
        }
        let own: Tensor<4, Int> = Tensor::<2>::eye(22, &Device::default()).int().unsqueeze();
        assert_eq!((seen * own).sum().into_scalar::<i64>(), 3 * 22);
    }
}
