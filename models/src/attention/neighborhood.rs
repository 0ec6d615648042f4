//! Neighborhoods of patches: the configuration's, their rules, and their cost.

use vitrine_kernels::{Border, Neighborhood};

use super::{AttentionSpec, MixerCost, multi_head, product};
use crate::{ConfigError, Mixer, ModelConfig, Normalizer, Score};

impl Mixer {
    /// The neighborhood of a patch, if the mixer attends to one.
    pub(crate) fn neighborhood(self, config: &ModelConfig, stage: usize) -> Option<Neighborhood> {
        let (radius, border) = match self {
            Self::Neighborhood(radius) => (radius, Border::Cut),
            Self::FullNeighborhood(radius) => (radius, Border::Moved),
            Self::Global
            | Self::Window(_)
            | Self::ShiftedWindow(_)
            | Self::CrossCovariance
            | Self::Graph { .. }
            | Self::Adjacency => return None,
        };
        let (grid, prefix) = (config.stage_grid(stage), config.num_prefix_tokens());
        Some(Neighborhood { grid, prefix, radius, border })
    }
}

/// Whether neighborhoods are computed without the pairs that do not attend to each other, also in training: the weights
/// are a softmax of dot products, and nothing changes them in between.
pub(crate) fn is_fused(config: &ModelConfig) -> bool {
    let options = &config.attention;
    let of_products = match options.score {
        Score::ScaledDot | Score::Dot | Score::Bilinear | Score::Cosine => true,
        Score::Additive | Score::Locality => false,
    };
    of_products
        && options.normalizer == Normalizer::Softmax
        && !options.talking_heads
        && config.attention_dropout == 0.0
}

/// Checks that a neighborhood is larger than a token and smaller than the grid.
pub(super) fn check(key: &str, radius: usize, config: &ModelConfig) -> Result<(), ConfigError> {
    let side = config.grid().into_iter().max().unwrap_or(0);
    match radius {
        0 => Err(ConfigError(format!("`mixers`: `{key}` needs a radius of at least 1"))),
        _ if radius + 1 >= side => Err(ConfigError(format!(
            "`mixers`: a `{key}` of {radius} holds the whole grid ({side} tokens per side): use `global`"
        ))),
        _ => Ok(()),
    }
}

/// The cost of attention to neighborhoods. Prefix tokens attend to all tokens.
pub(super) fn cost(config: &ModelConfig, spec: &AttentionSpec, around: Neighborhood) -> MixerCost {
    let tokens = around.tokens();
    if !is_fused(config) {
        return multi_head::cost(spec, [1, tokens]);
    }
    let pairs = around.pairs();
    MixerCost {
        projections: 4 * product([tokens, spec.dim, spec.dim]),
        attention: spec.options.score.cost(spec, [tokens, 0]) + 2 * product([pairs, spec.dim]),
        attention_weights: product([pairs, spec.num_heads]),
    }
}
