//! The last steps of a block of the output: joining the sums of all orders of digits, checking their precision, and
//! writing them.
//!
//! Omitted digits and rounding cost a term about 2^-25 (root mean square) of the product of the largest elements of its
//! row and column. In the units of [`OutputBlock::join`] that product is 4 for all rows and columns alike, so that one
//! bound serves a whole block: the error of a sum of `n` terms is about `sqrt(n) * 2^-23`.

use super::super::avx512::{first_lanes, write};
use super::super::view::{Epilogue, MatrixMut};
use super::shape::{DIGITS, SIDE, TILE_SUMS};
use std::arch::asm;
use std::arch::x86_64::*;

/// The error of a sum, divided by the root of the number of its terms.
const ERROR: f32 = 1.0 / (1 << 23) as f32;
/// A sum that is smaller than this many times its error is lost.
const LOST: f32 = 32.0;
/// A sum that is smaller than this many times its error is coarse. No row and no column may consist mostly of coarse
/// sums.
pub(super) const COARSE: f32 = (1 << 18) as f32;

/// Memory for the sums of two by two tiles, for each order of digits.
#[repr(C, align(64))]
pub(super) struct TileSums([i32; DIGITS * 4 * TILE_SUMS]);

/// Prefetches the cache lines of an output that will be written, while the sums are computed.
pub(super) fn prefetch(out: &MatrixMut<'_>) {
    for row in 0..out.rows {
        for column in (0..out.columns).step_by(SIDE) {
            let from = out.start.wrapping_add(row * out.row_stride + column);
            // SAFETY: a prefetch never faults, whatever the address.
            unsafe { asm!("prefetchw [{}]", in(reg) from, options(nostack, readonly, preserves_flags)) };
        }
    }
}

/// A block of the output: `ROWS` (1 or 2) tiles of rows by up to two tiles of columns.
pub(super) struct OutputBlock<'a, const ROWS: usize> {
    pub(super) out: MatrixMut<'a>,
    pub(super) epilogue: Epilogue<'a>,
    pub(super) scale: f32,
    /// The units of the rows and of the columns, for whole tiles.
    pub(super) units: [&'a [f32]; 2],
    /// The sums of the products of each order of digits; after [`Self::join`], the joined sums.
    pub(super) sums: *mut i32,
}

impl<const ROWS: usize> OutputBlock<'_, ROWS> {
    /// Writes the block, if its sums are precise enough; returns whether they are.
    ///
    /// # Safety
    ///
    /// - The CPU must have AVX-512F and DQ.
    /// - `sums` must be valid for reads and writes of `DIGITS * ROWS * 2` tiles, which hold the sums of `inner` terms.
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) unsafe fn write(&self, inner: usize) -> bool {
        // SAFETY: the tiles of `sums` are valid and hold sums, as the caller promises; `finish` runs after `join`.
        unsafe {
            let good = self.join(inner);
            if good {
                self.finish();
            }
            good
        }
    }

    /// Adds the orders of each sum, in place, in units of the row and the column; returns whether the results are
    /// precise enough. They are not if float32 would be more precise, or if the elements of a row or column are out of
    /// AMX's range. The results of rows and columns of zeros are always exact.
    ///
    /// # Safety
    ///
    /// `sums` must be valid for reads and writes of `DIGITS * ROWS * 2` tiles, which hold the sums of `inner` terms.
    #[target_feature(enable = "avx512f,avx512dq")]
    unsafe fn join(&self, inner: usize) -> bool {
        // The value of 1 in a sum of each order, in products of a row's and a column's unit. A unit is 64 in the first
        // digit; each further digit is a byte lower.
        const ORDERS: [f32; DIGITS] = [1.0 / 4096.0, 1.0 / 4096.0 / 256.0, 1.0 / 4096.0 / 65536.0];
        let [first, second, third] = ORDERS.map(|order| _mm512_set1_ps(order));
        let [row_units, column_units] = self.units;
        if self.units.iter().any(|units| units.iter().any(|unit| unit.is_nan())) {
            return false;
        }
        let mut check = Check::new(column_units, inner);
        for (row, unit) in row_units.iter().enumerate().take(self.out.rows) {
            for tile in 0..self.column_tiles() {
                let at = self.sums_at(row, tile);
                // SAFETY: the row and the tile are among those of `sums`, which are valid, as the caller promises.
                let sum = unsafe {
                    let [a, b, c] = [0, 1, 2].map(|order| {
                        _mm512_cvtepi32_ps(_mm512_load_si512(at.add(order * ROWS * 2 * TILE_SUMS).cast()))
                    });
                    let sum = _mm512_fmadd_ps(a, first, _mm512_fmadd_ps(b, second, _mm512_mul_ps(c, third)));
                    _mm512_store_ps(at.cast(), sum);
                    sum
                };
                if *unit != 0.0 {
                    check.add(tile, sum);
                    // A sample: one tile of each row, and the same number of rows of each tile.
                    if tile == row % self.column_tiles() && !check.row(tile, sum) {
                        return false;
                    }
                }
            }
        }
        check.passed()
    }

    /// Writes the [joined](Self::join) sums with their units. The unit of the row is applied before that of the column:
    /// the product of both units may leave the range of float32 even if the product of a sum and both units does not.
    ///
    /// # Safety
    ///
    /// `sums` must be valid for reads of `ROWS * 2` tiles, which hold joined sums.
    #[target_feature(enable = "avx512f")]
    unsafe fn finish(&self) {
        let [row_units, column_units] = self.units;
        for tile in 0..self.column_tiles() {
            let column = tile * SIDE;
            let mask = first_lanes(self.out.columns - column);
            let units = &column_units[column..][..SIDE];
            // SAFETY: the slice is a whole vector.
            let units = unsafe { _mm512_loadu_ps(units.as_ptr()) };
            let units = _mm512_mul_ps(units, _mm512_set1_ps(self.scale));
            for (row, unit) in row_units.iter().enumerate().take(self.out.rows) {
                // SAFETY: the row and the tile are among those of `sums`, which are valid, as the caller promises; the
                // output has this row and all columns in `mask`.
                unsafe {
                    let sum = _mm512_load_ps(self.sums_at(row, tile).cast());
                    let sum = _mm512_mul_ps(sum, _mm512_set1_ps(*unit));
                    let to = self.out.start.add(row * self.out.row_stride + column);
                    write(sum, units, self.epilogue, column, to, mask);
                }
            }
        }
    }

    fn column_tiles(&self) -> usize {
        self.out.columns.div_ceil(SIDE)
    }

    /// The address of the sums of a row in a tile of columns, of the first order.
    fn sums_at(&self, row: usize, tile: usize) -> *mut i32 {
        self.sums.wrapping_add((row / SIDE * 2 + tile) * TILE_SUMS + row % SIDE * SIDE)
    }
}

/// A check that sums are much larger than their errors: no sum is lost, and most sums of each row and column are
/// precise. A row with a few large elements that are multiplied with small elements in most columns fails.
struct Check {
    /// The columns of each tile that are not zero.
    present: [__mmask16; 2],
    /// Smaller sums are lost.
    lost: f32,
    /// Smaller sums are coarse.
    coarse: __m512,
    /// The smallest absolute value of a sum so far, in each lane.
    least: __m512,
    /// The number of rows that were checked in each tile, and the number of coarse sums in each column.
    rows: [u32; 2],
    coarse_in_columns: [__m512i; 2],
}

impl Check {
    #[target_feature(enable = "avx512f")]
    fn new(column_units: &[f32], inner: usize) -> Self {
        let mut present = [0; 2];
        for (present, units) in present.iter_mut().zip(column_units.as_chunks::<SIDE>().0) {
            // SAFETY: `units` is a whole vector.
            let units = unsafe { _mm512_loadu_ps(units.as_ptr()) };
            *present = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(units, _mm512_setzero_ps());
        }
        let error = ERROR * (inner as f32).sqrt();
        Self {
            present,
            lost: LOST * error,
            coarse: _mm512_set1_ps(COARSE * error),
            least: _mm512_set1_ps(f32::INFINITY),
            rows: [0; 2],
            coarse_in_columns: [_mm512_setzero_si512(); 2],
        }
    }

    /// Updates the smallest absolute value.
    #[target_feature(enable = "avx512f,avx512dq")]
    #[inline]
    fn add(&mut self, tile: usize, sum: __m512) {
        const SMALLER_ABSOLUTE: i32 = 0b1010;
        self.least =
            _mm512_mask_range_ps::<SMALLER_ABSOLUTE>(self.least, self.present[tile], self.least, sum);
    }

    /// Whether enough sums of a row are precise. Counts the coarse sums of the columns.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn row(&mut self, tile: usize, sum: __m512) -> bool {
        let present = self.present[tile];
        let coarse = _mm512_mask_cmp_ps_mask::<_CMP_LT_OQ>(present, _mm512_abs_ps(sum), self.coarse);
        let counts = &mut self.coarse_in_columns[tile];
        *counts = _mm512_mask_add_epi32(*counts, coarse, *counts, _mm512_set1_epi32(1));
        self.rows[tile] += 1;
        !too_many(coarse.count_ones(), present.count_ones())
    }

    /// Whether no sum is lost, and enough sums of each column are precise.
    #[target_feature(enable = "avx512f")]
    fn passed(&self) -> bool {
        let of_columns = |tile: usize| {
            let mut counts = [0u32; SIDE];
            // SAFETY: `counts` is a whole vector.
            unsafe { _mm512_storeu_si512(counts.as_mut_ptr().cast(), self.coarse_in_columns[tile]) };
            counts.into_iter().all(|count| !too_many(count, self.rows[tile]))
        };
        _mm512_reduce_min_ps(self.least) >= self.lost && (0..2).all(of_columns)
    }
}

/// Whether more than half of `all` sums are coarse. A few are allowed on top: sums of terms of both signs are small now
/// and then by chance.
fn too_many(coarse: u32, all: u32) -> bool {
    2 * coarse > all + 4
}
