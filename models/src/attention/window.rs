//! Attention inside windows of the grid, which may be shifted (Liu et al. 2021, Swin, section 3.2).

use burn::module::Module;
use burn::tensor::{Bool, Device, Tensor, TensorData};

use super::{
    AttentionSpec, Context, MOST_PAIRS, MixerCost, MultiHeadAttention, RelativePositionBias, additive_mask,
    multi_head,
};
use crate::graph::{Graph, Value};
use crate::{ConfigError, ModelConfig};
use vitrine_kernels::{RowMap, gather_rows};

/// Multi-head attention in which a token sees only the tokens of its window.
///
/// As in timm, a grid that windows do not divide is padded with zeros at the bottom and on the right, after the shift.
/// A window that is larger than the grid shrinks to the grid, and is not shifted.
#[derive(Module, Debug)]
pub struct WindowAttention {
    /// The attention inside a window.
    pub inner: MultiHeadAttention,
    /// The bias of scores for relative positions.
    pub relative_position: Option<RelativePositionBias>,
    /// The additive mask between tokens that the shift brought together from opposite borders:
    /// `[windows, 1, area, area]`.
    seam: Option<Tensor<4>>,
    area: usize,
    /// The map from tokens of the grid to tokens of the windows.
    #[module(skip)]
    partition: RowMap,
}

impl WindowAttention {
    /// Windows of `size` by `size` tokens on a grid of `[rows, columns]`, which is shifted by `shift` tokens up and to
    /// the left.
    pub fn new(spec: &AttentionSpec, grid: [usize; 2], size: usize, shift: usize, device: &Device) -> Self {
        let layout = WindowLayout::new(grid, size, shift);
        let kind = spec.options.relative_position_in_windows();
        let bias = RelativePositionBias::new(kind, layout.window, spec.num_heads, device);
        Self {
            inner: MultiHeadAttention::new(spec, device),
            relative_position: bias.map(|bias| match spec.pretrained_window {
                Some(side) => bias.learned_in(side),
                None => bias,
            }),
            seam: layout.seam(device).map(additive_mask),
            area: layout.window[0] * layout.window[1],
            partition: layout.partition(),
        }
    }

    /// # Shapes
    /// - x, output: `[batch, rows * columns, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor, s};
    /// use vitrine_models::attention::{AttentionSpec, WindowAttention};
    /// use vitrine_models::preset;
    ///
    /// let device = Device::default();
    /// let spec = AttentionSpec::of_stage(&preset::find("swin_pico_patch2_window4_32").expect("listed"), 0);
    /// let layer = WindowAttention::new(&spec, [4, 4], 2, 0, &device);
    /// let x = Tensor::<3>::random([1, 16, 32], Distribution::Normal(0.0, 1.0), &device);
    /// // Changing token 0 changes its window, tokens 0, 1, 4 and 5, and no other.
    /// let other = x.clone().slice_fill(s![.., 0, ..], 9.0);
    /// let change = (layer.forward(other) - layer.forward(x)).abs().sum_dim(2);
    /// for (token, change) in change.into_data().iter::<f32>().enumerate() {
    ///     assert_eq!(change > 1e-6, [0, 1, 4, 5].contains(&token));
    /// }
    /// ```
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let (windows, context) = self.split(x);
        self.merge(self.inner.forward(windows, &context))
    }

    /// [`Self::forward`], which also returns the attention weights of each window:
    /// `[batch * windows, heads, area, area]`.
    pub fn forward_with_weights(&self, x: Tensor<3>) -> (Tensor<3>, Tensor<4>) {
        let (windows, context) = self.split(x);
        let (mixed, weights) = self.inner.forward_with_weights(windows, &context);
        (self.merge(mixed), weights)
    }

    /// The tokens of all windows, `[batch * windows, area, dim]`, and the bias of their scores.
    fn split(&self, x: Tensor<3>) -> (Tensor<3>, Context) {
        let [batch, _, dim] = x.dims();
        let windows = gather_rows(x, &self.partition);
        let count = windows.dims()[1] / self.area;
        let context = Context { bias: self.bias(), ..Context::default() };
        (windows.reshape([batch * count, self.area, dim]), context)
    }

    /// [`Self::forward`] as operators.
    pub(crate) fn trace(&self, graph: &mut Graph, x: &Value) -> Value {
        let (padded, dim) = (self.partition.rows(), x.dims[2]);
        let windows = graph.gather_rows(x, self.partition.sources());
        let windows = graph.reshape(&windows, &[padded / self.area, self.area, dim]);
        let bias = self.bias().map(|bias| graph.constant("bias", bias));
        let mixed = self.inner.trace(graph, &windows, &Context::default(), bias);
        let mixed = graph.reshape(&mixed, &[1, padded, dim]);
        graph.gather_rows(&mixed, self.partition.inverse().sources())
    }

    /// The bias of the scores: relative positions, and the mask of the seam.
    fn bias(&self) -> Option<Tensor<4>> {
        let place = self.relative_position.as_ref().map(RelativePositionBias::forward);
        match (place, &self.seam) {
            (Some(place), Some(seam)) => Some(place + seam.clone()),
            (place, seam) => place.or_else(|| seam.clone()),
        }
    }

    fn merge(&self, windows: Tensor<3>) -> Tensor<3> {
        let [count, area, dim] = windows.dims();
        let padded = self.partition.rows();
        let batch = (count * area).checked_div(padded).unwrap_or(0);
        gather_rows(windows.reshape([batch, padded, dim]), &self.partition.inverse())
    }
}

/// The geometry of windows on a grid.
#[derive(Clone, Copy, Debug)]
struct WindowLayout {
    grid: [usize; 2],
    window: [usize; 2],
    shift: [usize; 2],
}

impl WindowLayout {
    fn new(grid: [usize; 2], size: usize, shift: usize) -> Self {
        Self {
            grid,
            window: grid.map(|side| side.min(size)),
            shift: grid.map(|side| if side <= size { 0 } else { shift }),
        }
    }

    /// The number of windows along each side.
    fn counts(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.grid[axis].div_ceil(self.window[axis]))
    }

    /// The row and column of every token of every window, in the shifted and padded grid.
    fn places(&self) -> impl Iterator<Item = [usize; 2]> {
        let Self { window: [height, width], .. } = *self;
        let [down, across] = self.counts();
        (0..down * across).flat_map(move |number| {
            let (top, left) = (number / across * height, number % across * width);
            (0..height * width).map(move |token| [top + token / width, left + token % width])
        })
    }

    fn partition(&self) -> RowMap {
        let [rows, columns] = self.grid;
        let sources: Vec<Option<usize>> = self
            .places()
            .map(|[row, column]| {
                (row < rows && column < columns)
                    .then(|| (row + self.shift[0]) % rows * columns + (column + self.shift[1]) % columns)
            })
            .collect();
        RowMap::new(&sources, rows * columns)
    }

    /// The mask of pairs of tokens that only the shift brought together: `[windows, 1, area, area]`; `None` without a
    /// shift.
    fn seam(&self, device: &Device) -> Option<Tensor<4, Bool>> {
        if self.shift == [0, 0] {
            return None;
        }
        let (area, counts) = (self.window[0] * self.window[1], self.counts());
        let region = |axis: usize, place: usize| match self.shift[axis] {
            0 => 0,
            shift => {
                let end = counts[axis] * self.window[axis];
                usize::from(place >= end - self.window[axis]) + usize::from(place >= end - shift)
            }
        };
        let regions: Vec<usize> =
            self.places().map(|[row, column]| 3 * region(0, row) + region(1, column)).collect();
        let mask: Vec<bool> = regions
            .chunks_exact(area)
            .flat_map(|window| window.iter().flat_map(|query| window.iter().map(move |key| query != key)))
            .collect();
        Some(Tensor::from_data(TensorData::new(mask, [counts[0] * counts[1], 1, area, area]), device))
    }
}

/// Checks that a configuration suits windows.
pub(super) fn check(size: usize, shifted: bool, config: &ModelConfig) -> Result<(), ConfigError> {
    let fail = |message: String| Err(ConfigError(format!("`mixers`: {message}")));
    let side = config.grid().into_iter().max().unwrap_or(0);
    if size < 2 {
        return fail("a window needs a side of at least 2 tokens".into());
    }
    // The mask of the shift and the index of relative positions have an element for every pair of tokens of every
    // window.
    let [rows, columns] = config.grid();
    let area = size.min(side).saturating_mul(size.min(side));
    if rows.saturating_mul(columns).saturating_mul(area) > MOST_PAIRS {
        return fail(format!(
            "windows of {size} tokens per side on a grid of {rows} by {columns} make too many pairs to keep: take smaller ones, or a \
             larger `patch_size`"
        ));
    }
    if shifted && size >= side {
        return fail(format!(
            "a shifted window of {size} holds the whole grid ({side} tokens per side): use `global`"
        ));
    }
    if shifted && size < 4 && config.attention.score.hides_own_token() {
        return fail(
            "with a `score` by which no token sees itself, as `locality`, a shifted window of less than 4 leaves some nothing to see"
                .into(),
        );
    }
    if config.num_prefix_tokens() > 0 {
        return fail(
            "windows hold patches alone; set `class_token = false`, `pool = \"mean\"` and no `registers`"
                .into(),
        );
    }
    Ok(())
}

/// The cost of all windows, with padding, and of their relative positions.
pub(super) fn cost(spec: &AttentionSpec, grid: [usize; 2], size: usize) -> MixerCost {
    let layout = WindowLayout::new(grid, size, 0);
    let ([rows, columns], [down, across]) = (layout.window, layout.counts());
    let mut cost = multi_head::cost(spec, [down * across, rows * columns]);
    let relative_position = spec.options.relative_position_in_windows();
    cost.attention += relative_position.cost([rows, columns], spec.num_heads);
    cost
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::AttentionOptions;
    use burn::tensor::{Distribution, Tolerance};

    fn layer(grid: [usize; 2], size: usize, shift: usize) -> (WindowAttention, Tensor<3>) {
        let device = Device::default();
        let spec = AttentionSpec {
            dim: 12,
            num_heads: 2,
            qkv_bias: true,
            options: AttentionOptions::default(),
            pretrained_window: None,
            norm_epsilon: 1e-6,
            attention_dropout: 0.0,
            dropout: 0.0,
        };
        let x = Tensor::random([2, grid[0] * grid[1], 12], Distribution::Normal(0.0, 5.0), &device);
        (WindowAttention::new(&spec, grid, size, shift, &device), x)
    }

    /// The tokens whose outputs change if the token at `place` changes.
    fn influenced(
        layer: &WindowAttention,
        x: &Tensor<3>,
        columns: usize,
        place: [usize; 2],
    ) -> Vec<[usize; 2]> {
        let token = place[0] * columns + place[1];
        let [batch, tokens, dim] = x.dims();
        let other = x
            .clone()
            .slice_assign([0..batch, token..token + 1, 0..dim], Tensor::ones([batch, 1, dim], &x.device()));
        let change = (layer.forward(x.clone()) - layer.forward(other)).abs().sum_dim(2).narrow(0, 0, 1);
        let change: Vec<f32> = change.into_data().iter::<f32>().collect();
        (0..tokens).filter(|&t| change[t] > 1e-9).map(|t| [t / columns, t % columns]).collect()
    }

    #[test]
    fn windows_do_not_see_each_other() {
        let (layer, x) = layer([4, 6], 2, 0);
        let seen = influenced(&layer, &x, 6, [1, 2]);
        assert_eq!(seen, [[0, 2], [0, 3], [1, 2], [1, 3]]);
    }

    #[test]
    fn shifted_windows_cross_borders_but_not_the_seam() {
        let (layer, x) = layer([4, 4], 2, 1);
        assert_eq!(influenced(&layer, &x, 4, [1, 1]), [[1, 1], [1, 2], [2, 1], [2, 2]]);
        assert_eq!(
            influenced(&layer, &x, 4, [0, 0]),
            [[0, 0]],
            "opposite corners of the grid share a window only through the shift"
        );
        assert_eq!(influenced(&layer, &x, 4, [0, 1]), [[0, 1], [0, 2]]);
    }

    #[test]
    fn a_window_as_large_as_the_grid_is_global_and_is_not_shifted() {
        let (layer, x) = layer([3, 3], 7, 3);
        assert_eq!(influenced(&layer, &x, 3, [0, 0]).len(), 9);
    }

    #[test]
    fn asking_for_weights_does_not_change_the_output_on_a_grid_that_windows_do_not_divide() {
        for shift in [0, 2] {
            let (layer, x) = layer([5, 7], 4, shift);
            let (same, weights) = layer.forward_with_weights(x.clone());
            assert_eq!(weights.dims(), [2 * 4, 2, 16, 16]);
            layer
                .forward(x)
                .into_data()
                .assert_approx_eq::<f32>(&same.into_data(), Tolerance::absolute(1e-5));
        }
    }
}
