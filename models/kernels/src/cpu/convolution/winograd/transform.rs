//! The transforms of Winograd's convolution: pixels, taps and products of one tile to and fro, [`LANES`] channels at a
//! time in registers.

use crate::cpu::simd::{LANES, vectorized};
use std::array::from_fn;

/// The multiplications of a tile for one channel and one filter: the places of a transformed tile.
pub(super) const PLACES: usize = 16;

/// A vector: the same element of a tile in [`LANES`] channels.
type Lanes = [f32; LANES];

#[inline(always)]
fn sum<const N: usize>(a: [f32; N], b: [f32; N]) -> [f32; N] {
    from_fn(|lane| a[lane] + b[lane])
}

#[inline(always)]
fn difference<const N: usize>(a: [f32; N], b: [f32; N]) -> [f32; N] {
    from_fn(|lane| a[lane] - b[lane])
}

#[inline(always)]
fn half<const N: usize>(a: [f32; N]) -> [f32; N] {
    a.map(|value| 0.5 * value)
}

#[inline(always)]
fn negative<const N: usize>(a: [f32; N]) -> [f32; N] {
    a.map(|value| -value)
}

/// Applies `f` to the columns of a square matrix, then to the rows of the result: `F square F^T`, in reading order.
#[inline(always)]
fn both_ways<T: Copy, const FROM: usize, const TO: usize, const FROM2: usize, const TO2: usize>(
    square: [T; FROM2],
    zero: T,
    f: impl Fn([T; FROM]) -> [T; TO],
) -> [T; TO2] {
    let mut half_way = [[zero; FROM]; TO];
    for column in 0..FROM {
        let changed = f(from_fn(|row| square[row * FROM + column]));
        for row in 0..TO {
            half_way[row][column] = changed[row];
        }
    }
    let mut result = [zero; TO2];
    for row in 0..TO {
        let changed = f(half_way[row]);
        result[row * TO..][..TO].copy_from_slice(&changed);
    }
    result
}

/// `B^T` times four pixels.
#[inline(always)]
fn of_pixels([a, b, c, d]: [Lanes; 4]) -> [Lanes; 4] {
    [difference(a, c), sum(b, c), difference(c, b), difference(b, d)]
}

/// `B`: the backward pass of `B^T`.
#[inline(always)]
fn to_pixels([a, b, c, d]: [Lanes; 4]) -> [Lanes; 4] {
    [a, sum(difference(b, c), d), difference(sum(b, c), a), negative(d)]
}

/// `A^T`: from four products to two outputs.
#[inline(always)]
fn to_outputs([a, b, c, d]: [Lanes; 4]) -> [Lanes; 2] {
    [sum(sum(a, b), c), difference(difference(b, c), d)]
}

/// `A`: the backward pass of `A^T`.
#[inline(always)]
fn of_outputs([a, b]: [Lanes; 2]) -> [Lanes; 4] {
    [a, sum(a, b), difference(a, b), negative(b)]
}

/// `G` times three taps.
#[inline(always)]
fn of_taps([a, b, c]: [Lanes; 3]) -> [Lanes; 4] {
    let outer = sum(a, c);
    [a, half(sum(outer, b)), half(difference(outer, b)), c]
}

/// `G^T`: the backward pass of `G`.
#[inline(always)]
fn to_taps([a, b, c, d]: [Lanes; 4]) -> [Lanes; 3] {
    let middle = half(sum(b, c));
    [sum(a, middle), half(difference(b, c)), sum(middle, d)]
}

/// [`LANES`] channels of a pixel, from `channel` on; zeros for a pixel outside the map.
#[inline(always)]
fn lanes(values: &[f32], pixel: Option<usize>, channel: usize) -> Lanes {
    match pixel {
        Some(start) => *values[start + channel..].first_chunk().expect("channels in whole vectors"),
        None => [0.0; LANES],
    }
}

/// The transformed filters `G weight G^T`, `[16][in][out]`, of a weight with `size` elements per tap.
pub(super) fn filters(weight: &[f32], size: usize) -> Vec<f32> {
    let mut filters = vec![0.0; PLACES * size];
    transform_taps(weight, size, &mut filters);
    filters
}

vectorized! {
    fn transform_taps(weight: &[f32], size: usize, filters: &mut [f32]) {
        for start in (0..size).step_by(LANES) {
            let taps: [Lanes; 9] = from_fn(|tap| lanes(weight, Some(tap * size), start));
            let u: [Lanes; PLACES] = both_ways(taps, [0.0; LANES], of_taps);
            for (place, u) in u.iter().enumerate() {
                filters[place * size + start..][..LANES].copy_from_slice(u);
            }
        }
    }

    /// The gradient of a weight from the gradient of its transformed filters.
    pub(super) fn weight_gradient(du: &[f32], size: usize, dweight: &mut [f32]) {
        for start in (0..size).step_by(LANES) {
            let u: [Lanes; PLACES] = from_fn(|place| lanes(du, Some(place * size), start));
            let taps: [Lanes; 9] = both_ways(u, [0.0; LANES], to_taps);
            for (tap, gradient) in taps.iter().enumerate() {
                dweight[tap * size + start..][..LANES].copy_from_slice(gradient);
            }
        }
    }

    /// Writes the transformed pixels of a tile, `B^T x B`, to `v`, whose places are `plane` elements apart.
    pub(super) fn transform_pixels(x: &[f32], pixels: [Option<usize>; PLACES], channels: usize, v: &mut [f32], plane: usize) {
        for channel in (0..channels).step_by(LANES) {
            let tile: [Lanes; PLACES] = from_fn(|pixel| lanes(x, pixels[pixel], channel));
            let changed: [Lanes; PLACES] = both_ways(tile, [0.0; LANES], of_pixels);
            for (place, changed) in changed.iter().enumerate() {
                v[place * plane + channel..][..LANES].copy_from_slice(changed);
            }
        }
    }

    /// Writes the transformed gradients of a tile's outputs, `A dy A^T`, to `dm`, whose places are `plane` elements
    /// apart.
    pub(super) fn transform_gradients(dy: &[f32], pixels: [Option<usize>; 4], channels: usize, dm: &mut [f32], plane: usize) {
        for channel in (0..channels).step_by(LANES) {
            let tile: [Lanes; 4] = from_fn(|pixel| lanes(dy, pixels[pixel], channel));
            let changed: [Lanes; PLACES] = both_ways(tile, [0.0; LANES], of_outputs);
            for (place, changed) in changed.iter().enumerate() {
                dm[place * plane + channel..][..LANES].copy_from_slice(changed);
            }
        }
    }

    /// Writes the outputs of a tile, `A^T m A`, from its products `m`, whose places are `plane` elements apart.
    pub(super) fn write_outputs(m: &[f32], plane: usize, channels: usize, pixels: [Option<usize>; 4], y: &mut [f32]) {
        for channel in (0..channels).step_by(LANES) {
            let tile: [Lanes; PLACES] = from_fn(|place| lanes(m, Some(place * plane), channel));
            let outputs: [Lanes; 4] = both_ways(tile, [0.0; LANES], to_outputs);
            for (pixel, output) in pixels.iter().zip(&outputs) {
                if let Some(start) = pixel {
                    y[start + channel..][..LANES].copy_from_slice(output);
                }
            }
        }
    }

    /// Adds `B dv B^T`, from the gradients `dv` of a tile's transformed pixels, to the gradients of its pixels.
    pub(super) fn add_to_pixels(dv: &[f32], plane: usize, channels: usize, pixels: [Option<usize>; PLACES], dx: &mut [f32]) {
        for channel in (0..channels).step_by(LANES) {
            let tile: [Lanes; PLACES] = from_fn(|place| lanes(dv, Some(place * plane), channel));
            let gradients: [Lanes; PLACES] = both_ways(tile, [0.0; LANES], to_pixels);
            for (pixel, gradient) in pixels.iter().zip(&gradients) {
                if let Some(start) = pixel {
                    let values = &mut dx[start + channel..][..LANES];
                    values.iter_mut().zip(gradient).for_each(|(value, gradient)| *value += gradient);
                }
            }
        }
    }
}
