//! Rotary positions over two axes (Su et al. 2021; Heo et al. 2024, 'Rotary Position Embedding for Vision Transformer',
//! sections 3.1 and 3.2).

use std::f64::consts::TAU;

use burn::module::{Module, Param};
use burn::tensor::{Device, Distribution, Tensor, TensorData};

use crate::graph::{Graph, Value};
use crate::linear::lazy;
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
        grid: [usize; 2],
        prefix: usize,
        head_dim: usize,
        options: RotaryOptions,
        device: &Device,
    ) -> Self {
        assert!(head_dim.is_multiple_of(4), "a head with rotary positions must hold pairs for two axes");
        let (tokens, pairs) = (prefix + grid[0] * grid[1], head_dim / 4);
        let mut angles = vec![0.0f64; prefix * 2 * pairs];
        for coordinate in coordinates(grid, options).into_iter().flatten() {
            angles
                .extend((0..pairs).map(|pair| coordinate * options.base.powf(-(pair as f64) / pairs as f64)));
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

    /// [`Self::forward`] as operators.
    pub(crate) fn trace(&self, graph: &mut Graph, x: &Value) -> Value {
        trace(graph, x, self.rotation().unsqueeze_dim(1))
    }
}

/// Rotates pairs of values of queries and keys by angles that are a sum of the row and of the column, each times a frequency that
/// every head learns (Heo et al. 2024, RoPE-Mixed, section 3.2). Prefix tokens are not rotated.
#[derive(Module, Debug)]
pub struct LearnedRotary {
    /// The frequencies of rows, then of columns: `[2, heads, head_dim / 2]`.
    pub frequencies: Param<Tensor<3>>,
    /// The coordinates of rows, then of columns; 0 for prefix tokens: `[2, tokens]`.
    coordinates: Tensor<2>,
    #[module(skip)]
    options: RotaryOptions,
}

impl LearnedRotary {
    /// For a grid of `[rows, columns]` after `prefix` tokens. In the beginning, each head has its own random direction in the plane:
    /// the first half of its pairs turn with the place in this direction, and the second half with that across it, by the frequencies
    /// of [`Rotary`].
    ///
    /// # Panics
    /// If the width of a head is not a multiple of 4.
    pub fn new(
        grid: [usize; 2],
        prefix: usize,
        [num_heads, head_dim]: [usize; 2],
        options: RotaryOptions,
        device: &Device,
    ) -> Self {
        assert!(head_dim.is_multiple_of(4), "a head with rotary positions must hold pairs for two axes");
        let pairs = head_dim / 4;
        let magnitudes: Vec<f32> =
            (0..pairs).map(|pair| options.base.powf(-(pair as f64) / pairs as f64) as f32).collect();
        let draw = move |device: &Device| {
            let magnitudes = Tensor::<1>::from_floats(magnitudes.as_slice(), device).reshape([1, 1, pairs]);
            let direction = Tensor::<3>::random([1, num_heads, 1], Distribution::Uniform(0.0, TAU), device);
            let (along, across) =
                (magnitudes.clone() * direction.clone().cos(), magnitudes * direction.sin());
            // A quarter of a turn further, the cosine is the negative sine, and the sine is the cosine.
            let rows = Tensor::cat(vec![along.clone(), across.clone().neg()], 2);
            let columns = Tensor::cat(vec![across, along], 2);
            Tensor::cat(vec![rows, columns], 0)
        };
        Self {
            frequencies: lazy([2, num_heads, 2 * pairs], device, draw),
            coordinates: with_prefix(grid, prefix, options, device),
            options,
        }
    }

    /// The same frequencies on another grid.
    pub(crate) fn at_grid(&self, grid: [usize; 2], prefix: usize) -> Self {
        let coordinates = with_prefix(grid, prefix, self.options, &self.coordinates.device());
        Self { coordinates, ..self.clone() }
    }

    /// The cosines and sines of the angles: `[2, heads, tokens, head_dim / 2]`.
    fn rotation(&self) -> Tensor<4> {
        let [_, tokens] = self.coordinates.dims();
        let of_axis = |axis: usize| {
            let places = self.coordinates.clone().narrow(0, axis, 1).reshape([1, tokens, 1]);
            places * self.frequencies.val().narrow(0, axis, 1).swap_dims(0, 1)
        };
        let angles = of_axis(0) + of_axis(1);
        Tensor::stack(vec![angles.clone().cos(), angles.sin()], 0)
    }

    /// # Shapes
    /// - x, output: `[batch, heads, tokens, head_dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::{RotaryOptions, rotary::{LearnedRotary, Rotary}};
    ///
    /// let device = Device::default();
    /// let options = RotaryOptions { learned: true, ..RotaryOptions::default() };
    /// let rotary = LearnedRotary::new([2, 3], 1, [2, 8], options, &device);
    /// let x = Tensor::<4>::ones([1, 2, 7, 8], &device);
    /// let y = rotary.forward(x.clone());
    /// // The prefix token and the first patch, at row 0 and column 0, stay as they are.
    /// assert_eq!(y.clone().narrow(2, 0, 2).into_data(), x.clone().narrow(2, 0, 2).into_data());
    /// // A rotation keeps lengths.
    /// let change = (y.square().sum_dim(3) - x.square().sum_dim(3)).abs().max();
    /// assert!(change.into_scalar::<f32>() < 1e-5);
    /// ```
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        vitrine_kernels::rotate_heads(x, self.rotation())
    }

    /// [`Self::forward`] of queries and keys, whose angles are the same.
    pub(crate) fn forward_both(&self, q: Tensor<4>, k: Tensor<4>) -> [Tensor<4>; 2] {
        let rotation = self.rotation();
        [q, k].map(|x| vitrine_kernels::rotate_heads(x, rotation.clone()))
    }

    /// [`Self::forward`] as operators, for frequencies that do not change any more.
    pub(crate) fn trace(&self, graph: &mut Graph, x: &Value) -> Value {
        trace(graph, x, self.rotation())
    }
}

/// A rotation `[2, heads or 1, tokens, head_dim / 2]` as operators: `x * cos + swapped * sin`, where the halves of every pair are
/// swapped and the sign is that of the sine.
fn trace(graph: &mut Graph, x: &Value, rotation: Tensor<4>) -> Value {
    let [_, _, _, half] = rotation.dims();
    // Of each axis.
    let part = |function: usize, axis: usize| {
        rotation.clone().narrow(0, function, 1).narrow(3, axis * half / 2, half / 2)
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

/// The numbers that angles are proportional to: of the row and of the column of each patch.
fn coordinates([rows, columns]: [usize; 2], options: RotaryOptions) -> Vec<[f64; 2]> {
    let scales =
        options.grid.map_or([1.0; 2], |of| [of[0] as f64 / rows as f64, of[1] as f64 / columns as f64]);
    let coordinate = |place: usize, length: usize, scale: f64| match options.coordinates {
        RotaryCoordinates::Index => place as f64 * scale,
        RotaryCoordinates::Centered => TAU * (2.0 * (place as f64 + 0.5) / length as f64 - 1.0),
    };
    let of_patch = |patch: usize| {
        [coordinate(patch / columns, rows, scales[0]), coordinate(patch % columns, columns, scales[1])]
    };
    (0..rows * columns).map(of_patch).collect()
}

/// The coordinates of all tokens, 0 for those of the prefix: `[2, tokens]`.
fn with_prefix(grid: [usize; 2], prefix: usize, options: RotaryOptions, device: &Device) -> Tensor<2> {
    let patches = coordinates(grid, options);
    let of_axis =
        |axis: usize| std::iter::repeat_n(0.0, prefix).chain(patches.iter().map(move |of| of[axis] as f32));
    let values: Vec<f32> = of_axis(0).chain(of_axis(1)).collect();
    Tensor::from_data(TensorData::new(values, [2, prefix + patches.len()]), device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Tolerance, s};

    #[test]
    fn positions_enter_scores_only_through_offsets() {
        let device = Device::default();
        let (grid, options) = ([4, 5], RotaryOptions::default());
        let fixed = Rotary::new(grid, 1, 8, options, &device);
        assert_offsets_alone(grid, |x| fixed.forward(x));
        let learned =
            LearnedRotary::new(grid, 1, [1, 8], RotaryOptions { learned: true, ..options }, &device);
        assert_offsets_alone(grid, |x| learned.forward(x));
    }

    #[test]
    fn coordinates_are_scaled_to_those_of_the_stated_grid() {
        let of = |grid, options| Rotary::new(grid, 0, 8, options, &Device::default()).rotation();
        let stated = RotaryOptions { grid: Some([2, 3]), ..RotaryOptions::default() };
        let small = of([2, 3], stated);
        assert_eq!(small.clone().into_data(), of([2, 3], RotaryOptions::default()).into_data());
        // Every second row and column of a grid of twice the sides is at the coordinates of the small one.
        let large =
            of([4, 6], stated).reshape([2, 4, 6, 4]).slice(s![.., 0..;2, 0..;2, ..]).reshape([2, 6, 4]);
        large.into_data().assert_approx_eq::<f32>(&small.into_data(), Tolerance::absolute(1e-6));
    }

    /// Checks scores of one prefix token and patches that all have the same query and the same key, of 8 values.
    fn assert_offsets_alone([rows, columns]: [usize; 2], rotate: impl Fn(Tensor<4>) -> Tensor<4>) {
        let device = Device::default();
        let (prefix, dim) = (1, 8);
        let tokens = prefix + rows * columns;
        // All tokens have the same query and the same key.
        let same = || {
            Tensor::<4>::random([1, 1, 1, dim], Distribution::Normal(0.0, 1.0), &device).repeat_dim(2, tokens)
        };
        let (q, k) = (rotate(same()), rotate(same()));
        let scores: Vec<f32> = q.matmul(k.swap_dims(2, 3)).into_data().iter::<f32>().collect();
        let score = |q: [usize; 2], k: [usize; 2]| {
            let token = |[row, column]: [usize; 2]| prefix + row * columns + column;
            scores[token(q) * tokens + token(k)]
        };
        assert!((score([0, 0], [1, 2]) - score([2, 1], [3, 3])).abs() < 1e-4);
        assert!((score([3, 4], [1, 3]) - score([2, 1], [0, 0])).abs() < 1e-4);
        assert!((score([0, 0], [1, 2]) - score([0, 0], [2, 1])).abs() > 1e-3);
    }
}
