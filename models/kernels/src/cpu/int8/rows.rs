//! Activations as bytes.

use super::detect::Int8;
use crate::cpu::gemm::first_lanes;
use crate::cpu::threads::with_aligned_scratch;
use std::arch::x86_64::*;

/// Smaller scales count as 0.
const SMALLEST_SCALE: f32 = 1e-35;

/// How bytes stand for values: `scale * (byte - zero)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    pub(super) scale: f32,
    pub(super) zero: i32,
}

impl Range {
    /// The range of bytes from the least to the largest of `values` and 0. Its scale is 0 if all are 0, and NaN if a value, or the
    /// difference of two, is not finite.
    pub(super) fn of(int8: Int8, values: &[f32]) -> Self {
        let Int8 { .. } = int8;
        // SAFETY: `int8` proves that the CPU has AVX-512.
        let [least, largest] = unsafe { extremes(values) };
        let scale = (largest - least) / 255.0;
        if !scale.is_finite() {
            return Self { scale: f32::NAN, zero: 0 };
        }
        // The inverse of a smaller scale may be infinite.
        let scale = if scale < SMALLEST_SCALE { 0.0 } else { scale };
        let zero = if scale > 0.0 { (-least / scale).round_ties_even() as i32 } else { 0 };
        Self { scale, zero }
    }

    /// Writes the byte of each value; bytes beyond the values stay as they are.
    ///
    /// # Panics
    ///
    /// If there are fewer bytes than values.
    pub(super) fn quantize(self, int8: Int8, values: &[f32], bytes: &mut [u8]) {
        let Int8 { .. } = int8;
        assert!(values.len() <= bytes.len());
        let factor = if self.scale > 0.0 { 1.0 / self.scale } else { 0.0 };
        // SAFETY: `int8` proves that the CPU has AVX-512; there is a byte for each value.
        unsafe { quantize(values, factor, self.zero, bytes.as_mut_ptr()) };
    }
}

/// Runs `task` with memory for bytes, which hold any values and begin a cache line.
pub(super) fn with_bytes<R>(length: usize, task: impl FnOnce(&mut [u8]) -> R) -> R {
    with_aligned_scratch(length.div_ceil(size_of::<f32>()), |memory| {
        // SAFETY: any bits are bytes.
        task(unsafe { memory.align_to_mut::<u8>().1 })
    })
}

/// The least and the largest of the values and 0. The least is NaN if a value is not finite.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn extremes(values: &[f32]) -> [f32; 2] {
    let zero = _mm512_setzero_ps();
    // Four of each, because the next step of one must wait for its last.
    let (mut least, mut largest, mut special) = ([zero; 4], [zero; 4], [zero; 4]);
    for start in (0..values.len()).step_by(64) {
        for part in 0..4 {
            let start = start + 16 * part;
            let lanes = first_lanes(values.len().saturating_sub(start));
            // SAFETY: only lanes of values that exist are read.
            let values = unsafe { _mm512_maskz_loadu_ps(lanes, values.as_ptr().wrapping_add(start)) };
            least[part] = _mm512_min_ps(least[part], values);
            largest[part] = _mm512_max_ps(largest[part], values);
            special[part] = _mm512_fmadd_ps(values, zero, special[part]);
        }
    }
    let least = _mm512_min_ps(_mm512_min_ps(least[0], least[1]), _mm512_min_ps(least[2], least[3]));
    let largest = _mm512_max_ps(_mm512_max_ps(largest[0], largest[1]), _mm512_max_ps(largest[2], largest[3]));
    let special = _mm512_add_ps(_mm512_add_ps(special[0], special[1]), _mm512_add_ps(special[2], special[3]));
    [_mm512_reduce_min_ps(least) + _mm512_reduce_add_ps(special), _mm512_reduce_max_ps(largest)]
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn quantize(values: &[f32], factor: f32, zero: i32, bytes: *mut u8) {
    let (factor, zero) = (_mm512_set1_ps(factor), _mm512_set1_epi32(zero));
    for start in (0..values.len()).step_by(16) {
        let lanes = first_lanes(values.len() - start);
        // SAFETY: only lanes of values that exist are read and written.
        unsafe {
            let values = _mm512_maskz_loadu_ps(lanes, values.as_ptr().add(start));
            let integers = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(values, factor)), zero);
            let integers = _mm512_max_epi32(integers, _mm512_setzero_si512());
            _mm_mask_storeu_epi8(bytes.add(start).cast(), lanes, _mm512_cvtusepi32_epi8(integers));
        }
    }
}
