//! From queries and keys to scores: the one list of score functions.
//!
//! To add one, write its module in this folder and give it a variant in [`Score`] and [`ScoreFunction`]; the compiler then lists the
//! lines that this file still needs.

mod additive;
mod bilinear;
mod cosine;
mod locality;

pub use additive::AdditiveScore;
pub use bilinear::BilinearScore;
pub use cosine::CosineScore;
pub(super) use cosine::l2_normalize;
pub use locality::LocalityScore;

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::{AttentionSpec, product};
use crate::{Score, ops};

/// One of the scores of [`Score`], with its parameters for each head.
#[derive(Module, Debug)]
pub enum ScoreFunction {
    /// `scale * q · k`.
    Dot(f64),
    /// A matrix between query and key.
    Bilinear(BilinearScore),
    /// A small MLP of both.
    Additive(AdditiveScore),
    /// The cosine.
    Cosine(CosineScore),
    /// A learned factor, and no token sees itself.
    Locality(LocalityScore),
}

/// A score as a dot product: `scale * q · k + bias`.
#[derive(Debug)]
pub struct DotScore {
    /// `[batch, heads, queries, head_dim]`.
    pub q: Tensor<4>,
    /// `[batch, heads, keys, head_dim]`.
    pub k: Tensor<4>,
    /// The factor.
    pub scale: f64,
    /// `[1, 1, queries, keys]`.
    pub bias: Option<Tensor<4>>,
}

impl ScoreFunction {
    /// Fresh parameters, if the score has any.
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::attention::{AttentionSpec, ScoreFunction};
    /// use vitrine_models::preset;
    ///
    /// let device = Device::default();
    /// let config = preset::find("vit_pico_patch4_32").expect("listed");
    /// let score = ScoreFunction::new(&AttentionSpec::of_stage(&config, 0), &device); // scaled_dot, heads of width 32
    /// let [q, k] = [2.0, 3.0].map(|value| Tensor::<4>::full([1, 3, 1, 32], value, &device));
    /// let scores = score.forward(q, k).into_data().try_into_vec_as::<f32>()?;
    /// assert!(scores.iter().all(|score| (score - 6.0 * 32f32.sqrt()).abs() < 1e-4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(spec: &AttentionSpec, device: &Device) -> Self {
        let heads = [spec.num_heads, spec.head_dim()];
        match spec.options.score {
            Score::ScaledDot => Self::Dot((spec.head_dim() as f64).powf(-0.5)),
            Score::Dot => Self::Dot(1.0),
            Score::Bilinear => Self::Bilinear(BilinearScore::new(heads, device)),
            Score::Additive => Self::Additive(AdditiveScore::new(heads, device)),
            Score::Cosine => Self::Cosine(CosineScore::new(heads, device)),
            Score::Locality => Self::Locality(LocalityScore::new(heads, device)),
        }
    }

    /// The factor of a score that is a dot product of queries and keys as they are.
    pub fn plain_scale(&self) -> Option<f64> {
        match self {
            Self::Dot(scale) => Some(*scale),
            Self::Bilinear(_) | Self::Additive(_) | Self::Cosine(_) | Self::Locality(_) => None,
        }
    }

    /// Whether [`Self::as_dot`] has a result.
    pub fn is_dot_product(&self) -> bool {
        !matches!(self, Self::Additive(_))
    }

    /// The score as a dot product of changed queries and keys.
    ///
    /// # Shapes
    /// - q: `[batch, heads, queries, head_dim]`; k: `[batch, heads, keys, head_dim]`
    ///
    /// # Panics
    /// For the additive score, which is no dot product; for the locality score, if there are not as many keys as queries.
    pub fn as_dot(&self, q: Tensor<4>, k: Tensor<4>) -> DotScore {
        match self {
            Self::Dot(scale) => DotScore { q, k, scale: *scale, bias: None },
            Self::Bilinear(score) => score.as_dot(q, k),
            Self::Cosine(score) => score.as_dot(q, k),
            Self::Locality(score) => score.as_dot(q, k),
            Self::Additive(_) => panic!("the additive score is no dot product"),
        }
    }

    /// The scores themselves.
    ///
    /// # Shapes
    /// - q: `[batch, heads, queries, head_dim]`; k: `[batch, heads, keys, head_dim]`
    /// - output: `[batch, heads, queries, keys]`
    pub fn forward(&self, q: Tensor<4>, k: Tensor<4>) -> Tensor<4> {
        if let Self::Additive(score) = self {
            return score.forward(q, k);
        }
        let DotScore { q, k, scale, bias } = self.as_dot(q, k);
        let scores = ops::matmul(q, k.swap_dims(2, 3)).mul_scalar(scale);
        match bias {
            Some(bias) => scores + bias,
            None => scores,
        }
    }
}

impl Score {
    /// Multiply-adds of the scores of `tokens` queries with `area` keys each.
    pub(super) fn cost(self, spec: &AttentionSpec, [tokens, area]: [usize; 2]) -> u64 {
        let dot = product([tokens, area, spec.dim]);
        let matrix = product([tokens, spec.dim, spec.head_dim()]);
        match self {
            Self::ScaledDot | Self::Dot | Self::Cosine | Self::Locality => dot,
            Self::Bilinear => dot + matrix,
            Self::Additive => dot + 2 * matrix,
        }
    }

    /// Whether training keeps the scores of all pairs, for want of a fused form.
    pub(crate) fn keeps_scores(self) -> bool {
        match self {
            Self::Additive => true,
            Self::ScaledDot | Self::Dot | Self::Bilinear | Self::Cosine | Self::Locality => false,
        }
    }

    /// Whether no token sees itself.
    pub(crate) fn hides_own_token(self) -> bool {
        match self {
            Self::Locality => true,
            Self::ScaledDot | Self::Dot | Self::Bilinear | Self::Additive | Self::Cosine => false,
        }
    }

    /// Whether queries and keys are of length 1 already.
    pub(crate) fn normalizes(self) -> bool {
        match self {
            Self::Cosine => true,
            Self::ScaledDot | Self::Dot | Self::Bilinear | Self::Additive | Self::Locality => false,
        }
    }
}
