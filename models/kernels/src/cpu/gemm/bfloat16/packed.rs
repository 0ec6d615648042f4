//! Right factors in panels, and their products.

use super::super::avx512::LANES;
use super::super::view::{Epilogue, Matrix, MatrixMut};
use super::pairs::{self, Pairs};
use super::{Bfloat16, PANEL, Rounded, kernel, packed_length};
use crate::cpu::threads::with_kept;
use std::cell::Cell;
use std::ops::Range;

/// A right factor, rounded and packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RightPanels<'a> {
    bfloat16: Bfloat16,
    /// Panels of [`PANEL`] columns, one after the other: `[pairs, columns]`, the last one in whole vectors.
    words: &'a [u32],
    inner: usize,
    columns: usize,
    /// The first of the columns, which are multiplied.
    used: usize,
}

/// The columns of each panel, the words of its rows, and where it lies among the words.
fn panels([inner, columns]: [usize; 2]) -> impl Iterator<Item = (Range<usize>, usize, Range<usize>)> {
    let pairs = inner.div_ceil(2);
    (0..columns).step_by(PANEL).map(move |first| {
        let end = (first + PANEL).min(columns);
        let stride = (end - first).next_multiple_of(LANES);
        (first..end, stride, first * pairs..(first + stride) * pairs)
    })
}

/// Writes the words of [`RightPanels`] for a matrix.
///
/// # Panics
///
/// If the matrix is not [compact](Matrix::compact), or there are not [as many words](packed_length).
pub(crate) fn pack(bfloat16: Bfloat16, matrix: Matrix<'_>, words: &mut [u32]) {
    let sizes = [matrix.rows, matrix.columns];
    assert_eq!(words.len(), packed_length(sizes), "the words of a packed factor");
    for (columns, stride, of_panel) in panels(sizes) {
        let panel = matrix.block(0..matrix.rows, columns).transposed();
        pairs::across(bfloat16, panel, &mut words[of_panel], stride);
    }
}

impl<'a> RightPanels<'a> {
    /// The panels with these words, which [`pack`] made of a matrix of `inner` rows.
    ///
    /// # Panics
    ///
    /// If there are not as many words as that makes.
    pub(crate) fn new(bfloat16: Bfloat16, words: &'a [u32], [inner, columns]: [usize; 2]) -> Self {
        assert_eq!(words.len(), packed_length([inner, columns]), "the words of a packed factor");
        Self { bfloat16, words, inner, columns, used: columns }
    }

    /// The first columns of the factor, of so many panels and a part of one.
    ///
    /// # Panics
    ///
    /// If it has fewer.
    pub(crate) fn first_columns(self, columns: usize) -> Self {
        assert!(columns <= self.columns, "columns of a packed factor");
        Self { used: columns, ..self }
    }

    /// `out = scale * left * right`, added to what `epilogue` says, on the calling thread.
    ///
    /// # Panics
    ///
    /// If the sizes do not fit, or `left` is not [compact](Matrix::compact).
    pub(crate) fn multiply(&self, out: MatrixMut<'_>, epilogue: Epilogue<'_>, scale: f32, left: Matrix<'_>) {
        out.assert_product_of([left.rows, left.columns], [self.inner, self.used]);
        with_left(self.bfloat16, left, |left| self.multiply_pairs(out, epilogue, scale, left));
    }

    /// [`multiply`](Self::multiply) with a left factor that is rounded already.
    ///
    /// # Panics
    ///
    /// If the sizes do not fit.
    pub(crate) fn multiply_rounded(&self, out: MatrixMut<'_>, epilogue: Epilogue<'_>, left: Rounded<'_>) {
        out.assert_product_of([left.rows, left.columns], [self.inner, self.used]);
        self.multiply_pairs(out, epilogue, 1.0, Pairs::of_rows(left));
    }

    fn multiply_pairs(&self, mut out: MatrixMut<'_>, epilogue: Epilogue<'_>, scale: f32, left: Pairs<'_>) {
        for (columns, stride, of_panel) in panels([self.inner, self.columns]) {
            let columns = columns.start..columns.end.min(self.used);
            if columns.is_empty() {
                break;
            }
            let out = out.block(0..left.lines, columns.clone());
            let panel = (&self.words[of_panel], stride);
            kernel::panel(self.bfloat16, &out, epilogue.columns(columns), scale, left, panel);
        }
    }
}

thread_local! {
    static LEFT: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
    static RIGHT: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

/// Runs `task` with a left factor as pairs.
fn with_left<R>(bfloat16: Bfloat16, left: Matrix<'_>, task: impl FnOnce(Pairs<'_>) -> R) -> R {
    let (lines, inner) = (left.rows, left.columns.div_ceil(2));
    with_kept(&LEFT, lines * inner, |words| {
        if left.strides().1 == 1 {
            pairs::along(bfloat16, left, words);
            task(Pairs { words, lines, inner, line_stride: inner, inner_stride: 1 })
        } else {
            pairs::across(bfloat16, left, words, lines);
            task(Pairs { words, lines, inner, line_stride: 1, inner_stride: lines })
        }
    })
}

/// `out = scale * left * right`, added to what `epilogue` says, on the calling thread.
///
/// # Panics
///
/// If the sizes do not fit, or a factor is not [compact](Matrix::compact).
pub(crate) fn multiply(
    bfloat16: Bfloat16,
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    let sizes = [right.rows, right.columns];
    with_kept(&RIGHT, packed_length(sizes), |words| {
        pack(bfloat16, right, words);
        RightPanels::new(bfloat16, words, sizes).multiply(out, epilogue, scale, left);
    });
}

/// `out = left^T * right`, added to what `epilogue` says, on the calling thread.
///
/// # Panics
///
/// If the sizes do not fit.
pub(crate) fn multiply_columns(
    bfloat16: Bfloat16,
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    left: Rounded<'_>,
    right: Rounded<'_>,
) {
    let sizes = [right.rows, right.columns];
    out.assert_product_of([left.columns, left.rows], sizes);
    let (lines, inner) = (left.columns, left.rows.div_ceil(2));
    with_kept(&RIGHT, packed_length(sizes), |words| {
        for (columns, stride, of_panel) in panels(sizes) {
            pairs::of_columns(bfloat16, right, columns, &mut words[of_panel], stride);
        }
        let right = RightPanels::new(bfloat16, words, sizes);
        with_kept(&LEFT, lines * inner, |words| {
            pairs::of_columns(bfloat16, left, 0..lines, words, lines);
            let left = Pairs { words, lines, inner, line_stride: 1, inner_stride: lines };
            right.multiply_pairs(out, epilogue, 1.0, left);
        });
    });
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::assert_product;
    use super::*;
    use crate::testing::numbers;

    #[test]
    fn products_agree_with_exact_ones_to_eight_bits() {
        let Some(bfloat16) = Bfloat16::find() else { return };
        let sizes =
            [[1, 1, 1], [65, 64, 65], [7, 21, 100], [49, 33, 130], [3, 5, 16], [12, 200, 64], [33, 2, 193]];
        for size in sizes {
            // Two factors, each rounded to half a unit in the eighth bit: 2^-7 of a term, of which the check takes half.
            assert_product(size, 2.0f64.powi(-8) + 1e-4, |out, epilogue, scale, left, right| {
                multiply(bfloat16, out, epilogue, scale, left, right);
            });
        }
    }

    #[test]
    fn products_of_numbers_of_eight_bits_are_exact() {
        let Some(bfloat16) = Bfloat16::find() else { return };
        for [rows, inner, columns] in [[6, 37, 80], [13, 64, 65], [1, 3, 1]] {
            let whole = |count: usize, factor: usize| -> Vec<f32> {
                (0..count).map(|index| (index * factor % 255) as f32 - 127.0).collect()
            };
            let (left, right) = (whole(rows * inner, 7), whole(inner * columns, 11));
            let transposed: Vec<f32> =
                (0..inner * columns).map(|index| right[index % inner * columns + index / inner]).collect();
            let left = Matrix::row_major(&left, inner);
            let expected: Vec<f32> = (0..rows * columns)
                .map(|index| {
                    let (row, column) = (index / columns, index % columns);
                    (0..inner).map(|step| left.get(row, step) * right[step * columns + column]).sum()
                })
                .collect();
            for right in
                [Matrix::row_major(&right, columns), Matrix::row_major(&transposed, inner).transposed()]
            {
                let mut out = vec![0.0; rows * columns];
                let target = MatrixMut::row_major(&mut out, columns);
                multiply(bfloat16, target, Epilogue::Overwrite, 1.0, left, right);
                assert_eq!(out, expected);
            }
        }
    }

    #[test]
    fn factors_that_are_rounded_already_have_the_same_product() {
        let Some(bfloat16) = Bfloat16::find() else { return };
        for [tiles, inputs, outputs] in [[7, 24, 80], [32, 16, 64], [1, 66, 8], [9, 130, 66]] {
            let (v, dm) = (numbers(tiles * inputs, 1), numbers(tiles * outputs, 2));
            let filters = numbers(inputs * outputs, 3);
            let round = |values: &[f32]| -> Vec<u16> {
                let mut rounded = vec![0; values.len()];
                let words = pairs_of_all(bfloat16, values);
                rounded
                    .iter_mut()
                    .enumerate()
                    .for_each(|(at, half)| *half = (words[at / 2] >> (16 * (at % 2))) as u16);
                rounded
            };
            let (halves, of_dm) = (round(&v), round(&dm));
            let mut outs = [vec![0.0; tiles * outputs], vec![0.0; tiles * outputs]];
            let [plain, rounded] = outs.each_mut().map(|out| MatrixMut::row_major(out, outputs));
            let mut words = vec![0; packed_length([inputs, outputs])];
            pack(bfloat16, Matrix::row_major(&filters, outputs), &mut words);
            let right = RightPanels::new(bfloat16, &words, [inputs, outputs]);
            right.multiply(plain, Epilogue::Overwrite, 1.0, Matrix::row_major(&v, inputs));
            right.multiply_rounded(rounded, Epilogue::Overwrite, Rounded::new(&halves, [tiles, inputs]));
            assert_eq!(outs[0], outs[1]);

            let mut outs = [vec![1.0; inputs * outputs], vec![1.0; inputs * outputs]];
            let [plain, rounded] = outs.each_mut().map(|out| MatrixMut::row_major(out, outputs));
            let [left, right] = [Matrix::row_major(&v, inputs).transposed(), Matrix::row_major(&dm, outputs)];
            multiply(bfloat16, plain, Epilogue::Accumulate, 1.0, left, right);
            let [left, right] =
                [(&halves, inputs), (&of_dm, outputs)].map(|(of, width)| Rounded::new(of, [tiles, width]));
            multiply_columns(bfloat16, rounded, Epilogue::Accumulate, left, right);
            assert_eq!(outs[0], outs[1]);
        }
    }

    /// The words of numbers in one row.
    fn pairs_of_all(bfloat16: Bfloat16, values: &[f32]) -> Vec<u32> {
        let mut words = vec![0; values.len().div_ceil(2)];
        pairs::along(bfloat16, Matrix::row_major(values, values.len()), &mut words);
        words
    }

    #[test]
    fn the_first_columns_have_the_product_of_all() {
        let Some(bfloat16) = Bfloat16::find() else { return };
        let [rows, inner, columns] = [7, 30, 150];
        let (left, right) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
        let left = Matrix::row_major(&left, inner);
        let mut words = vec![0; packed_length([inner, columns])];
        pack(bfloat16, Matrix::row_major(&right, columns), &mut words);
        let right = RightPanels::new(bfloat16, &words, [inner, columns]);
        let product = |used: usize| {
            let mut out = vec![0.0; rows * used];
            let target = MatrixMut::row_major(&mut out, used);
            right.first_columns(used).multiply(target, Epilogue::Overwrite, 1.0, left);
            out
        };
        let all = product(columns);
        for used in [1, 32, 64, 70, 128, 149] {
            let expected: Vec<f32> =
                all.chunks_exact(columns).flat_map(|row| &row[..used]).copied().collect();
            assert_eq!(product(used), expected, "{used}");
        }
    }

    #[test]
    fn a_factor_without_elements_has_a_product_of_zeros() {
        let Some(bfloat16) = Bfloat16::find() else { return };
        let bias: Vec<f32> = (0..20).map(|index| index as f32).collect();
        let mut out = vec![1.0; 40];
        let (left, right) = (Matrix::new(&[], [2, 0], [0, 1]), Matrix::new(&[], [0, 20], [20, 1]));
        let target = MatrixMut::row_major(&mut out, 20);
        multiply(bfloat16, target, Epilogue::Bias(&bias), 1.0, left, right);
        assert_eq!(out, [&bias[..], &bias].concat());
    }
}
