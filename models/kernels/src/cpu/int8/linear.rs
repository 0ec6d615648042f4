//! The linear layer on bytes.

use super::detect::Int8;
use super::kernels::{self, Left, Output};
use super::panels::{DEPTH, Panels};
use super::rows::{Range, with_bytes};
use crate::cpu::coarse;
use crate::cpu::threads::{Buffer, Chunks, parallel};

/// The rows that are quantized at a time: they and their outputs stay in the second-level cache.
const ROWS: usize = 128;
/// The multiple of rows that a kernel reads.
const GROUP: usize = 32;

/// `x weight + bias` for rows of `features` values, with GELU if asked for.
pub(crate) fn multiply(
    int8: Int8,
    x: &[f32],
    features: usize,
    panels: &Panels,
    bias: Option<&[f32]>,
    is_gelu: bool,
) -> Vec<f32> {
    let (rows, columns) = (x.len() / features.max(1), panels.columns);
    let stride = features.next_multiple_of(DEPTH);
    let mut data = Buffer::new(rows * columns);
    let outputs = data.shared();
    let chunks = Chunks::new(rows, GROUP).in_groups(GROUP);
    parallel(chunks.count(), |index| {
        let chunk = chunks.range(index);
        with_bytes(ROWS.min(chunk.len().next_multiple_of(GROUP)) * stride, |memory| {
            for rows in Chunks::of(chunk.len(), ROWS).in_groups(GROUP).ranges_after(chunk.start) {
                let x = &x[rows.start * features..rows.end * features];
                // SAFETY: the chunks are disjoint, and with them the outputs of their rows.
                let y = unsafe { outputs.slice(rows.start * columns..rows.end * columns) };
                multiply_rows(int8, x, panels, bias, y, memory);
                if is_gelu {
                    // SAFETY: `int8` proves that the CPU has AVX-512.
                    unsafe { coarse::gelu(y) };
                }
            }
        });
    });
    // SAFETY: the chunks cover all rows, and the product wrote all columns of each.
    unsafe { data.written() }
}

/// The product of up to [`ROWS`] rows; `memory` is for their bytes, in whole groups.
fn multiply_rows(
    int8: Int8,
    x: &[f32],
    panels: &Panels,
    bias: Option<&[f32]>,
    y: &mut [f32],
    memory: &mut [u8],
) {
    let (features, columns) = (panels.inner(), panels.columns);
    let stride = features.next_multiple_of(DEPTH);
    let mut ranges = [Range { scale: 0.0, zero: 0 }; ROWS];
    let rows = x.chunks_exact(features);
    let count = rows.len();
    assert!(
        count <= ROWS && count.next_multiple_of(GROUP) * stride <= memory.len() && count * columns <= y.len()
    );
    for ((x, range), bytes) in rows.zip(&mut ranges).zip(memory.chunks_exact_mut(stride)) {
        *range = Range::of(int8, x);
        range.quantize(int8, x, bytes);
    }
    let left = Left { start: memory.as_ptr(), rows: count, row_stride: stride, segment_stride: 0 };
    let start = y.as_mut_ptr();
    let output = Output {
        range: |row: usize| ranges[row],
        to: |row: usize| Some(start.wrapping_add(row * columns)),
        bias,
    };
    // SAFETY: each row has whole blocks, and the memory whole groups of rows; `y` has the columns of each row.
    unsafe { kernels::multiply(int8, left, panels, &output) };
}
