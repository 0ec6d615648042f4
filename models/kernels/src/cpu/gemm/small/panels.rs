//! The right factor of many products, such as the weight of a layer at inference, packed once.

use super::super::avx512::{Avx512, LANES};
use super::super::view::{Epilogue, Matrix, MatrixMut};
use super::{PANEL, avx512};
use crate::cpu::threads::{Shared, parallel, parallel_with};
use std::ops::Range;

/// A right factor, cut into panels of [`PANEL`] columns. The kernel reads a panel from its start to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panels<'a> {
    /// One panel after the other: `[inner, columns]`, in whole blocks of 16 by 16.
    values: &'a [f32],
    sizes: Sizes,
}

/// The rows and the columns of a right factor.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    inner: usize,
    columns: usize,
}

impl Sizes {
    fn panels(self) -> usize {
        self.columns.div_ceil(PANEL)
    }

    /// The columns of a panel.
    fn of_panel(self, panel: usize) -> Range<usize> {
        panel * PANEL..((panel + 1) * PANEL).min(self.columns)
    }

    /// Where a panel lies among the values, and the distance between its rows.
    fn memory(self, panel: usize) -> (Range<usize>, usize) {
        let columns = self.of_panel(panel);
        // All panels before it have whole blocks.
        let start = avx512::packed_length(self.inner, columns.start);
        let length = avx512::packed_length(self.inner, columns.len());
        (start..start + length, columns.len().next_multiple_of(LANES))
    }
}

/// Whether the CPU has products that read [`Panels`].
pub(crate) fn has_panels() -> bool {
    Avx512::find().is_some()
}

/// The values of [`Panels`] for a matrix; `None` if the CPU has no AVX-512.
///
/// # Panics
///
/// If the matrix is not [compact](Matrix::compact).
pub(crate) fn pack(matrix: Matrix<'_>) -> Option<Vec<f32>> {
    let _has_avx512 = Avx512::find()?;
    let sizes = Sizes { inner: matrix.rows, columns: matrix.columns };
    let mut values = vec![0.0; avx512::packed_length(sizes.inner, sizes.columns)];
    let shared = Shared::new(&mut values);
    parallel(sizes.panels(), |panel| {
        // SAFETY: the panels are disjoint.
        let to = unsafe { shared.slice(sizes.memory(panel).0) };
        // SAFETY: the CPU has AVX-512.
        unsafe { avx512::pack(matrix.block(0..sizes.inner, sizes.of_panel(panel)), to) };
    });
    Some(values)
}

/// Makes the values of [`Panels`] of those of a matrix whose columns follow each other, with the memory of a panel for
/// each thread. Returns `false`, and
/// changes nothing, if the CPU has no AVX-512, or the sizes are not multiples of 16.
///
/// # Panics
///
/// If there are not as many values as the matrix has.
pub(crate) fn pack_in_place(columns_of_matrix: &mut [f32], [inner, columns]: [usize; 2]) -> bool {
    assert_eq!(columns_of_matrix.len(), inner * columns, "the values of a matrix");
    let sizes = Sizes { inner, columns };
    if Avx512::find().is_none() || !inner.is_multiple_of(LANES) || !columns.is_multiple_of(LANES) {
        return false;
    }
    let shared = Shared::new(columns_of_matrix);
    parallel_with(sizes.panels(), Vec::new, |copy, panel| {
        // A panel lies where its columns do.
        let (of_panel, width) = sizes.memory(panel);
        // SAFETY: the panels are disjoint.
        let values = unsafe { shared.slice(of_panel) };
        copy.clear();
        copy.extend_from_slice(values);
        // SAFETY: the CPU has AVX-512.
        unsafe { avx512::pack(Matrix::new(copy, [inner, width], [1, inner]), values) };
    });
    true
}

impl<'a> Panels<'a> {
    /// The panels with these values, which [`pack`] or [`pack_in_place`] made of a matrix of `inner` rows.
    ///
    /// # Panics
    ///
    /// If there are not as many values as that makes.
    pub(crate) fn new(values: &'a [f32], [inner, columns]: [usize; 2]) -> Self {
        assert_eq!(values.len(), avx512::packed_length(inner, columns), "the values of packed panels");
        Self { values, sizes: Sizes { inner, columns } }
    }

    /// The rows of the factor.
    pub(crate) fn inner(&self) -> usize {
        self.sizes.inner
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
        let Self { values, sizes } = *self;
        assert!(columns.end <= sizes.columns, "columns of a packed factor");
        assert!(Avx512::find().is_some(), "a factor is packed for AVX-512");
        out.assert_product_of([left.rows, left.columns], [sizes.inner, columns.len()]);
        let mut first = columns.start;
        while first < columns.end {
            let panel = first / PANEL;
            let ((memory, width), of_panel) = (sizes.memory(panel), sizes.of_panel(panel));
            let end = of_panel.end.min(columns.end);
            let written = first - columns.start..end - columns.start;
            let out = out.block(0..left.rows, written.clone());
            let start = values.as_ptr().wrapping_add(memory.start + first - of_panel.start);
            let right = avx512::RightRows::new(start, width).before(values.as_ptr().wrapping_add(memory.end));
            // SAFETY: the CPU has AVX-512, by the assertion; the panel has a row of `width` elements for each column of `left`, and in
            // each of them the columns of `out`, from `start` on.
            unsafe { avx512::columns(&out, epilogue.columns(written), 1.0, left, right) };
            first = end;
        }
    }

    /// The matrix that was packed, row by row.
    pub(crate) fn unpacked(&self) -> Vec<f32> {
        let Self { values, sizes } = *self;
        let mut matrix = vec![0.0; sizes.inner * sizes.columns];
        for panel in 0..sizes.panels() {
            let ((memory, width), columns) = (sizes.memory(panel), sizes.of_panel(panel));
            let rows = matrix.chunks_exact_mut(sizes.columns).zip(values[memory].chunks_exact(width));
            rows.for_each(|(row, packed)| row[columns.clone()].copy_from_slice(&packed[..columns.len()]));
        }
        matrix
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
                let values = pack(right).unwrap();
                let panels = Panels::new(&values, [inner, columns]);
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
        let Some(values) = pack(Matrix::new(&[], [0, 20], [20, 1])) else { return };
        let panels = Panels::new(&values, [0, 20]);
        let mut out = vec![1.0; 40];
        let bias = numbers(20);
        let left = Matrix::new(&[], [2, 0], [0, 1]);
        panels.multiply(&mut MatrixMut::row_major(&mut out, 20), Epilogue::Bias(&bias), left, 0..20);
        assert_eq!(out, [&bias[..], &bias].concat());
        let part = Epilogue::Bias(&bias[5..15]);
        panels.multiply(&mut MatrixMut::row_major(&mut out[..20], 10), part, left, 5..15);
        assert_eq!(out[..20], [&bias[5..15], &bias[5..15]].concat());
    }

    #[test]
    fn a_matrix_is_packed_in_its_own_memory_as_in_other() {
        for [inner, columns] in [[16, 16], [48, 64], [32, 176], [160, 80]] {
            let mut values = numbers(inner * columns);
            let Some(expected) = pack(Matrix::row_major(&values, inner).transposed()) else { return };
            assert!(pack_in_place(&mut values, [inner, columns]));
            assert_eq!(values, expected);
        }
        let mut odd = numbers(17 * 16);
        assert!(!pack_in_place(&mut odd, [17, 16]) && !pack_in_place(&mut odd, [16, 17]));
        assert_eq!(odd, numbers(17 * 16));
    }
}
