//! From all tokens to the one vector that the head sees.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, activation};

use crate::attention::CrossAttention;
use crate::linear::{Linear, normal};
use crate::mlp::Mlp;
use crate::norm::LayerNorm;
use crate::{BlockStyle, MlpKind, ModelConfig, Pool};

/// The pooling that the configuration chooses.
#[derive(Module, Debug)]
pub struct Pooling {
    #[module(skip)]
    kind: Pool,
    prefix: usize,
    /// Of the mean, in a plain model.
    fc_norm: Option<LayerNorm>,
    /// From a token to its score.
    sequence: Option<Linear>,
    latent: Option<AttentionPool>,
}

impl Pooling {
    /// Fresh parameters, if the pooling has any.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let dim = config.last_dim();
        let norm = || LayerNorm::new(dim, config.norm_epsilon, device);
        Self {
            kind: config.pool,
            prefix: config.num_prefix_tokens(),
            fc_norm: normalizes_mean(config).then(norm),
            sequence: (config.pool == Pool::Sequence).then(|| Linear::new(dim, 1, true, device)),
            latent: (config.pool == Pool::Attention).then(|| AttentionPool::new(config, device)),
        }
    }

    /// # Shapes
    /// - tokens: `[batch, tokens, dim]`
    /// - output: `[batch, dim]`
    pub fn forward(&self, tokens: Tensor<3>) -> Tensor<2> {
        let [_, count, _] = tokens.dims();
        let patches = |tokens: Tensor<3>| tokens.narrow(1, self.prefix, count - self.prefix);
        let pooled = match self.kind {
            Pool::ClassToken => tokens.narrow(1, 0, 1),
            Pool::Mean => patches(tokens).mean_dim(1),
            Pool::Sequence => {
                let patches = patches(tokens);
                let scores = self.sequence.as_ref().expect("made with the kind").forward(patches.clone());
                (patches * activation::softmax(scores, 1)).sum_dim(1)
            }
            Pool::Attention => self.latent.as_ref().expect("made with the kind").forward(patches(tokens)),
        };
        let pooled = pooled.squeeze_dim::<2>(1);
        match &self.fc_norm {
            Some(norm) => norm.forward(pooled),
            None => pooled,
        }
    }
}

/// Whether the mean is normalized, instead of the tokens before it.
pub(crate) fn normalizes_mean(config: &ModelConfig) -> bool {
    config.pool == Pool::Mean && config.num_stages() == 1 && config.block != BlockStyle::PostNorm
}

/// Attention of a learned query to the patches, then a residual MLP (Zhai et al. 2022, 'Scaling Vision Transformers';
/// SigLIP). It has neither dropout nor the options of the blocks' attention and MLP,
/// but for the tanh form of their GELU.
#[derive(Module, Debug)]
pub struct AttentionPool {
    /// The query: `[1, 1, dim]`.
    pub latent: Param<Tensor<3>>,
    /// Of the query to the tokens.
    pub attention: CrossAttention,
    norm: LayerNorm,
    mlp: Mlp,
}

impl AttentionPool {
    /// Fresh parameters, with as many heads as the last stage.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let (stage, dim) = (config.num_stages() - 1, config.last_dim());
        let kind = match config.mlp {
            MlpKind::GeluTanh => MlpKind::GeluTanh,
            MlpKind::Gelu | MlpKind::Relu | MlpKind::DepthwiseChannel => MlpKind::Gelu,
        };
        Self {
            latent: normal([1, 1, dim], (dim as f64).powf(-0.5), device),
            attention: CrossAttention::new(dim, config.num_heads[stage], true, device),
            norm: LayerNorm::new(dim, config.norm_epsilon, device),
            mlp: Mlp::new(kind, [dim, config.mlp_dim(stage)], false, 0.0, device),
        }
    }

    /// # Shapes
    /// - tokens: `[batch, tokens, dim]`
    /// - output: `[batch, 1, dim]`
    pub fn forward(&self, tokens: Tensor<3>) -> Tensor<3> {
        let pooled = self.attention.forward(self.latent.val(), tokens);
        pooled.clone() + self.mlp.forward(self.norm.forward(pooled), 1, [0, 0])
    }
}
