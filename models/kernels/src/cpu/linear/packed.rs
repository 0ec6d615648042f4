//! The linear layer with a weight that is packed once, for inference.

use super::Activation;
use crate::cpu::gelu;
use crate::cpu::gemm::{Epilogue, Matrix, MatrixMut, PANEL, Panels};
use crate::cpu::threads::{Buffer, Chunks, parallel};
use std::ops::Range;

/// The rows that are multiplied at a time, which stay in the second-level cache next to a panel of the weight.
const ROWS: usize = 384;

/// The outputs in the columns `outputs` for `rows` rows of as many values as the weight has.
pub(crate) fn multiply(
    x: &[f32],
    rows: usize,
    weight: Panels<'_>,
    outputs: Range<usize>,
    bias: Option<&[f32]>,
    activation: Activation,
) -> Vec<f32> {
    let (features, width) = (weight.inner(), outputs.len());
    let x = Matrix::new(x, [rows, features], [features, 1]);
    let epilogue = bias.map_or(Epilogue::Overwrite, Epilogue::Bias);
    let mut data = Buffer::new(rows * width);
    let y = data.shared();
    let threads = rayon::current_num_threads();
    let row_chunks = Chunks::few(rows, ROWS);
    // With few rows, the threads share the panels of the weight.
    let column_chunks = match row_chunks.count() < 2 * threads {
        true => Chunks::of(width, PANEL).in_groups(PANEL),
        false => Chunks::of(width, width.max(1)),
    };
    parallel(row_chunks.count() * column_chunks.count(), |index| {
        let columns = column_chunks.range(index % column_chunks.count());
        let chunk = row_chunks.range(index / column_chunks.count());
        for rows in Chunks::of(chunk.len(), ROWS).ranges_after(chunk.start) {
            let (offset, shape) = (rows.start * width + columns.start, [rows.len(), columns.len()]);
            // SAFETY: the chunks of rows and of columns are disjoint.
            let mut y = unsafe { MatrixMut::shared(y, offset, shape, width) };
            let epilogue = epilogue.columns(columns.clone());
            let of_weight = outputs.start + columns.start..outputs.start + columns.end;
            weight.multiply(&mut y, epilogue, x.block(rows.clone(), 0..features), of_weight);
            if activation == Activation::Gelu {
                (0..rows.len()).for_each(|row| gelu::in_place(y.row_mut(row)));
            }
        }
    });
    // SAFETY: the chunks cover all rows and columns, and each product wrote its own.
    unsafe { data.written() }
}
