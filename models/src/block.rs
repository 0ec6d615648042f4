//! The residual block: a token mixer, then an MLP on every token, each behind a norm (pre-norm).

use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Device, Tensor};

use crate::ModelConfig;
use crate::attention::MultiHeadAttention;
use crate::drop_path::DropPath;
use crate::linear::{Linear, constant};
use crate::norm::LayerNorm;
use crate::ops;

/// `x + mixer(norm(x))`, then `x + mlp(norm(x))` (Dosovitskiy et al. 2021, equations 2 and 3).
#[derive(Module, Debug)]
pub struct Block {
    mixer_norm: LayerNorm,
    mixer: MultiHeadAttention,
    mixer_scale: Option<LayerScale>,
    mlp_norm: LayerNorm,
    mlp: Mlp,
    mlp_scale: Option<LayerScale>,
    drop_path: DropPath,
}

/// A learned factor for each channel of a branch (Touvron et al. 2021, CaiT, section 2.1).
#[derive(Module, Debug)]
pub struct LayerScale {
    /// `[dim]`.
    pub gamma: Param<Tensor<1>>,
}

impl Block {
    /// The block at `index` (from 0): stochastic depth grows with it.
    pub fn new(config: &ModelConfig, index: usize, device: &Device) -> Self {
        let (dim, epsilon) = (config.embed_dim, config.norm_epsilon);
        let scale = || config.layer_scale.map(|value| LayerScale { gamma: constant([dim], value, device) });
        let last = (config.depth - 1).max(1) as f64;
        Self {
            mixer_norm: LayerNorm::new(dim, epsilon, device),
            mixer: MultiHeadAttention::new(config, device),
            mixer_scale: scale(),
            mlp_norm: LayerNorm::new(dim, epsilon, device),
            mlp: Mlp::new(config, device),
            mlp_scale: scale(),
            drop_path: DropPath::new(config.drop_path * index as f64 / last),
        }
    }

    /// # Shapes
    /// - x: `[batch, tokens, dim]`
    /// - bias: added to the attention scores, `[batch or 1, heads or 1, tokens, tokens]`
    /// - output: `[batch, tokens, dim]`
    pub fn forward(&self, x: Tensor<3>, bias: Option<Tensor<4>>) -> Tensor<3> {
        let mixed = self.mixer.forward(self.mixer_norm.forward(x.clone()), bias);
        self.finish(x, mixed)
    }

    /// [`Self::forward`] that also returns the attention weights `[batch, heads, tokens, tokens]`.
    pub fn forward_with_weights(&self, x: Tensor<3>, bias: Option<Tensor<4>>) -> (Tensor<3>, Tensor<4>) {
        let (mixed, weights) = self.mixer.forward_with_weights(self.mixer_norm.forward(x.clone()), bias);
        (self.finish(x, mixed), weights)
    }

    fn finish(&self, x: Tensor<3>, mixed: Tensor<3>) -> Tensor<3> {
        let x = self.add(x, mixed, &self.mixer_scale);
        let mapped = self.mlp.forward(self.mlp_norm.forward(x.clone()));
        self.add(x, mapped, &self.mlp_scale)
    }

    fn add(&self, x: Tensor<3>, branch: Tensor<3>, scale: &Option<LayerScale>) -> Tensor<3> {
        let keep = self.drop_path.factors(&x);
        ops::residual(x, branch, scale.as_ref().map(|scale| scale.gamma.val()), keep)
    }
}

/// Two linear layers with GELU between them.
#[derive(Module, Debug)]
pub struct Mlp {
    fc1: Linear,
    fc2: Linear,
    dropout: Dropout,
}

impl Mlp {
    /// From `embed_dim` to `embed_dim * mlp_ratio` and back.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let (dim, hidden) = (config.embed_dim, config.mlp_dim());
        Self {
            fc1: Linear::new(dim, hidden, true, device),
            fc2: Linear::new(hidden, dim, true, device),
            dropout: DropoutConfig::new(config.dropout).init(),
        }
    }

    /// # Shapes
    /// - x, output: `[batch, tokens, dim]`
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let hidden = self.dropout.forward(self.fc1.forward_gelu(x));
        self.dropout.forward(self.fc2.forward(hidden))
    }
}
