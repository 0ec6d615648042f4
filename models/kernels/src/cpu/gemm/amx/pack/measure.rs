//! The largest elements of the rows and columns of a factor, by which their elements are scaled before they are rounded
//! to digits.

use super::super::super::avx512::first_lanes;
use super::super::shape::{DEPTH, PANEL, SIDE};
use super::panel::Source;
use std::arch::x86_64::*;

/// Writes the largest [`magnitude`] among the `inner` elements of each of the `outer` ones to `largest`, and 0 to the
/// rest of `largest`.
///
/// # Safety
///
/// - `source` must be valid for reads of these elements.
/// - `largest` must have whole vectors for all outer elements.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn measure(source: Source, [outer, inner]: [usize; 2], largest: &mut [u32]) {
    largest.fill(0);
    // SAFETY: the source has `inner` elements of each of the `outer` ones, as the caller promises; `largest` is sliced
    // to whole vectors.
    unsafe {
        if source.inner_stride == 1 {
            for first in (0..outer).step_by(SIDE) {
                let mut rows = [_mm512_setzero_si512(); SIDE];
                for (row, largest) in rows.iter_mut().enumerate().take(outer - first) {
                    *largest = largest_lanes(source.from(first + row, 0).start, inner);
                }
                _mm512_storeu_si512(largest[first..][..SIDE].as_mut_ptr().cast(), largest_of_each(rows));
            }
        } else {
            measure_along_outer(source, [outer, inner], largest);
        }
    }
}

/// The largest [`magnitude`] among the first `count` elements of a row, for each lane.
///
/// # Safety
///
/// `row` must be valid for reads of `count` elements.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn largest_lanes(row: *const f32, count: usize) -> __m512i {
    let mut sizes = [_mm512_setzero_si512(); 4];
    // SAFETY: `row` is valid for reads of `count` elements, as the caller promises, and whole blocks end before them.
    unsafe {
        for block in 0..count / DEPTH {
            for (part, sizes) in sizes.iter_mut().enumerate() {
                *sizes = _mm512_max_epu32(
                    *sizes,
                    magnitude(_mm512_loadu_ps(row.add(block * DEPTH + part * SIDE))),
                );
            }
        }
        if !count.is_multiple_of(DEPTH) {
            for (values, sizes) in rest_of_row(row, count / DEPTH, count).into_iter().zip(&mut sizes) {
                *sizes = _mm512_max_epu32(*sizes, magnitude(values));
            }
        }
    }
    let [a, b, c, d] = sizes;
    _mm512_max_epu32(_mm512_max_epu32(a, b), _mm512_max_epu32(c, d))
}

/// The largest lane of each of 16 vectors. Each of four steps makes one vector of two, in which half as many lanes
/// stand for each of them.
#[target_feature(enable = "avx512f")]
#[inline]
fn largest_of_each(rows: [__m512i; SIDE]) -> __m512i {
    let [mut twos, mut fours] = [[_mm512_setzero_si512(); 8]; 2];
    for (to, [a, b]) in twos.iter_mut().zip(rows.as_chunks().0) {
        *to = _mm512_max_epu32(_mm512_unpacklo_epi32(*a, *b), _mm512_unpackhi_epi32(*a, *b));
    }
    for (to, [a, b]) in fours.iter_mut().zip(twos.as_chunks().0) {
        *to = _mm512_max_epu32(_mm512_unpacklo_epi64(*a, *b), _mm512_unpackhi_epi64(*a, *b));
    }
    let quarters =
        |a, b| _mm512_max_epu32(_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
    quarters(quarters(fours[0], fours[1]), quarters(fours[2], fours[3]))
}

/// [`measure`] for outer elements that are neighbors in memory: one row of outer elements after the other, in the order
/// of memory.
///
/// # Safety
///
/// - `source` must be valid for reads of these elements, and its outer elements must be neighbors.
/// - `largest` must have whole vectors for all outer elements.
#[target_feature(enable = "avx512f")]
unsafe fn measure_along_outer(source: Source, [outer, inner]: [usize; 2], largest: &mut [u32]) {
    /// The rows that are read at a time.
    const ROWS: usize = 4;
    /// The number of rows that are prefetched if few elements of each are read: they lie too far apart for the CPU to
    /// predict.
    const AHEAD: usize = 16;
    for first in (0..inner).step_by(ROWS) {
        // Reads the last row several times if fewer than four are left.
        let rows = [0, 1, 2, 3].map(|row| source.from(0, (first + row).min(inner - 1)).start);
        for (tile, largest) in largest.as_chunks_mut::<SIDE>().0.iter_mut().enumerate() {
            let column = tile * SIDE;
            let lanes = first_lanes(outer.saturating_sub(column));
            // SAFETY: each row is one of the source's and has `outer` neighboring elements, as the caller promises;
            // masked elements are not read.
            unsafe {
                let mut sizes = _mm512_loadu_si512(largest.as_ptr().cast());
                for row in rows {
                    let from = row.wrapping_add(column);
                    if outer <= PANEL {
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD * source.inner_stride).cast());
                    }
                    sizes = _mm512_max_epu32(sizes, magnitude(_mm512_maskz_loadu_ps(lanes, from)));
                }
                _mm512_storeu_si512(largest.as_mut_ptr().cast(), sizes);
            }
        }
    }
}

/// A block of a row that has only `count` elements; the elements from there on are 0.
///
/// # Safety
///
/// `row` must be valid for reads of `count` elements.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) unsafe fn rest_of_row(row: *const f32, block: usize, count: usize) -> [__m512; 4] {
    let mut values = [_mm512_setzero_ps(); 4];
    for (part, values) in values.iter_mut().enumerate() {
        let first = block * DEPTH + part * SIDE;
        // SAFETY: the elements before `count` are valid for reads, as the caller promises; masked elements are not
        // read.
        *values = unsafe {
            _mm512_maskz_loadu_ps(first_lanes(count.saturating_sub(first)), row.wrapping_add(first))
        };
    }
    values
}

/// The bits of absolute values as integers, which have the same order. Infinities and NaN are larger than all finite
/// values.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn magnitude(values: __m512) -> __m512i {
    _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(i32::MAX))
}
