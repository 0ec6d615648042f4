//! What a configuration chooses from: every list of variants is an enum here, spelled in files as shown.

use serde::{Deserialize, Serialize};

/// A number for every stage: in a file one number for a model of one stage, else a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PerStageText", into = "PerStageText")]
pub struct PerStage(pub Vec<usize>);

impl PerStage {
    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.0.len()
    }

    /// Over all stages.
    pub fn sum(&self) -> usize {
        self.0.iter().sum()
    }
}

impl std::ops::Index<usize> for PerStage {
    type Output = usize;
    fn index(&self, stage: usize) -> &usize {
        &self.0[stage]
    }
}

impl From<usize> for PerStage {
    fn from(value: usize) -> Self {
        Self(vec![value])
    }
}

impl<const N: usize> From<[usize; N]> for PerStage {
    fn from(values: [usize; N]) -> Self {
        Self(values.to_vec())
    }
}

impl std::fmt::Display for PerStage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let texts: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.pad(&texts.join(","))
    }
}

/// How [`PerStage`] is spelled in a file: `12` or `[2, 2, 6, 2]`.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "a whole number, such as 12, or one per stage, such as [2, 2, 6, 2]")]
enum PerStageText {
    One(usize),
    Many(Vec<usize>),
}

impl From<PerStageText> for PerStage {
    fn from(text: PerStageText) -> Self {
        match text {
            PerStageText::One(value) => Self(vec![value]),
            PerStageText::Many(values) => Self(values),
        }
    }
}

impl From<PerStage> for PerStageText {
    fn from(per_stage: PerStage) -> Self {
        match per_stage.0.as_slice() {
            [value] => Self::One(*value),
            _ => Self::Many(per_stage.0),
        }
    }
}

/// What lets tokens exchange information, as a configuration names it. A model cycles through its list over the blocks of a
/// stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Every token attends to every token.
    #[default]
    Global,
    /// Attention inside windows of so many tokens per side (Liu et al. 2021, Swin, section 3.2).
    Window(usize),
    /// The same, with windows moved by half their side.
    ShiftedWindow(usize),
    /// Every token attends to those at most so many rows and columns away, and to prefix tokens.
    #[serde(alias = "neighbourhood")]
    Neighborhood(usize),
    /// Attention between channels instead of tokens (El-Nouby et al. 2021, XCiT, section 3.2), without the local patch
    /// interaction that XCiT adds to its blocks.
    CrossCovariance,
}

/// How an image becomes tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Tokenizer {
    /// Patches side by side, each through one linear layer (Dosovitskiy et al. 2021, equation 1).
    #[default]
    Patch,
    /// The image joined by its four diagonal shifts by half a patch, cut into patches, normalized and mapped
    /// (Lee et al. 2021, section 3.1). Patch merging between stages does the same.
    ShiftedPatch,
    /// Convolutions with ReLU, each followed by a max pool of 3 by 3 and stride 2 (Hassani et al. 2021, section
    /// 3.3): `patch_size` is then `2^layers`.
    Convolution {
        /// Number of convolutions.
        layers: usize,
        /// Side of their kernels, an odd number.
        kernel_size: usize,
    },
    /// A convolution of 3 by 3 with batch norm and GELU, then stages of two of them, the second residual, and a max pool of 2 by 2 after
    /// the first (after Jordan 2024, airbench, section 3.1): `patch_size` is then 2 to the power of the number of stages.
    Residual {
        /// Channels of the first stage, twice those before it. They double from stage to stage, and the last has `embed_dim`.
        width: usize,
    },
}

listed! {
    /// How a query and a key make a score.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Score {
        /// `q · k / sqrt(head_dim)` (Vaswani et al. 2017, section 3.2.1).
        #[default]
        ScaledDot,
        /// `q · k` (Luong et al. 2015, section 3.1).
        Dot,
        /// `q · W · k` with a learned matrix for each head ('general' in Luong et al. 2015, section 3.1).
        Bilinear,
        /// `v · tanh(W_q q + W_k k)` with learned parameters for each head (Bahdanau et al. 2015, appendix A.1.2).
        /// Its memory grows with `tokens² * dim`.
        Additive,
        /// The cosine of the angle times a learned factor for each head, at most 100 (Liu et al. 2022, Swin v2, section 3.2).
        Cosine,
        /// `q · k` times a learned temperature for each head, and no token sees itself (Lee et al. 2021, section 3.2).
        Locality,
    }
}

listed! {
    /// How the scores of a query become weights.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Normalizer {
        /// Positive, summing to 1.
        #[default]
        Softmax,
        /// The positive part of the score, not normalized.
        Relu,
        /// The key with the highest score alone; in training the gradient is softmax's (straight-through).
        Hard,
    }
}

listed! {
    /// What windows add to their scores for the place of a key relative to the query.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum RelativePosition {
        /// Nothing.
        None,
        /// A learned number for each head and offset (Liu et al. 2021, section 3.2).
        #[default]
        Table,
        /// A small MLP of the offset's logarithm (Liu et al. 2022, Swin v2, section 3.3).
        Continuous,
    }
}

/// The details of attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AttentionOptions {
    /// How a query and a key make a score.
    pub score: Score,
    /// How scores become weights.
    #[serde(alias = "normaliser")]
    pub normalizer: Normalizer,
    /// Whether queries and keys pass a layer norm in each head (Henry et al. 2020).
    pub qk_norm: bool,
    /// Whether heads are mixed before and after the softmax (Shazeer et al. 2020).
    pub talking_heads: bool,
    /// What windows know of places; a table if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative_position: Option<RelativePosition>,
}

listed! {
    /// Where a block normalizes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum BlockStyle {
        /// `x + f(norm(x))` (Dosovitskiy et al. 2021, equations 2 and 3).
        #[default]
        PreNorm,
        /// `norm(x + f(x))` (Vaswani et al. 2017, section 3.1); no norm follows the last block.
        PostNorm,
        /// `x + norm(f(x))` (Liu et al. 2022, Swin v2, section 3.2).
        ResidualPostNorm,
        /// `x + mixer(norm(x))`, normalized, then `x + mlp(x)` (the code of Hassani et al. 2021).
        Compact,
    }
}

listed! {
    /// What happens inside a token between its two linear layers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum MlpKind {
        /// GELU.
        #[default]
        Gelu,
        /// GELU in its tanh form, which is off by up to 5e-4 (Hendrycks and Gimpel, arXiv:1606.08415, section 2): SigLIP's.
        GeluTanh,
        /// ReLU, as in the original encoder.
        Relu,
        /// GELU around a depth-wise 3 by 3 convolution of the patches; prefix tokens pass, their channels weighed by the mean of
        /// the patches (Lu et al. 2022, DHVT, section 3.3).
        DepthwiseChannel,
    }
}

/// A gate that weighs channels by what the whole image holds of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelAttention {
    /// Which gate.
    pub kind: ChannelGate,
    /// By how much the bottleneck is narrower than the channels, 16 if left out; `efficient` has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduction: Option<usize>,
    /// Which branch of a block it gates.
    #[serde(default)]
    pub place: GatePlace,
}

impl ChannelAttention {
    /// [`Self::reduction`], or a sixteenth as in Hu et al. 2018.
    pub fn reduction(&self) -> usize {
        self.reduction.unwrap_or(16)
    }
}

listed! {
    /// The kinds of [`ChannelAttention`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ChannelGate {
        /// Mean over the image, bottleneck MLP, sigmoid (Hu et al. 2018, section 3).
        SqueezeExcitation,
        /// Mean over the image, convolution over neighboring channels, sigmoid (Wang et al. 2020, ECA, section 3.2).
        Efficient,
        /// Mean and maximum through one MLP, then a gate for each place from a 7 by 7 convolution
        /// (Woo et al. 2018, CBAM, section 3).
        Cbam,
    }
}

listed! {
    /// Where a [`ChannelAttention`] sits.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum GatePlace {
        /// At the end of the mixer's branch.
        #[default]
        Mixer,
        /// At the end of the MLP's branch.
        Mlp,
    }
}

listed! {
    /// How tokens know where they are.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Position {
        /// They do not: the model sees a bag of patches.
        None,
        /// A learned vector for every token.
        #[default]
        Learned,
        /// Fixed sines and cosines of the patch's index in reading order (Vaswani et al. 2017, section 3.5).
        Sinusoidal,
        /// Fixed sines and cosines of the patch's row and column, half of the width each.
        #[serde(rename = "sinusoidal_2d")]
        Sinusoidal2d,
        /// Queries and keys are rotated by angles of their patch's row and column (Heo et al. 2024, axial RoPE, section 3.1).
        Rotary,
    }
}

listed! {
    /// Where position vectors are added.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum PositionPlace {
        /// To the tokens, once.
        #[default]
        Tokens,
        /// To the input of queries and keys in every block, not to values (Carion et al. 2020, DETR, appendix A.3).
        QueryKey,
    }
}

listed! {
    /// What the head sees of the tokens.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Pool {
        /// The class token, after the final norm.
        #[default]
        ClassToken,
        /// The mean of the patch tokens: then normalized in a plain model (timm's `avg` with `fc_norm`), of
        /// normalized tokens in a model of stages.
        Mean,
        /// The mean of the patch tokens weighted by a softmax over learned scores (Hassani et al. 2021, section 3.2).
        Sequence,
        /// Attention of a learned query to the patch tokens, then a residual MLP (Zhai et al. 2022, 'Scaling Vision
        /// Transformers'; SigLIP).
        Attention,
    }
}
