//! Fused attention to the patches around each patch.
//!
//! Nothing is saved but the inputs: the backward pass computes the probabilities of a tile again.
//!
//! ```text
//! forward:
//! for a sample, a head, and a band of rows                     a task
//!   q, k = rotated, normalized                                 scratch, if scores ask for it
//!   for a tile of 4 by 8 queries
//!     k, v = of all keys that a query of the tile attends to   scratch: second-level cache
//!     p = softmax(scale * q k^T), without keys beyond a query's neighborhood
//!     y = p v
//!   in the first band: the prefix tokens' attention to all tokens
//! backward:
//! for a sample and head                                        a task
//!   for a tile
//!     p = computed again
//!     ds = p * (dy v^T - sum of p * dy v^T over the row)
//!     dq = scale * ds k, and dk += scale * ds^T q, dv += p^T dy where the keys lie
//!   the prefix tokens' part
//! ```
//!
//! A tile of 32 queries reads 140 keys at radius 3, of which each query attends to 49.

mod tile;

use super::heads::{Heads, HeadsMut, Pair};
use super::packed::{PackedInputs, SelfAttention, packed_heads};
use super::problem::Problem;
use super::softmax::{softmax, softmax_backward};
use crate::cpu::flex::{self, contiguous};
use crate::cpu::gemm::{Epilogue, Matrix, MatrixMut, product};
use crate::cpu::operation::{Inputs, Operation};
use crate::cpu::simd::LANES;
use crate::cpu::threads::{Buffer, Chunks, Shared, parallel_with};
use crate::neighbors::Neighborhood;
use burn::backend::{TensorMetadata, flex::FlexTensor};
use tile::{Tile, gather, scatter};

#[derive(Clone, Debug)]
pub(crate) struct NeighborhoodAttention {
    pub(crate) attention: SelfAttention,
    pub(crate) neighborhood: Neighborhood,
}

impl Operation<4> for NeighborhoodAttention {
    type Inputs = PackedInputs;
    type Saved = PackedInputs<FlexTensor>;

    fn forward(&self, inputs: PackedInputs<FlexTensor>) -> FlexTensor {
        self.forward_saving(inputs, [false; 4]).0
    }

    fn forward_saving(
        &self,
        inputs: PackedInputs<FlexTensor>,
        _wanted: [bool; 4],
    ) -> (FlexTensor, PackedInputs<FlexTensor>) {
        let inputs = PackedInputs::map(inputs, contiguous);
        let local = Local { problem: self.attention.problem(&inputs), neighborhood: self.neighborhood };
        let problem = &local.problem;
        let tokens = problem.queries;
        let mut output = Buffer::new(problem.length(tokens, 1));
        let target = HeadsMut { data: output.shared(), offset: 0, strides: problem.strides(tokens, 1) };
        local.forward(packed_heads(&inputs.qkv, problem), target);
        // SAFETY: the bands cover all patches, the first band's task wrote the prefix, and the heads of a token lie
        // next to each other without a gap.
        let output = unsafe { output.written() };
        let shape = [problem.batch, tokens, problem.heads * problem.head_dim];
        (flex::tensor(output, shape), inputs)
    }

    fn backward(
        self,
        saved: PackedInputs<FlexTensor>,
        dy: FlexTensor,
        [qkv_wanted, _, factors_wanted, _]: [bool; 4],
    ) -> [Option<FlexTensor>; 4] {
        let dy = contiguous(dy);
        let local = Local { problem: self.attention.problem(&saved), neighborhood: self.neighborhood };
        let problem = &local.problem;
        let tokens = problem.queries;
        let mut dqkv = Buffer::new(problem.length(tokens, 3));
        let dfactors = {
            let data = dqkv.shared();
            let targets = [0, 1, 2].map(|part| {
                let offset = part * problem.heads * problem.head_dim;
                HeadsMut { data, offset, strides: problem.strides(tokens, 3) }
            });
            let dy = Heads { data: dy.storage(), strides: problem.strides(tokens, 1) };
            local.backward(packed_heads(&saved.qkv, problem), dy, targets)
        };
        // SAFETY: the task of each sample and head wrote its part of all three gradients of all tokens.
        let dqkv = qkv_wanted.then(|| flex::tensor(unsafe { dqkv.written() }, saved.qkv.shape()));
        let dfactors = factors_wanted.then(|| flex::tensor(dfactors, [problem.heads]));
        [dqkv, None, dfactors, None]
    }
}

/// The sizes of an attention and the neighborhoods of its patches.
struct Local<'a> {
    problem: Problem<'a>,
    neighborhood: Neighborhood,
}

/// The tensors of one sample and head, queries and keys prepared.
struct Head<'a> {
    pair: Pair,
    q: Matrix<'a>,
    k: Matrix<'a>,
    v: Matrix<'a>,
}

/// Memory that tiles use one after the other.
struct Scratch {
    tile: TileScratch,
    /// The outputs, or the gradients of queries, keys or values.
    rows: Vec<f32>,
}

/// The inputs and the scores of a tile.
struct TileScratch {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    scores: Vec<f32>,
}

/// Memory for the backward pass of tiles.
struct BackwardScratch {
    forward: Scratch,
    dy: Vec<f32>,
    dscores: Vec<f32>,
}

impl Local<'_> {
    /// Memory for the largest tile.
    fn scratch(&self) -> Scratch {
        let [queries, keys] = Tile::largest(&self.neighborhood);
        let rows = |count: usize| vec![0.0; count * self.problem.head_dim];
        let scores = vec![0.0; queries * keys.next_multiple_of(LANES)];
        let tile = TileScratch { q: rows(queries), k: rows(keys), v: rows(keys), scores };
        Scratch { tile, rows: rows(queries.max(keys)) }
    }

    /// Writes the output of all heads.
    fn forward(&self, [q, k, v]: [Heads<'_>; 3], output: HeadsMut<'_>) {
        let problem = &self.problem;
        let (pairs, rows) = (problem.batch * problem.heads, self.neighborhood.grid[0]);
        // Every task prepares all queries and keys of its head: with many heads there is one band.
        let wanted = (4 * rayon::current_num_threads()).div_ceil(pairs.max(1));
        let bands = Chunks::of(rows, rows.div_ceil(wanted)).in_groups(tile::ROWS);
        parallel_with(
            pairs * bands.count(),
            || (self.scratch(), problem.scratch(problem.queries)),
            |(scratch, prepared), task| {
                let pair = problem.pair(task / bands.count());
                let band = bands.range(task % bands.count());
                let [q, k] = problem.prepared([q, k], pair, 0..problem.queries, prepared);
                let v = v.rows(pair, 0..problem.keys, problem.head_dim);
                let head = Head { pair, q: q.rows, k: k.rows, v };
                if band.start == 0 && self.neighborhood.prefix > 0 {
                    self.forward_prefix(&head, output);
                }
                for tile in Tile::of_rows(self.neighborhood, band) {
                    self.forward_tile(&tile, &head, scratch, output);
                }
            },
        );
    }

    /// Writes the outputs of a tile's queries.
    fn forward_tile(&self, tile: &Tile, head: &Head<'_>, scratch: &mut Scratch, output: HeadsMut<'_>) {
        let head_dim = self.problem.head_dim;
        let [_, _, v, probabilities] = self.attend(tile, head, &mut scratch.tile);
        let mixed = product_in(&mut scratch.rows, 1.0, probabilities, v);
        for (token, mixed) in tile.query_tokens().zip(mixed.chunks_exact(head_dim)) {
            // SAFETY: each patch is a query of one tile, and each tile of a head belongs to one task.
            unsafe { output.rows(head.pair, token..token + 1, head_dim) }.fill_rows(mixed);
        }
    }

    /// Writes the outputs of the prefix tokens.
    fn forward_prefix(&self, head: &Head<'_>, output: HeadsMut<'_>) {
        let prefix = self.neighborhood.prefix;
        let scores = self.prefix_probabilities(head);
        let probabilities = Matrix::new(&scores, [prefix, self.problem.keys], [self.problem.width(), 1]);
        // SAFETY: the task of a head's first band has its prefix tokens.
        let output = unsafe { output.rows(head.pair, 0..prefix, self.problem.head_dim) };
        product(output, Epilogue::Overwrite, 1.0, probabilities, head.v);
    }

    /// The queries, keys and values of a tile, and the attention probabilities of its queries (rows) for its keys.
    fn attend<'s>(&self, tile: &Tile, head: &Head<'_>, scratch: &'s mut TileScratch) -> [Matrix<'s>; 4] {
        let TileScratch { q, k, v, scores } = scratch;
        let q = gather(head.q, tile.query_tokens(), q);
        let k = gather(head.k, tile.key_tokens(), k);
        let v = gather(head.v, tile.key_tokens(), v);
        let width = k.rows.next_multiple_of(LANES);
        let scores = &mut scores[..q.rows * width];
        let target = MatrixMut::with_gaps(scores, q.rows, k.rows, width);
        product(target, Epilogue::Overwrite, self.problem.scale(head.pair.head), q, k.transposed());
        tile.hide(scores, width);
        softmax(scores, k.rows, None);
        [q, k, v, Matrix::new(scores, [q.rows, k.rows], [width, 1])]
    }

    /// The attention probabilities of the prefix tokens for all tokens, in padded rows.
    fn prefix_probabilities(&self, head: &Head<'_>) -> Vec<f32> {
        let (prefix, keys, width) = (self.neighborhood.prefix, self.problem.keys, self.problem.width());
        let mut scores = vec![0.0; prefix * width];
        let q = head.q.block(0..prefix, 0..head.q.columns);
        let target = MatrixMut::with_gaps(&mut scores, prefix, keys, width);
        let scale = self.problem.scale(head.pair.head);
        product(target, Epilogue::Overwrite, scale, q, head.k.transposed());
        softmax(&mut scores, keys, None);
        scores
    }

    /// Writes the gradients of q, k and v, and returns the gradient of the factors.
    fn backward(&self, [q, k, v]: [Heads<'_>; 3], dy: Heads<'_>, targets: [HeadsMut<'_>; 3]) -> Vec<f32> {
        let problem = &self.problem;
        let (pairs, tokens, head_dim) = (problem.batch * problem.heads, problem.queries, problem.head_dim);
        let mut dfactors = vec![0.0; pairs];
        {
            let dfactors = Shared::new(&mut dfactors);
            parallel_with(
                pairs,
                || (self.backward_scratch(), problem.scratch(tokens)),
                |(scratch, prepared), index| {
                    let pair = problem.pair(index);
                    let [q, k] = problem.prepared([q, k], pair, 0..tokens, prepared);
                    let v = v.rows(pair, 0..tokens, head_dim);
                    let head = Head { pair, q: q.rows, k: k.rows, v };
                    let dy = dy.rows(pair, 0..tokens, head_dim);
                    // SAFETY: each task has its own pair, whose gradients no other task writes.
                    let mut gradients =
                        targets.map(|target| unsafe { target.rows(pair, 0..tokens, head_dim) });
                    self.backward_head(&head, dy, &mut gradients, scratch);
                    let [dq, dk, _] = gradients;
                    let dfactor = problem.preparation.map_or(0.0, |preparation| {
                        preparation.backward(pair.head, [Some(dq), Some(dk)], [q, k])
                    });
                    // SAFETY: each task has its own pair, and with it one element.
                    unsafe { dfactors.slice(index..index + 1) }.fill(dfactor);
                },
            );
        }
        problem.sum_over_samples(&dfactors)
    }

    fn backward_scratch(&self) -> BackwardScratch {
        let forward = self.scratch();
        let [dy, dscores] = [&forward.tile.q, &forward.tile.scores].map(|like| vec![0.0; like.len()]);
        BackwardScratch { forward, dy, dscores }
    }

    /// Writes the gradients of a head's prepared queries and keys and of its values.
    fn backward_head(
        &self,
        head: &Head<'_>,
        dy: Matrix<'_>,
        gradients: &mut [MatrixMut<'_>; 3],
        scratch: &mut BackwardScratch,
    ) {
        let zeros = vec![0.0; self.problem.head_dim];
        gradients.iter_mut().for_each(|gradient| gradient.fill_rows(&zeros));
        for tile in Tile::of_rows(self.neighborhood, 0..self.neighborhood.grid[0]) {
            self.backward_tile(&tile, head, dy, gradients, scratch);
        }
        if self.neighborhood.prefix > 0 {
            self.backward_prefix(head, dy, gradients);
        }
    }

    /// Adds the part of a tile's queries to the gradients.
    fn backward_tile(
        &self,
        tile: &Tile,
        head: &Head<'_>,
        dy: Matrix<'_>,
        [dq, dk, dv]: &mut [MatrixMut<'_>; 3],
        scratch: &mut BackwardScratch,
    ) {
        let problem = &self.problem;
        let BackwardScratch { forward: Scratch { tile: of_tile, rows }, dy: of_dy, dscores } = scratch;
        let [q, k, v, probabilities] = self.attend(tile, head, of_tile);
        let dy = gather(dy, tile.query_tokens(), of_dy);
        let dscores = score_gradients(probabilities, [dy, v], dscores);
        scatter(dq, tile.query_tokens(), product_in(rows, problem.scale, dscores, k));
        let scale = problem.scale(head.pair.head);
        scatter(dk, tile.key_tokens(), product_in(rows, scale, dscores.transposed(), q));
        scatter(dv, tile.key_tokens(), product_in(rows, 1.0, probabilities.transposed(), dy));
    }

    /// Adds the part of the prefix tokens to the gradients.
    fn backward_prefix(&self, head: &Head<'_>, dy: Matrix<'_>, [dq, dk, dv]: &mut [MatrixMut<'_>; 3]) {
        let problem = &self.problem;
        let (prefix, tokens, columns) = (self.neighborhood.prefix, problem.keys, problem.head_dim);
        let scores = self.prefix_probabilities(head);
        let probabilities = Matrix::new(&scores, [prefix, tokens], [problem.width(), 1]);
        let [q, dy] = [head.q, dy].map(|rows| rows.block(0..prefix, 0..columns));
        let mut dscores = vec![0.0; scores.len()];
        let dscores = score_gradients(probabilities, [dy, head.v], &mut dscores);
        let scale = problem.scale(head.pair.head);
        let add = |target, scale, left, right| product(target, Epilogue::Accumulate, scale, left, right);
        add(dq.block(0..prefix, 0..columns), problem.scale, dscores, head.k);
        add(dk.block(0..tokens, 0..columns), scale, dscores.transposed(), q);
        add(dv.block(0..tokens, 0..columns), 1.0, probabilities.transposed(), dy);
    }
}

/// The gradients of scores with these probabilities, from the gradients of the outputs and the values, in `memory`.
/// Both have padded rows.
fn score_gradients<'s>(
    probabilities: Matrix<'_>,
    [dy, v]: [Matrix<'_>; 2],
    memory: &'s mut [f32],
) -> Matrix<'s> {
    let [queries, keys] = [probabilities.rows, probabilities.columns];
    let width = keys.next_multiple_of(LANES);
    let dscores = &mut memory[..queries * width];
    let target = MatrixMut::with_gaps(dscores, queries, keys, width);
    product(target, Epilogue::Overwrite, 1.0, dy, v.transposed());
    softmax_backward(probabilities.memory(), dscores, keys);
    Matrix::new(dscores, [queries, keys], [width, 1])
}

/// `scale * left * right`, in the rows of `memory`.
fn product_in<'s>(memory: &'s mut [f32], scale: f32, left: Matrix<'_>, right: Matrix<'_>) -> &'s [f32] {
    let rows = &mut memory[..left.rows * right.columns];
    product(MatrixMut::row_major(rows, right.columns), Epilogue::Overwrite, scale, left, right);
    rows
}
