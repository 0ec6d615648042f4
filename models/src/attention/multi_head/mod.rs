//! Multi-head attention (Vaswani et al. 2017, section 3.2), with any score and normalizer.

#[cfg(test)]
mod tests;
mod trace;

use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Device, Tensor};

pub(super) use self::trace::{trace_join, trace_split};
use super::mask::{additive_mask, neighborhood};
use super::normalizer::normalize;
use super::score::{DotScore, ScoreFunction, Scored};
use super::{AttentionSpec, Context, MixerCost, RelativePositionBias, WeightProbe, product};
use crate::linear::{Linear, constant};
use crate::norm::LayerNorm;
use crate::rotary::{LearnedRotary, Rotary};
use crate::{Normalizer, Score};
use vitrine_kernels::{DotProduct, Neighborhood};

/// Attention of every token to every token, in several heads.
#[derive(Module, Debug)]
pub struct MultiHeadAttention {
    /// The layer from a token to the queries of all heads, then the keys, then the values: `[dim, 3 * dim]`.
    pub qkv: Linear,
    /// The bias of queries and values, with the cosine score: as in Swin v2, keys have none.
    pub separate_bias: Option<SeparateBias>,
    /// The norms of queries and keys in each head.
    pub qk_norm: Option<QueryKeyNorm>,
    /// The score of a query and a key.
    pub score: ScoreFunction,
    /// The mixing of heads before and after the softmax.
    pub talking_heads: Option<TalkingHeads>,
    /// The layer from the joined heads back to a token.
    pub proj: Linear,
    /// The bias of scores for relative positions.
    pub relative_position: Option<RelativePositionBias>,
    /// The rotation of queries and keys that the layer learns, instead of that of the context.
    pub rotary: Option<LearnedRotary>,
    /// A bias that is added to the scores in every call: `[1, 1, tokens, tokens]`.
    fixed_bias: Option<Tensor<4>>,
    /// The tokens that each patch attends to; if absent, all.
    #[module(skip)]
    neighborhood: Option<Neighborhood>,
    num_heads: usize,
    attention_dropout: Dropout,
    proj_dropout: Dropout,
    #[module(skip)]
    normalizer: Normalizer,
}

/// A bias of queries and values, but not of keys.
#[derive(Module, Debug)]
pub struct SeparateBias {
    /// `[dim]`.
    pub q_bias: Param<Tensor<1>>,
    /// `[dim]`.
    pub v_bias: Param<Tensor<1>>,
}

/// Layer norms over the width of a head (Henry et al. 2020; Dehghani et al. 2023, section 2.1).
#[derive(Module, Debug)]
pub struct QueryKeyNorm {
    /// The norm of queries.
    pub q_norm: LayerNorm,
    /// The norm of keys.
    pub k_norm: LayerNorm,
}

/// Linear maps between heads, before and after the softmax (Shazeer et al. 2020, 'Talking-Heads Attention').
///
/// They suit only attention without masks: the second map has a bias, through which a masked key would get a weight
/// again.
#[derive(Module, Debug)]
pub struct TalkingHeads {
    /// The map of scores: `[heads, heads]`.
    pub scores: Linear,
    /// The map of weights: `[heads, heads]`.
    pub weights: Linear,
}

impl MultiHeadAttention {
    /// Fresh parameters.
    pub fn new(spec: &AttentionSpec, device: &Device) -> Self {
        let (dim, heads, options) = (spec.dim, spec.num_heads, spec.options);
        let separate = spec.qkv_bias && options.score == Score::Cosine;
        let norm = || LayerNorm::new(spec.head_dim(), spec.norm_epsilon, device);
        Self {
            qkv: Linear::new(dim, 3 * dim, spec.qkv_bias && !separate, device),
            separate_bias: separate.then(|| SeparateBias {
                q_bias: constant([dim], 0.0, device),
                v_bias: constant([dim], 0.0, device),
            }),
            qk_norm: options.qk_norm.then(|| QueryKeyNorm { q_norm: norm(), k_norm: norm() }),
            score: ScoreFunction::new(spec, device),
            talking_heads: options.talking_heads.then(|| TalkingHeads {
                scores: Linear::new(heads, heads, true, device),
                weights: Linear::new(heads, heads, true, device),
            }),
            proj: Linear::new(dim, dim, true, device),
            relative_position: None,
            rotary: None,
            fixed_bias: None,
            neighborhood: None,
            num_heads: heads,
            attention_dropout: DropoutConfig::new(spec.attention_dropout).init(),
            proj_dropout: DropoutConfig::new(spec.dropout).init(),
            normalizer: options.normalizer,
        }
    }

    /// The layer with a bias `[1, 1, tokens, tokens]` that is added to the scores of every call.
    pub fn with_fixed_bias(mut self, bias: Tensor<4>) -> Self {
        self.fixed_bias = Some(bias);
        self
    }

    /// The layer with a bias for relative positions, if there is one.
    pub fn with_relative_position(mut self, bias: Option<RelativePositionBias>) -> Self {
        self.relative_position = bias;
        self
    }

    /// The layer in which patches attend to their neighborhood.
    pub fn with_neighborhood(mut self, neighborhood: Neighborhood) -> Self {
        self.neighborhood = Some(neighborhood);
        self
    }

    /// The projections of all tokens.
    pub(crate) fn linear_layers(&mut self) -> [&mut Linear; 2] {
        [&mut self.qkv, &mut self.proj]
    }

    /// # Shapes
    /// - x, output: `[batch, tokens, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor, Tolerance};
    /// use vitrine_models::attention::{AttentionSpec, Context, MultiHeadAttention};
    /// use vitrine_models::preset;
    ///
    /// let device = Device::default();
    /// let spec = AttentionSpec::of_stage(&preset::find("vit_pico_patch4_32").expect("listed"), 0);
    /// let layer = MultiHeadAttention::new(&spec, &device);
    /// let x = Tensor::<3>::random([2, 9, 96], Distribution::Normal(0.0, 1.0), &device);
    /// let y = layer.forward(x.clone(), &Context::default());
    /// assert_eq!(y.dims(), [2, 9, 96]);
    /// // Without positions, permuting the tokens permutes the output.
    /// let reversed = layer.forward(x.flip([1]), &Context::default());
    /// y.flip([1]).into_data().assert_approx_eq::<f32>(&reversed.into_data(), Tolerance::absolute(1e-6));
    /// ```
    pub fn forward(&self, x: Tensor<3>, context: &Context) -> Tensor<3> {
        let mixed = match (self.fused_neighborhood(&x, context), self.packed_scores(&x, context)) {
            (Some(around), Some(scores)) => {
                vitrine_kernels::neighborhood_attention(self.project(x), self.num_heads, scores, around)
            }
            (Some(around), None) => self.attend_near(self.heads(x, context), around),
            (None, Some(scores)) => {
                let [_, tokens, _] = x.dims();
                let bias = add(self.score.bias(tokens, &x.device()), self.bias(context, &x.device()));
                self.attend(self.project(x), scores, bias)
            }
            (None, None) => {
                let bias = self.bias(context, &x.device());
                let [q, k, v] = self.heads(x, context);
                join(self.mix(q, k, v, bias))
            }
        };
        self.proj_dropout.forward(self.proj.forward(mixed))
    }

    /// Whether [`Self::forward_first`] can be used in this context: no pair of tokens has a bias or a mask of its own.
    pub(super) fn answers_first(&self, context: &Context) -> bool {
        self.score.is_unbiased_product()
            && self.neighborhood.is_none()
            && self.fixed_bias.is_none()
            && self.relative_position.is_none()
            && context.bias.is_none()
    }

    /// The first `count` tokens of [`Self::forward`], without computing the others. Of these tokens, none is a patch: a
    /// rotation leaves them as they are.
    ///
    /// # Shapes
    /// - x: `[batch, tokens, dim]`
    /// - output: `[batch, count, dim]`
    pub(super) fn forward_first(&self, x: Tensor<3>, count: usize, context: &Context) -> Tensor<3> {
        let placed = match &context.position {
            Some(position) => x.clone() + position.clone(),
            None => x.clone(),
        };
        let q = self.part(placed.clone().narrow(1, 0, count), 0);
        let (q, k) = self.normalize_heads(q, self.part(placed, 1));
        let k = match (&self.rotary, &context.rotary) {
            (Some(own), _) => own.forward(k),
            (None, Some(rotary)) => rotary.forward(k),
            (None, None) => k,
        };
        let mixed = join(self.mix(q, k, self.part(x, 2), None));
        self.proj_dropout.forward(self.proj.forward(mixed))
    }

    /// [`Self::forward`], which also returns the attention weights of each token (row) to the others (column).
    ///
    /// # Shapes
    /// - x and the first output: `[batch, tokens, dim]`
    /// - second output: `[batch, heads, tokens, tokens]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Bool, Device, Distribution, Tensor};
    /// use vitrine_models::attention::{AttentionSpec, Context, MultiHeadAttention, additive_mask};
    /// use vitrine_models::preset;
    ///
    /// let device = Device::default();
    /// let spec = AttentionSpec::of_stage(&preset::find("vit_pico_patch4_32").expect("listed"), 0);
    /// let layer = MultiHeadAttention::new(&spec, &device);
    /// let x = Tensor::<3>::random([1, 2, 96], Distribution::Normal(0.0, 1.0), &device);
    /// // The first token must not see the second.
    /// let mask = Tensor::<4, Bool>::from_data([[[[false, true], [false, false]]]], &device);
    /// let context = Context { bias: Some(additive_mask(mask)), ..Context::default() };
    /// let (_, weights) = layer.forward_with_weights(x, &context);
    /// assert_eq!(weights.dims(), [1, 3, 2, 2]);
    /// assert_eq!(weights.into_data().try_into_vec_as::<f32>()?[..2], [1.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forward_with_weights(&self, x: Tensor<3>, context: &Context) -> (Tensor<3>, Tensor<4>) {
        let bias = self.bias(context, &x.device());
        let [q, k, v] = self.heads(x, context);
        let scores = self.score.forward(q, k);
        let (mixed, weights) = self.weigh(scores, v, bias, context.probe.clone());
        (self.proj_dropout.forward(self.proj.forward(join(mixed))), weights)
    }

    /// Attention with separate inputs of queries, keys and values, as in PyTorch's `MultiheadAttention`.
    ///
    /// # Shapes
    /// - query: `[batch, queries, dim]`; key, value: `[batch, keys, dim]`
    /// - bias: added to the scores, `[batch or 1, heads or 1, queries, keys]`; the bias of [`Self::with_fixed_bias`] is
    ///   not added
    /// - outputs: `[batch, queries, dim]` and the weights `[batch, heads, queries, keys]`
    pub fn forward_separate(
        &self,
        query: Tensor<3>,
        key: Tensor<3>,
        value: Tensor<3>,
        bias: Option<Tensor<4>>,
    ) -> (Tensor<3>, Tensor<4>) {
        let (q, k) = self.normalize_heads(self.part(query, 0), self.part(key, 1));
        let (mixed, weights) = self.weigh(self.score.forward(q, k), self.part(value, 2), bias, None);
        (self.proj_dropout.forward(self.proj.forward(join(mixed))), weights)
    }

    /// The queries, keys and values of all tokens, each `[batch, heads, tokens, head_dim]`, with positions and norms
    /// applied.
    fn heads(&self, x: Tensor<3>, context: &Context) -> [Tensor<4>; 3] {
        let [q, k, v] = match &context.position {
            Some(position) => {
                let placed = x.clone() + position.clone();
                [self.part(placed.clone(), 0), self.part(placed, 1), self.part(x, 2)]
            }
            None => {
                let [batch, tokens, dim] = x.dims();
                let heads = [batch, tokens, 3, self.num_heads, dim / self.num_heads];
                let packed: Tensor<5> = self.project(x).reshape(heads);
                // Views, which the fused operation reads without a copy.
                [0, 1, 2].map(|part| packed.clone().narrow(2, part, 1).squeeze_dim::<4>(2).swap_dims(1, 2))
            }
        };
        let (q, k) = self.normalize_heads(q, k);
        match (&self.rotary, &context.rotary) {
            (Some(own), _) => {
                let [q, k] = own.forward_both(q, k);
                [q, k, v]
            }
            (None, Some(rotary)) => [rotary.forward(q), rotary.forward(k), v],
            (None, None) => [q, k, v],
        }
    }

    fn normalize_heads(&self, q: Tensor<4>, k: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        match &self.qk_norm {
            Some(norm) => (norm.q_norm.forward(q), norm.k_norm.forward(k)),
            None => (q, k),
        }
    }

    fn project(&self, x: Tensor<3>) -> Tensor<3> {
        self.qkv.forward_with(x, self.qkv_bias())
    }

    /// The bias of the joint projection: `[3 * dim]`.
    fn qkv_bias(&self) -> Option<Tensor<1>> {
        match &self.separate_bias {
            Some(SeparateBias { q_bias, v_bias }) => {
                let (q, v) = (q_bias.val(), v_bias.val());
                let none = Tensor::zeros(q.dims(), &q.device());
                Some(Tensor::cat(vec![q, none, v], 0))
            }
            None => self.qkv.bias.as_ref().map(Param::val),
        }
    }

    /// The queries (`part` 0), keys (1) or values (2) of `x`, by this part of the joint projection.
    fn part(&self, x: Tensor<3>, part: usize) -> Tensor<4> {
        let [_, _, dim] = x.dims();
        let bias = self.qkv_bias().map(|bias| bias.narrow(0, part * dim, dim));
        split(self.qkv.forward_part(x, bias, part * dim..(part + 1) * dim), self.num_heads)
    }

    /// The scores for the self-attention that reads queries and keys directly from the joint projection; `None` if the
    /// settings rule that out.
    fn packed_scores(&self, x: &Tensor<3>, context: &Context) -> Option<DotProduct> {
        let is_plain = self.qk_norm.is_none() && self.rotary.is_none() && context.position.is_none();
        let packed = is_plain && self.is_fusible(&x.device());
        let scores = if packed { self.score.dot_product()? } else { return None };
        Some(DotProduct { rotation: context.rotary.as_ref().map(Rotary::rotation), ..scores })
    }

    /// Self-attention of the joint projection; its factors are rounded, too, if the projection's were.
    fn attend(&self, qkv: Tensor<3>, scores: DotProduct, bias: Option<Tensor<4>>) -> Tensor<3> {
        let rounds = self.qkv.is_on_bytes();
        let rounded = rounds
            .then(|| vitrine_kernels::self_attention_bfloat16(&qkv, self.num_heads, &scores, bias.as_ref()));
        rounded
            .flatten()
            .unwrap_or_else(|| vitrine_kernels::self_attention(qkv, self.num_heads, scores, bias))
    }

    /// The bias of all pairs of tokens: that of the layer, or the mask of its neighborhood, that of relative positions, and that of the
    /// context.
    fn bias(&self, context: &Context, device: &Device) -> Option<Tensor<4>> {
        let mask = || self.neighborhood.map(|around| additive_mask(neighborhood(&around, device)));
        let own = add(
            self.fixed_bias.clone().or_else(mask),
            self.relative_position.as_ref().map(RelativePositionBias::forward),
        );
        add(own, context.bias.clone())
    }

    /// The neighborhood, if attention to it can be computed without all other pairs.
    fn fused_neighborhood(&self, x: &Tensor<3>, context: &Context) -> Option<Neighborhood> {
        let of_products = self.score.is_unbiased_product();
        let suits = of_products && context.bias.is_none() && self.is_fusible(&x.device());
        self.neighborhood.filter(|_| suits)
    }

    /// The mixed values of attention to neighborhoods, from queries and keys that are not those of the projection:
    /// `[batch, tokens, dim]`.
    fn attend_near(&self, [q, k, v]: [Tensor<4>; 3], around: Neighborhood) -> Tensor<3> {
        let DotScore { q, k, scale, .. } = match self.score.score(q, k) {
            Scored::Product(product) => product,
            Scored::Values(_) => unreachable!("scores that are products were asked for"),
        };
        let qkv = Tensor::cat([q, k, v].map(join).to_vec(), 2);
        vitrine_kernels::neighborhood_attention(qkv, self.num_heads, DotProduct::scaled(scale), around)
    }

    /// Whether the fused operation suits: the weights are a plain softmax of the scores, without dropout or mixing of
    /// heads.
    fn is_fusible(&self, device: &Device) -> bool {
        !drops(&self.attention_dropout, device)
            && self.talking_heads.is_none()
            && self.normalizer == Normalizer::Softmax
    }

    /// The mixed values, computed by the fused operation if the settings allow it.
    fn mix(&self, q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, bias: Option<Tensor<4>>) -> Tensor<4> {
        let is_fusible = self.is_fusible(&q.device());
        match self.score.score(q, k) {
            Scored::Product(DotScore { q, k, scale, bias: own }) if is_fusible => {
                vitrine_kernels::attention(q, k, v, scale, add(own, bias))
            }
            scored => self.weigh(scored.values(), v, bias, None).0,
        }
    }

    /// The mixed values and the attention weights, to which `probe` is added, from the scores.
    fn weigh(
        &self,
        scores: Tensor<4>,
        v: Tensor<4>,
        bias: Option<Tensor<4>>,
        probe: Option<WeightProbe>,
    ) -> (Tensor<4>, Tensor<4>) {
        let scores = match &self.talking_heads {
            Some(talking) => between_heads(&talking.scores, scores),
            None => scores,
        };
        let scores = match bias {
            Some(bias) => {
                let batch = scores.dims()[0];
                scores + vitrine_kernels::bias_of_batch(bias, batch)
            }
            None => scores,
        };
        let weights = normalize(scores, self.normalizer);
        let weights = match &self.talking_heads {
            Some(talking) => between_heads(&talking.weights, weights),
            None => weights,
        };
        let weights = add(Some(weights.clone()), probe).unwrap_or(weights);
        (vitrine_kernels::matmul(self.attention_dropout.forward(weights.clone()), v), weights)
    }
}

/// The cost of attention in `windows` windows of `area` tokens; global attention is one window.
pub(super) fn cost(spec: &AttentionSpec, [windows, area]: [usize; 2]) -> MixerCost {
    let (tokens, dim, heads) = (windows * area, spec.dim, spec.num_heads);
    let values = product([tokens, area, dim]);
    let scores = spec.options.score.cost(spec, [tokens, area]);
    let attention_weights = product([tokens, area, heads]);
    let talking = if spec.options.talking_heads { 2 * attention_weights * heads as u64 } else { 0 };
    MixerCost {
        projections: 4 * product([tokens, dim, dim]),
        attention: scores + values + talking,
        attention_weights,
    }
}

/// Whether dropout has an effect: its probability is above 0, and the device has autodiff.
pub(super) fn drops(dropout: &Dropout, device: &Device) -> bool {
    dropout.prob > 0.0 && device.is_autodiff()
}

/// Splits tokens into heads: `[batch, tokens, dim]` to `[batch, heads, tokens, head_dim]`.
pub(super) fn split(x: Tensor<3>, num_heads: usize) -> Tensor<4> {
    let [batch, tokens, dim] = x.dims();
    x.reshape([batch, tokens, num_heads, dim / num_heads]).swap_dims(1, 2)
}

/// Joins heads to tokens: `[batch, heads, tokens, head_dim]` to `[batch, tokens, dim]`.
pub(super) fn join(x: Tensor<4>) -> Tensor<3> {
    let [batch, heads, tokens, head_dim] = x.dims();
    x.swap_dims(1, 2).reshape([batch, tokens, heads * head_dim])
}

fn add(a: Option<Tensor<4>>, b: Option<Tensor<4>>) -> Option<Tensor<4>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

/// Applies a layer over the heads of `[batch, heads, queries, keys]`.
fn between_heads(layer: &Linear, x: Tensor<4>) -> Tensor<4> {
    layer.forward(x.permute([0, 2, 3, 1])).permute([0, 3, 1, 2])
}
