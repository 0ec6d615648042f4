//! Position vectors that a small network computes from coordinates.

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData, activation};

use crate::linear::Linear;

/// `output(relu(hidden([row, column])))` for each patch, with coordinates from -1 to 1. It is the absolute form of Swin
/// v2's continuous position bias (Liu et al. 2022, section 3.3), and suits grids of any size.
#[derive(Module, Debug)]
pub struct CoordinateMlp {
    /// The layer from the two coordinates to as many hidden values as a token has.
    pub hidden: Linear,
    /// The layer to the vectors.
    pub output: Linear,
    /// The coordinates of the patches: `[patches, 2]`.
    coordinates: Tensor<2>,
}

impl CoordinateMlp {
    /// Fresh parameters.
    pub fn new(grid: [usize; 2], dim: usize, device: &Device) -> Self {
        Self {
            hidden: Linear::new(2, dim, true, device),
            output: Linear::new(dim, dim, true, device),
            coordinates: coordinates(grid, device),
        }
    }

    /// The same network on another grid.
    pub(crate) fn at_grid(&self, grid: [usize; 2]) -> Self {
        Self { coordinates: coordinates(grid, &self.coordinates.device()), ..self.clone() }
    }

    /// The vectors of the patches: `[1, patches, dim]`.
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::module::Param;
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::position::CoordinateMlp;
    ///
    /// let device = Device::default();
    /// let mut network = CoordinateMlp::new([1, 4], 1, &device); // its biases are zero
    /// network.hidden.weight = Param::from_tensor(Tensor::from_floats([[0.0], [4.0]], &device));
    /// network.output.weight = Param::from_tensor(Tensor::ones([1, 1], &device));
    /// // The columns' centers are at -3/4, -1/4, 1/4 and 3/4.
    /// assert_eq!(network.vectors().into_data().try_into_vec_as::<f32>()?, [0.0, 0.0, 1.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn vectors(&self) -> Tensor<3> {
        let hidden = activation::relu(self.hidden.forward(self.coordinates.clone()));
        self.output.forward(hidden).unsqueeze()
    }

    /// The multiply-adds of the vectors of this number of patches.
    pub(crate) fn cost(dim: usize, patches: usize) -> u64 {
        patches as u64 * (2 * dim + dim * dim) as u64
    }
}

/// The centers of the patches as shares of the image from -1 to 1, row by row.
fn coordinates([rows, columns]: [usize; 2], device: &Device) -> Tensor<2> {
    let center = |index: usize, count: usize| (2 * index + 1) as f32 / count as f32 - 1.0;
    let values: Vec<f32> = (0..rows * columns)
        .flat_map(|patch| [center(patch / columns, rows), center(patch % columns, columns)])
        .collect();
    Tensor::from_data(TensorData::new(values, [rows * columns, 2]), device)
}
