//! One head: its planes, its forward and its backward pass.

use super::geometry::{Geometry, Segment};
use super::lanes::{
    Channels, Weights, add_products, add_shared, add_weighted, dots, shared_dots, softmax, softmax_backward,
};
use super::plane::{Tokens, scatter};
use crate::cpu::simd::{LANES, fold};

type Vector = [f32; LANES];

/// The scratch memory of a task, which takes one head after the other.
pub(super) struct Head<'a> {
    geometry: &'a Geometry,
    head_dim: usize,
    /// Planes of queries (scaled), keys and values: `[rows, head_dim, width]`, with zeros around the columns.
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// Keys and values of the prefix tokens: `[prefix, head_dim]`.
    prefix_k: Vec<f32>,
    prefix_v: Vec<f32>,
    /// The weights of a segment: those of the neighborhood, row by row, then those of the prefix.
    weights: Vec<Vector>,
    /// A vector for each channel.
    sums: Vec<Vector>,
    /// What the backward pass needs more.
    backward: Option<BackwardScratch<'a>>,
}

/// The scratch memory of a backward pass.
struct BackwardScratch<'a> {
    /// The plane of the gradient of the output.
    dy: Vec<f32>,
    weights: Map<'a>,
    scores: Map<'a>,
}

/// Where the gradients of a head go.
pub(super) struct Gradients<'a> {
    /// `[patches, head_dim]`.
    pub(super) dq: &'a mut [f32],
    /// `[prefix + patches, head_dim]`.
    pub(super) dk: &'a mut [f32],
    /// `[prefix + patches, head_dim]`.
    pub(super) dv: &'a mut [f32],
}

/// Weights of a whole head by row, row of the neighborhood, and offset: `[rows, tallest, offsets, width]`. Zero for
/// patches that do not attend to each other.
struct Map<'a> {
    geometry: &'a Geometry,
    data: Vec<f32>,
}

impl<'a> Head<'a> {
    pub(super) fn new(geometry: &'a Geometry, head_dim: usize) -> Self {
        let plane = || vec![0.0; geometry.rows * head_dim * geometry.width];
        Self {
            geometry,
            head_dim,
            q: plane(),
            k: plane(),
            v: plane(),
            prefix_k: vec![0.0; geometry.prefix * head_dim],
            prefix_v: vec![0.0; geometry.prefix * head_dim],
            weights: Vec::new(),
            sums: vec![[0.0; LANES]; head_dim],
            backward: None,
        }
    }

    /// Reads the queries, times `scale`, the keys and the values of a head.
    pub(super) fn load(&mut self, q: Tokens<'_>, [k, v]: [Tokens<'_>; 2], scale: f32) {
        let prefix = self.geometry.prefix;
        q.transpose(0, scale, self.geometry, &mut self.q);
        k.transpose(prefix, 1.0, self.geometry, &mut self.k);
        v.transpose(prefix, 1.0, self.geometry, &mut self.v);
        for (tokens, target) in [(k, &mut self.prefix_k), (v, &mut self.prefix_v)] {
            for (index, value) in target.iter_mut().enumerate() {
                *value = tokens.get(index / self.head_dim, index % self.head_dim);
            }
        }
    }

    /// The output: `[patches, head_dim]`.
    pub(super) fn forward(&mut self, output: &mut [f32]) {
        let geometry = self.geometry;
        for row in 0..geometry.rows {
            for segment in &geometry.segments {
                let mut weights = std::mem::take(&mut self.weights);
                self.scores(&self.q, [&self.k, &self.prefix_k], row, segment, &mut weights);
                self.mask(segment, &mut weights);
                softmax(&mut weights);
                self.sums.fill([0.0; LANES]);
                let mut sums = std::mem::take(&mut self.sums);
                self.mix(&weights, [&self.v, &self.prefix_v], row, segment, &mut sums);
                scatter(&sums, 1.0, self.patches(row, segment, output));
                (self.weights, self.sums) = (weights, sums);
            }
        }
    }

    /// The gradients, from that of the output.
    pub(super) fn backward(&mut self, dy: Tokens<'_>, scale: f32, gradients: Gradients<'_>) {
        let (geometry, head_dim) = (self.geometry, self.head_dim);
        let Gradients { dq, dk, dv } = gradients;
        // The maps are written at the same places for every head.
        let BackwardScratch { dy: mut dy_plane, weights: mut weights_map, scores: mut scores_map } =
            self.backward.take().unwrap_or_else(|| BackwardScratch {
                dy: vec![0.0; self.q.len()],
                weights: Map::new(geometry),
                scores: Map::new(geometry),
            });
        dy.transpose(0, 1.0, geometry, &mut dy_plane);
        let mut prefix_sums = [vec![[0.0; LANES]; geometry.prefix * head_dim], Vec::new()];
        prefix_sums[1] = prefix_sums[0].clone();
        let (mut weights, mut scores, mut sums) = (Vec::new(), Vec::new(), vec![[0.0; LANES]; head_dim]);
        for row in 0..geometry.rows {
            for segment in &geometry.segments {
                self.scores(&self.q, [&self.k, &self.prefix_k], row, segment, &mut weights);
                self.mask(segment, &mut weights);
                softmax(&mut weights);
                self.scores(&dy_plane, [&self.v, &self.prefix_v], row, segment, &mut scores);
                softmax_backward(&weights, &mut scores);
                sums.fill([0.0; LANES]);
                self.mix(&scores, [&self.k, &self.prefix_k], row, segment, &mut sums);
                scatter(&sums, scale, self.patches(row, segment, dq));
                let near = weights.len() - geometry.prefix;
                let [of_k, of_v] = &mut prefix_sums;
                add_products(of_k, &scores[near..], self.channels(&self.q, row, segment.start));
                add_products(of_v, &weights[near..], self.channels(&dy_plane, row, segment.start));
                weights_map.keep(row, segment, &weights);
                scores_map.keep(row, segment, &scores);
            }
        }
        let skip = geometry.prefix * head_dim;
        let parts =
            [(dk, &scores_map, &self.q, &prefix_sums[0]), (dv, &weights_map, &dy_plane, &prefix_sums[1])];
        for (target, map, plane, of_prefix) in parts {
            let (prefix, patches) = target.split_at_mut(skip);
            for (value, sum) in prefix.iter_mut().zip(of_prefix) {
                *value = fold(*sum, |left, right| left + right);
            }
            self.of_keys(map, plane, &mut sums, patches);
        }
        self.backward = Some(BackwardScratch { dy: dy_plane, weights: weights_map, scores: scores_map });
    }

    /// The products of the vectors of a segment in `plane` with those of its neighborhood, and with the prefix tokens.
    fn scores(
        &self,
        plane: &[f32],
        [near, prefix]: [&[f32]; 2],
        row: usize,
        segment: &Segment,
        scores: &mut Vec<Vector>,
    ) {
        let span = self.geometry.spans[row].clone();
        let offsets = segment.offsets.len();
        scores.resize(span.len() * offsets + self.geometry.prefix, [0.0; LANES]);
        let (of_patches, of_prefix) = scores.split_at_mut(span.len() * offsets);
        let x = self.channels(plane, row, segment.start);
        for (near_row, scores) in span.zip(of_patches.chunks_exact_mut(offsets)) {
            dots(scores, x, self.neighbors(near, near_row, segment), self.head_dim);
        }
        shared_dots(of_prefix, x, prefix);
    }

    /// Minus infinity for the neighbors that single patches of a segment do not have.
    fn mask(&self, segment: &Segment, scores: &mut [Vector]) {
        let near = scores.len() - self.geometry.prefix;
        for scores in scores[..near].chunks_exact_mut(segment.offsets.len()) {
            for (score, mask) in scores.iter_mut().zip(&segment.mask) {
                score.iter_mut().zip(mask).for_each(|(score, mask)| *score += mask);
            }
        }
    }

    /// Adds the vectors of the neighborhood and of the prefix tokens by their weights.
    fn mix(
        &self,
        weights: &[Vector],
        [near, prefix]: [&[f32]; 2],
        row: usize,
        segment: &Segment,
        sums: &mut [Vector],
    ) {
        let offsets = segment.offsets.len();
        let (of_patches, of_prefix) = weights.split_at(weights.len() - self.geometry.prefix);
        for (near_row, weights) in self.geometry.spans[row].clone().zip(of_patches.chunks_exact(offsets)) {
            let weights = Weights { data: weights.as_flattened(), start: 0, step: LANES };
            add_weighted(sums, weights, offsets, self.neighbors(near, near_row, segment), false);
        }
        add_shared(sums, of_prefix, prefix);
    }

    /// For every patch as a key, the sum over the queries that attend to it of `map` times their vectors in `plane`.
    fn of_keys(&self, map: &Map<'_>, plane: &[f32], sums: &mut [Vector], target: &mut [f32]) {
        let geometry = self.geometry;
        for row in 0..geometry.rows {
            for segment in &geometry.segments {
                sums.fill([0.0; LANES]);
                for reader in geometry.readers[row].clone() {
                    // A key at an offset from a query: seen from the key, the query lies at the opposite offset.
                    let last = geometry.padding + segment.start;
                    let furthest = last.wrapping_add_signed(-geometry.first_offset) + 1 - geometry.offsets;
                    let start = reader * self.head_dim * geometry.width + furthest;
                    let queries = Channels { data: &plane[start..], stride: geometry.width };
                    let weights = map.of_key(reader, row, segment.start);
                    add_weighted(sums, weights, geometry.offsets, queries, true);
                }
                scatter(sums, 1.0, self.patches(row, segment, target));
            }
        }
    }

    /// The channels of a row of a plane from a column on.
    fn channels<'b>(&self, plane: &'b [f32], row: usize, column: usize) -> Channels<'b> {
        let Geometry { padding, width, .. } = *self.geometry;
        Channels { data: &plane[row * self.head_dim * width + padding + column..], stride: width }
    }

    /// The channels of a row from the first neighbor of a segment on.
    fn neighbors<'b>(&self, plane: &'b [f32], row: usize, segment: &Segment) -> Channels<'b> {
        let width = self.geometry.width;
        let start = row * self.head_dim * width + self.geometry.place(segment.start, segment.offsets.start);
        Channels { data: &plane[start..], stride: width }
    }

    /// The patches of a segment in `[patches, head_dim]`.
    fn patches<'b>(&self, row: usize, segment: &Segment, tokens: &'b mut [f32]) -> &'b mut [f32] {
        let columns = self.geometry.columns;
        let count = LANES.min(columns - segment.start);
        &mut tokens[(row * columns + segment.start) * self.head_dim..][..count * self.head_dim]
    }
}

impl<'a> Map<'a> {
    fn new(geometry: &'a Geometry) -> Self {
        let Geometry { rows, tallest, offsets, width, .. } = *geometry;
        Self { geometry, data: vec![0.0; rows * tallest * offsets * width] }
    }

    /// Keeps the weights of a segment.
    fn keep(&mut self, row: usize, segment: &Segment, weights: &[Vector]) {
        let Geometry { tallest, offsets, width, padding, columns, .. } = *self.geometry;
        let count = LANES.min(columns - segment.start);
        for (near_row, weights) in
            weights[..weights.len() - self.geometry.prefix].chunks_exact(segment.offsets.len()).enumerate()
        {
            for (offset, weight) in segment.offsets.clone().zip(weights) {
                let start = ((row * tallest + near_row) * offsets + offset) * width + padding + segment.start;
                self.data[start..start + count].copy_from_slice(&weight[..count]);
            }
        }
    }

    /// The weights that the queries of row `reader` give the keys of a row from `column` on, by offset.
    fn of_key(&self, reader: usize, row: usize, column: usize) -> Weights<'_> {
        let Geometry { tallest, offsets, width, padding, .. } = *self.geometry;
        let near_row = row - self.geometry.spans[reader].start;
        let start = (reader * tallest + near_row) * offsets * width + padding + column;
        // A step of one offset moves the query by one column to the left.
        let start = start.wrapping_add_signed(-self.geometry.first_offset);
        Weights { data: &self.data, start, step: width - 1 }
    }
}
