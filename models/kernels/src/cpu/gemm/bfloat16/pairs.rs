//! Factors of products, rounded to bfloat16: two neighbors along the sum share a word, the first one in the lower half.

use super::super::avx512::{LANES, first_lanes, interleaved, transposed};
use super::super::view::Matrix;
use super::{Bfloat16, Rounded};
use std::arch::x86_64::*;
use std::mem::transmute;
use std::ops::Range;

/// A left factor as pairs.
#[derive(Clone, Copy)]
pub(super) struct Pairs<'a> {
    pub(super) words: &'a [u32],
    /// The rows.
    pub(super) lines: usize,
    /// The pairs of a row.
    pub(super) inner: usize,
    /// The distances between rows, and between pairs of a row.
    pub(super) line_stride: usize,
    pub(super) inner_stride: usize,
}

impl<'a> Pairs<'a> {
    /// The pairs of a left factor that is rounded already.
    pub(super) fn of_rows(Rounded { data, rows, columns }: Rounded<'a>) -> Self {
        // SAFETY: all bits are a word. The data begins a word, and has whole ones.
        let (before, words, after) = unsafe { data.align_to::<u32>() };
        assert!(before.is_empty() && after.is_empty(), "rows of whole words");
        Self { words, lines: rows, inner: columns / 2, line_stride: columns / 2, inner_stride: 1 }
    }
}

/// Numbers, rounded.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
pub(crate) fn halves(values: [f32; LANES]) -> [u16; LANES] {
    // SAFETY: the array has 16 numbers, and a vector of so many halves has as many bytes as the result.
    unsafe { transmute::<__m256bh, [u16; LANES]>(_mm512_cvtneps_pbh(_mm512_loadu_ps(values.as_ptr()))) }
}

/// Writes the pairs of some columns of a matrix that is rounded already, as [`across`] does for its transpose.
///
/// # Panics
///
/// If the matrix does not have these columns, or `to` is too short.
pub(super) fn of_columns(
    _: Bfloat16,
    matrix: Rounded<'_>,
    columns: Range<usize>,
    to: &mut [u32],
    stride: usize,
) {
    let inner = matrix.rows.div_ceil(2);
    assert!(columns.len() <= stride && to.len() == stride * inner, "a word for each pair");
    assert!(stride < columns.len() + LANES, "zeros in the last vector alone");
    let row = |row: usize| match row < matrix.rows {
        true => &matrix.data[row * matrix.columns..][..matrix.columns][columns.clone()],
        false => &[],
    };
    for (pair, to) in to.chunks_exact_mut(stride.max(1)).enumerate() {
        // SAFETY: the CPU has AVX512-BF16, as the value proves, and `to` at least a word for each column.
        unsafe { interleave_halves(row(2 * pair), row(2 * pair + 1), to) };
    }
}

/// Writes words of a half of each row, and 0 for what is missing.
///
/// # Safety
///
/// The CPU must have AVX512-BF16, and `to` a word for each half.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn interleave_halves(first: &[u16], second: &[u16], to: &mut [u32]) {
    let order = interleaved();
    for (index, to) in to.chunks_mut(LANES).enumerate() {
        // SAFETY: the masks leave out what the rows and `to` do not have.
        unsafe {
            let half = |row: &[u16]| {
                let at = index * LANES;
                let mask = first_lanes(row.len().saturating_sub(at));
                _mm256_maskz_loadu_epi16(mask, row.as_ptr().wrapping_add(at).cast())
            };
            let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(half(first)), half(second));
            let words = _mm512_permutexvar_epi16(order, both);
            _mm512_mask_storeu_epi32(to.as_mut_ptr().cast(), first_lanes(to.len()), words);
        }
    }
}

/// Writes the pairs of a matrix whose rows are neighbors in memory, row by row.
///
/// # Panics
///
/// If the elements of a row are not neighbors, or `to` has not a word for each pair.
pub(super) fn along(_: Bfloat16, matrix: Matrix<'_>, to: &mut [u32]) {
    let inner = matrix.columns.div_ceil(2);
    assert_eq!(to.len(), matrix.rows * inner, "a word for each pair");
    for (row, to) in to.chunks_exact_mut(inner.max(1)).enumerate() {
        // SAFETY: the CPU has AVX512-BF16, as the value proves, and `to` has a word for each pair of the row.
        unsafe { row_along(matrix.row(row), to) };
    }
}

/// # Safety
///
/// The CPU must have AVX512-BF16, and `to` a word for each pair of `row`.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn row_along(row: &[f32], to: &mut [u32]) {
    for (block, to) in to.chunks_mut(LANES).enumerate() {
        let row = &row[2 * LANES * block..];
        // SAFETY: the masks leave out what is not in the row, and the words that `to` does not have.
        unsafe {
            let words = pairs_of(row.as_ptr(), row.len());
            _mm512_mask_storeu_epi32(to.as_mut_ptr().cast(), first_lanes(to.len()), words);
        }
    }
}

/// The pairs of 32 neighbors, of which only `count` are there.
///
/// # Safety
///
/// The CPU must have AVX512-BF16; up to 32 of `count` elements must be valid for reads.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
#[inline]
unsafe fn pairs_of(start: *const f32, count: usize) -> __m512i {
    // SAFETY: masked elements are not read.
    unsafe {
        let first = _mm512_maskz_loadu_ps(first_lanes(count), start);
        let second =
            _mm512_maskz_loadu_ps(first_lanes(count.saturating_sub(LANES)), start.wrapping_add(LANES));
        transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first))
    }
}

/// Writes the pairs of the rows of a compact matrix, a row of words for each pair: `[pairs, rows]`, whose rows begin `stride` words
/// apart, with zeros between them.
///
/// # Panics
///
/// If the matrix is not [compact](Matrix::compact), or `to` is too short.
pub(super) fn across(_: Bfloat16, matrix: Matrix<'_>, to: &mut [u32], stride: usize) {
    let inner = matrix.columns.div_ceil(2);
    assert!(matrix.compact() && stride >= matrix.rows && to.len() == stride * inner, "a word for each pair");
    assert!(stride < matrix.rows + LANES, "zeros in the last vector alone");
    // SAFETY: the CPU has AVX512-BF16, as the value proves; `to` has `inner` rows of `stride` words.
    unsafe {
        if matrix.strides().0 == 1 {
            interleave(matrix, to, stride);
        } else {
            transpose(matrix, to, stride);
        }
    }
}

/// # Safety
///
/// The CPU must have AVX512-BF16. The matrix's columns must be neighbors in memory, and `to` have a row of `stride` words, at least as many
/// as the matrix has rows, for each pair of columns.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn interleave(matrix: Matrix<'_>, to: &mut [u32], stride: usize) {
    let distance = matrix.strides().1;
    let order = interleaved();
    for (pair, to) in to.chunks_exact_mut(stride.max(1)).enumerate() {
        let start = matrix.start().wrapping_add(2 * pair * distance);
        let has_second = 2 * pair + 1 < matrix.columns;
        for line in (0..matrix.rows).step_by(LANES) {
            let mask = first_lanes(matrix.rows - line);
            let from = start.wrapping_add(line);
            // SAFETY: the masks leave out rows that the matrix does not have, and a second column if there is none.
            unsafe {
                let first = _mm512_maskz_loadu_ps(mask, from);
                let second =
                    _mm512_maskz_loadu_ps(if has_second { mask } else { 0 }, from.wrapping_add(distance));
                let both = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
                let words = _mm512_permutexvar_epi16(order, both);
                let mask = first_lanes(stride - line);
                _mm512_mask_storeu_epi32(to.as_mut_ptr().add(line).cast(), mask, words);
            }
        }
    }
}

/// # Safety
///
/// The CPU must have AVX512-BF16. The elements of a row of the matrix must be neighbors in memory, and `to` have a row of `stride` words, at
/// least as many as the matrix has rows, for each pair of columns.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn transpose(matrix: Matrix<'_>, to: &mut [u32], stride: usize) {
    let (distance, inner) = (matrix.strides().0, matrix.columns.div_ceil(2));
    for line in (0..matrix.rows).step_by(LANES) {
        let lines = (matrix.rows - line).min(LANES);
        for pair in (0..inner).step_by(LANES) {
            let mut block = [_mm512_setzero_ps(); LANES];
            for (index, block) in block.iter_mut().enumerate().take(lines) {
                let start = matrix.start().wrapping_add((line + index) * distance + 2 * pair);
                // SAFETY: the matrix has this row, and as many elements in it.
                *block = _mm512_castsi512_ps(unsafe { pairs_of(start, matrix.columns - 2 * pair) });
            }
            let block = transposed(block);
            for (row, words) in (pair..inner).zip(block) {
                // SAFETY: `to` has this row, and the mask leaves out words beyond it.
                unsafe {
                    let at = to.as_mut_ptr().add(row * stride + line);
                    _mm512_mask_storeu_epi32(
                        at.cast(),
                        first_lanes(stride - line),
                        _mm512_castps_si512(words),
                    );
                }
            }
        }
    }
}
