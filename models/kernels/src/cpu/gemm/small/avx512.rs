//! Small products on AVX-512.
//!
//! ```text
//! for 64 columns (80 if that is all)        4 or 5 vectors of each row of the right factor: first-level cache
//!   for 6 rows (5 for 80 columns)           6 x 4 or 5 x 5 vectors of sums: registers
//!     for each inner element                a row of the right factor: registers; elements of the left one: broadcast
//!       a part of what is read next         fetched into the cache
//!       sums += left[row, inner] * right[inner, columns]
//!     out = epilogue(scale * sums)
//! ```

use crate::cpu::gemm::avx512::{LANES, first_lanes, transpose, write};
use crate::cpu::gemm::view::{Epilogue, Matrix, MatrixMut};
use crate::cpu::threads::with_kept;
use std::arch::x86_64::*;
use std::cell::Cell;

thread_local! {
    /// Scratch memory for a right factor whose rows follow each other.
    static PACKED: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// # Safety
///
/// The CPU must have AVX-512F, and the sizes of the three matrices must be those of a product.
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn multiply(
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    let (row_stride, column_stride) = right.strides();
    if column_stride == 1 {
        // SAFETY: the sizes fit, as the caller promises, and the rows of `right` begin `row_stride` elements apart.
        return unsafe { columns(&out, epilogue, scale, left, RightRows::new(right.start(), row_stride)) };
    }
    assert_eq!(row_stride, 1, "the right factor of a small product must have a unit stride");
    // SAFETY: the sizes fit, as the caller promises.
    unsafe { multiply_packed(&out, epilogue, scale, left, right) };
}

/// The same after a copy of the right factor in scratch memory, where its rows follow each other: for many rows of the left factor.
///
/// # Panics
///
/// If the right factor is not [compact](Matrix::compact).
///
/// # Safety
///
/// The CPU must have AVX-512F, and the sizes of the three matrices must be those of a product.
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn multiply_packed(
    out: &MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    let length = packed_length(right.rows, right.columns);
    with_kept(&PACKED, length, |packed| {
        // SAFETY: the CPU has AVX-512F.
        let width = unsafe { pack(right, packed) };
        // SAFETY: the sizes fit, as the caller promises; the rows of `right` begin `width` elements apart in
        // `packed`.
        unsafe { columns(out, epilogue, scale, left, RightRows::new(packed.as_ptr(), width)) };
    });
}

/// The length of a [packed](pack) matrix: whole blocks of 16 by 16.
pub(crate) fn packed_length(rows: usize, columns: usize) -> usize {
    rows.next_multiple_of(LANES) * columns.next_multiple_of(LANES)
}

/// Copies a matrix to where its rows follow each other, at the distance that is returned: that of whole blocks of 16 columns.
///
/// # Panics
///
/// If the matrix is not [compact](Matrix::compact), or `packed` does not have the [length](packed_length) of its copy.
///
/// # Safety
///
/// The CPU must have AVX-512F.
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn pack(matrix: Matrix<'_>, packed: &mut [f32]) -> usize {
    let (row_stride, column_stride) = matrix.strides();
    assert_eq!(packed.len(), packed_length(matrix.rows, matrix.columns), "length of a packed matrix");
    let width = matrix.columns.next_multiple_of(LANES);
    if column_stride == 1 {
        for (row, packed) in packed.chunks_exact_mut(width.max(1)).take(matrix.rows).enumerate() {
            packed[..matrix.columns].copy_from_slice(matrix.row(row));
        }
        return width;
    }
    assert_eq!(row_stride, 1, "a packed matrix must have a unit stride");
    for column in (0..matrix.columns).step_by(LANES) {
        for row in (0..matrix.rows).step_by(LANES) {
            let start = matrix.start().wrapping_add(column * column_stride + row);
            let mask = first_lanes(matrix.rows - row);
            let to = packed[row * width + column..].as_mut_ptr();
            // SAFETY: rows and columns beyond those of the matrix are masked, and `packed` has whole blocks of 16 by 16.
            unsafe { transpose(start, column_stride, matrix.columns - column, mask, to, width) };
        }
    }
    width
}

/// The rows of a right factor in memory.
#[derive(Clone, Copy)]
pub(crate) struct RightRows {
    start: *const f32,
    /// The distance between rows.
    stride: usize,
    /// What is read after them, if that is known, and lies farther away than in the caches of this core.
    next: Option<*const f32>,
}

impl RightRows {
    /// Rows that begin `stride` elements apart, the first at `start`.
    pub(crate) fn new(start: *const f32, stride: usize) -> Self {
        Self { start, stride, next: None }
    }

    /// The same, while whose product is computed as much memory is fetched from `next` on.
    pub(crate) fn before(self, next: *const f32) -> Self {
        Self { next: Some(next), ..self }
    }

    /// Where memory is fetched during the product of a block of rows, of so many, and the distance in bytes for each inner element.
    fn fetched(self, blocks: usize) -> (*const i8, usize) {
        /// The bytes of a row of a panel.
        const ROW: usize = 4 * LANES * size_of::<f32>();
        const LINE: usize = 64;
        match self.next {
            Some(next) => (next.cast(), ROW.div_ceil(blocks.max(1)).min(LINE)),
            // A line that is in the cache.
            None => (self.start.cast(), 0),
        }
    }
}

/// The product, one group of columns after the other.
///
/// # Safety
///
/// - `out` must have the rows of `left`.
/// - `right` must have a row for each column of `left`, of which as many elements as `out` has columns are valid for reads.
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn columns(
    out: &MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: RightRows,
) {
    let (next, fetched) = right.fetched(out.rows.div_ceil(ROWS));
    let mut column = 0;
    while column < out.columns {
        let vectors = (out.columns - column).div_ceil(LANES);
        // Five vectors if no more columns follow, otherwise four.
        let vectors = if vectors == 5 { 5 } else { vectors.min(4) };
        let columns = RightColumns {
            right: right.start.wrapping_add(column),
            stride: right.stride,
            next,
            fetched,
            inner: left.columns,
            // Only the last vector may be a part of one.
            mask: first_lanes(out.columns - column - (vectors - 1) * LANES),
            scale,
            epilogue: epilogue.columns(column..(column + vectors * LANES).min(out.columns)),
        };
        // SAFETY: the group's columns are columns of the output and of the right factor, whose sizes fit, as the
        // caller promises.
        unsafe {
            match vectors {
                1 => columns.rows::<1>(out, column, left),
                2 => columns.rows::<2>(out, column, left),
                3 => columns.rows::<3>(out, column, left),
                4 => columns.rows::<4>(out, column, left),
                _ => columns.rows::<5>(out, column, left),
            }
        }
        column += vectors * LANES;
    }
}

/// The rows of the left factor that are multiplied at a time: as many as the registers have room for, next to a row of the right factor.
const ROWS: usize = 6;

/// A group of up to 80 columns of the right factor, and how their products are written.
struct RightColumns<'a> {
    right: *const f32,
    stride: usize,
    /// What is fetched into the cache.
    next: *const i8,
    /// The bytes of it for each inner element of a block of rows.
    fetched: usize,
    inner: usize,
    /// The columns of the last vector.
    mask: __mmask16,
    scale: f32,
    epilogue: Epilogue<'a>,
}

impl RightColumns<'_> {
    /// The products of all rows of `left` with these columns, one block of rows after the other.
    ///
    /// # Safety
    ///
    /// - `out` must have the rows of `left`, and the columns of this group from `column` on.
    /// - `right` must be valid for reads of `VECTORS` vectors (the last of them masked) in each of `inner` rows.
    #[target_feature(enable = "avx512f")]
    unsafe fn rows<const VECTORS: usize>(&self, out: &MatrixMut<'_>, column: usize, left: Matrix<'_>) {
        let most = if VECTORS == 5 { 5 } else { ROWS };
        let mut row = 0;
        while row < out.rows {
            let rows = (out.rows - row).min(most);
            let strides = left.strides();
            let left = left.start().wrapping_add(row * strides.0);
            let to = out.start.wrapping_add(row * out.row_stride + column);
            let next = self.next.wrapping_add(row / most * self.inner * self.fetched);
            // SAFETY: both matrices have `rows` rows from `left` and `to` on; the right factor is as the caller
            // promises.
            unsafe {
                match rows {
                    1 => self.block::<1, VECTORS>(left, strides, to, out.row_stride, next),
                    2 => self.block::<2, VECTORS>(left, strides, to, out.row_stride, next),
                    3 => self.block::<3, VECTORS>(left, strides, to, out.row_stride, next),
                    4 => self.block::<4, VECTORS>(left, strides, to, out.row_stride, next),
                    5 => self.block::<5, VECTORS>(left, strides, to, out.row_stride, next),
                    _ => self.block::<6, VECTORS>(left, strides, to, out.row_stride, next),
                }
            }
            row += rows;
        }
    }

    /// The micro-kernel: a block of `ROWS` rows by `VECTORS` vectors of columns.
    ///
    /// # Safety
    ///
    /// - `left` must be valid for reads of `inner` elements, `inner_stride` apart, in each of `ROWS` rows.
    /// - `right` must be valid for reads of `VECTORS` vectors (the last of them masked) in each of `inner` rows.
    /// - `out` must be valid for reads and writes of as many elements in each of `ROWS` rows.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn block<const ROWS: usize, const VECTORS: usize>(
        &self,
        mut left: *const f32,
        (row_stride, inner_stride): (usize, usize),
        out: *mut f32,
        out_stride: usize,
        mut next: *const i8,
    ) {
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        let mut right = self.right;
        // SAFETY: the loops read `inner` elements of `ROWS` rows of the left factor and `inner` rows of the right
        // one, and access an output for each sum; all of them are valid, as the caller promises, and the last
        // vector of a row is masked.
        unsafe {
            for _ in 0..self.inner {
                let mut values = [_mm512_setzero_ps(); VECTORS];
                for (index, value) in values.iter_mut().enumerate() {
                    let from = right.add(index * LANES);
                    *value = if index + 1 < VECTORS {
                        _mm512_loadu_ps(from)
                    } else {
                        _mm512_maskz_loadu_ps(self.mask, from)
                    };
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let factor = _mm512_set1_ps(*left.add(row * row_stride));
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = _mm512_fmadd_ps(factor, value, *sum);
                    }
                }
                // No access: any address will do.
                _mm_prefetch::<_MM_HINT_T0>(next);
                next = next.wrapping_add(self.fetched);
                left = left.wrapping_add(inner_stride);
                right = right.wrapping_add(self.stride);
            }
            let scale = _mm512_set1_ps(self.scale);
            for (row, sums) in sums.iter().enumerate() {
                for (index, sum) in sums.iter().enumerate() {
                    let mask = if index + 1 < VECTORS { u16::MAX } else { self.mask };
                    let to = out.add(row * out_stride + index * LANES);
                    write(*sum, scale, self.epilogue, index * LANES, to, mask);
                }
            }
        }
    }
}
