//! The largest elements of the rows and columns of a factor, by which their elements are scaled before they are rounded to digits.

use super::super::super::avx512::first_lanes;
use super::super::shape::{DEPTH, PANEL, SIDE};
use super::panel::Source;
use std::arch::x86_64::*;

/// Writes the [`size`] of the largest of the `inner` elements of each of the `outer`, 0 for what is missing to whole vectors.
///
/// # Safety
///
/// The source has these elements.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn measure(source: Source, [outer, inner]: [usize; 2], largest: &mut [u32]) {
    largest.fill(0);
    // SAFETY: rows of `inner` elements start at each of the `outer` places, as the caller promises; `largest` holds whole vectors.
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

/// The [`size`] of the largest elements of a row, lane by lane.
///
/// # Safety
///
/// The elements can be read.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn largest_lanes(row: *const f32, count: usize) -> __m512i {
    let mut sizes = [_mm512_setzero_si512(); 4];
    // SAFETY: `row` is valid for reads of `count` elements, as the caller promises, and whole blocks end before that.
    unsafe {
        for block in 0..count / DEPTH {
            for (part, sizes) in sizes.iter_mut().enumerate() {
                *sizes =
                    _mm512_max_epu32(*sizes, size(_mm512_loadu_ps(row.add(block * DEPTH + part * SIDE))));
            }
        }
        if !count.is_multiple_of(DEPTH) {
            for (values, sizes) in rest_of_row(row, count / DEPTH, count).into_iter().zip(&mut sizes) {
                *sizes = _mm512_max_epu32(*sizes, size(values));
            }
        }
    }
    let [a, b, c, d] = sizes;
    _mm512_max_epu32(_mm512_max_epu32(a, b), _mm512_max_epu32(c, d))
}

/// The largest lane of each of 16 vectors: two vectors become one of half as many lanes each, four times.
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

/// [`measure`] where outer elements lie side by side: row by row as memory runs.
///
/// # Safety
///
/// As for [`measure`].
#[target_feature(enable = "avx512f")]
unsafe fn measure_along_outer(source: Source, [outer, inner]: [usize; 2], largest: &mut [u32]) {
    /// Rows at a time.
    const ROWS: usize = 4;
    /// Rows that are asked for ahead where few elements are taken from each: they lie too far apart for the CPU to foresee.
    const AHEAD: usize = 16;
    for first in (0..inner).step_by(ROWS) {
        // the last row again where there are fewer
        let rows = [0, 1, 2, 3].map(|row| source.from(0, (first + row).min(inner - 1)).start);
        for (tile, largest) in largest.as_chunks_mut::<SIDE>().0.iter_mut().enumerate() {
            let column = tile * SIDE;
            let lanes = first_lanes(outer.saturating_sub(column));
            // SAFETY: `row` is one of the source's, with `outer` elements side by side, as the caller promises; what the mask leaves out is not read.
            unsafe {
                let mut sizes = _mm512_loadu_si512(largest.as_ptr().cast());
                for row in rows {
                    let from = row.wrapping_add(column);
                    if outer <= PANEL {
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD * source.inner_stride).cast());
                    }
                    sizes = _mm512_max_epu32(sizes, size(_mm512_maskz_loadu_ps(lanes, from)));
                }
                _mm512_storeu_si512(largest.as_mut_ptr().cast(), sizes);
            }
        }
    }
}

/// A block of a row of which `there` elements are there; the others are 0.
///
/// # Safety
///
/// The elements can be read.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) unsafe fn rest_of_row(row: *const f32, block: usize, there: usize) -> [__m512; 4] {
    let mut values = [_mm512_setzero_ps(); 4];
    for (part, values) in values.iter_mut().enumerate() {
        let first = block * DEPTH + part * SIDE;
        // SAFETY: elements before `there` can be read, as the caller promises; what the mask leaves out is not read.
        *values = unsafe {
            _mm512_maskz_loadu_ps(first_lanes(there.saturating_sub(first)), row.wrapping_add(first))
        };
    }
    values
}

/// Absolute values as integers of the same order; those of what is not finite are the largest.
#[target_feature(enable = "avx512f")]
#[inline]
fn size(values: __m512) -> __m512i {
    _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(i32::MAX))
}
