//! The choices of a configuration: an enum for every list of variants, as files spell them.

use serde::{Deserialize, Serialize};

/// A number for every stage. A file has a single number for a model of one stage, and a list for several stages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PerStageText", into = "PerStageText")]
pub struct PerStage(pub Vec<usize>);

impl PerStage {
    /// The number of stages.
    pub fn stages(&self) -> usize {
        self.0.len()
    }

    /// The sum over all stages.
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

/// The form of [`PerStage`] in a file: `12` or `[2, 2, 6, 2]`.
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

/// The token mixer of a block. The blocks of a stage go through the configuration's list of mixers in turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Every token attends to every token.
    #[default]
    Global,
    /// Attention inside windows of this many tokens per side (Liu et al. 2021, Swin, section 3.2).
    Window(usize),
    /// Attention inside windows that are shifted by half of their side.
    ShiftedWindow(usize),
    /// Every token attends to the tokens that are at most this many rows and columns away, and to prefix tokens.
    #[serde(alias = "neighbourhood")]
    Neighborhood(usize),
    /// As `neighborhood`, but at the border it is moved into the image, so that every patch attends to as many (Hassani
    /// et al. 2023, 'Neighborhood Attention Transformer', section 3.1).
    FullNeighborhood(usize),
    /// Attention between channels instead of tokens (El-Nouby et al. 2021, XCiT, section 3.2), without the local patch
    /// interaction that XCiT adds to its blocks.
    CrossCovariance,
    /// Every patch attends to itself and to its nearest patches in feature space, which each block chooses anew (Han et
    /// al. 2022, 'Vision GNN', section 3.1).
    Graph {
        /// The number of patches besides itself.
        neighbors: usize,
    },
    /// Every patch attends to itself and along the edges of the key `adjacency` (Velickovic et al. 2018, GAT, section
    /// 2.1).
    Adjacency,
}

fn one() -> usize {
    1
}

fn is_one(stride: &usize) -> bool {
    *stride == 1
}

/// The tokenizer, which makes tokens from an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Tokenizer {
    /// Patches without overlap, each mapped by one linear layer (Dosovitskiy et al. 2021, equation 1).
    #[default]
    Patch,
    /// Patches of the image joined with four copies that are shifted diagonally by half a patch, normalized and mapped
    /// by a linear layer (Lee et al. 2021, section 3.1). Patch merging between stages joins shifted copies, too.
    ShiftedPatch,
    /// Convolutions with ReLU, each followed by max pooling of 3 by 3 with stride 2 (Hassani et al. 2021, section 3.3).
    /// `patch_size` must be `2^layers`.
    Convolution {
        /// The number of convolutions.
        layers: usize,
        /// The side of their kernels, an odd number.
        kernel_size: usize,
    },
    /// A convolution of 3 by 3 with batch norm and GELU, then stages of two such convolutions, with max pooling of 2 by
    /// 2 after the first and a residual connection around the second (after Jordan 2024, airbench, section 3.1).
    /// `patch_size` must be 2 to the power of the number of stages, times `stride`.
    Residual {
        /// The channels of the first stage; the convolution before it has half as many. Each stage doubles them, and
        /// the last stage has `embed_dim`.
        width: usize,
        /// The stride of the convolution before the first stage. With more than 1, its kernels have this side, so that it maps patches
        /// without overlap, and the stages see a map whose sides are so many times smaller than those of the image.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        stride: usize,
    },
}

listed! {
    /// The score of a query and a key.
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
        /// The cosine of the angle times a learned factor for each head, at most 100 (Liu et al. 2022, Swin v2, section
        /// 3.2).
        Cosine,
        /// `q · k` times a learned temperature for each head, and no token sees itself (Lee et al. 2021, section 3.2).
        Locality,
    }
}

listed! {
    /// The normalizer, which makes attention weights from the scores of a query.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Normalizer {
        /// Softmax: positive weights that sum to 1.
        #[default]
        Softmax,
        /// The positive part of the score, not normalized.
        Relu,
        /// Only the key with the highest score. In training the gradient is that of softmax (straight-through).
        Hard,
        /// As `hard`, but in training the key is drawn by its softmax weight: noise from the Gumbel distribution is added
        /// to the scores (Jang et al. 2017, section 2.2, straight-through, at temperature 1).
        HardSampled,
    }
}

impl Normalizer {
    /// Whether training draws random numbers.
    pub(crate) fn draws(self) -> bool {
        match self {
            Self::HardSampled => true,
            Self::Softmax | Self::Relu | Self::Hard => false,
        }
    }
}

listed! {
    /// The bias that windows add to their scores for the offset from query to key.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum RelativePosition {
        /// No bias.
        None,
        /// A learned number for each head and offset (Liu et al. 2021, section 3.2).
        #[default]
        Table,
        /// A small MLP of the logarithm of the offset (Liu et al. 2022, Swin v2, section 3.3).
        Continuous,
    }
}

/// The options of attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AttentionOptions {
    /// The score of a query and a key.
    pub score: Score,
    /// The normalizer, which makes attention weights from the scores of a query.
    #[serde(alias = "normaliser")]
    pub normalizer: Normalizer,
    /// Whether queries and keys are normalized by a layer norm in each head (Henry et al. 2020).
    pub qk_norm: bool,
    /// Whether heads are mixed before and after the softmax (Shazeer et al. 2020).
    pub talking_heads: bool,
    /// The relative position bias of windows, and of attention among all tokens (Bao et al. 2022, BEiT). If left out, windows have
    /// `"table"`, and attention among all tokens has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative_position: Option<RelativePosition>,
}

listed! {
    /// The places of the norms in a block.
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
        /// `y = norm(x + mixer(norm(x)))`, then `y + mlp(y)` (the code of Hassani et al. 2021).
        Compact,
    }
}

listed! {
    /// What the MLP does between its two linear layers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum MlpKind {
        /// GELU.
        #[default]
        Gelu,
        /// The tanh form of GELU, as in SigLIP, whose error is up to 5e-4 (Hendrycks and Gimpel, arXiv:1606.08415,
        /// section 2).
        GeluTanh,
        /// `x · sigmoid(1.702 x)`, as in OpenAI's CLIP, whose error for GELU is up to 0.02 (Hendrycks and Gimpel,
        /// arXiv:1606.08415, section 2).
        QuickGelu,
        /// ReLU, as in the original encoder.
        Relu,
        /// A gate: the first layer is twice as wide, and the second half of its values is multiplied by `silu` of the
        /// first half (Shazeer 2020, 'GLU Variants Improve Transformer', equation 6).
        #[serde(rename = "swiglu")]
        SwiGlu,
        /// GELU, then a depth-wise 3 by 3 convolution of the patches with GELU, which is added to them. The channels of
        /// prefix tokens are weighted by the mean of the patches (Lu et al. 2022, DHVT, section 3.3).
        DepthwiseChannel,
    }
}

impl MlpKind {
    /// The kind for tokens without places: the same activation, without the mixing of neighbors.
    pub(crate) fn without_neighbors(self) -> Self {
        match self {
            Self::Gelu | Self::DepthwiseChannel => Self::Gelu,
            Self::GeluTanh => Self::GeluTanh,
            Self::QuickGelu => Self::QuickGelu,
            Self::Relu => Self::Relu,
            Self::SwiGlu => Self::SwiGlu,
        }
    }

    /// The number of matrices `[dim, hidden]` that the MLP holds.
    pub(crate) fn matrices(self) -> usize {
        match self {
            Self::Gelu | Self::GeluTanh | Self::QuickGelu | Self::Relu | Self::DepthwiseChannel => 2,
            Self::SwiGlu => 3,
        }
    }
}

/// A gate that weights channels by statistics of the whole image, places by statistics of all channels, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelAttention {
    /// The kind of gate.
    pub kind: ChannelGate,
    /// The number of channels divided by the width of the bottleneck; 16 if left out. `efficient` and `spatial` have no
    /// bottleneck.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduction: Option<usize>,
    /// The place of the gate.
    #[serde(default)]
    pub place: GatePlace,
}

impl ChannelAttention {
    /// The stated [`reduction`](Self#structfield.reduction), or 16 as in Hu et al. 2018.
    pub fn reduction(&self) -> usize {
        self.reduction.unwrap_or(16)
    }
}

listed! {
    /// The kinds of [`ChannelAttention`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ChannelGate {
        /// The mean over the image, an MLP with a bottleneck, a sigmoid (Hu et al. 2018, section 3).
        SqueezeExcitation,
        /// The mean over the image, a convolution over neighboring channels, a sigmoid (Wang et al. 2020, ECA, section
        /// 3.2).
        Efficient,
        /// The mean and the maximum over the image through one MLP, then a gate of places by a 7 by 7 convolution (Woo
        /// et al. 2018, CBAM, section 3).
        Cbam,
        /// The second half of CBAM: a gate of places, from the mean and the maximum over the channels by a 7 by 7
        /// convolution (Woo et al. 2018, section 3).
        Spatial,
    }
}

impl ChannelGate {
    /// Whether the gate has a bottleneck, whose width is [`ChannelAttention::reduction`].
    pub fn has_bottleneck(self) -> bool {
        match self {
            Self::SqueezeExcitation | Self::Cbam => true,
            Self::Efficient | Self::Spatial => false,
        }
    }
}

listed! {
    /// The place of a [`ChannelAttention`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum GatePlace {
        /// At the end of the mixer's branch.
        #[default]
        Mixer,
        /// At the end of the MLP's branch.
        Mlp,
        /// In a tokenizer of convolutions: on the map after each layer of `convolution`, and in each residual branch of
        /// `residual` (as Hu et al. 2018, figure 3). Blocks then have no gate.
        Tokenizer,
    }
}

listed! {
    /// The encoding of positions.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Position {
        /// No positions: the order of the patches does not matter.
        None,
        /// A learned vector for every token.
        #[default]
        Learned,
        /// Fixed sines and cosines of the patch's index in reading order (Vaswani et al. 2017, section 3.5).
        Sinusoidal,
        /// Fixed sines and cosines of the row and of the column of a patch, each in half of the width.
        #[serde(rename = "sinusoidal_2d")]
        Sinusoidal2d,
        /// Queries and keys are rotated by angles that are proportional to the row and the column of their patch (Heo
        /// et al. 2024, axial RoPE, section 3.1).
        Rotary,
        /// A depth-wise 3 by 3 convolution of the patches, padded with zeros and added to them after the first block of
        /// each stage (Chu et al. 2021, PEG in CPVT, section 3.2).
        Conditional,
        /// A small MLP of a patch's row and column, as shares of the image from -1 to 1, gives its vector (the absolute
        /// form of the continuous bias of Liu et al. 2022, Swin v2, section 3.3).
        CoordinateMlp,
    }
}

/// The options of rotary positions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RotaryOptions {
    /// The base of the frequencies, above 1: pair `i` of `n` pairs for an axis turns by the coordinate times
    /// `base^(-i / n)`. Learned frequencies start from these, turned to a random direction.
    pub base: f64,
    /// The coordinates of a patch.
    pub coordinates: RotaryCoordinates,
    /// The rows and columns of the grid to whose coordinates those of another grid are scaled (Fang et al. 2023, EVA-02, which is
    /// trained with 16 by 16 patches); if left out, coordinates are not scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grid: Option<[usize; 2]>,
    /// Whether each head of each block learns its frequencies: pair `i` turns by a sum of the row and the column, each times a
    /// learned number (Heo et al. 2024, RoPE-Mixed, section 3.2, who start from `base = 10`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub learned: bool,
}

impl Default for RotaryOptions {
    /// Rows and columns, with the base 100 (Heo et al. 2024).
    fn default() -> Self {
        Self { base: 100.0, coordinates: RotaryCoordinates::Index, grid: None, learned: false }
    }
}

listed! {
    /// The coordinates of a patch that rotary positions turn by.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum RotaryCoordinates {
        /// Its row and column, from 0.
        #[default]
        Index,
        /// Its center, from -1 to 1 over the height and the width of the image, times 2π (Siméoni et al. 2025, DINOv3,
        /// section 3.2).
        Centered,
    }
}

listed! {
    /// The place where position vectors are added.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum PositionPlace {
        /// Added to the tokens once, before the first block.
        #[default]
        Tokens,
        /// Added to the input of queries and keys in every block, but not to that of values (Carion et al. 2020, DETR,
        /// appendix A.3).
        QueryKey,
        /// Added to the input of queries and keys in the first block only.
        FirstQueryKey,
    }
}
