//! Steps on AVX-512 registers that several kernels share: transposing, masking, writing with an epilogue.

use super::view::Epilogue;
use crate::cpu::simd::{Vectors, vectors};
use std::arch::x86_64::*;

/// The proof that the CPU has the AVX-512 instructions that the kernels use (F, DQ and VL).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The proof, if the CPU has these instructions. The standard library caches the answer.
    pub(crate) fn find() -> Option<Self> {
        (vectors() == Vectors::Avx512).then_some(Self(()))
    }
}

/// The elements of a register.
pub(crate) const LANES: usize = 16;

/// Transposes a block of 16 by 16 elements: reads `count` rows (at most 16), whose elements outside `mask` and whose
/// missing rows count as 0, and writes 16 rows to `out`.
///
/// # Safety
///
/// - For each row below `count`, the elements in `mask` from `start + row * stride` on must be valid for reads.
/// - For each of 16 rows, 16 elements from `out + row * out_stride` on must be valid for writes.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) unsafe fn transpose(
    start: *const f32,
    stride: usize,
    count: usize,
    mask: __mmask16,
    out: *mut f32,
    out_stride: usize,
) {
    let mut rows = [_mm512_setzero_ps(); LANES];
    if count >= LANES && mask == u16::MAX {
        for (index, row) in rows.iter_mut().enumerate() {
            // SAFETY: all 16 rows and all of their 16 elements are valid for reads, as the caller promises.
            *row = unsafe { _mm512_loadu_ps(start.add(index * stride)) };
        }
    } else {
        for (index, row) in rows.iter_mut().enumerate() {
            let mask = if index < count { mask } else { 0 };
            // SAFETY: the elements in `mask` of rows below `count` are valid for reads, as the caller promises; others
            // are not read.
            *row = unsafe { _mm512_maskz_loadu_ps(mask, start.wrapping_add(index * stride)) };
        }
    }
    let rows = transposed(rows);
    for (index, row) in rows.iter().enumerate() {
        // SAFETY: 16 rows of `out` are valid for writes, as the caller promises.
        unsafe { _mm512_storeu_ps(out.add(index * out_stride), *row) };
    }
}

/// A mask of the first `count` lanes.
pub(crate) fn first_lanes(count: usize) -> __mmask16 {
    if count >= LANES { u16::MAX } else { (1 << count) - 1 }
}

/// The transpose of 16 rows of 16 elements, in four steps that exchange single elements, pairs, groups of four and
/// groups of eight.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn transposed(rows: [__m512; LANES]) -> [__m512; LANES] {
    let (mut pairs, mut fours) = ([_mm512_setzero_pd(); LANES], [_mm512_setzero_ps(); LANES]);
    let (mut eights, mut all) = (fours, fours);
    for index in (0..LANES).step_by(2) {
        let (a, b) = (rows[index], rows[index + 1]);
        pairs[index] = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
        pairs[index + 1] = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
    }
    for group in (0..LANES).step_by(4) {
        for half in 0..2 {
            // `fours[group + i]` holds the columns 4 * lane + i of four rows.
            let (a, b) = (pairs[group + half], pairs[group + half + 2]);
            fours[group + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            fours[group + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    for group in (0..LANES).step_by(8) {
        for column in 0..4 {
            // The 128-bit lanes 0 and 2 of eight rows, then their lanes 1 and 3.
            let (a, b) = (fours[group + column], fours[group + 4 + column]);
            eights[group + column] = _mm512_shuffle_f32x4::<0x88>(a, b);
            eights[group + 4 + column] = _mm512_shuffle_f32x4::<0xdd>(a, b);
        }
    }
    for odd in 0..2 {
        for column in 0..4 {
            let (a, b) = (eights[4 * odd + column], eights[8 + 4 * odd + column]);
            all[4 * odd + column] = _mm512_shuffle_f32x4::<0x88>(a, b);
            all[8 + 4 * odd + column] = _mm512_shuffle_f32x4::<0xdd>(a, b);
        }
    }
    all
}

/// The order in which two halves of a register become pairs of numbers of 16 bits.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn interleaved() -> __m512i {
    const ORDER: [u16; 2 * LANES] = {
        let (mut order, mut index) = ([0; 2 * LANES], 0);
        while index < LANES {
            order[2 * index] = index as u16;
            order[2 * index + 1] = (LANES + index) as u16;
            index += 1;
        }
        order
    };
    // SAFETY: the array has 64 bytes.
    unsafe { _mm512_loadu_si512(ORDER.as_ptr().cast()) }
}

/// Writes `scale * sum`, added to what `epilogue` says, to `lanes` of the 16 elements at `to`. The first of them is in
/// the column `column` of the output.
///
/// # Safety
///
/// - The elements in `lanes` at `to` must be valid for writes; for reads, too, with [`Epilogue::Accumulate`].
/// - The row of an [`Epilogue::Bias`] must have the columns of `lanes`, from `column` on.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) unsafe fn write(
    sum: __m512,
    scale: __m512,
    epilogue: Epilogue<'_>,
    column: usize,
    to: *mut f32,
    lanes: __mmask16,
) {
    // SAFETY: the elements in `lanes` at `to` are valid for writes and, to accumulate, for reads, and the bias has
    // these columns, as the caller promises; masked elements are not accessed.
    unsafe {
        let value = match epilogue {
            Epilogue::Overwrite => _mm512_mul_ps(sum, scale),
            Epilogue::Accumulate => _mm512_fmadd_ps(sum, scale, _mm512_maskz_loadu_ps(lanes, to)),
            Epilogue::Bias(bias) => {
                _mm512_fmadd_ps(sum, scale, _mm512_maskz_loadu_ps(lanes, bias.as_ptr().wrapping_add(column)))
            }
        };
        _mm512_mask_storeu_ps(to, lanes, value);
    }
}
