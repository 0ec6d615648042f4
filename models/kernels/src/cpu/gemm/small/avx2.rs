//! Small products on AVX2.
//!
//! ```text
//! for 16 columns                            2 vectors of each row of the right factor: first-level cache
//!   for 6 rows                              6 x 2 vectors of sums: registers
//!     for each inner element                a row of the right factor: registers; elements of the left one: broadcast
//!       sums += left[row, inner] * right[inner, columns]
//!     out = epilogue(scale * sums)
//! ```

use crate::cpu::gemm::view::{Epilogue, Matrix, MatrixMut};
use crate::cpu::simd::{Vectors, vectors};
use crate::cpu::threads::with_kept;
use std::arch::x86_64::*;
use std::cell::Cell;

/// The proof that the CPU has the instructions of this module (AVX2 and FMA).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof, if the CPU has these instructions. The standard library caches the answer.
    pub(super) fn find() -> Option<Self> {
        (vectors() != Vectors::Baseline).then_some(Self(()))
    }
}

/// The elements of a register.
const LANES: usize = 8;
/// The columns of a group.
const GROUP: usize = 2 * LANES;
/// The rows of a block: as many as the registers have room for, next to a row of the right factor and an element of the left one.
const BLOCK: usize = 6;

thread_local! {
    /// Scratch memory for a group of columns of a right factor whose columns are contiguous.
    static TRANSPOSED: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// # Safety
///
/// The CPU must have AVX2 and FMA, and the sizes of the three matrices must be those of a product.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn multiply(
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    let (row_stride, column_stride) = right.strides();
    for column in (0..out.columns).step_by(GROUP) {
        let range = column..(column + GROUP).min(out.columns);
        let group = Group {
            right: right.start().wrapping_add(column),
            stride: row_stride,
            inner: left.columns,
            columns: range.len(),
            scale,
            epilogue: epilogue.columns(range.clone()),
        };
        if column_stride == 1 {
            // SAFETY: the sizes fit, as the caller promises, and the rows of `right` begin `row_stride` elements apart.
            unsafe { group.rows(&out, column, left) };
            continue;
        }
        assert_eq!(row_stride, 1, "the right factor of a small product must have a unit stride");
        let length = right.rows.next_multiple_of(LANES) * GROUP;
        with_kept(&TRANSPOSED, length, |scratch| {
            for row in (0..right.rows).step_by(LANES) {
                for first in (0..range.len()).step_by(LANES) {
                    let start = right.start().wrapping_add((column + first) * column_stride + row);
                    let to = scratch[row * GROUP + first..].as_mut_ptr();
                    let counts = [range.len() - first, right.rows - row];
                    // SAFETY: rows and columns beyond those of `right` are not read, and `scratch` has room for whole blocks
                    // of 8 by 8.
                    unsafe { transpose(start, column_stride, counts, to) };
                }
            }
            let group = Group { right: scratch.as_ptr(), stride: GROUP, ..group };
            // SAFETY: the sizes fit, as the caller promises; the rows of this group begin `GROUP` elements apart.
            unsafe { group.rows(&out, column, left) };
        });
    }
}

/// A group of up to 16 columns of the right factor, and how their products are written.
#[derive(Clone, Copy)]
struct Group<'a> {
    right: *const f32,
    stride: usize,
    inner: usize,
    columns: usize,
    scale: f32,
    epilogue: Epilogue<'a>,
}

impl Group<'_> {
    /// The products of all rows of `left` with these columns, one block of rows after the other.
    ///
    /// # Safety
    ///
    /// - `out` must have the rows of `left`, and the columns of this group from `column` on.
    /// - `right` must be valid for reads of the group's columns in each of `inner` rows.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn rows(&self, out: &MatrixMut<'_>, column: usize, left: Matrix<'_>) {
        for row in (0..out.rows).step_by(BLOCK) {
            let strides = left.strides();
            let left = left.start().wrapping_add(row * strides.0);
            let to = out.start.wrapping_add(row * out.row_stride + column);
            // SAFETY: both matrices have these rows from `left` and `to` on; the right factor is as the caller promises.
            unsafe {
                match (out.rows - row).min(BLOCK) {
                    1 => self.columns::<1>(left, strides, to, out.row_stride),
                    2 => self.columns::<2>(left, strides, to, out.row_stride),
                    3 => self.columns::<3>(left, strides, to, out.row_stride),
                    4 => self.columns::<4>(left, strides, to, out.row_stride),
                    5 => self.columns::<5>(left, strides, to, out.row_stride),
                    _ => self.columns::<BLOCK>(left, strides, to, out.row_stride),
                }
            }
        }
    }

    /// [`block`](Self::block) for the number of columns.
    ///
    /// # Safety
    ///
    /// As for [`block`](Self::block).
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    unsafe fn columns<const ROWS: usize>(
        &self,
        left: *const f32,
        strides: (usize, usize),
        out: *mut f32,
        out_stride: usize,
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            match self.columns {
                GROUP => self.block::<ROWS, 2, true>(left, strides, out, out_stride),
                LANES => self.block::<ROWS, 1, true>(left, strides, out, out_stride),
                1..LANES => self.block::<ROWS, 1, false>(left, strides, out, out_stride),
                _ => self.block::<ROWS, 2, false>(left, strides, out, out_stride),
            }
        }
    }

    /// The micro-kernel: a block of `ROWS` rows by `VECTORS` vectors of columns, of which the last is a part of one unless they are
    /// `WHOLE`.
    ///
    /// # Safety
    ///
    /// - `left` must be valid for reads of `inner` elements, `inner_stride` apart, in each of `ROWS` rows.
    /// - `right` must be valid for reads of the group's columns in each of `inner` rows.
    /// - `out` must be valid for reads and writes of as many elements in each of `ROWS` rows.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    unsafe fn block<const ROWS: usize, const VECTORS: usize, const WHOLE: bool>(
        &self,
        mut left: *const f32,
        (row_stride, inner_stride): (usize, usize),
        out: *mut f32,
        out_stride: usize,
    ) {
        let mask = first_lanes(self.columns + LANES - VECTORS * LANES);
        let mut sums = [[_mm256_setzero_ps(); VECTORS]; ROWS];
        let mut right = self.right;
        // SAFETY: the loops read `inner` elements of `ROWS` rows of the left factor and `inner` rows of the right one, and
        // access an output for each sum; all of them are valid, as the caller promises, and the last vector of a row is
        // masked unless it is whole.
        unsafe {
            for _ in 0..self.inner {
                let mut values = [_mm256_setzero_ps(); VECTORS];
                for (index, value) in values.iter_mut().enumerate() {
                    let from = right.add(index * LANES);
                    *value = if WHOLE || index + 1 < VECTORS {
                        _mm256_loadu_ps(from)
                    } else {
                        _mm256_maskload_ps(from, mask)
                    };
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let factor = _mm256_broadcast_ss(&*left.add(row * row_stride));
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = _mm256_fmadd_ps(factor, value, *sum);
                    }
                }
                left = left.wrapping_add(inner_stride);
                right = right.wrapping_add(self.stride);
            }
            for (row, sums) in sums.iter().enumerate() {
                for (index, sum) in sums.iter().enumerate() {
                    let to = out.add(row * out_stride + index * LANES);
                    if WHOLE || index + 1 < VECTORS {
                        let load = |from| _mm256_loadu_ps(from);
                        _mm256_storeu_ps(to, self.finished(*sum, index * LANES, to, load));
                    } else {
                        let load = |from| _mm256_maskload_ps(from, mask);
                        _mm256_maskstore_ps(to, mask, self.finished(*sum, index * LANES, to, load));
                    }
                }
            }
        }
    }

    /// What is written to `to` for a sum of products in the group's `column`; `load` reads as much as is written.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn finished(
        &self,
        sum: __m256,
        column: usize,
        to: *const f32,
        load: impl Fn(*const f32) -> __m256,
    ) -> __m256 {
        let scale = _mm256_set1_ps(self.scale);
        match self.epilogue {
            Epilogue::Overwrite => _mm256_mul_ps(sum, scale),
            Epilogue::Accumulate => _mm256_fmadd_ps(sum, scale, load(to)),
            Epilogue::Bias(bias) => _mm256_fmadd_ps(sum, scale, load(bias[column..].as_ptr())),
        }
    }
}

/// A mask of the first `count` lanes, at most all of them.
#[target_feature(enable = "avx2")]
#[inline]
fn first_lanes(count: usize) -> __m256i {
    const MASKS: [i32; 2 * LANES] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    let masks = &MASKS[LANES - count.min(LANES)..][..LANES];
    // SAFETY: the slice has the elements of a register.
    unsafe { _mm256_loadu_si256(masks.as_ptr().cast()) }
}

/// Transposes a block of 8 by 8 elements: reads up to 8 columns, `stride` elements apart, of up to 8 contiguous elements each,
/// with 0 for those beyond `counts` (columns, elements), and writes 8 rows, `GROUP` elements apart.
///
/// # Safety
///
/// - For each of `counts[0]` columns (at most 8), `counts[1]` elements (at most 8) must be valid for reads.
/// - For each of 8 rows, 8 elements from `out + row * GROUP` on must be valid for writes.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn transpose(start: *const f32, stride: usize, [columns, elements]: [usize; 2], out: *mut f32) {
    let mask = first_lanes(elements);
    let mut from = [_mm256_setzero_ps(); LANES];
    for (index, column) in from.iter_mut().enumerate().take(columns) {
        let start = start.wrapping_add(index * stride);
        // SAFETY: the elements in the mask are valid for reads, as the caller promises.
        *column = unsafe {
            if elements >= LANES { _mm256_loadu_ps(start) } else { _mm256_maskload_ps(start, mask) }
        };
    }
    // Pairs, then groups of four of two columns each, then halves.
    let mut pairs = [_mm256_setzero_ps(); LANES];
    for index in (0..LANES).step_by(2) {
        pairs[index] = _mm256_unpacklo_ps(from[index], from[index + 1]);
        pairs[index + 1] = _mm256_unpackhi_ps(from[index], from[index + 1]);
    }
    let mut fours = [_mm256_setzero_ps(); LANES];
    for group in [0, 4] {
        for half in 0..2 {
            let (a, b) = (pairs[group + half], pairs[group + half + 2]);
            fours[group + 2 * half] = _mm256_shuffle_ps::<0x44>(a, b);
            fours[group + 2 * half + 1] = _mm256_shuffle_ps::<0xee>(a, b);
        }
    }
    for row in 0..4 {
        let (a, b) = (fours[row], fours[4 + row]);
        // SAFETY: 8 rows are valid for writes, as the caller promises.
        unsafe {
            _mm256_storeu_ps(out.add(row * GROUP), _mm256_permute2f128_ps::<0x20>(a, b));
            _mm256_storeu_ps(out.add((row + 4) * GROUP), _mm256_permute2f128_ps::<0x31>(a, b));
        }
    }
}
