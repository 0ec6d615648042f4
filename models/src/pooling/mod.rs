//! Pooling: from all tokens to the one vector that the head takes, or to one per class.

mod attention;
mod class_queries;
mod recurrent;

pub use attention::{AttentionPooling, QueriesPooling};
pub use class_queries::{ClassQueries, DecoderLayer};
pub use recurrent::{GruCell, RecurrentPooling};

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, activation};

use crate::attention::{AttentionSpec, CrossAttention, product};
use crate::graph::{Graph, Value};
use crate::linear::Linear;
use crate::norm::LayerNorm;
use crate::{AttentionOptions, BlockStyle, ModelConfig, Pool, Score};

/// The pooling that the configuration chooses.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // one per model
pub enum Pooling {
    /// The class token, which is the first token.
    ClassToken(usize),
    /// The mean of the patches.
    Mean(MeanPooling),
    /// The class token and the mean of the patches, concatenated; the number of tokens before the patches.
    ClassTokenMean(usize),
    /// Class token and means of the patches after two blocks.
    TwoDepths(TwoDepthsPooling),
    /// A mean of the patches with weights that are computed from them.
    Sequence(SequencePooling),
    /// Attention of a learned query to the patches.
    Attention(AttentionPooling),
    /// Attention of several learned queries, concatenated.
    Queries(QueriesPooling),
    /// Attention read several times by a recurrent query.
    Recurrent(RecurrentPooling),
    /// A decoder with a query per class.
    ClassQueries(ClassQueries),
}

impl Pooling {
    /// Fresh parameters, if the pooling has any.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        match config.pool {
            Pool::ClassToken => Self::ClassToken(0),
            Pool::Mean | Pool::NormalizedMean => Self::Mean(MeanPooling::new(config, device)),
            Pool::ClassTokenMean => Self::ClassTokenMean(config.num_prefix_tokens()),
            Pool::TwoDepths { .. } => Self::TwoDepths(TwoDepthsPooling {
                prefix: config.num_prefix_tokens(),
                class_token: config.class_token,
            }),
            Pool::Sequence => Self::Sequence(SequencePooling::new(config, device)),
            Pool::Attention => Self::Attention(AttentionPooling::new(config, device)),
            Pool::Queries(queries) => Self::Queries(QueriesPooling::new(config, queries, device)),
            Pool::Recurrent { steps } => Self::Recurrent(RecurrentPooling::new(config, steps, device)),
            Pool::ClassQueries { depth } => Self::ClassQueries(ClassQueries::new(config, depth, device)),
        }
    }

    /// The pooled vector; for class queries, which give one vector per class ([`ClassQueries::forward`]), the mean of the
    /// patches.
    ///
    /// # Shapes
    /// - tokens: `[batch, tokens, dim]`; for two depths `[batch, 2 * tokens, dim]`, first those after the last block
    /// - output: `[batch, embedding_dim]`
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
            Self::ClassTokenMean(prefix) => {
                let mean = patches(tokens.clone(), *prefix).mean_dim(1);
                Tensor::cat(vec![tokens.narrow(1, 0, 1), mean], 2).squeeze_dim(1)
            }
            Self::TwoDepths(pooling) => pooling.forward(tokens),
            Self::Sequence(pooling) => pooling.forward(tokens),
            Self::Attention(pooling) => pooling.forward(tokens),
            Self::Queries(pooling) => pooling.forward(tokens),
            Self::Recurrent(pooling) => pooling.forward(tokens),
            Self::ClassQueries(pooling) => pooling.mean_of_patches(tokens),
        }
    }

    /// The weights by which the pooling reads the patches: one row for a learned query, one per query, per step, or per
    /// class. `None` for the class token and means.
    ///
    /// # Shapes
    /// - tokens: `[batch, tokens, dim]`
    /// - output: `[batch, heads or 1, rows, patches]`
    pub fn weights(&self, tokens: Tensor<3>) -> Option<Tensor<4>> {
        match self {
            Self::ClassToken(_) | Self::Mean(_) | Self::ClassTokenMean(_) | Self::TwoDepths(_) => None,
            Self::Sequence(pooling) => Some(pooling.weights(tokens)),
            Self::Attention(pooling) => Some(pooling.weights(tokens)),
            Self::Queries(pooling) => Some(pooling.weights(tokens)),
            Self::Recurrent(pooling) => Some(pooling.weights(tokens)),
            Self::ClassQueries(pooling) => Some(pooling.weights(tokens)),
        }
    }

    /// [`Self::forward`] as operators.
    pub(crate) fn trace(&self, graph: &mut Graph, tokens: &Value) -> Value {
        let dim = tokens.dims[2];
        graph.within("pool", |graph| match self {
            Self::ClassToken(place) => {
                let token = graph.narrow(tokens, 1, *place, 1);
                graph.reshape(&token, &[1, dim])
            }
            Self::Mean(pooling) => {
                let mean = trace_mean(graph, tokens, pooling.prefix);
                match &pooling.fc_norm {
                    Some(norm) => norm.trace(graph, "fc_norm", &mean),
                    None => mean,
                }
            }
            Self::ClassTokenMean(prefix) => {
                let token = graph.narrow(tokens, 1, 0, 1);
                let token = graph.reshape(&token, &[1, dim]);
                let mean = trace_mean(graph, tokens, *prefix);
                graph.concat(&[&token, &mean], 1)
            }
            Self::TwoDepths(pooling) => pooling.trace(graph, tokens),
            Self::Sequence(pooling) => pooling.trace(graph, tokens),
            Self::Attention(pooling) => pooling.trace(graph, tokens),
            Self::Queries(pooling) => pooling.trace(graph, tokens),
            Self::Recurrent(pooling) => pooling.trace(graph, tokens),
            Self::ClassQueries(pooling) => trace_mean(graph, tokens, pooling.prefix()),
        })
    }
}

impl Pool {
    /// The multiply-adds for one image with this number of patches.
    pub(crate) fn cost(self, config: &ModelConfig, patches: usize) -> u64 {
        let dim = config.last_dim();
        match self {
            Self::ClassToken
            | Self::Mean
            | Self::NormalizedMean
            | Self::ClassTokenMean
            | Self::TwoDepths { .. } => 0,
            Self::Sequence => product([patches, dim]),
            Self::Attention => {
                let mlp = 2 * product([dim, config.mlp_dim(config.num_stages() - 1)]);
                CrossAttention::cost(&spec(config, Score::ScaledDot), [1, patches]) + mlp
            }
            Self::Queries(queries) => {
                CrossAttention::cost(&spec(config, Score::ScaledDot), [queries, patches])
            }
            Self::Recurrent { steps } => RecurrentPooling::cost(config, steps, patches),
            Self::ClassQueries { depth } => ClassQueries::cost(config, depth, patches),
        }
    }
}

/// The tokens after the first `prefix`.
fn patches(tokens: Tensor<3>, prefix: usize) -> Tensor<3> {
    let [_, count, _] = tokens.dims();
    tokens.narrow(1, prefix, count - prefix)
}

/// [`patches`] as operators.
fn trace_patches(graph: &mut Graph, tokens: &Value, prefix: usize) -> Value {
    graph.narrow(tokens, 1, prefix, tokens.dims[1] - prefix)
}

/// The mean of the patches as operators.
fn trace_mean(graph: &mut Graph, tokens: &Value, prefix: usize) -> Value {
    let patches = trace_patches(graph, tokens, prefix);
    let mean = graph.reduce("ReduceMean", &patches, 1);
    graph.reshape(&mean, &[1, tokens.dims[2]])
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

/// The class token, if there is one, and the mean of the patches after the last block, and their mean after an earlier one.
#[derive(Module, Debug)]
pub struct TwoDepthsPooling {
    /// The number of tokens before the patches.
    prefix: usize,
    class_token: bool,
}

impl TwoDepthsPooling {
    fn forward(&self, tokens: Tensor<3>) -> Tensor<2> {
        let [_, both, _] = tokens.dims();
        let count = both / 2;
        let token = self.class_token.then(|| tokens.clone().narrow(1, 0, 1));
        let mean =
            |start: usize| tokens.clone().narrow(1, start + self.prefix, count - self.prefix).mean_dim(1);
        let parts: Vec<Tensor<3>> = token.into_iter().chain([mean(0), mean(count)]).collect();
        Tensor::cat(parts, 2).squeeze_dim(1)
    }

    fn trace(&self, graph: &mut Graph, tokens: &Value) -> Value {
        let [_, both, dim] = tokens.dims[..] else { panic!("tokens have three dimensions") };
        let count = both / 2;
        let last = graph.narrow(tokens, 1, 0, count);
        let early = graph.narrow(tokens, 1, count, count);
        let [last_mean, early_mean] = [&last, &early].map(|tokens| trace_mean(graph, tokens, self.prefix));
        if !self.class_token {
            return graph.concat(&[&last_mean, &early_mean], 1);
        }
        let token = graph.narrow(&last, 1, 0, 1);
        let token = graph.reshape(&token, &[1, dim]);
        graph.concat(&[&token, &last_mean, &early_mean], 1)
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
        let Linear { weight, bias, .. } = &self.sequence;
        vitrine_kernels::sequence_pool(
            patches(tokens, self.prefix),
            weight.val(),
            bias.as_ref().map(Param::val),
        )
    }

    /// The weights of the patches: `[batch, 1, 1, patches]`.
    fn weights(&self, tokens: Tensor<3>) -> Tensor<4> {
        let scores = self.sequence.forward(patches(tokens, self.prefix)).swap_dims(1, 2);
        activation::softmax(scores, 2).unsqueeze_dim(1)
    }

    fn trace(&self, graph: &mut Graph, tokens: &Value) -> Value {
        let patches = trace_patches(graph, tokens, self.prefix);
        let scores = self.sequence.trace(graph, "sequence", &patches);
        let scores = graph.transpose(&scores, &[0, 2, 1]);
        let weights = graph.softmax(&scores);
        let pooled = graph.matmul(&weights, &patches);
        graph.reshape(&pooled, &[1, tokens.dims[2]])
    }
}

/// Whether the mean of the tokens is normalized, and not the tokens before it.
pub(crate) fn normalizes_mean(config: &ModelConfig) -> bool {
    config.pool == Pool::Mean && config.num_stages() == 1 && config.block != BlockStyle::PostNorm
}

/// The settings of a pooling's attention: the width and the heads of the last stage, and `pool_score`, or else the usual
/// score of the pooling.
fn spec(config: &ModelConfig, usual: Score) -> AttentionSpec {
    let score = config.pool_score.unwrap_or(usual);
    AttentionSpec {
        qkv_bias: true,
        options: AttentionOptions { score, ..AttentionOptions::default() },
        attention_dropout: 0.0,
        dropout: 0.0,
        ..AttentionSpec::of_stage(config, config.num_stages() - 1)
    }
}

fn attention_of(config: &ModelConfig, usual: Score, device: &Device) -> CrossAttention {
    CrossAttention::of_spec(&spec(config, usual), device)
}
