//! From queries and keys to scores, and from scores to weights.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, activation};

use super::AttentionSpec;
use super::mask::HIDDEN;
use crate::linear::{constant, uniform};
use crate::{Normalizer, Score, ops};

/// One of the scores of [`Score`], with its parameters for each head.
#[derive(Module, Debug)]
pub struct ScoreFunction {
    #[module(skip)]
    kind: Score,
    head_dim: usize,
    /// The matrix between query and key: `[heads, head_dim, head_dim]`.
    pub bilinear: Option<Param<Tensor<3>>>,
    /// The parameters of the additive score.
    pub additive: Option<AdditiveScore>,
    /// The logarithm of the cosine's factor: `[heads, 1, 1]`.
    pub logit_scale: Option<Param<Tensor<3>>>,
    /// The factor of locality self-attention: `[heads, 1, 1]`.
    pub temperature: Option<Param<Tensor<3>>>,
}

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

impl ScoreFunction {
    /// Fresh parameters, if the score has any.
    pub fn new(spec: &AttentionSpec, device: &Device) -> Self {
        let (heads, dim) = (spec.num_heads, spec.head_dim());
        let bound = 1.0 / (dim as f64).sqrt();
        let kind = spec.options.score;
        let matrix = || uniform([heads, dim, dim], bound, device);
        let factor = |score, value| (kind == score).then(|| constant([heads, 1, 1], value, device));
        Self {
            kind,
            head_dim: dim,
            bilinear: (kind == Score::Bilinear).then(matrix),
            additive: (kind == Score::Additive).then(|| AdditiveScore {
                query: matrix(),
                key: matrix(),
                vector: uniform([heads, dim, 1], bound, device),
            }),
            logit_scale: factor(Score::Cosine, 10f64.ln()),
            temperature: factor(Score::Locality, bound),
        }
    }

    /// The factor of a score that is a dot product of queries and keys as they are.
    pub fn plain_scale(&self) -> Option<f64> {
        match self.kind {
            Score::ScaledDot => Some((self.head_dim as f64).powf(-0.5)),
            Score::Dot => Some(1.0),
            Score::Bilinear | Score::Additive | Score::Cosine | Score::Locality => None,
        }
    }

    /// The score as a dot product of changed queries and keys times a factor, and what is added to it.
    ///
    /// # Shapes
    /// - q: `[batch, heads, queries, head_dim]`; k: `[batch, heads, keys, head_dim]`
    ///
    /// # Panics
    /// For the additive score, which is no dot product; for the locality score, if there are not as many keys as queries.
    pub fn as_dot(&self, q: Tensor<4>, k: Tensor<4>) -> DotScore {
        let plain = |q, k, scale| DotScore { q, k, scale, bias: None };
        if let Some(scale) = self.plain_scale() {
            return plain(q, k, scale);
        }
        match self.kind {
            Score::Bilinear => plain(ops::matmul(q, per_head(&self.bilinear)), k, 1.0),
            Score::Cosine => {
                // Liu et al. 2022, section 3.2: the factor is at most 100.
                let factor = per_head(&self.logit_scale).clamp_max(100f64.ln()).exp();
                plain(l2_normalize(q) * factor, l2_normalize(k), 1.0)
            }
            Score::Locality => {
                assert_eq!(q.dims()[2], k.dims()[2], "locality is of a sequence with itself");
                let bias = Tensor::<2>::eye(q.dims()[2], &q.device()).mul_scalar(HIDDEN).unsqueeze();
                DotScore { q: q * per_head(&self.temperature), k, scale: 1.0, bias: Some(bias) }
            }
            Score::Additive => panic!("the additive score is no dot product"),
            Score::ScaledDot | Score::Dot => unreachable!("they have a plain scale"),
        }
    }

    /// The scores themselves.
    ///
    /// # Shapes
    /// - q: `[batch, heads, queries, head_dim]`; k: `[batch, heads, keys, head_dim]`
    /// - output: `[batch, heads, queries, keys]`
    pub fn forward(&self, q: Tensor<4>, k: Tensor<4>) -> Tensor<4> {
        if let Some(additive) = &self.additive {
            return additive.forward(q, k);
        }
        let DotScore { q, k, scale, bias } = self.as_dot(q, k);
        let scores = ops::matmul(q, k.swap_dims(2, 3)).mul_scalar(scale);
        match bias {
            Some(bias) => scores + bias,
            None => scores,
        }
    }
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

impl AdditiveScore {
    /// # Shapes
    /// - q: `[batch, heads, queries, head_dim]`; k: `[batch, heads, keys, head_dim]`
    /// - output: `[batch, heads, queries, keys]`
    fn forward(&self, q: Tensor<4>, k: Tensor<4>) -> Tensor<4> {
        let [batch, heads, queries, dim] = q.dims();
        let keys = k.dims()[2];
        let q = ops::matmul(q, self.query.val().unsqueeze()).reshape([batch, heads, queries, 1, dim]);
        let k = ops::matmul(k, self.key.val().unsqueeze()).reshape([batch, heads, 1, keys, dim]);
        let hidden = (q + k).tanh().reshape([batch, heads, queries * keys, dim]);
        ops::matmul(hidden, self.vector.val().unsqueeze()).reshape([batch, heads, queries, keys])
    }
}

fn per_head(parameter: &Option<Param<Tensor<3>>>) -> Tensor<4> {
    parameter.as_ref().expect("made with the score").val().unsqueeze()
}

/// Every vector of the last dimension at length 1; PyTorch's `normalize`.
pub(super) fn l2_normalize(x: Tensor<4>) -> Tensor<4> {
    // Bounded before the root, whose gradient at 0 is infinite.
    let length = x.clone().powi_scalar(2).sum_dim(3).clamp_min(1e-24).sqrt();
    x / length
}

/// Scores to weights over the last dimension.
///
/// # Shapes
/// - scores, output: `[batch, heads, queries, keys]`
pub fn normalize(scores: Tensor<4>, normalizer: Normalizer) -> Tensor<4> {
    match normalizer {
        Normalizer::Softmax => activation::softmax(scores, 3),
        Normalizer::Relu => activation::relu(scores),
        Normalizer::Hard => {
            let soft = activation::softmax(scores, 3);
            let [.., keys] = soft.dims();
            let best = soft.clone().detach().argmax(3); // [batch, heads, queries, 1]
            let numbers = Tensor::<1, burn::tensor::Int>::arange(0..keys as i64, &soft.device());
            let hard = best.equal(numbers.unsqueeze::<4>()).float();
            // The value is the hard choice, the gradient that of the soft one.
            soft.clone() + (hard - soft).detach()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use burn::tensor::{Distribution, Tolerance};

    #[test]
    fn hard_weights_choose_one_key_and_have_the_gradient_of_softmax() {
        let device = Device::default().autodiff();
        let scores =
            Tensor::<4>::random([2, 3, 4, 5], Distribution::Normal(0.0, 1.0), &device).require_grad();
        let values = Tensor::<4>::random([2, 3, 5, 2], Distribution::Normal(0.0, 1.0), &device);
        let gradient = |normalizer| {
            let weights = normalize(scores.clone(), normalizer);
            let grads = weights.clone().matmul(values.clone()).sum().backward();
            (weights.into_data(), scores.grad(&grads).unwrap().into_data())
        };
        let (hard, through) = gradient(Normalizer::Hard);
        let (_, soft) = gradient(Normalizer::Softmax);
        through.assert_approx_eq::<f32>(&soft, Tolerance::absolute(1e-6));
        for row in hard.iter::<f32>().collect::<Vec<_>>().chunks(5) {
            assert_eq!(row.iter().filter(|weight| (**weight - 1.0).abs() < 1e-6).count(), 1, "{row:?}");
            assert_eq!(row.iter().filter(|weight| weight.abs() < 1e-6).count(), 4, "{row:?}");
        }
    }
}
