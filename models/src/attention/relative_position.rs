//! Relative positions inside a window: a bias of the score for the offset from query to key.

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};

use super::product;
use crate::RelativePosition;
use crate::linear::{Linear, normal};

/// A bias for each head and each pair of query and key in a window.
#[derive(Module, Debug)]
pub struct RelativePositionBias {
    /// The bias of each head and offset.
    pub offsets: OffsetBias,
    /// The row in the table of offsets for each pair of query and key: `[area²]`.
    index: Tensor<1, Int>,
    area: usize,
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
    /// `[(2 * rows - 1) * (2 * columns - 1), heads]`.
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
        let rows = window.map(|side| 2 * side - 1).into_iter().product();
        let offsets = match kind {
            RelativePosition::None => return None,
            RelativePosition::Table => {
                OffsetBias::Table(TableBias { table: normal([rows, num_heads], 0.02, device) })
            }
            RelativePosition::Continuous => {
                OffsetBias::Continuous(ContinuousBias::new(window, num_heads, device))
            }
        };
        let index = Tensor::from_data(table_rows(window).as_slice(), device);
        Some(Self { offsets, index, area: window.into_iter().product() })
    }

    /// Computes the bias of all pairs.
    ///
    /// # Shapes
    /// - output: `[1, heads, area, area]`, where the area is the number of tokens in a window
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
        let place = |offsets: Tensor<2>| {
            let [_, heads] = offsets.dims();
            let shape = [1, self.area, self.area, heads];
            offsets.select(0, self.index.clone()).reshape(shape).permute([0, 3, 1, 2])
        };
        match &self.offsets {
            OffsetBias::Table(bias) => place(bias.table.val()),
            // As in Swin v2, the bias is limited to the range from 0 to 16.
            OffsetBias::Continuous(mlp) => activation::sigmoid(place(mlp.forward())).mul_scalar(16.0),
        }
    }
}

impl RelativePosition {
    /// The multiply-adds of the biases of a window with these numbers of rows and columns.
    pub(super) fn cost(self, [rows, columns]: [usize; 2], num_heads: usize) -> u64 {
        match self {
            Self::None | Self::Table => 0,
            Self::Continuous => product([(2 * rows - 1) * (2 * columns - 1), HIDDEN_DIM, 2 + num_heads]),
        }
    }
}

/// The width of the hidden layer of [`ContinuousBias`].
const HIDDEN_DIM: usize = 512;

impl ContinuousBias {
    fn new(window: [usize; 2], num_heads: usize, device: &Device) -> Self {
        let offsets = log_offsets(window);
        let shape = [offsets.len() / 2, 2];
        Self {
            hidden: Linear::new(2, HIDDEN_DIM, true, device),
            output: Linear::new(HIDDEN_DIM, num_heads, false, device),
            offsets: Tensor::from_data(TensorData::new(offsets, shape), device),
        }
    }

    /// The biases of all offsets, in the layout of [`TableBias::table`].
    fn forward(&self) -> Tensor<2> {
        self.output.forward(activation::relu(self.hidden.forward(self.offsets.clone())))
    }
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

/// Every offset in a window, as row and column. Both are scaled to [-8, 8] and replaced by the logarithm of their
/// absolute value plus 1, with their sign (Liu et al. 2022, equation 4).
///
/// # Examples
///
/// ```
/// use vitrine_models::attention::log_offsets;
///
/// // Row offsets of -1, 0 and 1 are scaled to -8, 0 and 8; log2(1 + 8) / 3 is 1.0566. There is one column.
/// let offsets = log_offsets([2, 1]);
/// for (offset, expected) in offsets.iter().zip([-1.0566, 0.0, 0.0, 0.0, 1.0566, 0.0]) {
///     assert!((offset - expected).abs() < 1e-4);
/// }
/// ```
pub fn log_offsets([rows, columns]: [usize; 2]) -> Vec<f32> {
    let curve = |offset: usize, side: usize| {
        let offset = (offset as f64 - (side as f64 - 1.0)) / (side.max(2) - 1) as f64 * 8.0;
        (offset.signum() * (offset.abs() + 1.0).log2() / 3.0) as f32
    };
    (0..2 * rows - 1)
        .flat_map(|row| {
            (0..2 * columns - 1).flat_map(move |column| [curve(row, rows), curve(column, columns)])
        })
        .collect()
}
