//! The right factor of many products, such as the weight of a layer at inference, copied once.

use super::super::avx512::{Avx512, LANES};
use super::super::view::{Epilogue, Matrix, MatrixMut};
use super::{PANEL, avx512};
use crate::cpu::threads::{Shared, parallel};
use std::ops::Range;

/// A right factor, cut into panels of [`PANEL`] columns. The kernel reads a panel from its start to its end.
#[derive(Debug)]
pub(crate) struct Panels {
    /// One panel after the other: `[inner, columns]`, in whole blocks of 16 by 16.
    values: Vec<f32>,
    inner: usize,
    columns: usize,
}

impl Panels {
    /// A copy of a matrix; `None` if the CPU has no AVX-512.
    ///
    /// # Panics
    ///
    /// If the matrix is not [compact](Matrix::compact).
    pub(crate) fn new(matrix: Matrix<'_>) -> Option<Self> {
        let _has_avx512 = Avx512::find()?;
        let (inner, columns) = (matrix.rows, matrix.columns);
        let panels = Self { values: Vec::new(), inner, columns };
        let mut values = vec![0.0; avx512::packed_length(inner, columns)];
        let shared = Shared::new(&mut values);
        parallel(columns.div_ceil(PANEL), |panel| {
            let (of_panel, _) = panels.memory(panel);
            // SAFETY: the panels are disjoint.
            let to = unsafe { shared.slice(of_panel) };
            // SAFETY: the CPU has AVX-512.
            unsafe { avx512::pack(matrix.block(0..inner, panels.of_panel(panel)), to) };
        });
        Some(Self { values, ..panels })
    }

    /// The rows of the factor.
    pub(crate) fn inner(&self) -> usize {
        self.inner
    }

    /// The columns of the factor.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// The columns of a panel.
    fn of_panel(&self, panel: usize) -> Range<usize> {
        panel * PANEL..((panel + 1) * PANEL).min(self.columns)
    }

    /// Where a panel lies among the values, and the distance between its rows.
    fn memory(&self, panel: usize) -> (Range<usize>, usize) {
        let columns = self.of_panel(panel);
        // All panels before it have whole blocks.
        let start = avx512::packed_length(self.inner, columns.start);
        let length = avx512::packed_length(self.inner, columns.len());
        (start..start + length, columns.len().next_multiple_of(LANES))
    }

    /// `out = left * these columns of the factor`, added to what `epilogue` says, on the calling thread. Each element has the bits of
    /// [`multiply`](super::multiply).
    ///
    /// # Panics
    ///
    /// If the sizes do not fit.
    pub(crate) fn multiply(
        &self,
        out: &mut MatrixMut<'_>,
        epilogue: Epilogue<'_>,
        left: Matrix<'_>,
        columns: Range<usize>,
    ) {
        assert!(columns.end <= self.columns, "columns of a packed factor");
        out.assert_product_of([left.rows, left.columns], [self.inner, columns.len()]);
        let mut first = columns.start;
        while first < columns.end {
            let panel = first / PANEL;
            let (memory, width) = self.memory(panel);
            let of_panel = self.of_panel(panel);
            let end = of_panel.end.min(columns.end);
            let written = first - columns.start..end - columns.start;
            let out = out.block(0..left.rows, written.clone());
            let start = self.values.as_ptr().wrapping_add(memory.start + first - of_panel.start);
            let right =
                avx512::RightRows::new(start, width).before(self.values.as_ptr().wrapping_add(memory.end));
            // SAFETY: the CPU has AVX-512, as `new` has found; the panel has a row of `width` elements for each column of `left`, and in
            // each of them the columns of `out`, from `start` on.
            unsafe { avx512::columns(&out, epilogue.columns(written), 1.0, left, right) };
            first = end;
        }
    }

    /// The matrix of which this is a copy, row by row.
    pub(crate) fn unpacked(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.inner * self.columns];
        for panel in 0..self.columns.div_ceil(PANEL) {
            let ((memory, width), columns) = (self.memory(panel), self.of_panel(panel));
            let rows = values.chunks_exact_mut(self.columns).zip(self.values[memory].chunks_exact(width));
            rows.for_each(|(row, packed)| row[columns.clone()].copy_from_slice(&packed[..columns.len()]));
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::gemm::small::{Instructions, multiply};

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|place| (place as f32 * 12.9898).sin()).collect()
    }

    #[test]
    fn products_have_the_bits_of_those_without_a_copy() {
        let Some(avx512) = Avx512::find() else { return };
        for [rows, inner, columns] in [[37, 200, 90], [1, 16, 64], [7, 33, 130], [20, 48, 16], [5, 1, 1]] {
            let (left, right, bias) = (numbers(rows * inner), numbers(inner * columns), numbers(columns));
            let left = Matrix::row_major(&left, inner);
            for right in [Matrix::row_major(&right, columns), Matrix::row_major(&right, inner).transposed()] {
                let panels = Panels::new(right).unwrap();
                for part in [0..columns, columns / 3..columns, 0..columns.div_ceil(2)] {
                    let mut outs = [vec![0.0; rows * part.len()], vec![0.0; rows * part.len()]];
                    let epilogue = Epilogue::Bias(&bias[part.clone()]);
                    let [plain, mut packed] =
                        outs.each_mut().map(|out| MatrixMut::row_major(out, part.len()));
                    let of_part = right.block(0..inner, part.clone());
                    multiply(Instructions::Avx512(avx512), plain, epilogue, 1.0, left, of_part);
                    panels.multiply(&mut packed, epilogue, left, part);
                    assert_eq!(outs[0], outs[1]);
                }
                let unpacked = panels.unpacked();
                let expected =
                    (0..inner).flat_map(|row| (0..columns).map(move |column| right.get(row, column)));
                assert!(unpacked.into_iter().eq(expected));
            }
        }
    }

    #[test]
    fn a_factor_without_elements_has_a_product_of_zeros() {
        let Some(panels) = Panels::new(Matrix::new(&[], [0, 20], [20, 1])) else { return };
        let mut out = vec![1.0; 40];
        let bias = numbers(20);
        let left = Matrix::new(&[], [2, 0], [0, 1]);
        panels.multiply(&mut MatrixMut::row_major(&mut out, 20), Epilogue::Bias(&bias), left, 0..20);
        assert_eq!(out, [&bias[..], &bias].concat());
        let part = Epilogue::Bias(&bias[5..15]);
        panels.multiply(&mut MatrixMut::row_major(&mut out[..20], 10), part, left, 5..15);
        assert_eq!(out[..20], [&bias[5..15], &bias[5..15]].concat());
    }
}
