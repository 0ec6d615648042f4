//! Elementary functions that the compiler turns into vector code, compiled for every kind of vector that the processor may have.

/// Vectors are worked on in groups of this many lanes: one AVX-512 register, two AVX2 registers, four of NEON.
pub(super) const LANES: usize = 16;

/// The vector instructions to use, the best that the processor has.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Vectors {
    Avx512,
    Avx2,
    Baseline,
}

/// Asks the processor; the answer is cached.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn vectors() -> Vectors {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => Vectors::Avx512,
        (true, false) => Vectors::Avx2,
        (false, _) => Vectors::Baseline,
    }
}

/// Defines functions that are compiled once for each kind of vector instructions; a call runs the best one. What a function calls
/// must be `#[inline(always)]`, or it stays compiled for the baseline.
macro_rules! vectorized {
    ($($(#[$attribute:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $output:ty)? $body:block)*) => {$(
        $(#[$attribute])*
        $visibility fn $name($($argument: $type),*) $(-> $output)? {
            #[inline(always)]
            fn baseline($($argument: $type),*) $(-> $output)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx2,fma")]
                fn avx512($($argument: $type),*) $(-> $output)? {
                    baseline($($argument),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($argument: $type),*) $(-> $output)? {
                    baseline($($argument),*)
                }
                match crate::ops::math::vectors() {
                    // SAFETY: the processor has these instructions.
                    crate::ops::math::Vectors::Avx512 => unsafe { avx512($($argument),*) },
                    // SAFETY: the processor has these instructions.
                    crate::ops::math::Vectors::Avx2 => unsafe { avx2($($argument),*) },
                    crate::ops::math::Vectors::Baseline => baseline($($argument),*),
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            baseline($($argument),*)
        }
    )*};
}
pub(super) use vectorized;

vectorized! {
    /// `values *= factors`, element by element.
    pub(super) fn multiply(values: &mut [f32], factors: &[f32]) {
        values.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
    }

    /// `values += others`, element by element.
    pub(super) fn add(values: &mut [f32], others: &[f32]) {
        values.iter_mut().zip(others).for_each(|(value, other)| *value += other);
    }

    /// `values *= factors`, then adds every row of the products to `sums`, in order, unless `sums` is empty.
    pub(super) fn multiply_and_add_rows(values: &mut [f32], factors: &[f32], sums: &mut [f32]) {
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

    /// Adds every row of `data` to `sums`, in order.
    pub(super) fn add_rows(sums: &mut [f32], data: &[f32]) {
        if !sums.is_empty() {
            for row in data.chunks_exact(sums.len()) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
        }
    }
}

/// e to the power of `x`, within 2 units in the last place; 0 below -87.3, where the result is no normal number any more.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // 1.5 * 2^23 rounds what is added to it to an integer; 127 more is the exponent's bias.
    const ROUND: f32 = 12_582_912.0 + 127.0;
    let clamped = if x > 88.3 { 88.3 } else { x };
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let power = shifted - ROUND;
    // ln 2 in two parts, so that the remainder is exact
    let remainder = power.mul_add(2.121_944_4e-4, power.mul_add(-0.693_359_4, clamped));
    let mut series = 1.987_569_1e-4f32;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        series = series.mul_add(remainder, coefficient);
    }
    let fraction = series.mul_add(remainder * remainder, remainder) + 1.0;
    let result = fraction * f32::from_bits(shifted.to_bits() << 23);
    let result = if x < -87.3 { 0.0 } else { result };
    if x > 88.722_84 { f32::INFINITY } else { result }
}

/// The error function, within 4e-7; exactly -1 and 1 where float32 cannot tell the difference.
///
/// The rational approximation of Eigen and XLA on [-4, 4].
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    let clamped = if x > 4.0 { 4.0 } else { x };
    let clamped = if clamped < -4.0 { -4.0 } else { clamped };
    let square = clamped * clamped;
    let mut numerator = -2.726_142_3e-10f32;
    for coefficient in
        [2.770_681_4e-8, -2.101_024e-6, -5.692_506_3e-5, -7.349_906_6e-4, -2.954_6e-3, -1.609_603_3e-2]
    {
        numerator = numerator.mul_add(square, coefficient);
    }
    let mut denominator = -1.456_607_2e-5f32;
    for coefficient in [-2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_473_9e-2] {
        denominator = denominator.mul_add(square, coefficient);
    }
    let result = clamped * numerator / denominator;
    let result = if x >= 3.9 { 1.0 } else { result };
    if x <= -3.9 { -1.0 } else { result }
}

/// The sum of `f` over the pairs, in an order that depends on the length alone.
#[inline(always)]
pub(super) fn sum(left: &[f32], right: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
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

/// The largest value, but for those that are not a number; minus infinity if there is none.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> f32 {
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

/// Joins the lanes in halves.
#[inline(always)]
pub(super) fn fold(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
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
        for step in -870..=880 {
            let x = step as f32 * 0.1 + 0.003;
            let expected = f64::from(x).exp();
            assert!((f64::from(exp(x)) / expected - 1.0).abs() < 3e-7, "exp({x})");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn erf_is_accurate_and_keeps_the_special_values() {
        let mut worst = 0.0f64;
        for step in -50_000..=50_000 {
            let x = step as f32 * 1e-4;
            worst = worst.max((f64::from(erf(x)) - reference_erf(f64::from(x))).abs());
        }
        assert!(worst < 4e-7, "{worst}");
        assert_eq!((erf(f32::INFINITY), erf(f32::NEG_INFINITY), erf(0.0)), (1.0, -1.0, 0.0));
        assert!(erf(f32::NAN).is_nan());
    }

    /// The series of the error function, good to 1e-13 for |x| < 5.
    fn reference_erf(x: f64) -> f64 {
        let (mut term, mut total) = (x, x);
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            total += term / f64::from(2 * n + 1);
        }
        total * std::f64::consts::FRAC_2_SQRT_PI
    }

    #[test]
    fn sum_takes_every_element() {
        for length in [0, 1, 15, 16, 17, 40] {
            let values: Vec<f32> = (0..length).map(|i| i as f32).collect();
            assert_eq!(sum(&values, &values, |x, _| x), values.iter().sum::<f32>());
        }
    }
}
