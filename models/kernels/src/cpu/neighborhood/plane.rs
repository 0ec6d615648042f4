//! Heads as they lie in tensors, and as planes, whose vectors run along the rows of the grid.

use super::geometry::Geometry;
use crate::cpu::simd::{LANES, vectorized};
use burn::backend::flex::FlexTensor;

/// The heads of a tensor `[batch, heads, tokens, head_dim]`, read through its strides.
#[derive(Clone, Copy)]
pub(super) struct HeadView<'a> {
    data: &'a [f32],
    start: isize,
    strides: [isize; 4],
}

/// One head: `[tokens, head_dim]`.
#[derive(Clone, Copy)]
pub(super) struct Tokens<'a> {
    data: &'a [f32],
    start: isize,
    strides: [isize; 2],
}

impl<'a> HeadView<'a> {
    pub(super) fn of(tensor: &'a FlexTensor) -> Self {
        let strides = tensor.layout().strides();
        Self {
            data: tensor.storage::<f32>(),
            start: tensor.layout().start_offset() as isize,
            strides: [strides[0], strides[1], strides[2], strides[3]],
        }
    }

    pub(super) fn at(self, [sample, head]: [usize; 2]) -> Tokens<'a> {
        let [batch, heads, token, channel] = self.strides;
        let start = self.start + sample as isize * batch + head as isize * heads;
        Tokens { data: self.data, start, strides: [token, channel] }
    }
}

impl Tokens<'_> {
    pub(super) fn get(&self, token: usize, channel: usize) -> f32 {
        let [of_token, of_channel] = self.strides;
        self.data[(self.start + token as isize * of_token + channel as isize * of_channel) as usize]
    }

    /// Writes the patches after the first `skip` tokens, times `scale`, to a plane `[rows, head_dim, width]`. Its padding
    /// stays as it is.
    pub(super) fn transpose(&self, skip: usize, scale: f32, geometry: &Geometry, plane: &mut [f32]) {
        let Geometry { columns, padding, width, .. } = *geometry;
        let size = plane.len() / geometry.rows.max(1);
        for (row, plane) in plane.chunks_exact_mut(size.max(1)).enumerate() {
            for start in (0..columns).step_by(LANES) {
                let count = LANES.min(columns - start);
                let first = skip + row * columns + start;
                for (channel, target) in plane.chunks_exact_mut(width).enumerate() {
                    let target = &mut target[padding + start..][..count];
                    for (lane, value) in target.iter_mut().enumerate() {
                        *value = self.get(first + lane, channel) * scale;
                    }
                }
            }
        }
    }
}

vectorized! {
    /// Writes vectors `[head_dim, LANES]` times `scale` to as many tokens as there are in `target`, `[tokens, head_dim]`.
    pub(super) fn scatter(vectors: &[[f32; LANES]], scale: f32, target: &mut [f32]) {
        for (lane, token) in target.chunks_exact_mut(vectors.len().max(1)).enumerate() {
            for (value, vector) in token.iter_mut().zip(vectors) {
                *value = vector[lane] * scale;
            }
        }
    }
}
