//! How tokens exchange information: the one list of token mixers, and the parts they are made of.
//!
//! To add one, write its module in this folder, with its rules and its cost, and give it a variant in [`Mixer`] and [`TokenMixer`]; the
//! compiler then lists the lines that this file still needs, and no other file does.

mod channel;
mod cross;
mod cross_covariance;
mod mask;
mod multi_head;
pub(crate) mod relative_position;
mod score;
mod window;

pub use channel::{Cbam, ChannelAttention, Efficient, SqueezeExcitation};
pub use cross::CrossAttention;
pub use cross_covariance::CrossCovarianceAttention;
pub use mask::{adjacency, hide, neighbourhood};
pub use multi_head::MultiHeadAttention;
pub use relative_position::{RelativePositionBias, log_offsets};
pub use score::{ScoreFunction, normalise};
pub use window::WindowAttention;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::rotary::Rotary;
use crate::{AttentionOptions, ConfigError, ModelConfig};

/// What lets tokens exchange information, as a configuration names it. A model cycles through its list over the blocks of a
/// stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Every token attends to every token.
    #[default]
    Global,
    /// Attention inside windows of so many tokens a side (Liu et al. 2021, Swin, section 3.2).
    Window(usize),
    /// The same, with windows moved by half their side.
    ShiftedWindow(usize),
    /// Every token attends to those at most so many rows and columns away, and to prefix tokens.
    Neighbourhood(usize),
    /// Attention between channels instead of tokens (El-Nouby et al. 2021, XCiT, section 3.2), without the local patch
    /// interaction that XCiT adds to its blocks.
    CrossCovariance,
}

/// Multiply-adds of a mixer for one image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MixerCost {
    /// Of the layers before and after the mixing.
    pub projections: u64,
    /// Of the mixing itself.
    pub attention: u64,
    /// Attention weights, in numbers.
    pub attention_weights: u64,
}

impl Mixer {
    /// Whether the rest of the configuration suits the mixer.
    pub(crate) fn check(self, config: &ModelConfig) -> Result<(), ConfigError> {
        match self {
            Self::Global => Ok(()),
            Self::Window(size) => window::check(size, false, config),
            Self::ShiftedWindow(size) => window::check(size, true, config),
            Self::Neighbourhood(radius) => mask::check_neighbourhood(radius, config),
            Self::CrossCovariance => cross_covariance::check(config),
        }
    }

    /// What it costs in a stage.
    pub fn cost(self, config: &ModelConfig, stage: usize) -> MixerCost {
        let spec = AttentionSpec::of_stage(config, stage);
        let grid = config.stage_grid(stage);
        let tokens = config.num_prefix_tokens() + grid[0] * grid[1];
        match self {
            Self::Global | Self::Neighbourhood(_) => multi_head::cost(&spec, [1, tokens]),
            Self::Window(size) | Self::ShiftedWindow(size) => window::cost(&spec, grid, size),
            Self::CrossCovariance => cross_covariance::cost(&spec, tokens),
        }
    }

    /// Whether it attends inside windows.
    pub(crate) fn has_windows(self) -> bool {
        match self {
            Self::Window(_) | Self::ShiftedWindow(_) => true,
            Self::Global | Self::Neighbourhood(_) | Self::CrossCovariance => false,
        }
    }

    /// Whether it hides some tokens from others that it has scores for.
    pub(crate) fn hides_tokens(self) -> bool {
        match self {
            Self::ShiftedWindow(_) | Self::Neighbourhood(_) => true,
            Self::Global | Self::Window(_) | Self::CrossCovariance => false,
        }
    }

    /// Whether it can use the positions of a [`Context`].
    pub(crate) fn takes_positions(self) -> bool {
        match self {
            Self::Global | Self::Neighbourhood(_) => true,
            Self::Window(_) | Self::ShiftedWindow(_) | Self::CrossCovariance => false,
        }
    }
}

/// What every attention layer of a stage shares.
#[derive(Clone, Debug)]
pub struct AttentionSpec {
    /// Width of a token.
    pub dim: usize,
    /// Number of heads; divides `dim`.
    pub num_heads: usize,
    /// Whether query, key and value have a bias.
    pub qkv_bias: bool,
    /// Score, normaliser and the rest.
    pub options: AttentionOptions,
    /// Of the norms of queries and keys.
    pub norm_epsilon: f64,
    /// Dropout of the weights.
    pub attention_dropout: f64,
    /// Dropout after the projection.
    pub dropout: f64,
}

impl AttentionSpec {
    /// That of a stage of the model.
    pub fn of_stage(config: &ModelConfig, stage: usize) -> Self {
        Self {
            dim: config.stage_dim(stage),
            num_heads: config.num_heads[stage],
            qkv_bias: config.qkv_bias,
            options: config.attention,
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

/// What a mixer may use beside the tokens.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// Added to the scores: `[batch or 1, heads or 1, queries, keys]`; [`hide`] makes one from a mask.
    pub bias: Option<Tensor<4>>,
    /// Added to the input of queries and keys: `[1, tokens, dim]`.
    pub position: Option<Tensor<3>>,
    /// Turns queries and keys.
    pub rotary: Option<Rotary>,
    /// Rows and columns of the patches.
    pub grid: [usize; 2],
    /// Tokens before the patches.
    pub prefix: usize,
}

/// One of the mixers that a configuration chooses from.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // one a block
pub enum TokenMixer {
    /// Every token attends to every token, or to its neighbours.
    MultiHead(MultiHeadAttention),
    /// Attention inside windows.
    Window(WindowAttention),
    /// Attention between channels.
    CrossCovariance(CrossCovarianceAttention),
}

impl TokenMixer {
    /// The mixer of a block.
    pub fn new(config: &ModelConfig, stage: usize, block: usize, device: &Device) -> Self {
        let spec = AttentionSpec::of_stage(config, stage);
        let grid = config.stage_grid(stage);
        match config.mixer(block) {
            Mixer::Global => Self::MultiHead(MultiHeadAttention::new(&spec, device)),
            Mixer::Neighbourhood(radius) => {
                let mask = neighbourhood(grid, config.num_prefix_tokens(), radius, device);
                Self::MultiHead(MultiHeadAttention::new(&spec, device).with_fixed_bias(hide(mask)))
            }
            Mixer::Window(size) => Self::Window(WindowAttention::new(&spec, grid, size, 0, device)),
            Mixer::ShiftedWindow(size) => {
                Self::Window(WindowAttention::new(&spec, grid, size, size / 2, device))
            }
            Mixer::CrossCovariance => Self::CrossCovariance(CrossCovarianceAttention::new(&spec, device)),
        }
    }

    /// # Shapes
    /// - x, output: `[batch, tokens, dim]`
    ///
    /// # Panics
    /// When the context has a bias or positions and the mixer is of windows or channels.
    pub fn forward(&self, x: Tensor<3>, context: &Context) -> Tensor<3> {
        self.check(context);
        match self {
            Self::MultiHead(mixer) => mixer.forward(x, context),
            Self::Window(mixer) => mixer.forward(x),
            Self::CrossCovariance(mixer) => mixer.forward(x),
        }
    }

    /// [`Self::forward`] that also returns the attention weights: over tokens `[batch, heads, tokens, tokens]`; of windows
    /// `[batch * windows, heads, window area, window area]`, the windows of a sample side by side; over channels
    /// `[batch, heads, head_dim, head_dim]`.
    pub fn forward_with_weights(&self, x: Tensor<3>, context: &Context) -> (Tensor<3>, Tensor<4>) {
        self.check(context);
        match self {
            Self::MultiHead(mixer) => mixer.forward_with_weights(x, context),
            Self::Window(mixer) => mixer.forward_with_weights(x),
            Self::CrossCovariance(mixer) => mixer.forward_with_weights(x),
        }
    }

    /// Windows and channels have no place for what is said of pairs of tokens.
    fn check(&self, context: &Context) {
        let plain = context.bias.is_none() && context.position.is_none() && context.rotary.is_none();
        assert!(plain || matches!(self, Self::MultiHead(_)), "this mixer takes no bias and no positions");
    }
}
