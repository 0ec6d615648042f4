//! Pooling: from all tokens to the one vector that the head takes.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::attention::{CrossAttention, product};
use crate::linear::{Linear, normal};
use crate::mlp::Mlp;
use crate::norm::LayerNorm;
use crate::{BlockStyle, MlpKind, ModelConfig, Pool};

/// The pooling that the configuration chooses.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // one per model
pub enum Pooling {
    /// The class token, which is the first token.
    ClassToken(usize),
    /// The mean of the patches.
    Mean(MeanPooling),
    /// A mean of the patches with weights that are computed from them.
    Sequence(SequencePooling),
    /// Attention of a learned query to the patches.
    Attention(AttentionPooling),
}

impl Pooling {
    /// Fresh parameters, if the pooling has any.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        match config.pool {
            Pool::ClassToken => Self::ClassToken(0),
            Pool::Mean => Self::Mean(MeanPooling::new(config, device)),
            Pool::Sequence => Self::Sequence(SequencePooling::new(config, device)),
            Pool::Attention => Self::Attention(AttentionPooling::new(config, device)),
        }
    }

    /// # Shapes
    /// - tokens: `[batch, tokens, dim]`
    /// - output: `[batch, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Int, Tensor};
    /// use vitrine_models::{pooling::Pooling, preset};
    ///
    /// let device = Device::default();
    /// let tokens = Tensor::<1, Int>::arange(0..2 * 3 * 256, &device).float().reshape([2, 3, 256]);
    /// let class_token = Pooling::new(&preset::find("vit_lite_7_4").expect("listed"), &device);
    /// let first = tokens.clone().narrow(1, 0, 1).squeeze_dim::<2>(1);
    /// assert_eq!(class_token.forward(tokens).into_data(), first.into_data());
    ///
    /// // The weights sum to 1: the mean of equal tokens is that token.
    /// let sequence = Pooling::new(&preset::find("cvt_7_4").expect("listed"), &device);
    /// let pooled = sequence.forward(Tensor::full([2, 64, 256], 3.0, &device));
    /// assert_eq!(pooled.dims(), [2, 256]);
    /// assert!((pooled - 3.0).abs().max().into_scalar::<f32>() < 1e-5);
    /// ```
    pub fn forward(&self, tokens: Tensor<3>) -> Tensor<2> {
        match self {
            Self::ClassToken(place) => tokens.narrow(1, *place, 1).squeeze_dim(1),
            Self::Mean(pooling) => pooling.forward(tokens),
            Self::Sequence(pooling) => pooling.forward(tokens),
            Self::Attention(pooling) => pooling.forward(tokens),
        }
    }
}

impl Pool {
    /// The multiply-adds for one image with this number of patches.
    pub(crate) fn cost(self, config: &ModelConfig, patches: usize) -> u64 {
        let dim = config.last_dim();
        match self {
            Self::ClassToken | Self::Mean => 0,
            Self::Sequence => product([patches, dim]),
            Self::Attention => {
                2 * product([dim, dim])
                    + 2 * product([patches, dim, dim])
                    + 2 * product([patches, dim])
                    + 2 * product([dim, config.mlp_dim(config.num_stages() - 1)])
            }
        }
    }
}

/// The tokens after the first `prefix`.
fn patches(tokens: Tensor<3>, prefix: usize) -> Tensor<3> {
    let [_, count, _] = tokens.dims();
    tokens.narrow(1, prefix, count - prefix)
}

/// The mean of the patches.
#[derive(Module, Debug)]
pub struct MeanPooling {
    prefix: usize,
    /// The norm of the mean, in a plain model.
    fc_norm: Option<LayerNorm>,
}

impl MeanPooling {
    fn new(config: &ModelConfig, device: &Device) -> Self {
        let norm = || LayerNorm::new(config.last_dim(), config.norm_epsilon, device);
        Self { prefix: config.num_prefix_tokens(), fc_norm: normalizes_mean(config).then(norm) }
    }

    fn forward(&self, tokens: Tensor<3>) -> Tensor<2> {
        let mean = patches(tokens, self.prefix).mean_dim(1).squeeze_dim::<2>(1);
        match &self.fc_norm {
            Some(norm) => norm.forward(mean),
            None => mean,
        }
    }
}

/// The mean of the patches, weighted by a softmax over learned scores (Hassani et al. 2021, section 3.2).
#[derive(Module, Debug)]
pub struct SequencePooling {
    prefix: usize,
    /// The layer from a token to its score.
    sequence: Linear,
}

impl SequencePooling {
    fn new(config: &ModelConfig, device: &Device) -> Self {
        let sequence = Linear::new(config.last_dim(), 1, true, device);
        Self { prefix: config.num_prefix_tokens(), sequence }
    }

    fn forward(&self, tokens: Tensor<3>) -> Tensor<2> {
        let Linear { weight, bias } = &self.sequence;
        vitrine_kernels::sequence_pool(
            patches(tokens, self.prefix),
            weight.val(),
            bias.as_ref().map(Param::val),
        )
    }
}

/// Whether the mean of the tokens is normalized, and not the tokens before it.
pub(crate) fn normalizes_mean(config: &ModelConfig) -> bool {
    config.pool == Pool::Mean && config.num_stages() == 1 && config.block != BlockStyle::PostNorm
}

/// Attention of a learned query to the patches, then a residual MLP (Zhai et al. 2022, 'Scaling Vision Transformers';
/// SigLIP). Dropout and the options of the blocks' attention and MLP do not apply to it, except for the tanh form of
/// GELU.
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
    fn new(config: &ModelConfig, device: &Device) -> Self {
        let (stage, dim) = (config.num_stages() - 1, config.last_dim());
        let kind = match config.mlp {
            MlpKind::GeluTanh => MlpKind::GeluTanh,
            MlpKind::Gelu | MlpKind::Relu | MlpKind::DepthwiseChannel => MlpKind::Gelu,
        };
        Self {
            prefix: config.num_prefix_tokens(),
            latent: normal([1, 1, dim], (dim as f64).powf(-0.5), device),
            attention: CrossAttention::new(dim, config.num_heads[stage], true, device),
            norm: LayerNorm::new(dim, config.norm_epsilon, device),
            mlp: Mlp::new(kind, [dim, config.mlp_dim(stage)], false, 0.0, device),
        }
    }

    fn forward(&self, tokens: Tensor<3>) -> Tensor<2> {
        let pooled = self.attention.forward(self.latent.val(), patches(tokens, self.prefix));
        (pooled.clone() + self.mlp.forward(self.norm.forward(pooled), 1, [0, 0])).squeeze_dim(1)
    }
}
