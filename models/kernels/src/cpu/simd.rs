//! Loops and elementary functions that the compiler vectorizes, compiled once for each set of vector instructions that
//! the CPU may have.

/// The number of elements that loops work on at a time: one AVX-512 register, two AVX2 registers, or four NEON
/// registers.
pub(crate) const LANES: usize = 16;

/// The vector instructions to use.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Vectors {
    Avx512,
    Avx2,
    Baseline,
}

/// The best vector instructions of this CPU. The standard library caches the answer. In this crate's own tests,
/// `VITRINE_TEST_VECTORS` takes fewer: `avx2` or `baseline`.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn vectors() -> Vectors {
    #[cfg(test)]
    let [avx2_allowed, avx512_allowed] = allowed();
    #[cfg(not(test))]
    let [avx2_allowed, avx512_allowed] = [true, true];
    let avx2 = avx2_allowed && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = avx512_allowed
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => Vectors::Avx512,
        (true, false) => Vectors::Avx2,
        (false, _) => Vectors::Baseline,
    }
}

/// Whether the environment of the tests allows AVX2, and AVX-512.
#[cfg(all(test, target_arch = "x86_64"))]
fn allowed() -> [bool; 2] {
    use std::sync::atomic::{AtomicU8, Ordering};
    static ALLOWED: AtomicU8 = AtomicU8::new(0);
    let state = match ALLOWED.load(Ordering::Relaxed) {
        0 => {
            let found = match std::env::var("VITRINE_TEST_VECTORS").as_deref() {
                Err(_) => 3,
                Ok("avx2") => 2,
                Ok("baseline") => 1,
                Ok(other) => panic!("VITRINE_TEST_VECTORS is {other:?}; it may be avx2 or baseline"),
            };
            ALLOWED.store(found, Ordering::Relaxed);
            found
        }
        known => known,
    };
    [state > 1, state > 2]
}

/// Defines functions that are compiled once for each set of vector instructions; a call runs the best one. A function
/// that is called in their bodies must be `#[inline(always)]`: otherwise it is compiled for the baseline only. In their
/// bodies, `FMA` says whether [`mul_add`] is one instruction.
macro_rules! vectorized {
    ($($(#[$attribute:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $output:ty)? $body:block)*) => {$(
        $(#[$attribute])*
        $visibility fn $name($($argument: $type),*) $(-> $output)? {
            #[inline(always)]
            fn body<const FMA: bool>($($argument: $type),*) $(-> $output)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx2,fma")]
                fn avx512($($argument: $type),*) $(-> $output)? {
                    body::<true>($($argument),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($argument: $type),*) $(-> $output)? {
                    body::<true>($($argument),*)
                }
                match crate::cpu::simd::vectors() {
                    // SAFETY: `vectors` found these instructions on this CPU.
                    crate::cpu::simd::Vectors::Avx512 => unsafe { avx512($($argument),*) },
                    // SAFETY: `vectors` found these instructions on this CPU.
                    crate::cpu::simd::Vectors::Avx2 => unsafe { avx2($($argument),*) },
                    crate::cpu::simd::Vectors::Baseline => body::<false>($($argument),*),
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            body::<{ cfg!(target_arch = "aarch64") }>($($argument),*)
        }
    )*};
}
pub(crate) use vectorized;

vectorized! {
    /// `values *= factors`, element by element.
    pub(crate) fn multiply(values: &mut [f32], factors: &[f32]) {
        values.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
    }

    /// `values += others`, element by element.
    pub(crate) fn add(values: &mut [f32], others: &[f32]) {
        values.iter_mut().zip(others).for_each(|(value, other)| *value += other);
    }

    /// `values *= factors`, then adds every row of the products to `sums`, in order; an empty `sums` is ignored.
    pub(crate) fn multiply_and_add_rows(values: &mut [f32], factors: &[f32], sums: &mut [f32]) {
        if sums.is_empty() {
            values.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
            return;
        }
        let width = sums.len();
        for (values, factors) in values.chunks_exact_mut(width).zip(factors.chunks_exact(width)) {
            for ((value, factor), sum) in values.iter_mut().zip(factors).zip(sums.iter_mut()) {
                *value *= factor;
                *sum += *value;
            }
        }
    }

    /// Adds every row of `data` to `sums`, in order; an empty `sums` is ignored.
    pub(crate) fn add_rows(sums: &mut [f32], data: &[f32]) {
        if !sums.is_empty() {
            for row in data.chunks_exact(sums.len()) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
        }
    }
}

/// The sum of all rows of `width` elements, in order.
pub(crate) fn sum_of_rows(data: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0; width];
    add_rows(&mut sums, data);
    sums
}

/// `a * b + c`, rounded once if that is one instruction. Without the instruction it would be a call, so that it is
/// rounded twice.
#[inline(always)]
pub(crate) fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// The polynomial of `x` with these coefficients, beginning with the highest power.
#[inline(always)]
fn polynomial<const FMA: bool, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let [first, rest @ ..] = coefficients.as_slice() else { return 0.0 };
    rest.iter().fold(*first, |sum, coefficient| mul_add::<FMA>(sum, x, *coefficient))
}

/// e to the power of `x`, within 3 units in the last place; 0 below -87.3, where the result is no longer a normal
/// number.
#[inline(always)]
pub(crate) fn exp<const FMA: bool>(x: f32) -> f32 {
    // Adding 1.5 * 2^23 to a number rounds it to an integer, which the lowest bits of the sum hold.
    const ROUND: f32 = 12_582_912.0;
    let shifted = mul_add::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let power = shifted - ROUND;
    // ln 2 is subtracted in two parts, so that the remainder is exact.
    let remainder = mul_add::<FMA>(power, 2.121_944_4e-4, mul_add::<FMA>(power, -0.693_359_4, x));
    let series = polynomial::<FMA, 6>(
        remainder,
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5],
    );
    let fraction = mul_add::<FMA>(series, remainder * remainder, remainder) + 1.0;
    // The power is added to the exponent bits: as a number, 2 to this power may be infinite although the result is not.
    let result = f32::from_bits(fraction.to_bits().wrapping_add(shifted.to_bits() << 23));
    let result = if x < -87.3 { 0.0 } else { result };
    // For larger `x` the result is infinite; NaN stays NaN.
    if x < 88.722_84 { result } else { x + f32::INFINITY }
}

/// The cumulative probability and the density of the normal distribution at `x`. The relative error of the probability
/// is below 5e-7 down to `x` = -3, and below 2e-5 down to -13.
///
/// The smaller tail is computed as `density * sqrt(pi / 2) * erfcx(|x| / sqrt(2))`, because `1 + erf` would cancel. For
/// `erfcx(z)`, which is `erfc(z) * e^(z^2)`, stands a rational function that was fitted on [0, 10] to 6e-9.
#[inline(always)]
pub(crate) fn normal<const FMA: bool>(x: f32) -> [f32; 2] {
    use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};
    const NUMERATOR: [f32; 5] = [0.032_709_744, 0.228_805_75, 0.730_737_9, 1.237_583_8, 1.0];
    const DENOMINATOR: [f32; 6] = [0.057_975_8, 0.405_574_44, 1.323_751_6, 2.400_432_6, 2.365_963_5, 1.0];
    let exponential = exp::<FMA>(-0.5 * x * x);
    let z = x.abs() * FRAC_1_SQRT_2;
    let z = if z > 10.0 { 10.0 } else { z };
    let ratio = polynomial::<FMA, 5>(z, NUMERATOR) / polynomial::<FMA, 6>(z, DENOMINATOR);
    let tail = 0.5 * exponential * ratio;
    [if x < 0.0 { tail } else { 1.0 - tail }, 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * exponential]
}

/// The sum of `f` over pairs of elements, in an order that depends only on the length.
#[inline(always)]
pub(crate) fn sum(left: &[f32], right: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    debug_assert_eq!(left.len(), right.len());
    let mut lanes = [0.0f32; LANES];
    let (left, left_rest) = left.as_chunks::<LANES>();
    let (right, right_rest) = right.as_chunks::<LANES>();
    for (left, right) in left.iter().zip(right) {
        for lane in 0..LANES {
            lanes[lane] += f(left[lane], right[lane]);
        }
    }
    for lane in 0..left_rest.len().min(right_rest.len()) {
        lanes[lane] += f(left_rest[lane], right_rest[lane]);
    }
    fold(lanes, |left, right| left + right)
}

/// The largest value, ignoring NaN; minus infinity if there is no other value.
#[inline(always)]
pub(crate) fn largest(values: &[f32]) -> f32 {
    let join = |left: f32, right: f32| if right > left { right } else { left };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (groups, rest) = values.as_chunks::<LANES>();
    for group in groups {
        for lane in 0..LANES {
            lanes[lane] = join(lanes[lane], group[lane]);
        }
    }
    rest.iter().fold(fold(lanes, join), |largest, &value| join(largest, value))
}

/// Joins all lanes: the upper half with the lower half, until one lane is left.
#[inline(always)]
pub(crate) fn fold(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = join(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_and_keeps_the_special_values() {
        for (exp, bound) in [(exp::<true> as fn(f32) -> f32, 3e-7), (exp::<false>, 4e-7)] {
            for step in -8_730..=8_872 {
                let x = step as f32 * 0.01 + 0.002_8;
                let expected = f64::from(x).exp();
                assert!((f64::from(exp(x)) / expected - 1.0).abs() < bound, "exp({x}) is {}", exp(x));
            }
            assert_eq!(exp(0.0), 1.0);
            assert_eq!(exp(f32::NEG_INFINITY), 0.0);
            assert_eq!(
                (exp(f32::INFINITY), exp(88.722_84), exp(1e30)),
                (f32::INFINITY, f32::INFINITY, f32::INFINITY)
            );
            assert!((exp(88.722_83) / f32::MAX - 1.0).abs() < 1e-5);
            for bits in [0x7fc0_0000, 0x7fc0_0001, 0x7fff_ffff, 0xffc0_00ff] {
                assert!(exp(f32::from_bits(bits)).is_nan());
            }
        }
    }

    #[test]
    fn the_normal_distribution_has_a_small_relative_error_far_into_its_tail() {
        for normal in [normal::<true> as fn(f32) -> [f32; 2], normal::<false>] {
            for step in -13_000..=13_000 {
                let x = step as f32 * 1e-3;
                let expected = reference_probability(f64::from(x));
                let [probability, density] = normal(x);
                let error = (f64::from(probability) / expected - 1.0).abs();
                assert!(error < if x > -3.0 { 5e-7 } else { 2e-5 }, "{x}: {probability:e}, not {expected:e}");
                let expected = (-0.5 * f64::from(x).powi(2)).exp() / std::f64::consts::TAU.sqrt();
                assert!((f64::from(density) / expected - 1.0).abs() < 2e-5, "{x}: {density}, not {expected}");
            }
            assert_eq!(
                (normal(0.0)[0], normal(f32::INFINITY), normal(f32::NEG_INFINITY)),
                (0.5, [1.0, 0.0], [0.0, 0.0])
            );
            assert!(normal(f32::NAN).into_iter().all(f32::is_nan));
        }
    }

    /// The cumulative probability of the normal distribution to a relative error of 1e-12: the series of the error
    /// function in the middle, a continued fraction in the tails.
    fn reference_probability(x: f64) -> f64 {
        let z = x.abs() / std::f64::consts::SQRT_2;
        let tail = if z < 2.0 {
            let (mut term, mut total) = (z, z);
            for n in 1..100 {
                term *= -z * z / f64::from(n);
                total += term / f64::from(2 * n + 1);
            }
            0.5 - 0.5 * total * std::f64::consts::FRAC_2_SQRT_PI
        } else {
            let fraction = (1..200).rev().fold(z, |below, n| z + f64::from(n) / 2.0 / below);
            0.25 * std::f64::consts::FRAC_2_SQRT_PI * (-z * z).exp() / fraction
        };
        if x < 0.0 { tail } else { 1.0 - tail }
    }

    #[test]
    fn sum_takes_every_element() {
        for length in [0, 1, 15, 16, 17, 40] {
            let values: Vec<f32> = (0..length).map(|i| i as f32).collect();
            assert_eq!(sum(&values, &values, |x, _| x), values.iter().sum::<f32>());
        }
    }
}
