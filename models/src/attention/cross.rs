//! Attention of one sequence to another: class attention (Touvron et al. 2021, CaiT, section 2.2) and pooling by a
//! learned query.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::multi_head::{join, split};
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
    num_heads: usize,
}

impl CrossAttention {
    /// Fresh parameters for tokens of `dim` values; `bias` says whether the layers to query, key and value have a bias.
    pub fn new(dim: usize, num_heads: usize, bias: bool, device: &Device) -> Self {
        let linear = |bias| Linear::new(dim, dim, bias, device);
        Self { q: linear(bias), k: linear(bias), v: linear(bias), proj: linear(true), num_heads }
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
        let ([same, _, dim], [batch, _, _]) = (queries.dims(), tokens.dims());
        let q = split(self.q.forward(queries), self.num_heads);
        let q = if same < batch { q.repeat_dim(0, batch) } else { q };
        let k = split(self.k.forward(tokens.clone()), self.num_heads);
        let v = split(self.v.forward(tokens), self.num_heads);
        let scale = ((dim / self.num_heads) as f64).powf(-0.5);
        self.proj.forward(join(vitrine_kernels::attention(q, k, v, scale, None)))
    }
}
