//! Facts about an architecture that a configuration file, a name or a user states, and their comparison with the
//! weights.

use std::fmt::Display;

use super::rotary::RotaryPairs;
use crate::{BlockStyle, ImageSize, Mixer, MlpKind, ModelConfig, PerStage, Pool, Position, RotaryOptions};

/// Stated facts about an architecture; each may be left out. Facts that the shapes of the weights tell, too, must agree
/// with the shapes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Height and width of the input in pixels.
    pub image_size: Option<ImageSize>,
    /// Input channels.
    pub channels: Option<usize>,
    /// The length of the logits; 0 if there is no head.
    pub num_classes: Option<usize>,
    /// Side of a patch in pixels.
    pub patch_size: Option<usize>,
    /// Width of a token in the first stage.
    pub embed_dim: Option<usize>,
    /// The number of blocks in each stage.
    pub depth: Option<PerStage>,
    /// Attention heads in each stage.
    pub num_heads: Option<PerStage>,
    /// The width of the MLPs in the first stage, as a multiple of the width of a token.
    pub mlp_ratio: Option<f64>,
    /// The width of the MLPs in the first stage.
    pub mlp_dim: Option<usize>,
    /// Whether queries, keys and values have a bias.
    pub qkv_bias: Option<bool>,
    /// Whether queries and keys are normalized.
    pub qk_norm: Option<bool>,
    /// Whether there is a class token.
    pub class_token: Option<bool>,
    /// Whether there is a distillation token with its own head.
    pub distillation_token: Option<bool>,
    /// Number of register tokens.
    pub registers: Option<usize>,
    /// The number of class blocks after the other blocks.
    pub class_depth: Option<usize>,
    /// Whether positions are learned; if not, there are none.
    pub learned_position: Option<bool>,
    /// The rotary positions, with the values of a head that they rotate together; if not, there are none.
    pub rotary: Option<(RotaryOptions, RotaryPairs)>,
    /// Whether a norm of all tokens precedes the first block.
    pub pre_norm: Option<bool>,
    /// Whether prefix tokens have learned positions.
    pub prefix_position: Option<bool>,
    /// Whether there is LayerScale.
    pub layer_scale: Option<bool>,
    /// Whether blocks normalize the outputs of their branches (Swin v2), and not the inputs.
    pub residual_post_norm: Option<bool>,
    /// The side of a window, in tokens.
    pub window: Option<usize>,
    /// The side of the windows in the last stage, in tokens.
    pub last_window: Option<usize>,
    /// The sides of the windows in each stage before they were enlarged (Swin v2), in tokens; zeros if they were not.
    pub pretrained_windows: Option<PerStage>,
    /// The pooling.
    pub pool: Option<Pool>,
    /// The epsilon that every layer norm adds to the variance.
    pub norm_epsilon: Option<f64>,
    /// Whether a norm precedes the second layer of the MLPs.
    pub mlp_norm: Option<bool>,
    /// What the MLPs do between their two linear layers.
    pub mlp: Option<MlpKind>,
}

impl Facts {
    /// All facts of an architecture, except for the number of classes.
    pub fn of(config: &ModelConfig) -> Self {
        let window = match config.mixers.first() {
            Some(Mixer::Window(side)) => Some(*side),
            _ => None,
        };
        Self {
            image_size: Some(config.image_size),
            channels: Some(config.channels),
            num_classes: None,
            patch_size: Some(config.patch_size),
            embed_dim: Some(config.embed_dim),
            depth: Some(config.depth.clone()),
            num_heads: Some(config.num_heads.clone()),
            mlp_ratio: Some(config.mlp_ratio),
            mlp_dim: None,
            qkv_bias: Some(config.qkv_bias),
            qk_norm: Some(config.attention.qk_norm),
            class_token: Some(config.class_token),
            distillation_token: Some(config.distillation_token),
            registers: Some(config.registers),
            class_depth: Some(config.class_depth),
            learned_position: Some(config.position == Position::Learned),
            rotary: config.rotary_options().map(|options| (options, RotaryPairs::Quarters)),
            pre_norm: Some(config.pre_norm),
            prefix_position: (config.num_prefix_tokens() > 0).then_some(config.prefix_position),
            layer_scale: Some(config.layer_scale.is_some()),
            residual_post_norm: Some(config.block == BlockStyle::ResidualPostNorm),
            window,
            last_window: None,
            pretrained_windows: Some(
                config.pretrained_windows.clone().unwrap_or_else(|| PerStage(vec![0; config.num_stages()])),
            ),
            pool: Some(config.pool),
            norm_epsilon: Some(config.norm_epsilon),
            mlp_norm: Some(config.mlp_norm),
            mlp: Some(config.mlp),
        }
    }

    /// The facts that contradict the weights, one sentence each. `config` is the architecture of the weights, and
    /// `classes` their number of classes if they have a head.
    pub(super) fn contradictions(&self, config: &ModelConfig, classes: Option<usize>) -> Vec<String> {
        let mlp_dim = self.mlp_dim.or_else(|| {
            let dim = self.embed_dim.unwrap_or(config.embed_dim);
            // Configuration files round this ratio to about four digits.
            let ratio = self.mlp_ratio?;
            let near = (dim as f64 * ratio - config.mlp_dim(0) as f64).abs() < 1.0;
            Some(if near { config.mlp_dim(0) } else { (dim as f64 * ratio) as usize })
        });
        let has_prefix = config.num_prefix_tokens() > 0;
        let prefix_position =
            self.prefix_position.filter(|_| has_prefix && config.position == Position::Learned);
        let window = config.mixers.iter().find_map(|mixer| match mixer {
            Mixer::Window(side) => Some(*side),
            _ => None,
        });
        // Windows that are stated larger than the largest grid have shrunk to the grid, and so have their tables.
        let window = window.filter(|side| !(config.grid() == [*side; 2] && self.window > Some(*side)));
        [
            differs("image_size", &self.image_size, &config.image_size),
            differs("channels", &self.channels, &config.channels),
            classes.and_then(|classes| differs("num_classes", &self.num_classes, &classes)),
            differs("patch_size", &self.patch_size, &config.patch_size),
            differs("embed_dim", &self.embed_dim, &config.embed_dim),
            differs("depth", &self.depth, &config.depth),
            differs("num_heads", &self.num_heads, &config.num_heads),
            differs("width of the MLPs", &mlp_dim, &config.mlp_dim(0)),
            differs("qkv_bias", &self.qkv_bias, &config.qkv_bias),
            differs("qk_norm", &self.qk_norm, &config.attention.qk_norm),
            differs("class_token", &self.class_token, &config.class_token),
            differs("distillation_token", &self.distillation_token, &config.distillation_token),
            differs("registers", &self.registers, &config.registers),
            differs("class_depth", &self.class_depth, &config.class_depth),
            differs("learned positions", &self.learned_position, &(config.position == Position::Learned)),
            differs("a norm in the MLPs", &self.mlp_norm, &config.mlp_norm),
            differs("a norm before the blocks", &self.pre_norm, &config.pre_norm),
            differs("positions of prefix tokens", &prefix_position, &config.prefix_position),
            differs("layer_scale", &self.layer_scale, &config.layer_scale.is_some()),
            differs(
                "norms after the branches (Swin v2)",
                &self.residual_post_norm,
                &(config.block == BlockStyle::ResidualPostNorm),
            ),
            window.and_then(|window| differs("window", &self.window, &window)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

fn differs<T: PartialEq + Display>(key: &str, stated: &Option<T>, stored: &T) -> Option<String> {
    let stated = stated.as_ref().filter(|stated| *stated != stored)?;
    Some(format!("{key}: {stated} is stated, and the weights have {stored}"))
}
