//! Architecture families that other libraries implement, and the check that a library computes a model as this program
//! does.

#[cfg(test)]
mod tests;

use anyhow::Result;
use vitrine_models::weights::{Layout, windows_fill_grids, windows_shrink};
use vitrine_models::{
    AttentionOptions, BlockStyle, Mixer, MlpKind, ModelConfig, Normalizer, Pool, Position, PositionPlace,
    RelativePosition, Score, Tokenizer,
};

use super::{Library, is_epsilon};

use crate::usage::usage;

/// The families of architectures that other libraries implement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Vit,
    /// DeiT with a teacher: a second token and head.
    Distilled,
    Cait,
    Swin,
    SwinV2,
}

/// A key of a configuration, and whether its value is one that the other library implements. Choices are matched
/// without a wildcard (scores excepted), so that adding one is a decision to make here.
type Requirement = (&'static str, bool);

impl Family {
    /// The family of a model, if the library computes this model as this program does.
    ///
    /// # Errors
    /// If the library has no such architecture. The message names the keys that differ.
    pub(super) fn of(config: &ModelConfig, library: Library) -> Result<Self> {
        let family = Self::nearest(config);
        let unknown = family.missing_everywhere(config);
        if !unknown.is_empty() {
            usage!(
                "--layout {}: no other library has this architecture, because of its {}; --layout onnx writes most models for ONNX \
                 Runtime{}",
                Layout::from(library).name(),
                unknown.join(", "),
                other_head(config, &unknown)
            );
        }
        let missing = family.missing(config, library);
        if !missing.is_empty() {
            usage!(
                "--layout {}: it has {}, but this model differs in {}",
                Layout::from(library).name(),
                offer(library),
                missing.join(", ")
            );
        }
        Ok(family)
    }

    /// The family that an architecture is closest to.
    fn nearest(config: &ModelConfig) -> Self {
        match (config.num_stages() > 1, config.block) {
            (true, BlockStyle::ResidualPostNorm) => Self::SwinV2,
            (true, BlockStyle::PreNorm | BlockStyle::PostNorm | BlockStyle::Compact) => Self::Swin,
            (false, _) if config.class_depth > 0 => Self::Cait,
            (false, _) if config.distillation_token => Self::Distilled,
            (false, _) => Self::Vit,
        }
    }

    fn is_staged(self) -> bool {
        match self {
            Self::Swin | Self::SwinV2 => true,
            Self::Vit | Self::Distilled | Self::Cait => false,
        }
    }

    /// The keys with values that no other library has.
    fn missing_everywhere(self, config: &ModelConfig) -> Vec<&'static str> {
        unmet(self.tokens(config).into_iter().chain(self.blocks(config)).chain(self.attention(config)))
    }

    /// Requirements on everything before and after the blocks.
    fn tokens(self, config: &ModelConfig) -> [Requirement; 9] {
        let is_staged = self.is_staged();
        [
            (
                "tokenizer",
                match config.tokenizer {
                    Tokenizer::Patch => true,
                    Tokenizer::ShiftedPatch | Tokenizer::Convolution { .. } | Tokenizer::Residual { .. } => {
                        false
                    }
                },
            ),
            ("embed_norm", config.embed_norm == is_staged),
            ("pre_norm", !config.pre_norm),
            ("rotary", config.rotary.is_none()),
            (
                "position",
                match config.position {
                    Position::None => true,
                    Position::Learned | Position::Sinusoidal | Position::Sinusoidal2d => !is_staged,
                    Position::Rotary | Position::Conditional | Position::CoordinateMlp => false,
                },
            ),
            (
                "position_place",
                match config.position_place {
                    PositionPlace::Tokens => true,
                    PositionPlace::QueryKey | PositionPlace::FirstQueryKey => false,
                },
            ),
            (
                "pool",
                match config.pool {
                    Pool::Mean => true,
                    Pool::ClassToken | Pool::Attention => !is_staged,
                    Pool::NormalizedMean
                    | Pool::ClassTokenMean
                    | Pool::TwoDepths { .. }
                    | Pool::Sequence
                    | Pool::Queries(_)
                    | Pool::Recurrent { .. }
                    | Pool::ClassQueries { .. } => false,
                },
            ),
            ("pool_score", config.pool_score.is_none()),
            ("head_hidden", config.head_hidden.is_empty()),
        ]
    }

    /// Requirements on the blocks, except for their attention.
    fn blocks(self, config: &ModelConfig) -> [Requirement; 7] {
        let is_staged = self.is_staged();
        [
            (
                "block",
                match config.block {
                    BlockStyle::PreNorm => true,
                    BlockStyle::ResidualPostNorm => is_staged,
                    BlockStyle::PostNorm | BlockStyle::Compact => false,
                },
            ),
            ("mixers", has_mixers(&config.mixers, is_staged)),
            (
                "mlp",
                match config.mlp {
                    MlpKind::Gelu => true,
                    MlpKind::GeluTanh
                    | MlpKind::QuickGelu
                    | MlpKind::Relu
                    | MlpKind::SwiGlu
                    | MlpKind::DepthwiseChannel => false,
                },
            ),
            ("mlp_norm", !config.mlp_norm),
            // timm's class blocks always have a ratio of 4.
            ("mlp_ratio", self != Self::Cait || config.mlp_ratio == 4.0),
            ("channel_attention", config.channel_attention.is_none()),
            (
                "layer_scale",
                match self {
                    Self::Vit | Self::Distilled => true,
                    Self::Cait => config.layer_scale.is_some(),
                    Self::Swin | Self::SwinV2 => config.layer_scale.is_none(),
                },
            ),
        ]
    }

    /// Requirements on attention.
    fn attention(self, config: &ModelConfig) -> [Requirement; 5] {
        let AttentionOptions { score, normalizer, qk_norm, talking_heads, relative_position } =
            config.attention;
        let is_v2 = self == Self::SwinV2;
        [
            (
                "attention.score",
                match score {
                    Score::ScaledDot => !is_v2,
                    Score::Cosine => is_v2,
                    // No other library has these scores. A new one is refused, too, until it is listed here.
                    _ => false,
                },
            ),
            (
                "attention.normalizer",
                match normalizer {
                    Normalizer::Softmax => true,
                    Normalizer::Relu | Normalizer::Hard | Normalizer::HardSampled => false,
                },
            ),
            ("attention.qk_norm", !qk_norm || matches!(self, Self::Vit | Self::Distilled)),
            ("attention.talking_heads", talking_heads == (self == Self::Cait)),
            (
                "attention.relative_position",
                match (self, relative_position) {
                    (Self::Swin, relative) => relative.unwrap_or_default() == RelativePosition::Table,
                    (Self::SwinV2, relative) => relative == Some(RelativePosition::Continuous),
                    (Self::Vit | Self::Distilled | Self::Cait, relative) => relative.is_none(),
                },
            ),
        ]
    }

    /// The keys with values that another library has but this one lacks.
    fn missing(self, config: &ModelConfig, library: Library) -> Vec<&'static str> {
        let is_square = config.image_size.height == config.image_size.width;
        let (fill, shrink) = (windows_fill_grids(config), windows_shrink(config));
        unmet(match library {
            Library::Timm => match self {
                Self::Vit => vec![("position", is_added(config.position))],
                Self::Distilled => original(config, 0),
                Self::Cait => vec![("position", is_learned(config.position))],
                Self::Swin | Self::SwinV2 => Vec::new(),
            },
            Library::HuggingFace => match self {
                // A single register is the distillation token of DeiT without a teacher, which no head reads.
                Self::Vit => original(config, 1),
                Self::Distilled => original(config, 0),
                Self::Cait => vec![("class_depth", false)],
                Self::Swin | Self::SwinV2 => vec![
                    ("image_size", is_square),
                    ("mixers", fill && (self == Self::SwinV2 || !shrink)),
                    ("norm_epsilon", is_epsilon(config, 1e-5)),
                ],
            },
            Library::Torchvision => {
                let mut requirements = match self {
                    Self::Vit => original(config, 0),
                    Self::Distilled => vec![("distillation_token", false)],
                    Self::Cait => vec![("class_depth", false)],
                    Self::Swin | Self::SwinV2 => vec![("mixers", fill && !shrink)],
                };
                requirements.extend([("channels", config.channels == 3), ("image_size", is_square)]);
                requirements
            }
        })
    }
}

/// The keys of the requirements that are not met.
fn unmet(requirements: impl IntoIterator<Item = Requirement>) -> Vec<&'static str> {
    requirements.into_iter().filter(|(_, is_met)| !is_met).map(|(key, _)| key).collect()
}

/// How to train a head that other libraries have, if nothing but the pooling of two depths is `unknown` to them: `--pool own` keeps that of
/// the weights that training begins with, which may be two depths, too.
fn other_head(config: &ModelConfig, unknown: &[&str]) -> &'static str {
    match config.pool {
        Pool::TwoDepths { .. } if config.class_token && unknown == ["pool"] => {
            ", and `vitrine train --pretrained WEIGHTS --pool own` makes heads for other libraries, if that of WEIGHTS reads the class \
             token alone"
        }
        _ => "",
    }
}

/// Whether the mixers are those of ViT (global) or of Swin (windows and shifted windows of one size in turn).
fn has_mixers(mixers: &[Mixer], is_staged: bool) -> bool {
    let is_known = |mixer: &Mixer| match mixer {
        Mixer::Global => !is_staged,
        Mixer::Window(_) | Mixer::ShiftedWindow(_) => is_staged,
        Mixer::Neighborhood(_)
        | Mixer::FullNeighborhood(_)
        | Mixer::CrossCovariance
        | Mixer::Graph { .. }
        | Mixer::Adjacency => false,
    };
    let alternate = match *mixers {
        [Mixer::Global] => true,
        [Mixer::Window(a), Mixer::ShiftedWindow(b)] => a == b,
        _ => false,
    };
    alternate && mixers.iter().all(is_known)
}

/// The requirements of the original ViT (Dosovitskiy et al., 2021), with at most `registers` register tokens.
fn original(config: &ModelConfig, registers: usize) -> Vec<Requirement> {
    let pool = match config.pool {
        Pool::ClassToken => true,
        Pool::Mean
        | Pool::NormalizedMean
        | Pool::ClassTokenMean
        | Pool::TwoDepths { .. }
        | Pool::Sequence
        | Pool::Attention
        | Pool::Queries(_)
        | Pool::Recurrent { .. }
        | Pool::ClassQueries { .. } => false,
    };
    vec![
        ("position", is_learned(config.position)),
        ("prefix_position", config.prefix_position),
        ("pool", pool),
        ("layer_scale", config.layer_scale.is_none()),
        ("attention.qk_norm", !config.attention.qk_norm),
        ("registers", config.registers <= registers),
    ]
}

fn is_learned(position: Position) -> bool {
    match position {
        Position::Learned => true,
        Position::None
        | Position::Sinusoidal
        | Position::Sinusoidal2d
        | Position::Rotary
        | Position::Conditional
        | Position::CoordinateMlp => false,
    }
}

/// Whether positions are added to the tokens, so that another library can store them as learned ones.
fn is_added(position: Position) -> bool {
    match position {
        Position::Learned | Position::Sinusoidal | Position::Sinusoidal2d => true,
        Position::None | Position::Rotary | Position::Conditional | Position::CoordinateMlp => false,
    }
}

/// The architectures that a library implements, for messages.
fn offer(library: Library) -> &'static str {
    match library {
        Library::Timm => "ViT with positions, DeiT and CaiT with learned ones, Swin and Swin v2",
        Library::HuggingFace => {
            "ViT with a class token and at most one register, learned positions and no LayerScale; distilled DeiT; Swin and Swin v2 with a \
             `norm_epsilon` of 1e-5, of square images whose grids are whole numbers of windows, none of them smaller than a window of Swin"
        }
        Library::Torchvision => {
            "ViT with only a class token, learned positions and neither LayerScale nor registers; Swin and Swin v2 whose grids are \
             whole numbers of windows and none of them smaller than one; all of them for square color images"
        }
    }
}
