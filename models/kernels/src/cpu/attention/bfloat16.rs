//! Self-attention on AMX whose factors are rounded to bfloat16 and whose sums are float32, without a backward pass.
//!
//! ```text
//! for a sample and head (few of them: for some queries of it)   a task
//!   k, v = rotated, normalized, rounded                         panels: second-level cache
//!   for 32 queries
//!     q = scale / ln 2 * rotated, normalized; rounded
//!     s = q k^T + bias / ln 2
//!     p = 2^(s - largest of the row)
//!     y = rounded p times v / sum of p
//! ```

use super::heads::{Heads, HeadsMut};
use super::problem::Problem;
use crate::cpu::coarse::exp2;
use crate::cpu::gemm::amx::direct::{Bfloat16, Bfloat16Tiles, Product};
use crate::cpu::gemm::{Matrix, MatrixMut, first_lanes, interleaved, transposed};
use crate::cpu::simd::LANES;
use crate::cpu::threads::{Buffer, parallel_with, with_aligned_scratch};
use std::arch::x86_64::*;
use std::f32::consts::LOG2_E;
use std::mem::transmute;

/// The rows of a product, and the multiple of its inner elements and columns.
const BLOCK: usize = 2 * LANES;
/// The numbers of a line of a tile.
const LINE: usize = 2 * LANES;
/// The numbers of a tile.
const TILE: usize = LANES * LINE;

/// Whether self-attention of so many tokens is worth rounding.
pub(super) fn suits(tokens: usize, head_dim: usize) -> bool {
    tokens >= LANES && head_dim > 0
}

/// The output, `[batch, queries, heads, head_dim]`.
pub(super) fn forward(bfloat16: Bfloat16, problem: &Problem<'_>, [q, k, v]: [Heads<'_>; 3]) -> Vec<f32> {
    let mut output = Buffer::new(problem.length(problem.queries, 1));
    let target = HeadsMut { data: output.shared(), offset: 0, strides: problem.strides(problem.queries, 1) };
    let blocks = problem.query_blocks().in_groups(BLOCK);
    let widths = Widths::of(problem);
    parallel_with(
        problem.batch * problem.heads * blocks.count(),
        || problem.scratch(blocks.longest()),
        |scratch, index| {
            let (pair, rows) = (problem.pair(index / blocks.count()), blocks.range(index % blocks.count()));
            let [q, k] = problem.prepared([q, k], pair, rows.clone(), scratch);
            let v = v.rows(pair, 0..problem.keys, problem.head_dim);
            // SAFETY: each task has its own pair or its own queries of a pair, so that their outputs are disjoint.
            let mut y = unsafe { target.rows(pair, rows.clone(), problem.head_dim) };
            let task = Task { keys: problem.keys, widths, tiles: bfloat16.configure() };
            let bias = problem.bias_rows(pair, rows);
            with_aligned_scratch(widths.memory(), |memory| {
                // SAFETY: `bfloat16` proves that the CPU has the instructions.
                unsafe {
                    task.run(
                        [q.rows, k.rows, v],
                        problem.scale(pair.head),
                        bias,
                        &mut y,
                        Parts::of(memory, widths),
                    );
                }
            });
        },
    );
    // SAFETY: the heads of a token lie next to each other without a gap, and the tasks wrote all heads of all queries.
    unsafe { output.written() }
}

/// The keys and the width of a head, both padded to whole tiles.
#[derive(Clone, Copy)]
struct Widths {
    keys: usize,
    head: usize,
}

impl Widths {
    fn of(problem: &Problem<'_>) -> Self {
        Self { keys: problem.keys.next_multiple_of(BLOCK), head: problem.head_dim.next_multiple_of(BLOCK) }
    }

    /// The elements of all [`Parts`].
    fn memory(self) -> usize {
        let rounded = 2 * self.keys * self.head + BLOCK * (self.keys + self.head);
        rounded / 2 + BLOCK * self.keys + BLOCK * BLOCK
    }
}

/// What a task keeps in scratch memory; each part begins a cache line.
struct Parts<'a> {
    /// Panels of 16 keys.
    keys: &'a mut [u16],
    /// Panels of 16 columns of the values.
    values: &'a mut [u16],
    /// `[BLOCK, head]`
    queries: &'a mut [u16],
    /// `[BLOCK, keys]`
    probabilities: &'a mut [u16],
    /// `[BLOCK, keys]`
    scores: &'a mut [f32],
    /// `[BLOCK, BLOCK]`
    sums: &'a mut [f32],
}

impl<'a> Parts<'a> {
    fn of(memory: &'a mut [f32], Widths { keys, head }: Widths) -> Self {
        let (scores, memory) = memory.split_at_mut(BLOCK * keys);
        let (sums, memory) = memory.split_at_mut(BLOCK * BLOCK);
        // SAFETY: any bits are a number of 16 bits, of which there are two in a float32.
        let halves = unsafe { memory.align_to_mut::<u16>().1 };
        let (panels, halves) = halves.split_at_mut(keys * head);
        let (values, halves) = halves.split_at_mut(keys * head);
        let (queries, halves) = halves.split_at_mut(BLOCK * head);
        Self { keys: panels, values, queries, probabilities: &mut halves[..BLOCK * keys], scores, sums }
    }
}

/// The attention of some queries of a head.
struct Task {
    keys: usize,
    widths: Widths,
    tiles: Bfloat16Tiles,
}

impl Task {
    /// Writes the output of the queries `q`.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn run(
        &self,
        [q, k, v]: [Matrix<'_>; 3],
        scale: f32,
        bias: Option<&[f32]>,
        y: &mut MatrixMut<'_>,
        parts: Parts<'_>,
    ) {
        let Widths { keys, head } = self.widths;
        pack_keys(k, parts.keys, head);
        pack_values(v, parts.values, keys);
        for first in (0..q.rows).step_by(BLOCK) {
            let rows = first..(first + BLOCK).min(q.rows);
            round_rows(q.block(rows.clone(), 0..q.columns), scale * LOG2_E, parts.queries, head);
            self.multiply(parts.queries, parts.keys, parts.scores);
            let mut rates = [0.0; BLOCK];
            for (row, rate) in rows.clone().zip(&mut rates) {
                let scores = &mut parts.scores[(row - first) * keys..][..keys];
                let bias = bias.map(|bias| &bias[row * self.keys..][..self.keys]);
                *rate = 1.0
                    / weigh(
                        scores,
                        self.keys,
                        bias,
                        &mut parts.probabilities[(row - first) * keys..][..keys],
                    );
            }
            for column in (0..y.columns).step_by(BLOCK) {
                self.multiply(
                    parts.probabilities,
                    &parts.values[column * keys..][..BLOCK * keys],
                    parts.sums,
                );
                let columns = column..(column + BLOCK).min(y.columns);
                write_rows(parts.sums, &rates, &mut y.block(rows.clone(), columns));
            }
        }
    }

    /// The product of 32 rows and of panels, `[BLOCK, columns of the panels]`.
    ///
    /// # Panics
    ///
    /// If the sizes do not fit.
    fn multiply(&self, rows: &[u16], panels: &[u16], sums: &mut [f32]) {
        let width = rows.len() / BLOCK;
        let columns = panels.len() / width;
        assert!(rows.len() == BLOCK * width && width.is_multiple_of(LINE));
        assert!(panels.len() == columns * width && columns.is_multiple_of(BLOCK));
        assert!(sums.len() == BLOCK * columns);
        for column in (0..columns).step_by(BLOCK) {
            let product = Product {
                left: rows.as_ptr().cast(),
                row_stride: 2 * width,
                segment_stride: 0,
                right: panels[column * width..].as_ptr().cast(),
                panel_stride: 2 * LANES * width,
                segments: 1,
                blocks: width / LINE,
            };
            // SAFETY: the rows have these blocks, as have the two panels from this column on; the sums have 32 rows with these 32
            // columns.
            unsafe { self.tiles.multiply(&product, sums[column..].as_mut_ptr(), columns) };
        }
    }
}

/// Rounds `scale` times each row; the rows lie `width` numbers apart, and what they lack is 0.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn round_rows(rows: Matrix<'_>, scale: f32, to: &mut [u16], width: usize) {
    let scale = _mm512_set1_ps(scale);
    for (row, to) in to.chunks_exact_mut(width).enumerate().take(rows.rows) {
        let x = rows.row(row);
        for (block, to) in to.as_chunks_mut().0.iter_mut().enumerate() {
            let [low, high] = halves(x, block).map(|half| _mm512_mul_ps(half, scale));
            store(_mm512_cvtne2ps_pbh(high, low), to);
        }
    }
}

/// Rounds the rows to panels of 16: a line has two neighboring numbers of each row.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack_keys(rows: Matrix<'_>, to: &mut [u16], width: usize) {
    for (panel, to) in to.chunks_exact_mut(LANES * width).enumerate() {
        for (block, to) in to.as_chunks_mut::<TILE>().0.iter_mut().enumerate() {
            let mut lines = [_mm512_setzero_ps(); LANES];
            for (row, line) in (panel * LANES..rows.rows).zip(&mut lines) {
                let [low, high] = halves(rows.row(row), block);
                // SAFETY: both types are 512 bits.
                *line = unsafe { transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(high, low)) };
            }
            let lines = transposed(lines);
            for (line, to) in lines.into_iter().zip(to.as_chunks_mut().0) {
                // SAFETY: both types are 512 bits.
                store(unsafe { transmute::<__m512, __m512bh>(line) }, to);
            }
        }
    }
}

/// Rounds the columns of the rows to panels of 16: a line has the numbers of two neighboring rows in each column.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack_values(rows: Matrix<'_>, to: &mut [u16], padded_rows: usize) {
    let order = interleaved();
    for (panel, to) in to.chunks_exact_mut(LANES * padded_rows).enumerate() {
        for (pair, to) in to.as_chunks_mut().0.iter_mut().enumerate() {
            let mut values = [_mm512_setzero_ps(); 2];
            for (row, values) in (2 * pair..rows.rows).zip(&mut values) {
                *values = load(rows.row(row), panel * LANES);
            }
            // SAFETY: both types are 512 bits.
            unsafe {
                let both: __m512i = transmute(_mm512_cvtne2ps_pbh(values[1], values[0]));
                store(transmute::<__m512i, __m512bh>(_mm512_permutexvar_epi16(order, both)), to);
            }
        }
    }
}

/// Writes 2 to the power of what each of the first `keys` scores, after the bias, is above the largest; 0 for the others. Returns the
/// sum.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn weigh(scores: &mut [f32], keys: usize, bias: Option<&[f32]>, to: &mut [u16]) -> f32 {
    let none = _mm512_set1_ps(f32::NEG_INFINITY);
    let mut largest = [none; 2];
    let (pairs, _) = scores.as_chunks_mut::<LINE>();
    for (index, pair) in pairs.iter_mut().enumerate() {
        for (half, largest) in largest.iter_mut().enumerate() {
            let first = index * LINE + half * LANES;
            let lanes = first_lanes(keys.saturating_sub(first));
            // SAFETY: the half is a whole vector.
            let mut scores = unsafe { _mm512_loadu_ps(pair[half * LANES..][..LANES].as_ptr()) };
            if let Some(bias) = bias {
                scores = _mm512_fmadd_ps(load(bias, first), _mm512_set1_ps(LOG2_E), scores);
            }
            scores = _mm512_mask_mov_ps(none, lanes, scores);
            // SAFETY: the half is a whole vector.
            unsafe { _mm512_storeu_ps(pair[half * LANES..][..LANES].as_mut_ptr(), scores) };
            *largest = _mm512_max_ps(*largest, scores);
        }
    }
    let largest = _mm512_set1_ps(_mm512_reduce_max_ps(_mm512_max_ps(largest[0], largest[1])));
    let mut total = [_mm512_setzero_ps(); 2];
    for (scores, to) in pairs.iter().zip(to.as_chunks_mut().0) {
        let [mut low, mut high] = halves(scores, 0);
        for (half, total) in [&mut low, &mut high].into_iter().zip(&mut total) {
            *half = exp2(_mm512_sub_ps(*half, largest));
            *total = _mm512_add_ps(*total, *half);
        }
        store(_mm512_cvtne2ps_pbh(high, low), to);
    }
    _mm512_reduce_add_ps(_mm512_add_ps(total[0], total[1]))
}

/// Writes the rows of sums, `[BLOCK, BLOCK]`, each times its rate.
#[target_feature(enable = "avx512f")]
fn write_rows(sums: &[f32], rates: &[f32; BLOCK], to: &mut MatrixMut<'_>) {
    for (row, (sums, rate)) in sums.as_chunks::<BLOCK>().0.iter().zip(rates).enumerate().take(to.rows) {
        for half in 0..2 {
            let lanes = first_lanes(to.columns.saturating_sub(half * LANES));
            let sums = _mm512_mul_ps(load(sums, half * LANES), _mm512_set1_ps(*rate));
            // SAFETY: `to` has this row, and the columns in `lanes`.
            unsafe {
                _mm512_mask_storeu_ps(to.start.wrapping_add(row * to.row_stride + half * LANES), lanes, sums);
            }
        }
    }
}

/// Two vectors of values from `block` blocks of 32 on.
#[target_feature(enable = "avx512f")]
#[inline]
fn halves(values: &[f32], block: usize) -> [__m512; 2] {
    [load(values, block * LINE), load(values, block * LINE + LANES)]
}

/// A vector of values from `first` on; 0 where there are none.
#[target_feature(enable = "avx512f")]
#[inline]
fn load(values: &[f32], first: usize) -> __m512 {
    let lanes = first_lanes(values.len().saturating_sub(first));
    // SAFETY: only values that exist are read.
    unsafe { _mm512_maskz_loadu_ps(lanes, values.as_ptr().wrapping_add(first)) }
}

#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn store(numbers: __m512bh, to: &mut [u16; LINE]) {
    // SAFETY: both types are 512 bits; the array is a whole vector.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), transmute::<__m512bh, __m512i>(numbers)) };
}
