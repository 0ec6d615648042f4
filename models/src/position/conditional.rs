//! Conditional positions (PEG): a convolution whose padding of zeros tells the patches where the image ends.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::graph::{Graph, Value};
use crate::linear::uniform;

/// `x + convolution(x)` of the patches, with a depth-wise kernel of 3 by 3 (Chu et al. 2021, 'Conditional Positional
/// Encodings for Vision Transformers', section 3.2). It suits grids of any size.
#[derive(Module, Debug)]
pub struct ConditionalPosition {
    /// `[dim, 1, 3, 3]`.
    pub conv: Param<Tensor<4>>,
    /// `[dim]`.
    pub conv_bias: Param<Tensor<1>>,
}

impl ConditionalPosition {
    /// Fresh parameters from the distribution that PyTorch uses for a convolution.
    pub fn new(dim: usize, device: &Device) -> Self {
        let bound = 1.0 / 3.0;
        Self { conv: uniform([dim, 1, 3, 3], bound, device), conv_bias: uniform([dim], bound, device) }
    }

    /// Prefix tokens, which have no place in the image, pass unchanged.
    ///
    /// # Shapes
    /// - x, output: `[batch, prefix + rows * columns, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::module::Param;
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::position::ConditionalPosition;
    ///
    /// let device = Device::default();
    /// let position = ConditionalPosition {
    ///     conv: Param::from_tensor(Tensor::ones([1, 1, 3, 3], &device)),
    ///     conv_bias: Param::from_tensor(Tensor::zeros([1], &device)),
    /// };
    /// // Equal patches learn how many neighbors they have: 4 in a corner of the grid, 6 at its edge.
    /// let y = position.forward(Tensor::ones([1, 1 + 6, 1], &device), 1, [2, 3]);
    /// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [1.0, 5.0, 7.0, 5.0, 5.0, 7.0, 5.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forward(&self, x: Tensor<3>, prefix: usize, [rows, columns]: [usize; 2]) -> Tensor<3> {
        let [batch, tokens, dim] = x.dims();
        let patches = x.clone().narrow(1, prefix, tokens - prefix);
        let map = patches.clone().reshape([batch, rows, columns, dim]);
        let weight = self.conv.val().reshape([dim, 3 * 3]).transpose();
        let map = vitrine_kernels::depthwise_convolution(map, weight, Some(self.conv_bias.val()));
        let patches = patches + map.reshape([batch, rows * columns, dim]);
        match prefix {
            0 => patches,
            _ => Tensor::cat(vec![x.narrow(1, 0, prefix), patches], 1),
        }
    }

    /// [`Self::forward`] as operators.
    pub(crate) fn trace(&self, graph: &mut Graph, x: &Value, prefix: usize, grid: [usize; 2]) -> Value {
        let patches = graph.narrow(x, 1, prefix, x.dims[1] - prefix);
        let map = graph.map_of_tokens(&patches, grid);
        let weight = graph.weight("weight", self.conv.val());
        let bias = graph.constant("bias", self.conv_bias.val());
        let map = graph.same_convolution(&map, &weight, Some(&bias), true);
        let placed = graph.tokens_of_map(&map);
        let patches = graph.add(&patches, &placed);
        match prefix {
            0 => patches,
            _ => {
                let first = graph.narrow(x, 1, 0, prefix);
                graph.concat(&[&first, &patches], 1)
            }
        }
    }

    /// The multiply-adds for one image with this number of patches.
    pub(crate) fn cost(dim: usize, patches: usize) -> u64 {
        9 * dim as u64 * patches as u64
    }
}
