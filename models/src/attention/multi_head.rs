//! Multi-head self-attention (Vaswani et al. 2017, section 3.2).

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Bool, Device, Tensor, activation};

use crate::ModelConfig;
use crate::linear::Linear;
use crate::ops;

/// Scaled dot-product attention of every token with every token, in several heads.
#[derive(Module, Debug)]
pub struct MultiHeadAttention {
    /// From a token to its query, key and value, in this order, each head after head: `[dim, 3 * dim]`.
    pub qkv: Linear,
    /// From the joined heads back to a token.
    pub proj: Linear,
    num_heads: usize,
    attention_dropout: Dropout,
    proj_dropout: Dropout,
}

impl MultiHeadAttention {
    /// Fresh parameters for tokens of `config.embed_dim` values.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let dim = config.embed_dim;
        Self {
            qkv: Linear::new(dim, 3 * dim, config.qkv_bias, device),
            proj: Linear::new(dim, dim, true, device),
            num_heads: config.num_heads,
            attention_dropout: DropoutConfig::new(config.attention_dropout).init(),
            proj_dropout: DropoutConfig::new(config.dropout).init(),
        }
    }

    /// # Shapes
    /// - x: `[batch, tokens, dim]`
    /// - bias: added to the scores, `[batch or 1, heads or 1, tokens, tokens]`; [`hide`] makes one from a mask
    /// - output: `[batch, tokens, dim]`
    pub fn forward(&self, x: Tensor<3>, bias: Option<Tensor<4>>) -> Tensor<3> {
        let [_, _, dim] = x.dims();
        let drops = self.attention_dropout.prob > 0.0 && x.device().is_autodiff();
        let mixed = if drops {
            self.attend(x, bias).0
        } else {
            ops::self_attention(self.qkv.forward(x), self.num_heads, self.scale(dim), bias)
        };
        self.proj_dropout.forward(self.proj.forward(mixed))
    }

    /// [`Self::forward`] that also returns how much each token (row) looked at each other one (column).
    ///
    /// # Shapes
    /// - x, bias and the first output: as in [`Self::forward`]
    /// - second output: `[batch, heads, tokens, tokens]`, rows sum to 1
    pub fn forward_with_weights(&self, x: Tensor<3>, bias: Option<Tensor<4>>) -> (Tensor<3>, Tensor<4>) {
        let (mixed, weights) = self.attend(x, bias);
        (self.proj_dropout.forward(self.proj.forward(mixed)), weights)
    }

    /// The joined heads before `proj`, and the attention weights, step by step.
    fn attend(&self, x: Tensor<3>, bias: Option<Tensor<4>>) -> (Tensor<3>, Tensor<4>) {
        let [batch, tokens, dim] = x.dims();
        let packed = self
            .qkv
            .forward(x)
            .reshape([batch, tokens, 3, self.num_heads, dim / self.num_heads])
            .permute([2, 0, 3, 1, 4]); // [3, batch, heads, tokens, head_dim]
        let part = |index: usize| packed.clone().narrow(0, index, 1).squeeze_dim::<4>(0);
        let scores = part(0).matmul(part(1).swap_dims(2, 3)).mul_scalar(self.scale(dim));
        let scores = match bias {
            Some(bias) => scores + bias,
            None => scores,
        };
        let weights = activation::softmax(scores, 3);
        let mixed = self.attention_dropout.forward(weights.clone()).matmul(part(2));
        (mixed.swap_dims(1, 2).reshape([batch, tokens, dim]), weights)
    }

    fn scale(&self, dim: usize) -> f64 {
        ((dim / self.num_heads) as f64).powf(-0.5)
    }
}

/// A score bias that keeps attention away from what `mask` marks.
///
/// The bias is large and finite: a row that hides everything attends evenly instead of giving NaN.
///
/// # Shapes
/// - mask: `[batch or 1, heads or 1, tokens, tokens]`, true where a row must not see a column
/// - output: the same
pub fn hide(mask: Tensor<4, Bool>) -> Tensor<4> {
    mask.float().mul_scalar(-1e30)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::preset;
    use burn::tensor::{Distribution, TensorData, Tolerance};

    fn layer(device: &Device) -> (MultiHeadAttention, Tensor<3>) {
        let config = preset::find("vit_pico_patch4_32").unwrap();
        let layer = MultiHeadAttention::new(&config, device);
        let x = Tensor::random([2, 9, config.embed_dim], Distribution::Normal(0.0, 1.0), device);
        (layer, x)
    }

    #[test]
    fn weights_on_request_change_nothing_and_sum_to_one() {
        let (layer, x) = layer(&Device::default());
        let plain = layer.forward(x.clone(), None);
        let (same, weights) = layer.forward_with_weights(x, None);
        plain.into_data().assert_approx_eq::<f32>(&same.into_data(), Tolerance::absolute(1e-5));
        let [batch, heads, tokens, _] = weights.dims();
        let ones = Tensor::<4>::ones([batch, heads, tokens, 1], &weights.device());
        weights.sum_dim(3).into_data().assert_approx_eq::<f32>(&ones.into_data(), Tolerance::absolute(1e-5));
    }

    #[test]
    fn a_hidden_token_has_no_influence() {
        let device = Device::default();
        let (layer, x) = layer(&device);
        let [_, tokens, dim] = x.dims();
        let mask: Vec<bool> = (0..tokens * tokens).map(|i| i % tokens == tokens - 1).collect();
        let mask = Tensor::<4, Bool>::from_data(TensorData::new(mask, [1, 1, tokens, tokens]), &device);
        let other = Tensor::cat(
            vec![x.clone().narrow(1, 0, tokens - 1), Tensor::ones([2, 1, dim], &device).mul_scalar(7.0)],
            1,
        );
        let see = |x: Tensor<3>| layer.forward(x, Some(hide(mask.clone()))).narrow(1, 0, tokens - 1);
        see(x).into_data().assert_approx_eq::<f32>(&see(other).into_data(), Tolerance::absolute(1e-6));
    }
}
