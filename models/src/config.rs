//! The one description of an architecture: what a configuration file, a preset and a model file hold.

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use crate::VisionTransformer;

/// A Vision Transformer's architecture (Dosovitskiy et al. 2021, section 3.1), as read from TOML or JSON.
///
/// Unknown keys are refused; what is left out has the default of the paper.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Height and width of the input in pixels: one number, or `[height, width]`.
    pub image_size: ImageSize,
    /// Input channels: 1 for grey, 3 for colour.
    #[serde(default = "defaults::channels")]
    pub channels: usize,
    /// Number of classes, the length of the logits.
    #[serde(default = "defaults::num_classes")]
    pub num_classes: usize,
    /// Side of a patch in pixels; 1 makes every pixel a token.
    pub patch_size: usize,
    /// Width of a token.
    pub embed_dim: usize,
    /// Number of blocks.
    pub depth: usize,
    /// Attention heads; must divide `embed_dim`.
    pub num_heads: usize,
    /// Width of a block's MLP as a multiple of `embed_dim`.
    #[serde(default = "defaults::mlp_ratio")]
    pub mlp_ratio: f64,
    /// Whether the projection to query, key and value has a bias.
    #[serde(default = "defaults::yes")]
    pub qkv_bias: bool,
    /// Whether a learned class token is put before the patches.
    #[serde(default = "defaults::yes")]
    pub class_token: bool,
    /// Number of register tokens (Darcet et al. 2024), after the class token.
    #[serde(default)]
    pub registers: usize,
    /// How tokens know where they are.
    #[serde(default)]
    pub position: Position,
    /// What the head sees.
    #[serde(default)]
    pub pool: Pool,
    /// Start value of LayerScale (Touvron et al. 2021, CaiT, section 2.1); left out: no LayerScale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_scale: Option<f64>,
    /// Added to the variance in every layer norm.
    #[serde(default = "defaults::norm_epsilon")]
    pub norm_epsilon: f64,
    /// Widths of hidden layers in the head; empty: one linear layer.
    #[serde(default)]
    pub head_hidden: Vec<usize>,
    /// Dropout after the position embedding, the projections and in the MLP: a probability below 1.
    #[serde(default)]
    pub dropout: f64,
    /// Dropout of attention weights: a probability below 1.
    #[serde(default)]
    pub attention_dropout: f64,
    /// Stochastic depth (Huang et al. 2016): the last block's probability, rising linearly from 0.
    #[serde(default)]
    pub drop_path: f64,
}

/// Height and width of an image in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "ImageSizeText", into = "ImageSizeText")]
pub struct ImageSize {
    /// Rows.
    pub height: usize,
    /// Columns.
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

/// How [`ImageSize`] is spelled in a file: `32` or `[32, 48]`.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
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

/// How tokens know where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// They do not: the model sees a bag of patches.
    None,
    /// A learned vector for every token, prefix tokens included.
    #[default]
    Learned,
    /// Fixed sines and cosines of the patch's index in reading order (Vaswani et al. 2017, section 3.5).
    Sinusoidal,
    /// Fixed sines and cosines of the patch's row and column, half of the width each.
    #[serde(rename = "sinusoidal_2d")]
    Sinusoidal2d,
}

/// What the head sees of the tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// The class token, after the final norm.
    #[default]
    ClassToken,
    /// The mean of the patch tokens, then normalised (timm's `avg` with `fc_norm`).
    Mean,
}

/// Why a configuration describes no model. The message names the keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(crate) String);

impl ModelConfig {
    /// The same architecture for another number of classes.
    pub fn with_num_classes(mut self, num_classes: usize) -> Self {
        self.num_classes = num_classes;
        self
    }

    /// Rows and columns of patches.
    pub fn grid(&self) -> [usize; 2] {
        [self.image_size.height / self.patch_size, self.image_size.width / self.patch_size]
    }

    /// Tokens that are no patches: class token and registers.
    pub fn num_prefix_tokens(&self) -> usize {
        usize::from(self.class_token) + self.registers
    }

    /// All tokens a block sees.
    pub fn num_tokens(&self) -> usize {
        let [rows, columns] = self.grid();
        rows * columns + self.num_prefix_tokens()
    }

    /// Width of a block's MLP.
    pub fn mlp_dim(&self) -> usize {
        (self.embed_dim as f64 * self.mlp_ratio) as usize
    }

    /// Builds the model with fresh parameters; on an autodiff device it can be trained.
    ///
    /// # Errors
    /// When the configuration is not valid: see [`Self::validate`].
    pub fn init(&self, device: &Device) -> Result<VisionTransformer, ConfigError> {
        self.validate()?;
        Ok(VisionTransformer::new(self, device))
    }

    /// Checks that the parts fit together.
    ///
    /// # Errors
    /// Names the keys that do not fit, with their values and the way out.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fail = |message: String| Err(ConfigError(message));
        let ImageSize { height, width } = self.image_size;
        for (key, value) in [
            ("image_size", height.min(width)),
            ("channels", self.channels),
            ("num_classes", self.num_classes),
            ("patch_size", self.patch_size),
            ("embed_dim", self.embed_dim),
            ("depth", self.depth),
            ("num_heads", self.num_heads),
            ("mlp_ratio", self.mlp_dim()),
            ("head_hidden", self.head_hidden.iter().copied().min().unwrap_or(1)),
        ] {
            if value == 0 {
                return fail(format!("`{key}` leaves nothing: it must be at least 1"));
            }
        }
        if !height.is_multiple_of(self.patch_size) || !width.is_multiple_of(self.patch_size) {
            let fitting: Vec<String> = (1..=height.min(width))
                .filter(|p| height % p == 0 && width % p == 0)
                .map(|p| p.to_string())
                .collect();
            return fail(format!(
                "`image_size` {} is not divisible by `patch_size` {}: patches of {} would fit",
                self.image_size,
                self.patch_size,
                fitting.join(", ")
            ));
        }
        if !self.embed_dim.is_multiple_of(self.num_heads) {
            return fail(format!(
                "`embed_dim` {} is not divisible by `num_heads` {}",
                self.embed_dim, self.num_heads
            ));
        }
        let unit = match self.position {
            Position::None | Position::Learned => 1,
            Position::Sinusoidal => 2,
            Position::Sinusoidal2d => 4,
        };
        if !self.embed_dim.is_multiple_of(unit) {
            return fail(format!(
                "this `position` pairs sines with cosines: `embed_dim` {} must be divisible by {unit}",
                self.embed_dim
            ));
        }
        if self.pool == Pool::ClassToken && !self.class_token {
            return fail(
                "`pool = \"class_token\"` needs `class_token = true`; or use `pool = \"mean\"`".into(),
            );
        }
        for (key, value) in [
            ("dropout", self.dropout),
            ("attention_dropout", self.attention_dropout),
            ("drop_path", self.drop_path),
        ] {
            if !(0.0..1.0).contains(&value) {
                return fail(format!("`{key}` is {value}: a probability in [0, 1) is needed"));
            }
        }
        if !(self.norm_epsilon > 0.0 && self.norm_epsilon.is_finite()) {
            return fail(format!("`norm_epsilon` is {}: it must be above 0", self.norm_epsilon));
        }
        if self.layer_scale.is_some_and(|value| !value.is_finite()) {
            return fail("`layer_scale` must be a finite number".into());
        }
        Ok(())
    }
}

/// The paper's values for keys that a file may leave out.
mod defaults {
    pub(super) fn channels() -> usize {
        3
    }
    pub(super) fn num_classes() -> usize {
        1000
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
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn small() -> ModelConfig {
        toml::from_str("image_size = 32\npatch_size = 4\nembed_dim = 48\ndepth = 2\nnum_heads = 3").unwrap()
    }

    #[test]
    fn a_file_may_leave_out_what_has_a_default_and_nothing_unknown_passes() {
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
    fn errors_name_the_keys_that_do_not_fit() {
        type Spoil = fn(&mut ModelConfig);
        let cases: [(&str, Spoil); 8] = [
            ("patch_size", |c| c.patch_size = 5),
            ("num_heads", |c| c.num_heads = 5),
            ("depth", |c| c.depth = 0),
            ("class_token", |c| c.class_token = false),
            ("dropout", |c| c.dropout = 1.0),
            ("drop_path", |c| c.drop_path = f64::NAN),
            ("norm_epsilon", |c| c.norm_epsilon = 0.0),
            ("embed_dim", |c| {
                c.embed_dim = 51;
                c.position = Position::Sinusoidal2d;
            }),
        ];
        for (key, spoil) in cases {
            let mut config = small();
            assert_eq!(config.validate(), Ok(()));
            spoil(&mut config);
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(key), "{key}: {error}");
        }
    }
}
