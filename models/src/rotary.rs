//! Rotary positions over two axes (Su et al. 2021; Heo et al. 2024, 'Rotary Position Embedding for Vision Transformer',
//! section 3.1).

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};

use crate::graph::{Graph, Value};
use crate::{RotaryCoordinates, RotaryOptions};

/// Rotates pairs of values of queries and keys by angles that are proportional to the row (in the first half of a head)
/// and to the column (in the second half), so that positions enter a score only through the offset between two patches.
/// Prefix tokens are not rotated.
#[derive(Module, Debug)]
pub struct Rotary {
    /// The cosines, then the sines: `[2, tokens, head_dim / 2]`.
    rotation: Tensor<3>,
    #[module(skip)]
    options: RotaryOptions,
}

impl Rotary {
    /// Angles for a grid of `[rows, columns]` after `prefix` tokens.
    ///
    /// # Panics
    /// If `head_dim` is not a multiple of 4.
    pub fn new(
        [rows, columns]: [usize; 2],
        prefix: usize,
        head_dim: usize,
        options: RotaryOptions,
        device: &Device,
    ) -> Self {
        assert!(head_dim.is_multiple_of(4), "a head with rotary positions must hold pairs for two axes");
        let (tokens, pairs) = (prefix + rows * columns, head_dim / 4);
        let mut angles = vec![0.0f64; prefix * 2 * pairs];
        for patch in 0..rows * columns {
            for (place, length) in [(patch / columns, rows), (patch % columns, columns)] {
                let coordinate = coordinate(options.coordinates, place, length);
                let frequency = |pair: usize| options.base.powf(-(pair as f64) / pairs as f64);
                angles.extend((0..pairs).map(|pair| coordinate * frequency(pair)));
            }
        }
        let values: Vec<f32> = [f64::cos, f64::sin]
            .iter()
            .flat_map(|function| angles.iter().map(|&angle| function(angle) as f32))
            .collect();
        let rotation = Tensor::from_data(TensorData::new(values, [2, tokens, 2 * pairs]), device);
        Self { rotation, options }
    }

    /// The same rotations on another grid.
    pub(crate) fn at_grid(&self, grid: [usize; 2], prefix: usize) -> Self {
        let [_, _, pairs] = self.rotation.dims();
        Self::new(grid, prefix, 2 * pairs, self.options, &self.rotation.device())
    }

    /// The cosines and sines of the angles of all tokens, for
    /// [`DotProduct::rotation`](vitrine_kernels::DotProduct::rotation): `[2, tokens, head_dim / 2]`.
    pub fn rotation(&self) -> Tensor<3> {
        self.rotation.clone()
    }

    /// # Shapes
    /// - x, output: `[batch, heads, tokens, head_dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Int, Tensor};
    /// use vitrine_models::{RotaryOptions, rotary::Rotary};
    ///
    /// let device = Device::default();
    /// let rotary = Rotary::new([4, 4], 0, 8, RotaryOptions::default(), &device);
    /// // With the same query and key everywhere, a score depends on the offset between two patches alone.
    /// let same = Tensor::<1, Int>::arange(1..9, &device).float().reshape([1, 1, 1, 8]).repeat_dim(2, 16);
    /// let rotated = rotary.forward(same);
    /// let scores = rotated.clone().matmul(rotated.swap_dims(2, 3)).into_data().try_into_vec_as::<f32>()?;
    /// let score = |[row, column]: [usize; 2], [to_row, to_column]: [usize; 2]| {
    ///     scores[(row * 4 + column) * 16 + to_row * 4 + to_column]
    /// };
    /// assert!((score([0, 0], [1, 2]) - score([2, 1], [3, 3])).abs() < 1e-3);
    /// assert!((score([0, 0], [1, 2]) - score([0, 0], [2, 1])).abs() > 1.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        vitrine_kernels::rotate(x, self.rotation())
    }

    /// [`Self::forward`] as operators: `x * cos + swapped * sin`, where the halves of every pair are swapped and the sign is that
    /// of the sine.
    pub(crate) fn trace(&self, graph: &mut Graph, x: &Value) -> Value {
        let [_, tokens, half] = self.rotation.dims();
        // Of each axis.
        let part = |function: usize, axis: usize| {
            self.rotation.clone().narrow(0, function, 1).narrow(2, axis * half / 2, half / 2).reshape([
                1,
                1,
                tokens,
                half / 2,
            ])
        };
        let [cos_rows, cos_columns, sin_rows, sin_columns] =
            [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(function, axis)| part(function, axis));
        let cos = Tensor::cat(vec![cos_rows.clone(), cos_rows, cos_columns.clone(), cos_columns], 3);
        let sin = vec![sin_rows.clone().neg(), sin_rows, sin_columns.clone().neg(), sin_columns];
        let cos = graph.constant("cos", cos);
        let sin = graph.constant("sin", Tensor::cat(sin, 3));
        let [a, b, c, d] = graph.split(x, 3);
        let swapped = graph.concat(&[&b, &a, &d, &c], 3);
        let (x, swapped) = (graph.multiply(x, &cos), graph.multiply(&swapped, &sin));
        graph.add(&x, &swapped)
    }
}

/// The number that angles are proportional to, of a row or column of `length`.
fn coordinate(coordinates: RotaryCoordinates, place: usize, length: usize) -> f64 {
    match coordinates {
        RotaryCoordinates::Index => place as f64,
        RotaryCoordinates::Centered => {
            let center = 2.0 * (place as f64 + 0.5) / length as f64 - 1.0;
            2.0 * std::f64::consts::PI * center
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Distribution;

    #[test]
    fn positions_enter_scores_only_through_offsets() {
        let device = Device::default();
        let ([rows, columns], prefix, dim) = ([4, 5], 1, 8);
        let rotary = Rotary::new([rows, columns], prefix, dim, RotaryOptions::default(), &device);
        let tokens = prefix + rows * columns;
        // All tokens have the same query and the same key.
        let same = || {
            Tensor::<4>::random([1, 1, 1, dim], Distribution::Normal(0.0, 1.0), &device).repeat_dim(2, tokens)
        };
        let (q, k) = (rotary.forward(same()), rotary.forward(same()));
        let scores: Vec<f32> = q.matmul(k.swap_dims(2, 3)).into_data().iter::<f32>().collect();
        let score = |q: [usize; 2], k: [usize; 2]| {
            let token = |[row, column]: [usize; 2]| prefix + row * columns + column;
            scores[token(q) * tokens + token(k)]
        };
        assert!((score([0, 0], [1, 2]) - score([2, 1], [3, 3])).abs() < 1e-5);
        assert!((score([3, 4], [1, 3]) - score([2, 1], [0, 0])).abs() < 1e-5);
        assert!((score([0, 0], [1, 2]) - score([0, 0], [2, 1])).abs() > 1e-3);
    }
}
