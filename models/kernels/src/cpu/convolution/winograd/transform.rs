//! The transforms of Winograd's convolution: pixels, taps and products of one tile to and fro, [`LANES`] channels at a
//! time in registers.

use crate::cpu::gemm::Bfloat16;
#[cfg(target_arch = "x86_64")]
use crate::cpu::gemm::bfloat16::halves;
use crate::cpu::simd::{LANES, mul_add, vectorized};
use crate::cpu::threads::Shared;
use std::mem::MaybeUninit;
use std::ops::Range;

/// The most pixels that a tile reads.
pub(super) const MOST_PIXELS: usize = 36;

/// A vector: the same element of a tile in [`LANES`] channels.
type Lanes = [f32; LANES];

const ZERO: Lanes = [0.0; LANES];

/// A transform of one tile from its places, `plane` elements apart, for so many channels, to offsets of a map.
type TransformBack = fn(&[f32], usize, usize, &[Option<usize>], &mut [f32]);

/// A transform from the values of a weight or of its transformed filters, of which each place has so many elements, to
/// those of the other, for a range of these elements in whole vectors.
///
/// # Safety
///
/// While it runs, no other task may read or write these elements of what it writes.
type TapTransform = unsafe fn(&[f32], usize, Range<usize>, Shared<'_>);

/// The transforms for tiles of one size. Pixels and gradients that are read are slices of whole channels; those that are
/// written are offsets, `None` for places outside the map. The places of a transformed tile are `plane` elements apart.
pub(super) struct Form {
    /// The rows and columns of outputs of a tile, which reads two more of pixels.
    pub(super) side: usize,
    /// `G weight G^T`: `[places][in][out]`, from a weight, for a range of the elements of each tap.
    pub(super) transform_taps: TapTransform,
    /// `G^T du G`: the gradient of a weight from the gradient of its transformed filters, for a range of the elements of
    /// each tap.
    pub(super) weight_gradient: TapTransform,
    /// `B^T x B`, from the pixels.
    pub(super) transform_pixels: fn(&[&[f32]], &mut [f32], usize),
    /// `A dy A^T`, from the gradients of the outputs.
    pub(super) transform_gradients: fn(&[&[f32]], &mut [f32], usize),
    /// [`transform_pixels`](Self::transform_pixels), rounded to bfloat16.
    pub(super) round_pixels: fn(Bfloat16, &[&[f32]], &mut [u16], usize),
    /// [`transform_gradients`](Self::transform_gradients), rounded to bfloat16.
    pub(super) round_gradients: fn(Bfloat16, &[&[f32]], &mut [u16], usize),
    /// `A^T m A`, from the products to the outputs.
    pub(super) write_outputs: TransformBack,
    /// Adds `B dv B^T` to the gradients of the pixels.
    pub(super) add_to_pixels: TransformBack,
}

impl Form {
    /// The rows and columns of pixels that a tile reads.
    pub(super) fn reach(&self) -> usize {
        self.side + 2
    }

    /// The multiplications of a tile for one channel and one filter: the places of a transformed tile.
    pub(super) fn places(&self) -> usize {
        self.reach() * self.reach()
    }
}

#[inline(always)]
fn sum(mut a: Lanes, b: Lanes) -> Lanes {
    for lane in 0..LANES {
        a[lane] += b[lane];
    }
    a
}

#[inline(always)]
fn difference(mut a: Lanes, b: Lanes) -> Lanes {
    for lane in 0..LANES {
        a[lane] -= b[lane];
    }
    a
}

#[inline(always)]
fn times(factor: f32, mut a: Lanes) -> Lanes {
    for value in &mut a {
        *value *= factor;
    }
    a
}

/// The first channel of each vector of `channels` channels, at least [`LANES`], and how many of the vector's channels were in the one
/// before: the last vector ends with the last channel.
#[inline(always)]
pub(super) fn vectors(channels: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..channels).step_by(LANES).map(move |next| {
        let first = next.min(channels - LANES);
        (first, next - first)
    })
}

/// A vector with 0 in place of its first channels, `count` of them.
#[inline(always)]
fn without(count: usize, mut a: Lanes) -> Lanes {
    for (lane, value) in a.iter_mut().enumerate() {
        *value = if lane < count { 0.0 } else { *value };
    }
    a
}

/// `a + factor b`, rounded once if that is one instruction.
#[inline(always)]
fn plus<const FMA: bool>(mut a: Lanes, factor: f32, b: Lanes) -> Lanes {
    for lane in 0..LANES {
        a[lane] = mul_add::<FMA>(factor, b[lane], a[lane]);
    }
    a
}

/// [`LANES`] channels of a pixel, from `channel` on.
#[inline(always)]
pub(super) fn lanes(pixel: &[f32], channel: usize) -> Lanes {
    *pixel[channel..].first_chunk().expect("channels in whole vectors")
}

/// The matrix of a transform, for one column. A type and not a function as a value, because that is called through `Fn::call`, which is
/// compiled apart, without the vectors of its caller.
trait Part<const FROM: usize, const TO: usize> {
    /// `FMA` says whether [`mul_add`] is one instruction.
    fn apply<const FMA: bool>(column: [Lanes; FROM]) -> [Lanes; TO];
}

/// Applies `F` to the columns of a square matrix, which `read` gives element by element, then to the rows of the result:
/// `F square F^T`, of which `write` takes every element.
#[inline(always)]
fn both_ways<F: Part<FROM, TO>, const FMA: bool, const FROM: usize, const TO: usize>(
    read: impl Fn(usize) -> Lanes,
    mut write: impl FnMut(usize, Lanes),
) {
    // Filling it with zeros first would cost more than the transform.
    let mut half_way = [[MaybeUninit::<Lanes>::uninit(); FROM]; TO];
    for column in 0..FROM {
        let mut square = [ZERO; FROM];
        for (row, element) in square.iter_mut().enumerate() {
            *element = read(row * FROM + column);
        }
        for (half_way, changed) in half_way.iter_mut().zip(F::apply::<FMA>(square)) {
            half_way[column].write(changed);
        }
    }
    for (row, half_way) in half_way.into_iter().enumerate() {
        let mut columns = [ZERO; FROM];
        for (column, element) in columns.iter_mut().zip(half_way) {
            // SAFETY: the loop before wrote every column of every row.
            *column = unsafe { element.assume_init() };
        }
        let changed = F::apply::<FMA>(columns);
        for (column, element) in changed.into_iter().enumerate() {
            write(row * TO + column, element);
        }
    }
}

/// Types for the functions of a module that transform a column.
macro_rules! parts {
    ($($part:ident = $function:ident: $from:expr => $to:expr;)*) => {$(
        struct $part;

        impl Part<{ $from }, { $to }> for $part {
            #[inline(always)]
            fn apply<const FMA: bool>(column: [Lanes; $from]) -> [Lanes; $to] {
                $function::<FMA>(column)
            }
        }
    )*};
}

/// Defines functions that write numbers rounded to bfloat16, compiled for the CPUs that their first argument proves.
macro_rules! rounding {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {$(
        fn $name(bfloat16: Bfloat16, $($argument: $type),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bf16,avx2,fma")]
                fn compiled($($argument: $type),*) {
                    const FMA: bool = true;
                    $body
                }

                let _ = bfloat16;
                // SAFETY: the CPU has these instructions, as the value proves.
                unsafe { compiled($($argument),*) }
            }
            #[cfg(not(target_arch = "x86_64"))]
            {
                let _ = ($($argument,)*);
                match bfloat16 {}
            }
        }
    )*};
}

/// The [`Form`] of tiles with `$side` by `$side` outputs, and the transforms of its module, which holds their one-dimensional
/// parts.
macro_rules! form {
    ($side:literal) => {
        // What follows is reached through these pointers alone, of which some are unsafe to call.
        pub(crate) const FORM: Form = Form {
            side: $side,
            transform_taps,
            weight_gradient,
            transform_pixels,
            transform_gradients,
            round_pixels,
            round_gradients,
            write_outputs,
            add_to_pixels,
        };

        const REACH: usize = $side + 2;

        parts! {
            OfTaps = of_taps: 3 => REACH;
            ToTaps = to_taps: REACH => 3;
            OfPixels = of_pixels: REACH => REACH;
            ToPixels = to_pixels: REACH => REACH;
            OfOutputs = of_outputs: $side => REACH;
            ToOutputs = to_outputs: REACH => $side;
        }

        rounding! {
            fn round_pixels(pixels: &[&[f32]], v: &mut [u16], plane: usize) {
                for (channel, _) in vectors(pixels[0].len()) {
                    both_ways::<OfPixels, FMA, _, _>(|pixel| lanes(pixels[pixel], channel), |place, value| {
                        v[place * plane + channel..][..LANES].copy_from_slice(&halves(value));
                    });
                }
            }

            fn round_gradients(outputs: &[&[f32]], dm: &mut [u16], plane: usize) {
                for (channel, _) in vectors(outputs[0].len()) {
                    both_ways::<OfOutputs, FMA, _, _>(|output| lanes(outputs[output], channel), |place, value| {
                        dm[place * plane + channel..][..LANES].copy_from_slice(&halves(value));
                    });
                }
            }
        }

        vectorized! {
            fn transform_taps(weight: &[f32], size: usize, range: Range<usize>, filters: Shared<'_>) {
                for start in range.step_by(LANES) {
                    let tap = |tap: usize| lanes(&weight[tap * size..], start);
                    both_ways::<OfTaps, FMA, _, _>(tap, |place, u| {
                        let at = place * size + start;
                        // SAFETY: no other task uses these elements of a place, as the caller promises.
                        unsafe { filters.slice(at..at + LANES) }.copy_from_slice(&u);
                    });
                }
            }

            fn weight_gradient(du: &[f32], size: usize, range: Range<usize>, dweight: Shared<'_>) {
                for start in range.step_by(LANES) {
                    let place = |place: usize| lanes(&du[place * size..], start);
                    both_ways::<ToTaps, FMA, _, _>(place, |tap, gradient| {
                        let at = tap * size + start;
                        // SAFETY: no other task uses these elements of a tap, as the caller promises.
                        unsafe { dweight.slice(at..at + LANES) }.copy_from_slice(&gradient);
                    });
                }
            }

            fn transform_pixels(pixels: &[&[f32]], v: &mut [f32], plane: usize) {
                for (channel, _) in vectors(pixels[0].len()) {
                    both_ways::<OfPixels, FMA, _, _>(|pixel| lanes(pixels[pixel], channel), |place, value| {
                        v[place * plane + channel..][..LANES].copy_from_slice(&value);
                    });
                }
            }

            fn transform_gradients(outputs: &[&[f32]], dm: &mut [f32], plane: usize) {
                for (channel, _) in vectors(outputs[0].len()) {
                    both_ways::<OfOutputs, FMA, _, _>(|output| lanes(outputs[output], channel), |place, value| {
                        dm[place * plane + channel..][..LANES].copy_from_slice(&value);
                    });
                }
            }

            fn write_outputs(m: &[f32], plane: usize, channels: usize, offsets: &[Option<usize>], y: &mut [f32]) {
                for (channel, _) in vectors(channels) {
                    both_ways::<ToOutputs, FMA, _, _>(|place| lanes(&m[place * plane..], channel), |output, value| {
                        if let Some(start) = offsets[output] {
                            y[start + channel..][..LANES].copy_from_slice(&value);
                        }
                    });
                }
            }

            fn add_to_pixels(dv: &[f32], plane: usize, channels: usize, offsets: &[Option<usize>], dx: &mut [f32]) {
                for (channel, added) in vectors(channels) {
                    both_ways::<ToPixels, FMA, _, _>(|place| lanes(&dv[place * plane..], channel), |pixel, gradient| {
                        if let Some(start) = offsets[pixel] {
                            let values = &mut dx[start + channel..][..LANES];
                            let gradient = without(added, gradient);
                            values.iter_mut().zip(gradient).for_each(|(value, gradient)| *value += gradient);
                        }
                    });
                }
            }
        }
    };
}

/// F(2x2, 3x3): 16 multiplications for 4 outputs (Lavin & Gray 2016, section 4.1).
pub(super) mod two {
    use super::*;

    // Nothing here is multiplied and added at once, so that `FMA` makes no difference.
    form!(2);

    /// `B^T` times four pixels.
    #[inline(always)]
    fn of_pixels<const FMA: bool>([a, b, c, d]: [Lanes; 4]) -> [Lanes; 4] {
        [difference(a, c), sum(b, c), difference(c, b), difference(b, d)]
    }

    /// `B`: the backward pass of `B^T`.
    #[inline(always)]
    fn to_pixels<const FMA: bool>([a, b, c, d]: [Lanes; 4]) -> [Lanes; 4] {
        [a, sum(difference(b, c), d), difference(sum(b, c), a), times(-1.0, d)]
    }

    /// `A^T`: from four products to two outputs.
    #[inline(always)]
    fn to_outputs<const FMA: bool>([a, b, c, d]: [Lanes; 4]) -> [Lanes; 2] {
        [sum(sum(a, b), c), difference(difference(b, c), d)]
    }

    /// `A`: the backward pass of `A^T`.
    #[inline(always)]
    fn of_outputs<const FMA: bool>([a, b]: [Lanes; 2]) -> [Lanes; 4] {
        [a, sum(a, b), difference(a, b), times(-1.0, b)]
    }

    /// `G` times three taps.
    #[inline(always)]
    fn of_taps<const FMA: bool>([a, b, c]: [Lanes; 3]) -> [Lanes; 4] {
        let outer = sum(a, c);
        [a, times(0.5, sum(outer, b)), times(0.5, difference(outer, b)), c]
    }

    /// `G^T`: the backward pass of `G`.
    #[inline(always)]
    fn to_taps<const FMA: bool>([a, b, c, d]: [Lanes; 4]) -> [Lanes; 3] {
        let middle = times(0.5, sum(b, c));
        [sum(a, middle), times(0.5, difference(b, c)), sum(middle, d)]
    }
}

/// F(4x4, 3x3): 36 multiplications for 16 outputs, by the values of polynomials at 0, ±5/8, ±3/2 and infinity. At ±1 and ±2, as in Lavin & Gray
/// 2016, section 4.3, the sums are simpler, and their errors twice as large.
pub(super) mod four {
    use super::*;

    form!(4);

    const NEAR: f32 = 0.625;
    const FAR: f32 = 1.5;
    const NEAR_2: f32 = NEAR * NEAR;
    const FAR_2: f32 = FAR * FAR;
    const NEAR_3: f32 = NEAR * NEAR_2;
    const FAR_3: f32 = FAR * FAR_2;
    const SUM: f32 = NEAR_2 + FAR_2;
    const PRODUCT: f32 = NEAR_2 * FAR_2;
    /// The polynomials that are 0 at all finite points but one have these values there, inverted.
    const AT_NEAR: f32 = 1.0 / (2.0 * NEAR_2 * (NEAR_2 - FAR_2));
    const AT_FAR: f32 = 1.0 / (2.0 * FAR_2 * (FAR_2 - NEAR_2));

    /// `B^T` times six pixels.
    #[inline(always)]
    fn of_pixels<const FMA: bool>([a, b, c, d, e, f]: [Lanes; 6]) -> [Lanes; 6] {
        let [near_even, near_odd] = [plus::<FMA>(e, -FAR_2, c), plus::<FMA>(d, -FAR_2, b)];
        let [far_even, far_odd] = [plus::<FMA>(e, -NEAR_2, c), plus::<FMA>(d, -NEAR_2, b)];
        [
            plus::<FMA>(plus::<FMA>(e, -SUM, c), PRODUCT, a),
            plus::<FMA>(near_even, NEAR, near_odd),
            plus::<FMA>(near_even, -NEAR, near_odd),
            plus::<FMA>(far_even, FAR, far_odd),
            plus::<FMA>(far_even, -FAR, far_odd),
            plus::<FMA>(plus::<FMA>(f, -SUM, d), PRODUCT, b),
        ]
    }

    /// `B`: the backward pass of `B^T`.
    #[inline(always)]
    fn to_pixels<const FMA: bool>([a, b, c, d, e, f]: [Lanes; 6]) -> [Lanes; 6] {
        let [near, near_apart] = [sum(b, c), times(NEAR, difference(b, c))];
        let [far, far_apart] = [sum(d, e), times(FAR, difference(d, e))];
        [
            times(PRODUCT, a),
            plus::<FMA>(plus::<FMA>(times(PRODUCT, f), -FAR_2, near_apart), -NEAR_2, far_apart),
            plus::<FMA>(plus::<FMA>(times(-SUM, a), -FAR_2, near), -NEAR_2, far),
            plus::<FMA>(sum(near_apart, far_apart), -SUM, f),
            sum(sum(a, near), far),
            f,
        ]
    }

    /// `A^T`: from six products to four outputs.
    #[inline(always)]
    fn to_outputs<const FMA: bool>([a, b, c, d, e, f]: [Lanes; 6]) -> [Lanes; 4] {
        let [near, near_apart] = [sum(b, c), difference(b, c)];
        let [far, far_apart] = [sum(d, e), difference(d, e)];
        [
            sum(sum(a, near), far),
            plus::<FMA>(times(NEAR, near_apart), FAR, far_apart),
            plus::<FMA>(times(NEAR_2, near), FAR_2, far),
            plus::<FMA>(plus::<FMA>(f, NEAR_3, near_apart), FAR_3, far_apart),
        ]
    }

    /// `A`: the backward pass of `A^T`.
    #[inline(always)]
    fn of_outputs<const FMA: bool>([a, b, c, d]: [Lanes; 4]) -> [Lanes; 6] {
        let [near_even, near_odd] = [plus::<FMA>(a, NEAR_2, c), plus::<FMA>(times(NEAR, b), NEAR_3, d)];
        let [far_even, far_odd] = [plus::<FMA>(a, FAR_2, c), plus::<FMA>(times(FAR, b), FAR_3, d)];
        [
            a,
            sum(near_even, near_odd),
            difference(near_even, near_odd),
            sum(far_even, far_odd),
            difference(far_even, far_odd),
            d,
        ]
    }

    /// `G` times three taps.
    #[inline(always)]
    fn of_taps<const FMA: bool>([a, b, c]: [Lanes; 3]) -> [Lanes; 6] {
        let near = times(AT_NEAR, plus::<FMA>(a, NEAR_2, c));
        let far = times(AT_FAR, plus::<FMA>(a, FAR_2, c));
        [
            times(1.0 / PRODUCT, a),
            plus::<FMA>(near, AT_NEAR * NEAR, b),
            plus::<FMA>(near, -AT_NEAR * NEAR, b),
            plus::<FMA>(far, AT_FAR * FAR, b),
            plus::<FMA>(far, -AT_FAR * FAR, b),
            c,
        ]
    }

    /// `G^T`: the backward pass of `G`.
    #[inline(always)]
    fn to_taps<const FMA: bool>([a, b, c, d, e, f]: [Lanes; 6]) -> [Lanes; 3] {
        let [near, far] = [times(AT_NEAR, sum(b, c)), times(AT_FAR, sum(d, e))];
        let [near_apart, far_apart] = [difference(b, c), difference(d, e)];
        [
            plus::<FMA>(sum(near, far), 1.0 / PRODUCT, a),
            plus::<FMA>(times(AT_NEAR * NEAR, near_apart), AT_FAR * FAR, far_apart),
            plus::<FMA>(plus::<FMA>(f, NEAR_2, near), FAR_2, far),
        ]
    }
}
