//! Functions on AVX-512 that are precise enough between layers whose factors have eight significant bits.

use super::gemm::first_lanes;
use super::simd::LANES;
use std::arch::x86_64::*;

/// 2 to the power of numbers that are not above 0, to a relative error of 1.1e-4; 0 where that is no normal number.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn exp2(x: __m512) -> __m512 {
    /// The factors of the first to the third power: a fit with the least largest relative error on [-0.5, 0.5].
    const FACTORS: [f32; 3] = [0.693_282_85, 0.242_209_59, 0.055_008_276];
    /// Below this, the power is no normal number, and counts as 0.
    const LEAST: f32 = -126.0;
    let least = _mm512_set1_ps(LEAST);
    let is_normal = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, least);
    // NaN in the second operand stays NaN.
    let x = _mm512_max_ps(least, x);
    let whole = _mm512_roundscale_ps::<0>(x);
    let rest = _mm512_sub_ps(x, whole);
    let [first, second, third] = FACTORS;
    let sum = _mm512_fmadd_ps(_mm512_set1_ps(third), rest, _mm512_set1_ps(second));
    let sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(first));
    let sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0));
    // Added to the exponent: `scalef` takes a hundred cycles where a result is not normal.
    let exponent = _mm512_slli_epi32::<23>(_mm512_cvtps_epi32(whole));
    _mm512_castsi512_ps(_mm512_maskz_add_epi32(is_normal, _mm512_castps_si512(sum), exponent))
}

/// GELU of all values, in place, to 6e-5 and, where it is large, a relative error of 1e-6.
#[target_feature(enable = "avx512f")]
pub(super) fn gelu(values: &mut [f32]) {
    for values in values.chunks_mut(LANES) {
        let lanes = first_lanes(values.len());
        // SAFETY: only values that exist are read and written.
        unsafe {
            let x = _mm512_maskz_loadu_ps(lanes, values.as_ptr());
            _mm512_mask_storeu_ps(values.as_mut_ptr(), lanes, gelu_of(x));
        }
    }
}

/// `x` times its probability in the normal distribution: `max(x, 0) - |x| tail(|x|)`. The tail is a logistic function of a polynomial,
/// a fit with the least largest error of the whole.
#[target_feature(enable = "avx512f")]
#[inline]
fn gelu_of(x: __m512) -> __m512 {
    const FACTORS: [f32; 3] = [2.301_121_2, 0.106_775_83, -0.001_014_28];
    /// The tail is 1e-12 here; the polynomial falls again beyond.
    const END: f32 = 8.0;
    let [first, third, fifth] = FACTORS;
    let (zero, one) = (_mm512_setzero_ps(), _mm512_set1_ps(1.0));
    // NaN in the second operand stays NaN.
    let size = _mm512_min_ps(_mm512_set1_ps(END), _mm512_abs_ps(x));
    let square = _mm512_mul_ps(size, size);
    let sum = _mm512_fmadd_ps(_mm512_set1_ps(fifth), square, _mm512_set1_ps(third));
    let sum = _mm512_fmadd_ps(sum, square, _mm512_set1_ps(first));
    let odds = exp2(_mm512_sub_ps(zero, _mm512_mul_ps(sum, size)));
    let tail = _mm512_mul_ps(odds, _mm512_rcp14_ps(_mm512_add_ps(odds, one)));
    _mm512_fnmadd_ps(size, tail, _mm512_max_ps(zero, x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::{Vectors, vectors};

    #[test]
    fn gelu_is_close_to_its_definition() {
        if vectors() != Vectors::Avx512 {
            return;
        }
        let x: Vec<f32> = (-20_000..=20_000).map(|x| x as f32 * 1e-3).collect();
        let mut found = x.clone();
        // SAFETY: the CPU has AVX-512.
        unsafe { gelu(&mut found) };
        let mut expected = x.clone();
        crate::cpu::gelu::in_place(&mut expected);
        for ((x, found), expected) in x.iter().zip(found).zip(expected) {
            assert!((found - expected).abs() < 6e-5 + 1e-6 * expected.abs(), "{x}: {found}, not {expected}");
        }
    }

    #[test]
    fn special_values_stay_what_they_are() {
        if vectors() != Vectors::Avx512 {
            return;
        }
        let mut values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, 1e30, -1e30];
        // SAFETY: the CPU has AVX-512.
        unsafe { gelu(&mut values) };
        assert!(values[0].is_nan());
        assert_eq!([values[1], values[3], values[4]], [f32::INFINITY, 0.0, 1e30]);
        assert!([values[2], values[5]].iter().all(|value| value.abs() < 1e-10), "{values:?}");
        for (power, expected) in [
            (0.0, 1.0),
            (-1.0, 0.5),
            (-126.0, f32::MIN_POSITIVE),
            (-126.5, 0.0),
            (-300.0, 0.0),
            (f32::NEG_INFINITY, 0.0),
        ] {
            // SAFETY: the CPU has AVX-512.
            let found = unsafe { _mm512_cvtss_f32(exp2(_mm512_set1_ps(power))) };
            assert!((found - expected).abs() <= 1.1e-4 * expected, "{power}: {found}");
        }
        // SAFETY: the CPU has AVX-512.
        assert!(unsafe { _mm512_cvtss_f32(exp2(_mm512_set1_ps(f32::NAN))) }.is_nan());
    }
}
