//! The linear layer on bytes.

use super::detect::Int8;
use super::kernels::{self, Left, Output};
use super::panels::{self, DEPTH, Panels};
use super::rows::Range;
use crate::cpu::gelu;
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
    let mut data = Buffer::new(rows * columns);
    let outputs = data.shared();
    let chunks = Chunks::new(rows, GROUP).in_groups(GROUP);
    parallel(chunks.count(), |index| {
        let chunk = chunks.range(index);
        let stride = features.next_multiple_of(DEPTH);
        let mut lines = panels::lines::<u8>(ROWS.min(chunk.len().next_multiple_of(GROUP)) * stride);
        let mut ranges = [Range { scale: 0.0, zero: 0 }; ROWS];
        for rows in Chunks::of(chunk.len(), ROWS).in_groups(GROUP).ranges_after(chunk.start) {
            let memory = panels::bytes(&mut lines);
            for (row, range) in rows.clone().zip(&mut ranges) {
                let values = &x[row * features..][..features];
                *range = Range::of(int8, values);
                range.quantize(int8, values, &mut memory[(row - rows.start) * stride..][..stride]);
            }
            // SAFETY: the chunks are disjoint, and with them the outputs of their rows.
            let y = unsafe { outputs.slice(rows.start * columns..rows.end * columns) };
            let start = y.as_mut_ptr();
            let left =
                Left { start: memory.as_ptr(), rows: rows.len(), row_stride: stride, segment_stride: 0 };
            let output = Output {
                range: |row: usize| ranges[row],
                to: |row: usize| Some(start.wrapping_add(row * columns)),
                bias,
            };
            // SAFETY: each row has whole blocks, and the memory whole groups of rows; `y` has the columns of each row.
            unsafe { kernels::multiply(int8, left, panels, &output) };
            if is_gelu {
                gelu::in_place(y);
            }
        }
    });
    // SAFETY: the chunks cover all rows, and the product wrote all columns of each.
    unsafe { data.written() }
}
