//! What the sums of a block of the output come to, and whether they are good enough.
//!
//! The digits that are left out and those that are rounded away cost a term about 2^-25 (root mean square) of the product of the largest
//! elements of its row and of its column. In the units of [`Block::join`] that product is 4 for all rows and columns alike, so that one
//! bound serves a whole block: a sum of `n` terms is off by about `sqrt(n) * 2^-23`.

use super::super::avx512::{first_lanes, write};
use super::super::view::{Epilogue, MatrixMut};
use super::shape::{DIGITS, SIDE, TILE_SUMS};
use std::arch::asm;
use std::arch::x86_64::*;

/// The error of a sum, by the root of its terms.
const ERROR: f32 = 1.0 / (1 << 23) as f32;
/// A sum that is smaller than so many times its error is lost.
const LOST: f32 = 32.0;
/// A sum that is smaller than so many times its error is coarse: most of them must not be in any row or column.
pub(super) const COARSE: f32 = (1 << 18) as f32;

/// The sums of two by two tiles of products, for each order of digits.
#[repr(C, align(64))]
pub(super) struct TileSums([i32; DIGITS * 4 * TILE_SUMS]);

/// Asks for the lines of an output that will be written: they come while the sums are computed.
pub(super) fn prefetch(out: &MatrixMut<'_>) {
    for row in 0..out.rows {
        for column in (0..out.columns).step_by(SIDE) {
            let from = out.start.wrapping_add(row * out.row_stride + column);
            // SAFETY: no address is followed.
            unsafe { asm!("prefetchw [{}]", in(reg) from, options(nostack, readonly, preserves_flags)) };
        }
    }
}

/// Up to two by two tiles of the output, of which `ROWS` of rows.
pub(super) struct Block<'a, const ROWS: usize> {
    pub(super) out: MatrixMut<'a>,
    pub(super) epilogue: Epilogue<'a>,
    pub(super) scale: f32,
    /// The units of whole tiles of rows and of columns.
    pub(super) units: [&'a [f32]; 2],
    /// The sums of products of each order of digits, then those of [`Self::join`].
    pub(super) sums: *mut i32,
}

impl<const ROWS: usize> Block<'_, ROWS> {
    /// Writes what the sums of `inner` terms come to, if that is good enough; whether it is.
    ///
    /// # Safety
    ///
    /// `sums` is valid for reads and writes of `DIGITS * ROWS * 2` tiles, which hold the sums of `inner` terms.
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) unsafe fn write(&self, inner: usize) -> bool {
        // SAFETY: as the caller promises.
        unsafe {
            let good = self.join(inner);
            if good {
                self.finish();
            }
            good
        }
    }

    /// Adds up the orders of each sum, in place, in units of the row and the column; whether the results are to be used. If not, float32 would
    /// do better, or a row or column is none for AMX. What rows and columns of zeros give is always good.
    ///
    /// # Safety
    ///
    /// As for [`Self::write`].
    #[target_feature(enable = "avx512f,avx512dq")]
    unsafe fn join(&self, inner: usize) -> bool {
        // of the products of two first digits, in products of units, which are 64 of each; a digit further is a byte less
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
                // SAFETY: the sums are there, as the caller promises.
                let sum = unsafe {
                    let [a, b, c] = [0, 1, 2].map(|order| {
                        _mm512_cvtepi32_ps(_mm512_load_si512(at.add(order * ROWS * 2 * TILE_SUMS).cast()))
                    });
                    let sum = _mm512_fmadd_ps(a, first, _mm512_fmadd_ps(b, second, _mm512_mul_ps(c, third)));
                    _mm512_store_ps(at.cast(), sum);
                    sum
                };
                if *unit != 0.0 {
                    check.resolution(tile, sum);
                    // Of each row one tile, of each column as many rows as of any other.
                    if tile == row % self.column_tiles() && !check.row(tile, sum) {
                        return false;
                    }
                }
            }
        }
        check.passed()
    }

    /// Writes what was [joined](Self::join). AMX of the row is applied before that of the column: the product of both may be no float32
    /// where that of all three is.
    ///
    /// # Safety
    ///
    /// The sums are joined.
    #[target_feature(enable = "avx512f")]
    unsafe fn finish(&self) {
        let [row_units, column_units] = self.units;
        for tile in 0..self.column_tiles() {
            let column = tile * SIDE;
            let mask = first_lanes(self.out.columns - column);
            let units = &column_units[column..][..SIDE];
            // SAFETY: a slice of whole vectors.
            let units = unsafe { _mm512_loadu_ps(units.as_ptr()) };
            let units = _mm512_mul_ps(units, _mm512_set1_ps(self.scale));
            for (row, unit) in row_units.iter().enumerate().take(self.out.rows) {
                // SAFETY: the sums are there, as the caller promises; the output has this row, and its columns but those that are masked.
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

    /// The sums of a row in a tile of columns, of the first order.
    fn sums_at(&self, row: usize, tile: usize) -> *mut i32 {
        self.sums.wrapping_add((row / SIDE * 2 + tile) * TILE_SUMS + row % SIDE * SIDE)
    }
}

/// Whether sums are much larger than their errors: none is lost, and most of each row and column are precise. A row that is not zero but has a
/// few large elements, which meet small ones in most columns, fails.
struct Check {
    /// Columns that are not zero, in each tile.
    present: [__mmask16; 2],
    lost: f32,
    coarse: __m512,
    /// The smallest size of a sum so far, in each lane.
    least: __m512,
    /// How many rows were asked in each tile, and for each column how many sums were coarse.
    rows: [u32; 2],
    coarse_in_columns: [__m512i; 2],
}

impl Check {
    #[target_feature(enable = "avx512f")]
    fn new(column_units: &[f32], inner: usize) -> Self {
        let mut present = [0; 2];
        for (present, units) in present.iter_mut().zip(column_units.as_chunks::<SIDE>().0) {
            // SAFETY: a whole vector.
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

    /// Takes note of the smallest sum.
    #[target_feature(enable = "avx512f,avx512dq")]
    #[inline]
    fn resolution(&mut self, tile: usize, sum: __m512) {
        const SMALLER_SIZE: i32 = 0b1010;
        self.least = _mm512_mask_range_ps::<SMALLER_SIZE>(self.least, self.present[tile], self.least, sum);
    }

    /// Whether most sums of a row are precise; takes note of them for the columns.
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

    #[target_feature(enable = "avx512f")]
    fn passed(&self) -> bool {
        let of_columns = |tile: usize| {
            let mut counts = [0u32; SIDE];
            // SAFETY: a whole vector.
            unsafe { _mm512_storeu_si512(counts.as_mut_ptr().cast(), self.coarse_in_columns[tile]) };
            counts.into_iter().all(|count| !too_many(count, self.rows[tile]))
        };
        _mm512_reduce_min_ps(self.least) >= self.lost && (0..2).all(of_columns)
    }
}

/// Whether so many coarse sums of `all` are more than chance makes of precise ones: sums of terms of either sign are now and then small.
fn too_many(coarse: u32, all: u32) -> bool {
    2 * coarse > all + 4
}
