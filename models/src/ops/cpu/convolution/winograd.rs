//! Convolution of 3 by 3 in tiles of 2 by 2 outputs (Lavin & Gray 2016, 'Fast Algorithms for Convolutional Neural Networks', section 4.1,
//! F(2x2, 3x3)): 16 multiplications for what takes 36, so that the products have 4/9 of the work.
//!
//! ```text
//! u = G weight G^T                               once; [16][in][out]
//! for a chunk of whole images                    a task
//!   for some tiles                               v and m: second-level cache
//!     v = B^T x B                                4 by 4 pixels of each tile; [16][tiles][in]
//!     m[p] = v[p] * u[p]                         16 products; [16][tiles][out]
//!     y = A^T m A                                2 by 2 outputs of each tile
//! ```
//!
//! The backward pass is that of these steps. Sums and differences come before the products: an error is relative to the largest of the
//! pixels of a tile, and what is not a finite number reaches all outputs of its tiles.

use std::array::from_fn;
use std::ops::Range;

use burn::backend::flex::FlexTensor;

use super::Maps;
use crate::ops::cpu::flex;
use crate::ops::cpu::gemm::{Epilogue, Matrix, MatrixMut, gemm, is_for_amx};
use crate::ops::cpu::parallel::{Buffer, Chunks, parallel};
use crate::ops::cpu::simd::{LANES, vectorized};
use crate::ops::cpu::sliding::Kernel;
use crate::ops::cpu::sums::Sums;

/// Multiplications for a tile, a channel and a filter: the places of a transformed tile.
const PLACES: usize = 16;

/// Values of transformed tiles that fit into the second-level cache next to the filters in use.
const CACHED: usize = 192 * 1024;

impl Maps {
    /// Whether this is the way to go: where the channels fill vectors, there are images for all threads, and no AMX, whose products cost
    /// less than the sums here.
    pub(super) fn suit_winograd(&self) -> bool {
        let Kernel { size, stride, padding } = self.kernel;
        (size, stride, padding) == (3, 1, 1)
            && [self.in_channels, self.out_channels].iter().all(|channels| channels.is_multiple_of(LANES))
            && self.images >= rayon::current_num_threads()
            && !is_for_amx(self.images * self.places(), self.taps(), self.out_channels)
    }
}

/// Values of so many channels at one place of some tiles, with a gap, so that the places of a tile do not all lie in one set of the
/// first-level cache.
fn plane(tiles: usize, channels: usize) -> usize {
    tiles * channels + LANES
}

/// The maps, in tiles.
pub(super) struct Tiles<'a>(pub(super) &'a Maps);

impl Tiles<'_> {
    /// Rows and columns of tiles in an image.
    fn grid(&self) -> [usize; 2] {
        self.0.output.map(|size| size.div_ceil(2))
    }

    /// Tiles of so many images.
    fn count(&self, images: usize) -> usize {
        let [rows, columns] = self.grid();
        images * rows * columns
    }

    /// Tiles to transform at a time.
    fn at_a_time(&self) -> usize {
        (CACHED / (PLACES * (self.0.in_channels + self.0.out_channels))).max(6)
    }

    /// Where a tile of `size` by `size` pixels begins in the values of some images, `before` pixels above and to the left of its outputs,
    /// pixel by pixel; none outside the map.
    fn pixels<const N: usize>(
        &self,
        tile: usize,
        size: usize,
        before: usize,
        channels: usize,
    ) -> [Option<usize>; N] {
        let ([rows, columns], [tile_rows, tile_columns]) = (self.0.output, self.grid());
        let (image, tile) = (tile / (tile_rows * tile_columns), tile % (tile_rows * tile_columns));
        let (top, left) = (2 * (tile / tile_columns), 2 * (tile % tile_columns));
        from_fn(|index| {
            let row = (top + index / size).checked_sub(before).filter(|&row| row < rows)?;
            let column = (left + index % size).checked_sub(before).filter(|&column| column < columns)?;
            Some(((image * rows + row) * columns + column) * channels)
        })
    }

    /// The pixels that a tile reads.
    fn inputs(&self, tile: usize) -> [Option<usize>; PLACES] {
        self.pixels(tile, 4, 1, self.0.in_channels)
    }

    /// The pixels that it writes.
    fn outputs(&self, tile: usize) -> [Option<usize>; 4] {
        self.pixels(tile, 2, 0, self.0.out_channels)
    }

    /// The transformed pixels of some tiles: `v`, `[16][tiles][in]`.
    fn transform(&self, x: &[f32], tiles: Range<usize>, v: &mut [f32]) {
        let (channels, plane) = (self.0.in_channels, plane(tiles.len(), self.0.in_channels));
        for (place, tile) in tiles.enumerate() {
            transform_pixels(x, self.inputs(tile), channels, &mut v[place * channels..], plane);
        }
    }

    /// The convolution's outputs.
    pub(super) fn convolve(&self, x: &[f32], weight: &[f32]) -> FlexTensor {
        let maps = self.0;
        let (inputs, width) = (maps.in_channels, maps.out_channels);
        let (image, output) = (maps.image(), maps.places() * width);
        let filters = filters(weight, inputs * width);
        let mut data = Buffer::new(maps.images * output);
        let outputs = data.shared();
        let chunks = Chunks::new(maps.images, 1);
        parallel(chunks.count(), |index| {
            let images = chunks.range(index);
            let x = &x[images.start * image..images.end * image];
            // SAFETY: the chunks are disjoint.
            let y = unsafe { outputs.slice(images.start * output..images.end * output) };
            let most = self.at_a_time().min(self.count(images.len()));
            let (mut v, mut m) =
                (vec![0.0; PLACES * plane(most, inputs)], vec![0.0; PLACES * plane(most, width)]);
            for tiles in Chunks::of(self.count(images.len()), most).ranges_after(0) {
                self.transform(x, tiles.clone(), &mut v);
                let count = tiles.len();
                let (v_plane, m_plane) = (plane(count, inputs), plane(count, width));
                for place in 0..PLACES {
                    let v = Matrix::new(&v[place * v_plane..], [count, inputs], [inputs, 1]);
                    let u = Matrix::new(&filters[place * inputs * width..], [inputs, width], [width, 1]);
                    let m = &mut m[place * m_plane..][..count * width];
                    gemm(MatrixMut::row_major(m, width), Epilogue::Overwrite, 1.0, v, u, false);
                }
                for (place, tile) in tiles.enumerate() {
                    write_outputs(&m[place * width..], m_plane, width, self.outputs(tile), y);
                }
            }
        });
        // SAFETY: the tiles of all images cover their outputs.
        let outputs = unsafe { data.written() };
        flex::tensor(outputs, [maps.images, maps.output[0], maps.output[1], width])
    }

    /// The gradients of the map and of the weight where they are wanted.
    pub(super) fn gradients(
        &self,
        x: &[f32],
        weight: &[f32],
        dy: &[f32],
        wanted: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let maps = self.0;
        let (inputs, width) = (maps.in_channels, maps.out_channels);
        let (image, output) = (maps.image(), maps.places() * width);
        let filters = if wanted[0] { filters(weight, inputs * width) } else { Vec::new() };
        // Whole images: no two tasks add to the same pixel.
        let chunks = Chunks::few(maps.images, super::SMALLEST_CHUNK.div_ceil(maps.places().max(1)));
        let mut dx = Buffer::new(if wanted[0] { maps.images * image } else { 0 });
        let mut dweight = Sums::new(if wanted[1] { maps.taps() * width } else { 0 }, chunks.count());
        {
            let (dx, dweight) = (dx.shared(), dweight.shared());
            parallel(chunks.count(), |index| {
                let images = chunks.range(index);
                let x = &x[images.start * image..images.end * image];
                let dy = &dy[images.start * output..images.end * output];
                // SAFETY: the chunks are disjoint.
                let dx = wanted[0].then(|| unsafe { dx.slice(images.start * image..images.end * image) });
                // SAFETY: each task has sums of its own.
                let dweight = wanted[1].then(|| unsafe { dweight.part(index) });
                self.add_gradients(x, &filters, dy, dx, dweight);
            });
        }
        let shape = [maps.images, maps.input[0], maps.input[1], inputs];
        // SAFETY: each chunk's task wrote its images.
        let dx = wanted[0].then(|| flex::tensor(unsafe { dx.written() }, shape));
        // SAFETY: each chunk's task wrote its sums.
        let dweight = wanted[1].then(|| flex::tensor(unsafe { dweight.total() }, [maps.taps(), width]));
        [dx, dweight]
    }

    /// The gradients of some images, which `x`, `dy` and `dx` hold.
    fn add_gradients(
        &self,
        x: &[f32],
        filters: &[f32],
        dy: &[f32],
        mut dx: Option<&mut [f32]>,
        dweight: Option<&mut [f32]>,
    ) {
        let (inputs, width) = (self.0.in_channels, self.0.out_channels);
        let tile_count = self.count(dy.len() / (self.0.places() * width).max(1));
        let most = self.at_a_time().min(tile_count);
        let (mut v, mut dm) =
            (vec![0.0; PLACES * plane(most, inputs)], vec![0.0; PLACES * plane(most, width)]);
        let mut du = vec![0.0; if dweight.is_some() { PLACES * inputs * width } else { 0 }];
        if let Some(dx) = &mut dx {
            dx.fill(0.0);
        }
        for tiles in Chunks::of(tile_count, most.max(1)).ranges_after(0) {
            let count = tiles.len();
            let (v_plane, m_plane) = (plane(count, inputs), plane(count, width));
            for (place, tile) in tiles.clone().enumerate() {
                transform_gradients(dy, self.outputs(tile), width, &mut dm[place * width..], m_plane);
            }
            let gradients = |place: usize| Matrix::new(&dm[place * m_plane..], [count, width], [width, 1]);
            if dweight.is_some() {
                self.transform(x, tiles.clone(), &mut v);
                for (place, du) in du.chunks_exact_mut(inputs * width).enumerate() {
                    let v = Matrix::new(&v[place * v_plane..], [count, inputs], [inputs, 1]);
                    let du = MatrixMut::row_major(du, width);
                    gemm(du, Epilogue::Accumulate, 1.0, v.transposed(), gradients(place), false);
                }
            }
            if let Some(dx) = &mut dx {
                for place in 0..PLACES {
                    let u = Matrix::new(&filters[place * inputs * width..], [inputs, width], [width, 1]);
                    let dv = MatrixMut::row_major(&mut v[place * v_plane..][..count * inputs], inputs);
                    gemm(dv, Epilogue::Overwrite, 1.0, gradients(place), u.transposed(), false);
                }
                for (place, tile) in tiles.enumerate() {
                    add_to_pixels(&v[place * inputs..], v_plane, inputs, self.inputs(tile), dx);
                }
            }
        }
        if let Some(dweight) = dweight {
            weight_gradient(&du, inputs * width, dweight);
        }
    }
}

/// A channel of as many tiles, or so many channels of one.
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

/// `f` on the columns of a square, then on the rows of what it gave; squares are in reading order.
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

/// `B^T`, of four pixels in a row.
#[inline(always)]
fn of_pixels([a, b, c, d]: [Lanes; 4]) -> [Lanes; 4] {
    [difference(a, c), sum(b, c), difference(c, b), difference(b, d)]
}

/// `B`: its backward pass.
#[inline(always)]
fn to_pixels([a, b, c, d]: [Lanes; 4]) -> [Lanes; 4] {
    [a, sum(difference(b, c), d), difference(sum(b, c), a), negative(d)]
}

/// `A^T`: two outputs.
#[inline(always)]
fn to_outputs([a, b, c, d]: [Lanes; 4]) -> [Lanes; 2] {
    [sum(sum(a, b), c), difference(difference(b, c), d)]
}

/// `A`: its backward pass.
#[inline(always)]
fn of_outputs([a, b]: [Lanes; 2]) -> [Lanes; 4] {
    [a, sum(a, b), difference(a, b), negative(b)]
}

/// `G`, of three taps in a row.
#[inline(always)]
fn of_taps([a, b, c]: [Lanes; 3]) -> [Lanes; 4] {
    let outer = sum(a, c);
    [a, half(sum(outer, b)), half(difference(outer, b)), c]
}

/// `G^T`: its backward pass.
#[inline(always)]
fn to_taps([a, b, c, d]: [Lanes; 4]) -> [Lanes; 3] {
    let middle = half(sum(b, c));
    [sum(a, middle), half(difference(b, c)), sum(middle, d)]
}

/// Some channels of a pixel, zeros where there is none.
#[inline(always)]
fn lanes(values: &[f32], pixel: Option<usize>, channel: usize) -> Lanes {
    match pixel {
        Some(start) => *values[start + channel..].first_chunk().expect("channels in whole vectors"),
        None => [0.0; LANES],
    }
}

/// The transformed filters, `[16][in][out]`, of a weight with `size` elements a tap.
fn filters(weight: &[f32], size: usize) -> Vec<f32> {
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

    /// The gradient of a weight by that of the transformed filters.
    fn weight_gradient(du: &[f32], size: usize, dweight: &mut [f32]) {
        for start in (0..size).step_by(LANES) {
            let u: [Lanes; PLACES] = from_fn(|place| lanes(du, Some(place * size), start));
            let taps: [Lanes; 9] = both_ways(u, [0.0; LANES], to_taps);
            for (tap, gradient) in taps.iter().enumerate() {
                dweight[tap * size + start..][..LANES].copy_from_slice(gradient);
            }
        }
    }

    /// A tile's pixels, transformed: into `v`, whose places are `plane` apart.
    fn transform_pixels(x: &[f32], pixels: [Option<usize>; PLACES], channels: usize, v: &mut [f32], plane: usize) {
        for channel in (0..channels).step_by(LANES) {
            let tile: [Lanes; PLACES] = from_fn(|pixel| lanes(x, pixels[pixel], channel));
            let changed: [Lanes; PLACES] = both_ways(tile, [0.0; LANES], of_pixels);
            for (place, changed) in changed.iter().enumerate() {
                v[place * plane + channel..][..LANES].copy_from_slice(changed);
            }
        }
    }

    /// The gradients of a tile's outputs, transformed.
    fn transform_gradients(dy: &[f32], pixels: [Option<usize>; 4], channels: usize, dm: &mut [f32], plane: usize) {
        for channel in (0..channels).step_by(LANES) {
            let tile: [Lanes; 4] = from_fn(|pixel| lanes(dy, pixels[pixel], channel));
            let changed: [Lanes; PLACES] = both_ways(tile, [0.0; LANES], of_outputs);
            for (place, changed) in changed.iter().enumerate() {
                dm[place * plane + channel..][..LANES].copy_from_slice(changed);
            }
        }
    }

    /// A tile's outputs of its products.
    fn write_outputs(m: &[f32], plane: usize, channels: usize, pixels: [Option<usize>; 4], y: &mut [f32]) {
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

    /// Adds the gradients of a tile's transformed pixels to those of its pixels.
    fn add_to_pixels(dv: &[f32], plane: usize, channels: usize, pixels: [Option<usize>; PLACES], dx: &mut [f32]) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;

    fn assert_close(found: &FlexTensor, expected: &FlexTensor, case: &str) {
        let (found, expected): (&[f32], &[f32]) = (found.storage(), expected.storage());
        assert_eq!(found.len(), expected.len(), "{case}");
        let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-5 * largest, "{case}: {found} {expected}");
        }
    }

    #[test]
    fn tiles_agree_with_products_of_all_taps() {
        let kernel = Kernel { size: 3, stride: 1, padding: 1 };
        for [images, rows, columns, inputs, outputs] in [
            [2, 8, 8, 32, 48],
            [3, 5, 7, 16, 16],
            [1, 1, 1, 16, 32],
            [5, 2, 1, 16, 16],
            [40, 16, 16, 64, 128],
        ] {
            let maps = Maps {
                kernel,
                images,
                input: [rows, columns],
                output: [rows, columns],
                in_channels: inputs,
                out_channels: outputs,
            };
            let x = numbers(images * rows * columns * inputs, 1);
            let weight = numbers(9 * inputs * outputs, 2);
            let dy = numbers(images * rows * columns * outputs, 3);
            let case = format!("{maps:?}");
            assert_close(&Tiles(&maps).convolve(&x, &weight), &maps.outputs(&x, &weight), &case);
            let expected = maps.gradients(&x, &weight, &dy, [true; 2]);
            for wanted in [[true, true], [true, false], [false, true]] {
                let found = Tiles(&maps).gradients(&x, &weight, &dy, wanted);
                for ((found, expected), wanted) in found.iter().zip(&expected).zip(wanted) {
                    assert_eq!(found.is_some(), wanted);
                    if let (Some(found), Some(expected)) = (found, expected) {
                        assert_close(found, expected, &case);
                    }
                }
            }
        }
    }
}
