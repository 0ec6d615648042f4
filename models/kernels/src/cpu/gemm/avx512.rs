//! What several kernels do with AVX-512 registers.

use super::view::Epilogue;
use crate::cpu::simd::{Vectors, vectors};
use std::arch::x86_64::*;

/// The proof that the CPU has the AVX-512 instructions that our kernels use (F, DQ and VL).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// Asks the CPU; the answer is cached.
    pub(crate) fn find() -> Option<Self> {
        (vectors() == Vectors::Avx512).then_some(Self(()))
    }
}

/// Elements of a register.
pub(crate) const LANES: usize = 16;

/// Reads up to 16 vectors through a mask, takes the others as 0, and writes them with rows and columns changed over.
///
/// # Safety
///
/// They can be read; `out` has room for 16 vectors, `out_stride` elements apart.
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
            // SAFETY: 16 vectors are there, `stride` elements apart, as the caller promises.
            *row = unsafe { _mm512_loadu_ps(start.add(index * stride)) };
        }
    } else {
        for (index, row) in rows.iter_mut().enumerate() {
            let mask = if index < count { mask } else { 0 };
            // SAFETY: vectors before `count` are there, as the caller promises, and what the mask leaves out is not read.
            *row = unsafe { _mm512_maskz_loadu_ps(mask, start.wrapping_add(index * stride)) };
        }
    }
    let rows = transposed(rows);
    for (index, row) in rows.iter().enumerate() {
        // SAFETY: `out` has room for 16 vectors, as the caller promises.
        unsafe { _mm512_storeu_ps(out.add(index * out_stride), *row) };
    }
}

/// A mask of the first lanes.
pub(crate) fn first_lanes(count: usize) -> __mmask16 {
    if count >= LANES { u16::MAX } else { (1 << count) - 1 }
}

/// Rows and columns changed over: pairs of rows, then fours, eights and all.
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
            // of four rows, columns 4 * lane + 2 * half and the next
            let (a, b) = (pairs[group + half], pairs[group + half + 2]);
            fours[group + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            fours[group + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    for group in (0..LANES).step_by(8) {
        for column in 0..4 {
            // of eight rows, lanes 0 and 2, then 1 and 3
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

/// Writes `scale * sum` after what `epilogue` says to some lanes; a bias starts with theirs.
///
/// # Safety
///
/// These lanes of `to` can be written, and read if `epilogue` says so.
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
    // SAFETY: the lanes of `to` can be read and written, as the caller promises; a bias is as long as the output is wide.
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
