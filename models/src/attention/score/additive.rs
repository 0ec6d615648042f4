//! The additive score (Bahdanau et al. 2015, appendix A.1.2).

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::linear::uniform;
use crate::ops;

/// `vector · tanh(query * q + key * k)`.
#[derive(Module, Debug)]
pub struct AdditiveScore {
    /// `[heads, head_dim, head_dim]`, the query from the left.
    pub query: Param<Tensor<3>>,
    /// `[heads, head_dim, head_dim]`, the key from the left.
    pub key: Param<Tensor<3>>,
    /// `[heads, head_dim, 1]`.
    pub vector: Param<Tensor<3>>,
}

impl AdditiveScore {
    pub(super) fn new([heads, dim]: [usize; 2], device: &Device) -> Self {
        let bound = 1.0 / (dim as f64).sqrt();
        Self {
            query: uniform([heads, dim, dim], bound, device),
            key: uniform([heads, dim, dim], bound, device),
            vector: uniform([heads, dim, 1], bound, device),
        }
    }

    /// # Shapes
    /// - q: `[batch, heads, queries, head_dim]`; k: `[batch, heads, keys, head_dim]`
    /// - output: `[batch, heads, queries, keys]`
    pub(super) fn forward(&self, q: Tensor<4>, k: Tensor<4>) -> Tensor<4> {
        let [batch, heads, queries, dim] = q.dims();
        let keys = k.dims()[2];
        let q = ops::matmul(q, self.query.val().unsqueeze()).reshape([batch, heads, queries, 1, dim]);
        let k = ops::matmul(k, self.key.val().unsqueeze()).reshape([batch, heads, 1, keys, dim]);
        let hidden = (q + k).tanh().reshape([batch, heads, queries * keys, dim]);
        ops::matmul(hidden, self.vector.val().unsqueeze()).reshape([batch, heads, queries, keys])
    }
}
