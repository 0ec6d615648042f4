//! Relative positions inside a window, or among all patches: a bias of the score for the offset from query to key.

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};

use super::product;
use crate::linear::{Linear, normal};
use crate::{AttentionOptions, Mixer, ModelConfig, RelativePosition};

/// A bias for each head and each pair of query and key in a window, or among all tokens.
#[derive(Module, Debug)]
pub struct RelativePositionBias {
    /// The bias of each head and offset.
    pub offsets: OffsetBias,
    /// The row in the table of offsets for each pair of query and key: `[tokens²]`.
    index: Tensor<1, Int>,
    tokens: usize,
    #[module(skip)]
    window: [usize; 2],
    /// Whether there are tokens before the patches.
    has_prefix: bool,
    /// What [`Self::fix`] has kept.
    fixed: Option<FixedBias>,
}

/// The bias of all pairs. It counts as long as nothing has replaced or read the last parameter that it was computed from.
#[derive(Module, Debug)]
struct FixedBias {
    bias: Tensor<4>,
    /// The value of that parameter.
    parameter: Tensor<2>,
}

/// A bias for each head and offset.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // one per block
pub enum OffsetBias {
    /// A table (Liu et al. 2021, section 3.2).
    Table(TableBias),
    /// A small MLP of the offset's logarithm (Liu et al. 2022, section 3.3).
    Continuous(ContinuousBias),
}

/// A learned number for each head and offset.
#[derive(Module, Debug)]
pub struct TableBias {
    /// `[(2 * rows - 1) * (2 * columns - 1), heads]`. If there are tokens before the patches, three rows follow: for their scores of
    /// patches, for the scores of them by patches, and for those among themselves (Bao et al. 2022, BEiT).
    pub table: Param<Tensor<2>>,
}

/// A small MLP from an offset to a bias for each head: two layers with ReLU between them.
#[derive(Module, Debug)]
pub struct ContinuousBias {
    /// The layer from the two coordinates of an offset to 512 values.
    pub hidden: Linear,
    /// The layer to one value per head, without bias.
    pub output: Linear,
    /// The input of the MLP for each offset: `[(2 * rows - 1) * (2 * columns - 1), 2]`.
    offsets: Tensor<2>,
}

impl RelativePositionBias {
    /// The bias for windows with these numbers of rows and columns; `None` for [`RelativePosition::None`].
    pub fn new(
        kind: RelativePosition,
        window: [usize; 2],
        num_heads: usize,
        device: &Device,
    ) -> Option<Self> {
        Self::with_prefix(kind, window, 0, num_heads, device)
    }

    /// The same with the offsets of a continuous bias scaled by windows of this side: those that it was learned in.
    pub(super) fn learned_in(mut self, side: usize) -> Self {
        if let OffsetBias::Continuous(mlp) = &mut self.offsets {
            mlp.offsets = offset_rows(self.window, [side; 2], &mlp.offsets.device());
        }
        self
    }

    /// The bias for `prefix` tokens and the patches of a grid after them; `None` for [`RelativePosition::None`]. A continuous bias of
    /// a pair that is not of two patches is 0.
    pub fn with_prefix(
        kind: RelativePosition,
        window: [usize; 2],
        prefix: usize,
        num_heads: usize,
        device: &Device,
    ) -> Option<Self> {
        let rows = OFFSETS_OF_PREFIX * usize::from(prefix > 0) + num_offsets(window);
        let offsets = match kind {
            RelativePosition::None => return None,
            RelativePosition::Table => {
                OffsetBias::Table(TableBias { table: normal([rows, num_heads], 0.02, device) })
            }
            RelativePosition::Continuous => {
                OffsetBias::Continuous(ContinuousBias::new(window, num_heads, device))
            }
        };
        let index = Tensor::from_data(table_rows_with_prefix(window, prefix).as_slice(), device);
        let tokens = prefix + window[0] * window[1];
        Some(Self { offsets, index, tokens, window, has_prefix: prefix > 0, fixed: None })
    }

    /// Computes the bias of all pairs.
    ///
    /// # Shapes
    /// - output: `[1, heads, tokens, tokens]`, where the tokens are those of a window, or the prefix and the patches
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::module::Param;
    /// use burn::tensor::{Device, Int, Tensor};
    /// use vitrine_models::RelativePosition;
    /// use vitrine_models::attention::{OffsetBias, RelativePositionBias, TableBias};
    ///
    /// let device = Device::default();
    /// let kind = RelativePosition::Table;
    /// let mut bias = RelativePositionBias::new(kind, [2, 2], 1, &device).expect("only `None` has no bias");
    /// // The nine offsets of a window of 2 by 2 are numbered; 4 is the offset of a token to itself.
    /// let table = Tensor::<1, Int>::arange(0..9, &device).float().reshape([9, 1]);
    /// bias.offsets = OffsetBias::Table(TableBias { table: Param::from_tensor(table) });
    /// let rows = [[4.0, 3.0, 1.0, 0.0], [5.0, 4.0, 2.0, 1.0], [7.0, 6.0, 4.0, 3.0], [8.0, 7.0, 5.0, 4.0]];
    /// assert_eq!(bias.forward().dims(), [1, 1, 4, 4]);
    /// assert_eq!(bias.forward().into_data().try_into_vec_as::<f32>()?, rows.concat());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forward(&self) -> Tensor<4> {
        if let Some(FixedBias { bias, .. }) = self.fixed() {
            return bias.clone();
        }
        let place = |offsets: Tensor<2>| {
            let [_, heads] = offsets.dims();
            let shape = [1, self.tokens, self.tokens, heads];
            offsets.select(0, self.index.clone()).reshape(shape).permute([0, 3, 1, 2])
        };
        match &self.offsets {
            OffsetBias::Table(bias) => place(bias.table.val()),
            // As in Swin v2, the bias is limited to the range from 0 to 16.
            OffsetBias::Continuous(mlp) => {
                let patches = activation::sigmoid(mlp.forward()).mul_scalar(16.0);
                let [_, heads] = patches.dims();
                place(if self.has_prefix {
                    let none = Tensor::zeros([OFFSETS_OF_PREFIX, heads], &patches.device());
                    Tensor::cat(vec![patches, none], 0)
                } else {
                    patches
                })
            }
        }
    }

    /// Keeps the bias of all pairs for inference, if that is at most this number of values. It is computed again as soon as something
    /// has read or replaced the last parameter before it, as an export or training does with all parameters.
    pub(super) fn fix(&mut self, most_values: usize) {
        let (pairs, heads) = (self.tokens * self.tokens, self.last_parameter().lazy_shape()[1]);
        if self.fixed().is_some() || pairs * heads > most_values {
            return;
        }
        let value = self.last_parameter().val();
        let (shape, device) = (value.shape(), value.device());
        if device.is_autodiff() {
            return; // it would hold the graph of one backward pass
        }
        // Laid out as it is read.
        let bias = self.forward().reshape([heads, pairs]).reshape([1, heads, self.tokens, self.tokens]);
        self.fixed = Some(FixedBias { bias, parameter: value.clone() });
        let again = move |device: &Device, require_grad: bool| {
            let value = value.clone().to_device(device);
            if require_grad { value.require_grad() } else { value }
        };
        let parameter = self.last_parameter_mut();
        *parameter = Param::uninitialized(parameter.id, again, device, true, shape);
    }

    /// Forgets the bias that [`Self::fix`] has kept. Clones keep theirs, as their parameter is not read.
    pub(super) fn release(&mut self) {
        let is_kept = self.fixed().is_some();
        if let Some(FixedBias { parameter: value, .. }) = self.fixed.take().filter(|_| is_kept) {
            let parameter = self.last_parameter_mut();
            *parameter = Param::initialized(parameter.id, value);
        }
    }

    /// Whether a bias is kept, and counts.
    fn fixed(&self) -> Option<&FixedBias> {
        self.fixed.as_ref().filter(|_| !self.last_parameter().is_initialized())
    }

    #[cfg(test)]
    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed().is_some()
    }

    /// The last parameter before the bias, `[..., heads]`.
    fn last_parameter(&self) -> &Param<Tensor<2>> {
        match &self.offsets {
            OffsetBias::Table(bias) => &bias.table,
            OffsetBias::Continuous(mlp) => &mlp.output.weight,
        }
    }

    fn last_parameter_mut(&mut self) -> &mut Param<Tensor<2>> {
        match &mut self.offsets {
            OffsetBias::Table(bias) => &mut bias.table,
            OffsetBias::Continuous(mlp) => &mut mlp.output.weight,
        }
    }
}

impl ModelConfig {
    /// The relative positions in attention of a mixer: those that are stated, or else a table in windows. `None` is for mixers without.
    pub(crate) fn relative_position(&self, mixer: Mixer) -> RelativePosition {
        let stated = self.attention.relative_position;
        match mixer {
            Mixer::Window(_) | Mixer::ShiftedWindow(_) => self.attention.relative_position_in_windows(),
            Mixer::Global => stated.unwrap_or(RelativePosition::None),
            Mixer::Neighborhood(_)
            | Mixer::FullNeighborhood(_)
            | Mixer::CrossCovariance
            | Mixer::Graph { .. }
            | Mixer::Adjacency => RelativePosition::None,
        }
    }

    /// The number of values of the bias that a block keeps for inference: none if they are more than the weights of its first
    /// projection, which [`TokenMixer::fix_bias`](super::TokenMixer::fix_bias) compares them with.
    pub(crate) fn fixed_bias(&self, stage: usize, block: usize) -> u64 {
        let (mixer, grid, dim) = (self.mixer(block), self.stage_grid(stage), self.stage_dim(stage));
        if self.relative_position(mixer) == RelativePosition::None {
            return 0;
        }
        let [rows, columns] = match mixer {
            Mixer::Window(size) | Mixer::ShiftedWindow(size) => grid.map(|side| side.min(size)),
            Mixer::Global
            | Mixer::Neighborhood(_)
            | Mixer::FullNeighborhood(_)
            | Mixer::CrossCovariance
            | Mixer::Graph { .. }
            | Mixer::Adjacency => grid,
        };
        let tokens = self.num_prefix_tokens() + rows * columns;
        let values = product([tokens, tokens, self.num_heads[stage]]);
        if values > product([3, dim, dim]) { 0 } else { values }
    }
}

impl AttentionOptions {
    /// The relative positions in windows: those that are stated, or else a table.
    pub(super) fn relative_position_in_windows(&self) -> RelativePosition {
        self.relative_position.unwrap_or_default()
    }
}

impl RelativePosition {
    /// The multiply-adds of the biases of a window with these numbers of rows and columns.
    pub(super) fn cost(self, [rows, columns]: [usize; 2], num_heads: usize) -> u64 {
        match self {
            Self::None | Self::Table => 0,
            Self::Continuous => product([num_offsets([rows, columns]), HIDDEN_DIM, 2 + num_heads]),
        }
    }
}

/// The width of the hidden layer of [`ContinuousBias`].
const HIDDEN_DIM: usize = 512;

impl ContinuousBias {
    fn new(window: [usize; 2], num_heads: usize, device: &Device) -> Self {
        Self {
            hidden: Linear::new(2, HIDDEN_DIM, true, device),
            output: Linear::new(HIDDEN_DIM, num_heads, false, device),
            offsets: offset_rows(window, window, device),
        }
    }

    /// The biases of all offsets, in the layout of [`TableBias::table`].
    fn forward(&self) -> Tensor<2> {
        self.output.forward(activation::relu(self.hidden.forward(self.offsets.clone())))
    }
}

/// The input of [`ContinuousBias`]: [`log_offsets`] as rows.
fn offset_rows(window: [usize; 2], learned_in: [usize; 2], device: &Device) -> Tensor<2> {
    let offsets = log_offsets(window, learned_in);
    let shape = [offsets.len() / 2, 2];
    Tensor::from_data(TensorData::new(offsets, shape), device)
}

/// The rows of a table for pairs that are not of two patches.
const OFFSETS_OF_PREFIX: usize = 3;

/// The number of offsets between the patches of a window.
pub(crate) fn num_offsets(window: [usize; 2]) -> usize {
    window.map(|side| 2 * side - 1).into_iter().product()
}

/// The row in the table of offsets for each pair of `prefix` tokens and the patches of a grid after them.
fn table_rows_with_prefix(window: [usize; 2], prefix: usize) -> Vec<i64> {
    let patches = table_rows(window);
    let (area, offsets) = (window[0] * window[1], num_offsets(window));
    let tokens = prefix + area;
    let row = |query: usize, key: usize| match (query.checked_sub(prefix), key.checked_sub(prefix)) {
        (Some(query), Some(key)) => patches[query * area + key],
        (None, Some(_)) => offsets as i64,
        (Some(_), None) => offsets as i64 + 1,
        (None, None) => offsets as i64 + 2,
    };
    (0..tokens).flat_map(|query| (0..tokens).map(move |key| row(query, key))).collect()
}

/// The row in the table of offsets for each pair of query and key in a window.
pub(crate) fn table_rows([rows, columns]: [usize; 2]) -> Vec<i64> {
    let area = rows * columns;
    (0..area * area)
        .map(|pair| {
            let (query, key) = (pair / area, pair % area);
            let row = query / columns + rows - 1 - key / columns;
            let column = query % columns + columns - 1 - key % columns;
            (row * (2 * columns - 1) + column) as i64
        })
        .collect()
}

/// Every offset in a window, as row and column. Both are scaled, so that those of a window of `learned_in` are from -8 to 8, and
/// replaced by the logarithm of their absolute value plus 1, with their sign (Liu et al. 2022, equation 4).
///
/// # Examples
///
/// ```
/// use vitrine_models::attention::log_offsets;
///
/// // Row offsets of -1, 0 and 1 are scaled to -8, 0 and 8; log2(1 + 8) / 3 is 1.0566. There is one column.
/// let offsets = log_offsets([2, 1], [2, 1]);
/// for (offset, expected) in offsets.iter().zip([-1.0566, 0.0, 0.0, 0.0, 1.0566, 0.0]) {
///     assert!((offset - expected).abs() < 1e-4);
/// }
/// // Windows that were enlarged from a side of 2 to 3: an offset of 2 is scaled to 16.
/// assert!((log_offsets([3, 1], [2, 1])[8] - 17f32.log2() / 3.0).abs() < 1e-4);
/// ```
pub fn log_offsets([rows, columns]: [usize; 2], learned_in: [usize; 2]) -> Vec<f32> {
    let curve = |offset: usize, side: usize, learned_in: usize| {
        let offset = (offset as f64 - (side as f64 - 1.0)) / (learned_in.max(2) - 1) as f64 * 8.0;
        (offset.signum() * (offset.abs() + 1.0).log2() / 3.0) as f32
    };
    (0..2 * rows - 1)
        .flat_map(|row| {
            (0..2 * columns - 1).flat_map(move |column| {
                [curve(row, rows, learned_in[0]), curve(column, columns, learned_in[1])]
            })
        })
        .collect()
}
