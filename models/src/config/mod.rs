//! The description of an architecture, as configuration files, presets and model files hold it.

use serde::{Deserialize, Serialize};

mod choice;
mod pool;

pub use choice::{
    AttentionOptions, BlockStyle, ChannelAttention, ChannelGate, GatePlace, Mixer, MlpKind, Normalizer,
    PerStage, Position, PositionPlace, RelativePosition, RotaryCoordinates, RotaryOptions, Score, Tokenizer,
};
pub use pool::Pool;

/// The architecture of a Vision Transformer: plain (Dosovitskiy et al. 2021, section 3.1), or of stages with patch
/// merging between them (Liu et al. 2021, section 3.1). It is read from TOML or JSON.
///
/// Unknown keys are errors. A key that is left out has the value of the first paper. For a plain model, `depth` and
/// `num_heads` are single numbers. Lists make stages, each with half the rows and columns and twice the width of the
/// previous one.
///
/// # Examples
///
/// ```
/// use vitrine_models::{ModelConfig, Position};
///
/// let text = "image_size = 32\npatch_size = 4\nembed_dim = 48\ndepth = 2\nnum_heads = 3";
/// let config: ModelConfig = toml::from_str(text)?;
/// assert_eq!((config.grid(), config.num_tokens(), config.mlp_dim(0)), ([8, 8], 65, 192));
/// assert_eq!((config.channels, config.position), (3, Position::Learned)); // the defaults
/// assert!(toml::from_str::<ModelConfig>(&format!("{text}\nheads = 3")).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Height and width of the input in pixels: one number, or `[height, width]`.
    pub image_size: ImageSize,
    /// Input channels: 1 for gray, 3 for color.
    #[serde(default = "defaults::channels")]
    pub channels: usize,
    /// The number of classes, which is the length of the logits.
    #[serde(default = "defaults::num_classes")]
    pub num_classes: usize,
    /// The side of a patch in pixels. With 1, every pixel is a token.
    pub patch_size: usize,
    /// Width of a token in the first stage.
    pub embed_dim: usize,
    /// Number of blocks in each stage.
    pub depth: PerStage,
    /// The number of attention heads in each stage, which must divide the width of the stage.
    pub num_heads: PerStage,
    /// The width of a block's MLP as a multiple of the width of a token.
    #[serde(default = "defaults::mlp_ratio")]
    pub mlp_ratio: f64,
    /// Whether the projection to queries, keys and values has a bias.
    #[serde(default = "defaults::yes")]
    pub qkv_bias: bool,
    /// Whether a learned class token precedes the patches.
    #[serde(default = "defaults::yes")]
    pub class_token: bool,
    /// Whether a distillation token, a second learned token with its own head, follows the class token. The logits are
    /// then the mean of both heads' logits (Touvron et al. 2021, DeiT, section 4).
    #[serde(default)]
    pub distillation_token: bool,
    /// The number of register tokens (Darcet et al. 2024), which follow the class token.
    #[serde(default)]
    pub registers: usize,
    /// The number of class blocks at the end. The class token joins before them, attends to the patches, and is the
    /// only token that they change (Touvron et al. 2021, CaiT, section 2.2).
    #[serde(default)]
    pub class_depth: usize,
    /// The encoding of positions.
    #[serde(default)]
    pub position: Position,
    /// The place where position vectors are added.
    #[serde(default)]
    pub position_place: PositionPlace,
    /// Whether prefix tokens have learned positions, too.
    #[serde(default = "defaults::yes")]
    pub prefix_position: bool,
    /// The pooling, which combines the tokens into the input of the head.
    #[serde(default)]
    pub pool: Pool,
    /// The score by which the queries of a pooling read the patches; if left out, `scaled_dot`, and `additive` for
    /// `recurrent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_score: Option<Score>,
    /// The start value of LayerScale (Touvron et al. 2021, CaiT, section 2.1); if left out, there is no LayerScale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_scale: Option<f64>,
    /// The epsilon that every layer norm adds to the variance.
    #[serde(default = "defaults::norm_epsilon")]
    pub norm_epsilon: f64,
    /// Whether a norm follows the tokenizer.
    #[serde(default)]
    pub embed_norm: bool,
    /// Whether a norm of all tokens precedes the first block (Radford et al. 2021, CLIP, section 2.4).
    #[serde(default)]
    pub pre_norm: bool,
    /// The places of the norms in a block.
    #[serde(default)]
    pub block: BlockStyle,
    /// What the MLP does between its two linear layers.
    #[serde(default)]
    pub mlp: MlpKind,
    /// Whether a norm precedes the second layer of each block's MLP (Fang et al. 2023, EVA-02, section 2.1).
    #[serde(default)]
    pub mlp_norm: bool,
    /// The widths of hidden layers in the head; with none, the head is one linear layer.
    #[serde(default)]
    pub head_hidden: Vec<usize>,
    /// Dropout probability after the position embedding, after the projections, and in the MLPs.
    #[serde(default)]
    pub dropout: f64,
    /// Dropout probability of attention weights.
    #[serde(default)]
    pub attention_dropout: f64,
    /// Stochastic depth (Huang et al. 2016): the probability that the last block drops a branch. It rises linearly from
    /// 0 over the blocks; with `class_depth`, it is the same for every block.
    #[serde(default)]
    pub drop_path: f64,
    /// The token mixers that the blocks of a stage use in turn, such as `["global"]` or
    /// `[{ window = 4 }, { shifted_window = 4 }]`.
    #[serde(default = "defaults::mixers")]
    pub mixers: Vec<Mixer>,
    /// The edges of the mixer `adjacency`, each `[from, to]`: patch `from` attends to patch `to`, both numbered from 0 in
    /// reading order. `train` also takes the name of a CSV file with the columns `from` and `to`, next to the architecture
    /// file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adjacency: Option<Vec<[usize; 2]>>,
    /// The tokenizer, which makes tokens from an image.
    #[serde(default, alias = "tokeniser")]
    pub tokenizer: Tokenizer,
    /// The options of attention.
    #[serde(default)]
    pub attention: AttentionOptions,
    /// The side of the windows in each stage that continuous relative positions were learned in, at least 2, if windows were enlarged
    /// later: their offsets are scaled by these sides (Liu et al. 2022, Swin v2, section 3.3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretrained_windows: Option<PerStage>,
    /// The options of rotary positions; if left out with `position = "rotary"`, the base is 100 and the coordinates are
    /// rows and columns. With another `position`, queries and keys are rotated besides (Fang et al. 2023, EVA-02).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary: Option<RotaryOptions>,
    /// A gate of channels in every block; if left out, there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_attention: Option<ChannelAttention>,
}

/// Height and width of an image in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "ImageSizeText", into = "ImageSizeText")]
pub struct ImageSize {
    /// The number of rows.
    pub height: usize,
    /// The number of columns.
    pub width: usize,
}

impl ImageSize {
    /// A square image.
    pub const fn square(side: usize) -> Self {
        Self { height: side, width: side }
    }
}

impl std::fmt::Display for ImageSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.height, self.width)
    }
}

/// The form of [`ImageSize`] in a file: `32` or `[32, 48]`.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "a number of pixels, such as 32, or a height and a width, such as [32, 48]")]
enum ImageSizeText {
    Side(usize),
    Sides([usize; 2]),
}

impl From<ImageSizeText> for ImageSize {
    fn from(text: ImageSizeText) -> Self {
        match text {
            ImageSizeText::Side(side) => Self::square(side),
            ImageSizeText::Sides([height, width]) => Self { height, width },
        }
    }
}

impl From<ImageSize> for ImageSizeText {
    fn from(size: ImageSize) -> Self {
        if size.height == size.width {
            Self::Side(size.height)
        } else {
            Self::Sides([size.height, size.width])
        }
    }
}

/// Why a configuration describes no model. The message names the keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(crate) String);

impl ModelConfig {
    /// The value of `num_classes` if a configuration does not state it.
    pub const DEFAULT_CLASSES: usize = 1000;

    /// The same architecture for another number of classes.
    pub fn with_num_classes(mut self, num_classes: usize) -> Self {
        self.num_classes = num_classes;
        self
    }

    /// The same architecture behind a first convolution of this [stride](Tokenizer::Residual), for images that are so many times larger. Only a
    /// residual tokenizer has one: other architectures stay as they are.
    pub fn with_stride(mut self, by: usize) -> Self {
        if let Tokenizer::Residual { stride, .. } = &mut self.tokenizer {
            *stride *= by;
            self.patch_size *= by;
            self.image_size.height *= by;
            self.image_size.width *= by;
        }
        self
    }

    /// The number of stages: 1 for a plain model.
    pub fn num_stages(&self) -> usize {
        self.depth.stages()
    }

    /// The same architecture without what acts at random on a device with autodiff: dropout, stochastic depth, and
    /// sampled attention. It has the same parameters, and the same output on a device without autodiff.
    pub fn deterministic(&self) -> Self {
        let mut config = Self { dropout: 0.0, attention_dropout: 0.0, drop_path: 0.0, ..self.clone() };
        config.attention.normalizer = match config.attention.normalizer {
            Normalizer::HardSampled => Normalizer::Hard,
            normalizer @ (Normalizer::Softmax | Normalizer::Relu | Normalizer::Hard) => normalizer,
        };
        config
    }

    /// Whether the model's parameters suit images of any size that patches divide: see
    /// [`VisionTransformer::at_size`](crate::VisionTransformer::at_size).
    pub fn fits_all_sizes(&self) -> bool {
        let among_all_tokens = |mixer: &Mixer| match mixer {
            Mixer::Global => self.relative_position(*mixer) == RelativePosition::None,
            Mixer::CrossCovariance => true,
            Mixer::Window(_)
            | Mixer::ShiftedWindow(_)
            | Mixer::Neighborhood(_)
            | Mixer::FullNeighborhood(_)
            | Mixer::Graph { .. }
            | Mixer::Adjacency => false,
        };
        self.num_stages() == 1
            && self.position != Position::Learned
            && self.mixers.iter().all(among_all_tokens)
    }

    /// The options of the rotary positions, if queries and keys are rotated.
    pub fn rotary_options(&self) -> Option<RotaryOptions> {
        let is_rotary = self.position == Position::Rotary;
        self.rotary.or_else(|| is_rotary.then(RotaryOptions::default))
    }

    /// The rows and columns of tokens after the tokenizer.
    pub fn grid(&self) -> [usize; 2] {
        [self.image_size.height / self.patch_size, self.image_size.width / self.patch_size]
    }

    /// The rows and columns of tokens in a stage.
    pub fn stage_grid(&self, stage: usize) -> [usize; 2] {
        (0..stage).fold(self.grid(), |grid, _| grid.map(|side| side.div_ceil(2)))
    }

    /// The width of a token in a stage.
    pub fn stage_dim(&self, stage: usize) -> usize {
        self.embed_dim << stage
    }

    /// The width of a token in the last stage.
    pub fn last_dim(&self) -> usize {
        self.stage_dim(self.num_stages() - 1)
    }

    /// The width of the vector that the head takes.
    pub fn embedding_dim(&self) -> usize {
        match self.pool {
            Pool::Queries(queries) => queries * self.last_dim(),
            Pool::ClassTokenMean => 2 * self.last_dim(),
            Pool::TwoDepths { .. } => (2 + usize::from(self.class_token)) * self.last_dim(),
            Pool::ClassToken
            | Pool::Mean
            | Pool::NormalizedMean
            | Pool::Sequence
            | Pool::Attention
            | Pool::Recurrent { .. }
            | Pool::ClassQueries { .. } => self.last_dim(),
        }
    }

    /// The number of tokens before the patches: class token, distillation token and registers. A class token that joins
    /// later, before class blocks, is not counted.
    pub fn num_prefix_tokens(&self) -> usize {
        usize::from(self.class_token && self.class_depth == 0)
            + usize::from(self.distillation_token)
            + self.registers
    }

    /// The number of tokens in a block of the first stage.
    pub fn num_tokens(&self) -> usize {
        let [rows, columns] = self.grid();
        rows * columns + self.num_prefix_tokens()
    }

    /// The width of the MLPs in a stage.
    pub fn mlp_dim(&self, stage: usize) -> usize {
        (self.stage_dim(stage) as f64 * self.mlp_ratio) as usize
    }

    /// The mixer of the block at this index of a stage.
    pub fn mixer(&self, block: usize) -> Mixer {
        self.mixers[block % self.mixers.len()]
    }
}

/// The values of keys that a file may leave out: those of the first paper.
mod defaults {
    pub(super) fn channels() -> usize {
        3
    }
    pub(super) fn num_classes() -> usize {
        super::ModelConfig::DEFAULT_CLASSES
    }
    pub(super) fn mlp_ratio() -> f64 {
        4.0
    }
    pub(super) fn yes() -> bool {
        true
    }
    pub(super) fn norm_epsilon() -> f64 {
        1e-6
    }
    pub(super) fn mixers() -> Vec<super::Mixer> {
        vec![super::Mixer::Global]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    pub(super) fn small() -> ModelConfig {
        toml::from_str("image_size = 32\npatch_size = 4\nembed_dim = 48\ndepth = 2\nnum_heads = 3").unwrap()
    }

    #[test]
    fn a_file_may_leave_out_keys_with_defaults_and_unknown_keys_are_errors() {
        let config = small();
        assert_eq!((config.channels, config.mlp_ratio, config.position), (3, 4.0, Position::Learned));
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<ModelConfig>(&text).unwrap(), config);
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<ModelConfig>(&json).unwrap(), config);
        let error = toml::from_str::<ModelConfig>(&format!("{text}\nheads = 3")).unwrap_err();
        assert!(error.to_string().contains("heads"), "{error}");
    }

    #[test]
    fn image_sizes_are_one_number_or_two() {
        let config: ModelConfig =
            toml::from_str("image_size = [32, 48]\npatch_size = 8\nembed_dim = 48\ndepth = 2\nnum_heads = 3")
                .unwrap();
        assert_eq!(config.image_size, ImageSize { height: 32, width: 48 });
        assert_eq!(config.grid(), [4, 6]);
    }

    #[test]
    fn lists_make_stages_and_mixers_are_named_with_their_sizes() {
        let text = "image_size = 32\npatch_size = 2\nembed_dim = 24\ndepth = [2, 4]\nnum_heads = [2, 4]\n\
            class_token = false\npool = \"mean\"\nposition = \"none\"\n\
            mixers = [{ window = 4 }, { shifted_window = 4 }]\n[attention]\nscore = \"cosine\"\n";
        let config: ModelConfig = toml::from_str(text).unwrap();
        assert_eq!(config.validate(), Ok(()));
        assert_eq!((config.num_stages(), config.stage_dim(1), config.stage_grid(1)), (2, 48, [8, 8]));
        assert_eq!((config.mixer(0), config.mixer(3)), (Mixer::Window(4), Mixer::ShiftedWindow(4)));
        assert_eq!(toml::from_str::<ModelConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
        assert!(toml::from_str::<ModelConfig>(&format!("{text}heads = 3")).is_err());
    }
}
