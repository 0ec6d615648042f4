//! Token mixers, which exchange information between tokens, and the parts of attention that they are made of.
//!
//! To add a mixer, write its module in this folder, with its rules and its cost, and give it a variant in [`Mixer`]
//! (`config/choice.rs`) and in [`TokenMixer`] (here). The compiler then lists the lines that this file and
//! `validate/bounds.rs` still need. The list of mixers over which tests loop is in `testing.rs`.

mod channel;
mod cost;
mod cross;
mod cross_covariance;
mod graph;
mod mask;
mod multi_head;
pub(crate) mod neighborhood;
mod normalizer;
pub(crate) mod relative_position;
mod score;
mod window;

pub use channel::{Cbam, ChannelGating, Efficient, SpatialGate, SqueezeExcitation};
pub use cost::MixerCost;
pub(crate) use cost::product;
pub use cross::CrossAttention;
pub use cross_covariance::CrossCovarianceAttention;
pub use graph::{GraphAttention, nearest};
pub use mask::{additive_mask, adjacency, neighborhood};
pub use multi_head::MultiHeadAttention;
pub use normalizer::normalize;
pub use relative_position::{ContinuousBias, OffsetBias, RelativePositionBias, TableBias, log_offsets};
pub use score::{AdditiveScore, BilinearScore, CosineScore, DotScore, LocalityScore, ScoreFunction, Scored};
pub use window::WindowAttention;

use burn::module::Module;
use burn::tensor::{Bool, Device, Tensor};

use crate::graph::{Graph, Value};
use crate::linear::Linear;
use crate::rotary::{LearnedRotary, Rotary};
use crate::{AttentionOptions, ConfigError, Mixer, ModelConfig};

/// The most pairs of tokens for which a mask or an index is built: 1 GiB in float32. Swin-B at 384 pixels has 1.3
/// million pairs.
pub(crate) const MOST_PAIRS: usize = 1 << 28;

impl Mixer {
    /// Checks that the rest of the configuration suits the mixer.
    pub(crate) fn check(self, config: &ModelConfig) -> Result<(), ConfigError> {
        match self {
            Self::Global => Ok(()),
            Self::Window(size) => window::check(size, false, config),
            Self::ShiftedWindow(size) => window::check(size, true, config),
            Self::Neighborhood(radius) => neighborhood::check("neighborhood", radius, config),
            Self::FullNeighborhood(radius) => neighborhood::check("full_neighborhood", radius, config),
            Self::CrossCovariance => cross_covariance::check(config),
            Self::Graph { neighbors } => graph::check_neighbors(neighbors, config),
            Self::Adjacency => graph::check_adjacency(config),
        }
    }

    /// The cost of the mixer in a stage.
    pub fn cost(self, config: &ModelConfig, stage: usize) -> MixerCost {
        let spec = AttentionSpec::of_stage(config, stage);
        let grid = config.stage_grid(stage);
        let tokens = config.num_prefix_tokens() + grid[0] * grid[1];
        if let Some(around) = self.neighborhood(config, stage) {
            return neighborhood::cost(config, &spec, around);
        }
        match self {
            Self::Global | Self::Adjacency | Self::Neighborhood(_) | Self::FullNeighborhood(_) => {
                let mut cost = multi_head::cost(&spec, [1, tokens]);
                cost.attention += config.relative_position(self).cost(grid, spec.num_heads);
                cost
            }
            Self::Graph { .. } => graph::cost(&spec, tokens, config.num_prefix_tokens()),
            Self::Window(size) | Self::ShiftedWindow(size) => window::cost(&spec, grid, size),
            Self::CrossCovariance => cross_covariance::cost(&spec, tokens),
        }
    }

    /// Whether the mixer attends inside windows.
    pub(crate) fn has_windows(self) -> bool {
        match self {
            Self::Window(_) | Self::ShiftedWindow(_) => true,
            Self::Global
            | Self::Neighborhood(_)
            | Self::FullNeighborhood(_)
            | Self::CrossCovariance
            | Self::Graph { .. }
            | Self::Adjacency => false,
        }
    }

    /// Whether the mixer masks pairs of tokens after it has computed their scores.
    pub(crate) fn masks_tokens(self) -> bool {
        match self {
            Self::ShiftedWindow(_)
            | Self::Neighborhood(_)
            | Self::FullNeighborhood(_)
            | Self::Graph { .. }
            | Self::Adjacency => true,
            Self::Global | Self::Window(_) | Self::CrossCovariance => false,
        }
    }

    /// Whether the mixer's weights are about all pairs of tokens.
    pub(crate) fn weighs_all_tokens(self) -> bool {
        match self {
            Self::Global
            | Self::Neighborhood(_)
            | Self::FullNeighborhood(_)
            | Self::Adjacency
            | Self::Graph { .. } => true,
            Self::Window(_) | Self::ShiftedWindow(_) | Self::CrossCovariance => false,
        }
    }

    /// Whether the mixer can use the positions of a [`Context`].
    pub(crate) fn takes_positions(self) -> bool {
        match self {
            Self::Global
            | Self::Neighborhood(_)
            | Self::FullNeighborhood(_)
            | Self::Graph { .. }
            | Self::Adjacency => true,
            Self::Window(_) | Self::ShiftedWindow(_) | Self::CrossCovariance => false,
        }
    }
}

/// The settings that all attention layers of a stage share.
#[derive(Clone, Debug)]
pub struct AttentionSpec {
    /// Width of a token.
    pub dim: usize,
    /// Number of heads; divides `dim`.
    pub num_heads: usize,
    /// Whether query, key and value have a bias.
    pub qkv_bias: bool,
    /// The score, the normalizer and other options.
    pub options: AttentionOptions,
    /// The side of the windows that a continuous relative position was learned in, if it is another.
    pub pretrained_window: Option<usize>,
    /// The epsilon of the norms of queries and keys.
    pub norm_epsilon: f64,
    /// The dropout of attention weights: a probability.
    pub attention_dropout: f64,
    /// The dropout after the projection: a probability.
    pub dropout: f64,
}

impl AttentionSpec {
    /// The settings of a stage of the model.
    pub fn of_stage(config: &ModelConfig, stage: usize) -> Self {
        Self {
            dim: config.stage_dim(stage),
            num_heads: config.num_heads[stage],
            qkv_bias: config.qkv_bias,
            options: config.attention,
            pretrained_window: config.pretrained_windows.as_ref().map(|sides| sides[stage]),
            norm_epsilon: config.norm_epsilon,
            attention_dropout: config.attention_dropout,
            dropout: config.dropout,
        }
    }

    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.dim / self.num_heads
    }
}

/// Zeros that are added to attention weights, `[batch, heads, tokens, tokens]`: their gradient is that of the weights.
pub type WeightProbe = Tensor<4>;

/// What a mixer may read apart from the tokens.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// A bias that is added to the scores: `[batch or 1, heads or 1, queries, keys]`. [`additive_mask`] makes one of a
    /// mask.
    pub bias: Option<Tensor<4>>,
    /// Position vectors that are added to the input of queries and keys: `[1, tokens, dim]`.
    pub position: Option<Tensor<3>>,
    /// The rotation of queries and keys.
    pub rotary: Option<Rotary>,
    /// Rows and columns of the patches.
    pub grid: [usize; 2],
    /// Tokens before the patches.
    pub prefix: usize,
    /// Added to the weights of attention among all tokens, by [`TokenMixer::forward_with_weights`].
    pub probe: Option<WeightProbe>,
}

/// The token mixers that a configuration chooses from.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // one per block
pub enum TokenMixer {
    /// Attention of every token to every token, or to those that a mask leaves.
    MultiHead(MultiHeadAttention),
    /// Attention inside windows.
    Window(WindowAttention),
    /// Attention between channels.
    CrossCovariance(CrossCovarianceAttention),
    /// Attention to the nearest patches in feature space.
    Graph(GraphAttention),
}

impl TokenMixer {
    /// The mixer of a block.
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use vitrine_models::attention::{Context, TokenMixer};
    /// use vitrine_models::{Mixer, ModelConfig, preset};
    ///
    /// let device = Device::default();
    /// let plain = preset::find("vit_pico_patch4_32").expect("listed"); // 8 by 8 patches
    /// let config = ModelConfig { mixers: vec![Mixer::Neighborhood(1)], ..plain };
    /// let mixer = TokenMixer::new(&config, 0, 0, &device);
    /// let x = Tensor::<3>::random([1, 64, 96], Distribution::Default, &device);
    /// let (_, weights) = mixer.forward_with_weights(x, &Context::default());
    /// assert_eq!(weights.dims(), [1, 3, 64, 64]);
    /// // The patch in the corner sees itself and three neighbors, in each head.
    /// let corner = weights.narrow(2, 0, 1);
    /// assert_eq!(corner.greater_scalar(0.0).int().sum().into_scalar::<i64>(), 3 * 4);
    /// ```
    pub fn new(config: &ModelConfig, stage: usize, block: usize, device: &Device) -> Self {
        let mut mixer = Self::without_rotary(config, stage, block, device);
        if let (Some(options), Some(attention)) =
            (config.rotary_options().filter(|options| options.learned), mixer.multi_head())
        {
            let heads = [config.num_heads[stage], config.stage_dim(stage) / config.num_heads[stage]];
            let (grid, prefix) = (config.stage_grid(stage), config.num_prefix_tokens());
            attention.rotary = Some(LearnedRotary::new(grid, prefix, heads, options, device));
        }
        mixer
    }

    fn without_rotary(config: &ModelConfig, stage: usize, block: usize, device: &Device) -> Self {
        let spec = AttentionSpec::of_stage(config, stage);
        let grid = config.stage_grid(stage);
        match config.mixer(block) {
            mixer @ Mixer::Global => {
                let (kind, prefix) = (config.relative_position(mixer), config.num_prefix_tokens());
                let bias = RelativePositionBias::with_prefix(kind, grid, prefix, spec.num_heads, device);
                Self::MultiHead(MultiHeadAttention::new(&spec, device).with_relative_position(bias))
            }
            mixer @ (Mixer::Neighborhood(_) | Mixer::FullNeighborhood(_)) => {
                let around = mixer.neighborhood(config, stage).expect("the mixer has a neighborhood");
                let attention = MultiHeadAttention::new(&spec, device).with_neighborhood(around);
                Self::MultiHead(if neighborhood::is_fused(config) {
                    attention
                } else {
                    attention.with_fixed_bias(additive_mask(neighborhood(&around, device)))
                })
            }
            Mixer::Window(size) => Self::Window(WindowAttention::new(&spec, grid, size, 0, device)),
            Mixer::ShiftedWindow(size) => {
                Self::Window(WindowAttention::new(&spec, grid, size, size / 2, device))
            }
            Mixer::CrossCovariance => Self::CrossCovariance(CrossCovarianceAttention::new(&spec, device)),
            Mixer::Graph { neighbors } => {
                Self::Graph(GraphAttention::new(&spec, neighbors, config.num_prefix_tokens(), device))
            }
            Mixer::Adjacency => {
                let mask = adjacency_mask(config, device);
                Self::MultiHead(MultiHeadAttention::new(&spec, device).with_fixed_bias(additive_mask(mask)))
            }
        }
    }

    /// # Shapes
    /// - x, output: `[batch, tokens, dim]`
    ///
    /// # Panics
    /// If the context has a bias or positions, and the mixer attends in windows or between channels.
    pub fn forward(&self, x: Tensor<3>, context: &Context) -> Tensor<3> {
        self.check(context);
        match self {
            Self::MultiHead(mixer) => mixer.forward(x, context),
            Self::Window(mixer) => mixer.forward(x),
            Self::CrossCovariance(mixer) => mixer.forward(x),
            Self::Graph(mixer) => mixer.forward(x, context),
        }
    }

    /// The attention between tokens that takes positions.
    fn multi_head(&mut self) -> Option<&mut MultiHeadAttention> {
        match self {
            Self::MultiHead(mixer) => Some(mixer),
            Self::Graph(mixer) => Some(&mut mixer.inner),
            Self::Window(_) | Self::CrossCovariance(_) => None,
        }
    }

    /// Keeps for inference what does not depend on the tokens: the bias of relative positions, where it is smaller than the layer's
    /// weights.
    pub(crate) fn fix_bias(&mut self) {
        let [projection, _] = self.linear_layers();
        let most_values = projection.weight.lazy_shape().num_elements();
        if let Some(bias) = self.relative_position() {
            bias.fix(most_values);
        }
    }

    /// Forgets what [`Self::fix_bias`] has kept.
    pub(crate) fn release_bias(&mut self) {
        if let Some(bias) = self.relative_position() {
            bias.release();
        }
    }

    pub(crate) fn relative_position(&mut self) -> Option<&mut RelativePositionBias> {
        match self {
            Self::MultiHead(mixer) => mixer.relative_position.as_mut(),
            Self::Window(mixer) => mixer.relative_position.as_mut(),
            Self::CrossCovariance(_) | Self::Graph(_) => None,
        }
    }

    /// The rotary positions that the mixer learns.
    pub(crate) fn rotary(&mut self) -> Option<&mut LearnedRotary> {
        self.multi_head()?.rotary.as_mut()
    }

    /// The projections of all tokens.
    pub(crate) fn linear_layers(&mut self) -> [&mut Linear; 2] {
        match self {
            Self::MultiHead(mixer) => mixer.linear_layers(),
            Self::Window(mixer) => mixer.inner.linear_layers(),
            Self::CrossCovariance(mixer) => mixer.linear_layers(),
            Self::Graph(mixer) => mixer.inner.linear_layers(),
        }
    }

    /// The first `count` tokens of [`Self::forward`], which are no patches, without computing the others; `None` if the mixer
    /// must compute all.
    ///
    /// # Shapes
    /// - x: `[batch, tokens, dim]`
    /// - output: `[batch, count, dim]`
    pub(crate) fn forward_first(&self, x: &Tensor<3>, count: usize, context: &Context) -> Option<Tensor<3>> {
        match self {
            Self::MultiHead(mixer) if mixer.answers_first(context) => {
                Some(mixer.forward_first(x.clone(), count, context))
            }
            Self::MultiHead(_) | Self::Window(_) | Self::CrossCovariance(_) | Self::Graph(_) => None,
        }
    }

    /// [`Self::forward`], which also returns the attention weights: `[batch, heads, tokens, tokens]` over tokens;
    /// `[batch * windows, heads, window area, window area]` in windows, those of a sample one after the other;
    /// `[batch, heads, head_dim, head_dim]` over channels.
    pub fn forward_with_weights(&self, x: Tensor<3>, context: &Context) -> (Tensor<3>, Tensor<4>) {
        self.check(context);
        match self {
            Self::MultiHead(mixer) => mixer.forward_with_weights(x, context),
            Self::Window(mixer) => mixer.forward_with_weights(x),
            Self::CrossCovariance(mixer) => mixer.forward_with_weights(x),
            Self::Graph(mixer) => mixer.forward_with_weights(x, context),
        }
    }

    /// [`Self::forward`] as operators, for a context without a bias.
    pub(crate) fn trace(&self, graph: &mut Graph, x: &Value, context: &Context) -> Value {
        graph.within("attn", |graph| match self {
            Self::MultiHead(mixer) => mixer.trace(graph, x, context, None),
            Self::Window(mixer) => mixer.trace(graph, x),
            Self::CrossCovariance(mixer) => mixer.trace(graph, x),
            Self::Graph(mixer) => mixer.trace(graph, x, context),
        })
    }

    /// Checks that the context has no bias and no positions, which are about pairs of tokens, if the mixer cannot use
    /// them.
    fn check(&self, context: &Context) {
        let plain = context.bias.is_none() && context.position.is_none() && context.rotary.is_none();
        assert!(
            plain || matches!(self, Self::MultiHead(_) | Self::Graph(_)),
            "attention in windows or between channels takes no bias and no positions"
        );
    }
}

/// The mask of the configuration's edges between patches; prefix tokens see all tokens, and all tokens see them.
fn adjacency_mask(config: &ModelConfig, device: &Device) -> Tensor<4, Bool> {
    let (tokens, prefix) = (config.num_tokens(), config.num_prefix_tokens());
    let of_prefix =
        (0..prefix).flat_map(|token| (0..tokens).flat_map(move |other| [(token, other), (other, token)]));
    let of_patches = config.adjacency.iter().flatten().map(|[from, to]| (prefix + from, prefix + to));
    let edges: Vec<(usize, usize)> = of_prefix.chain(of_patches).collect();
    adjacency(tokens, &edges, device)
}
