//! Convolution of 3 by 3 in tiles (Lavin & Gray 2016, 'Fast Algorithms for Convolutional Neural Networks', section 4): 36
//! multiplications instead of 144 for each tile of 4 by 4 outputs, and 16 instead of 36 for each of 2 by 2, in maps
//! that fill the larger tiles badly.
//!
//! ```text
//! u = G weight G^T                               once; [places][in][out]
//! for a chunk of whole images                    a task
//!   for some tiles                               v and m: second-level cache
//!     v = B^T x B                                the 6 by 6 or 4 by 4 pixels of each tile; [places][tiles][in]
//!     m[p] = v[p] * u[p]                         a product for each place; [places][tiles][out]
//!     y = A^T m A                                the outputs of each tile
//! ```
//!
//! The backward pass goes back through these steps. Pixels are added and subtracted before they are multiplied: an
//! error is relative to the largest pixel of a tile, and an infinite or NaN pixel reaches all outputs of its tiles.

mod backward;
mod factor;
mod filters;
mod largest;
mod many_channels;
mod results;
mod transform;

use super::{Kernel, Maps};
use crate::cpu::flex;
use crate::cpu::gemm::bfloat16::PackedFactors;
use crate::cpu::gemm::{Bfloat16, Epilogue, Matrix, MatrixMut, gemm, is_for_amx};
use crate::cpu::simd::LANES;
use crate::cpu::threads::{Buffer, Chunks, parallel, parallel_elements, with_scratch};
use factor::{Factor, as_halves};
pub(super) use filters::Filters;
pub(super) use results::ResultGradients;
use results::{Convolved, Results, SharedResults};
use std::ops::Range;
use transform::{Form, MOST_PIXELS, four, two};

/// The kernel of convolutions in tiles.
pub(super) const KERNEL: Kernel = Kernel { size: 3, stride: 1, padding: 1 };

/// The number of values of transformed tiles that fit into the second-level cache next to the filters in use.
const CACHED: usize = 192 * 1024;

/// The same in the backward pass, in which more tiles at a time mean fewer passes over the gradient of the filters.
const CACHED_BACKWARD: usize = 512 * 1024;

impl Maps {
    /// Whether the tiles are faster than products of gathered inputs: the channels fill vectors, at least one and a last one
    /// by half, there is an image for every thread, and AMX does not take the product, which it computes in less time than the
    /// sums here cost.
    pub(super) fn suit_winograd(&self) -> bool {
        self.kernel == KERNEL
            && [self.in_channels, self.out_channels]
                .iter()
                .all(|&channels| channels >= LANES && channels.is_multiple_of(LANES / 2))
            && self.images >= rayon::current_num_threads()
            && !is_for_amx(self.images * self.places(), self.taps(), self.out_channels)
    }
}

/// The distance, in elements, between the places of a buffer of transformed tiles: one place of `tiles` tiles, and a
/// gap, so that the places of a tile do not all fall into one set of the first-level cache.
fn plane(tiles: usize, channels: usize) -> usize {
    tiles * channels + LANES
}

/// One place of products with `count` transformed tiles, to write.
fn place_mut(data: &mut [f32], place: usize, count: usize, channels: usize) -> MatrixMut<'_> {
    let start = place * plane(count, channels);
    MatrixMut::row_major(&mut data[start..][..count * channels], channels)
}

/// The channels of the pixels at `offsets`, and `outside` for those outside the map.
fn slices<'a, T>(map: &'a [T], offsets: Offsets, outside: &'a [T]) -> [&'a [T]; MOST_PIXELS] {
    offsets.map(|offset| offset.map_or(outside, |start| &map[start..start + outside.len()]))
}

/// The maps of a convolution, in tiles.
pub(super) struct Tiles<'a> {
    maps: &'a Maps,
    form: &'static Form,
    /// Whether the result is the largest of each two by two outputs.
    pooled: bool,
}

/// Where a tile is on a map: a square of `size` by `size` pixels that begins `before` pixels above and to the left of `step` times the
/// tile's place in the grid.
struct Window {
    size: usize,
    before: usize,
    step: usize,
    /// Rows and columns.
    map: [usize; 2],
    channels: usize,
}

/// Offsets of pixels of a tile, row by row; `None` for pixels outside the map. The tile may have fewer.
type Offsets = [Option<usize>; MOST_PIXELS];

impl<'a> Tiles<'a> {
    /// In the tiles that need the fewest multiplications, either all outputs or the largest of each two by two.
    pub(super) fn new(maps: &'a Maps, pooled: bool) -> Self {
        let [two, four] = [&two::FORM, &four::FORM].map(|form| Self { maps, form, pooled });
        if four.multiplications() < two.multiplications() { four } else { two }
    }

    /// The rows and columns of the result.
    fn result(&self) -> [usize; 2] {
        if self.pooled { self.maps.output.map(|size| size / 2) } else { self.maps.output }
    }

    /// The values of the result for an image.
    fn result_of_image(&self) -> usize {
        self.result().iter().product::<usize>() * self.maps.out_channels
    }

    /// The multiplications for an image, one channel, and one filter.
    fn multiplications(&self) -> usize {
        self.count(1) * self.form.places()
    }

    /// The rows and columns of tiles in an image.
    fn grid(&self) -> [usize; 2] {
        self.maps.output.map(|size| size.div_ceil(self.form.side))
    }

    /// The tiles of `images` images.
    fn count(&self, images: usize) -> usize {
        let [rows, columns] = self.grid();
        images * rows * columns
    }

    /// The number of tiles to transform at a time, of `cached` values.
    fn at_a_time(&self, cached: usize) -> usize {
        (cached / (self.form.places() * (self.maps.in_channels + self.maps.out_channels))).max(6)
    }

    /// Runs `task` with memory for `tiles` transformed tiles of the inputs, and of the outputs.
    fn with_memory(&self, tiles: usize, task: impl FnOnce(&mut [f32], &mut [f32])) {
        let [inputs, outputs] = [self.maps.in_channels, self.maps.out_channels]
            .map(|channels| self.form.places() * plane(tiles, channels));
        with_scratch(inputs + outputs, |memory| {
            let (v, m) = memory.split_at_mut(inputs);
            task(v, m);
        });
    }

    /// The instructions of products that are rounded, if the channels suffice.
    fn bfloat16(&self) -> Option<Bfloat16> {
        const TILES: usize = 32;
        self.maps.bfloat16?.takes(TILES, self.maps.in_channels, self.maps.out_channels)
    }

    /// The transformed filters of a weight, `[in, out]` at each place, and the transposed ones, if they are rounded and wanted for the
    /// backward pass: they are at hand here.
    fn filters(&self, weight: &[f32], transposed_wanted: bool) -> (Filters, Option<Filters>) {
        let (values, places) = (self.transformed_taps(weight), self.form.places());
        let sizes @ [inputs, width] = [self.maps.in_channels, self.maps.out_channels];
        let Some(bfloat16) = self.bfloat16() else { return (Filters::Plain(values, sizes), None) };
        let matrix = |place: usize| Matrix::new(&values[place * inputs * width..], sizes, [width, 1]);
        let transposed = transposed_wanted.then(|| {
            PackedFactors::new(bfloat16, places, [width, inputs], |place| matrix(place).transposed())
        });
        let filters = PackedFactors::new(bfloat16, places, sizes, matrix);
        (Filters::Rounded(filters), transposed.map(Filters::Rounded))
    }

    /// The transformed filters of a transposed weight, `[out, in]` at each place.
    pub(super) fn transposed_filters(&self, weight: &[f32]) -> Filters {
        let (values, places) = (self.transformed_taps(weight), self.form.places());
        let sizes @ [width, inputs] = [self.maps.out_channels, self.maps.in_channels];
        match self.bfloat16() {
            None => Filters::Plain(values, sizes),
            Some(bfloat16) => Filters::Rounded(PackedFactors::new(bfloat16, places, sizes, |place| {
                Matrix::new(&values[place * width * inputs..], sizes, [inputs, 1])
            })),
        }
    }

    /// The transformed taps of a weight, one place after the other.
    fn transformed_taps(&self, weight: &[f32]) -> Vec<f32> {
        let size = self.maps.in_channels * self.maps.out_channels;
        let mut filters = Buffer::new(self.form.places() * size);
        let shared = filters.shared();
        // SAFETY: the ranges of the tasks are disjoint.
        parallel_elements(size, |range| unsafe { (self.form.transform_taps)(weight, size, range, shared) });
        // SAFETY: the ranges cover all elements of every place.
        unsafe { filters.written() }
    }

    /// The offsets of the pixels of a tile.
    fn offsets(&self, tile: usize, window: &Window) -> Offsets {
        let &Window { size, before, step, map: [rows, columns], channels } = window;
        let [tile_rows, tile_columns] = self.grid();
        let (image, tile) = (tile / (tile_rows * tile_columns), tile % (tile_rows * tile_columns));
        let [top, left] = [tile / tile_columns, tile % tile_columns].map(|place| place * step);
        let inside = |start: usize, index: usize, end: usize| {
            (start + index).checked_sub(before).filter(|&place| place < end)
        };
        let mut offsets = [None; MOST_PIXELS];
        for (down, offsets) in offsets.chunks_exact_mut(size).take(size).enumerate() {
            let Some(row) = inside(top, down, rows) else { continue };
            let start = (image * rows + row) * columns;
            for (across, offset) in offsets.iter_mut().enumerate() {
                *offset = inside(left, across, columns).map(|column| (start + column) * channels);
            }
        }
        offsets
    }

    /// The offsets of the pixels that a tile reads.
    fn inputs(&self, tile: usize) -> Offsets {
        let (size, step) = (self.form.reach(), self.form.side);
        let &Maps { input: map, in_channels: channels, .. } = self.maps;
        self.offsets(tile, &Window { size, before: 1, step, map, channels })
    }

    /// The offsets of the results that a tile writes.
    fn results(&self, tile: usize) -> Offsets {
        let (size, map) = (self.results_of_row(), self.result());
        self.offsets(tile, &Window { size, before: 0, step: size, map, channels: self.maps.out_channels })
    }

    /// The results in a row of a tile.
    fn results_of_row(&self) -> usize {
        if self.pooled { self.form.side / 2 } else { self.form.side }
    }

    /// One place of `count` transformed tiles: `[count, channels]`.
    fn place<'d>(&self, data: &'d [f32], place: usize, count: usize, channels: usize) -> Factor<'d> {
        Factor::new(&data[place * plane(count, channels)..], [count, channels], self.bfloat16())
    }

    /// `v`: the transformed pixels of some tiles.
    fn transform(&self, x: &[f32], tiles: Range<usize>, v: &mut [f32]) {
        let (channels, bfloat16) = (self.maps.in_channels, self.bfloat16());
        let (plane, outside) = (plane(tiles.len(), channels), vec![0.0; channels]);
        for (index, tile) in tiles.enumerate() {
            let pixels = slices(x, self.inputs(tile), &outside);
            let pixels = &pixels[..self.form.places()];
            match bfloat16 {
                None => (self.form.transform_pixels)(pixels, &mut v[index * channels..], plane),
                Some(bfloat16) => {
                    (self.form.round_pixels)(
                        bfloat16,
                        pixels,
                        &mut as_halves(v)[index * channels..],
                        2 * plane,
                    );
                }
            }
        }
    }

    /// `dm`: the transformed gradients of the outputs of some tiles.
    fn transform_gradients(&self, of: ResultGradients<'_>, tiles: Range<usize>, dm: &mut [f32]) {
        let (width, form, bfloat16) = (self.maps.out_channels, self.form, self.bfloat16());
        let (plane, outside, no_taps) = (plane(tiles.len(), width), vec![0.0; width], vec![0; width]);
        let mut outputs = self.memory_of_outputs();
        let count = self.results_of_row() * self.results_of_row();
        for (index, tile) in tiles.enumerate() {
            let (offsets, first) = (self.results(tile), index * width);
            let mut gradients = slices(of.dy, offsets, &outside);
            if self.pooled {
                let winners = slices(of.winners, offsets, &no_taps);
                largest::spread(&gradients[..count], &winners[..count], form.side, &mut outputs);
                gradients = slices(&outputs, self.offsets_of_outputs(), &outside);
            }
            let gradients = &gradients[..form.side * form.side];
            match bfloat16 {
                None => (form.transform_gradients)(gradients, &mut dm[first..], plane),
                Some(bfloat16) => {
                    (form.round_gradients)(bfloat16, gradients, &mut as_halves(dm)[first..], 2 * plane);
                }
            }
        }
    }

    /// Writes the results of some tiles from their products.
    fn write_results(&self, m: &[f32], tiles: Range<usize>, results: &mut Results<'_>) {
        let (width, form) = (self.maps.out_channels, self.form);
        let (plane, mut outputs) = (plane(tiles.len(), width), self.memory_of_outputs());
        for (index, tile) in tiles.enumerate() {
            let (products, offsets) = (&m[index * width..], self.results(tile));
            if self.pooled {
                (form.write_outputs)(products, plane, width, &self.offsets_of_outputs(), &mut outputs);
                largest::pool(&outputs, form.side, width, &offsets, results.y, results.winners);
            } else {
                (form.write_outputs)(products, plane, width, &offsets, results.y);
            }
        }
    }

    /// Memory for all outputs of a tile, of which the result is the largest of each two by two.
    fn memory_of_outputs(&self) -> Vec<f32> {
        vec![0.0; if self.pooled { self.form.side * self.form.side * self.maps.out_channels } else { 0 }]
    }

    /// The offsets of outputs in this memory.
    fn offsets_of_outputs(&self) -> Offsets {
        let count = self.form.side * self.form.side;
        std::array::from_fn(|output| (output < count).then_some(output * self.maps.out_channels))
    }

    /// The convolution's results. The taps of the largest outputs are kept with `winners_wanted`.
    pub(super) fn convolve(
        &self,
        x: &[f32],
        weight: &[f32],
        transposed_wanted: bool,
        winners_wanted: bool,
    ) -> Convolved {
        let (filters, transposed) = self.filters(weight, transposed_wanted);
        let image = self.result_of_image();
        let mut y = Buffer::new(self.maps.images * image);
        let mut winners = Buffer::new(if winners_wanted { self.maps.images * image } else { 0 });
        let results = SharedResults { y: y.shared(), winners: winners.shared(), image };
        match self.has_many_channels() {
            true => self.convolve_by_place(x, &filters, results),
            false => self.convolve_by_image(x, &filters, results),
        }
        let [rows, columns] = self.result();
        // SAFETY: the tiles of an image cover its results, and both functions write those of all images.
        let (y, winners) = unsafe { (y.written(), winners.written()) };
        let y = flex::tensor(y, [self.maps.images, rows, columns, self.maps.out_channels]);
        Convolved { y, winners, transposed }
    }

    fn convolve_by_image(&self, x: &[f32], filters: &Filters, results: SharedResults<'_>) {
        let image = self.maps.image();
        let chunks = Chunks::new(self.maps.images, 1);
        parallel(chunks.count(), |index| {
            let images = chunks.range(index);
            let x = &x[images.start * image..images.end * image];
            // SAFETY: the chunks are disjoint, and with them their images.
            let results = unsafe { results.of(&images) };
            self.convolve_images(x, filters, self.count(images.len()), results);
        });
    }

    /// The results of the images that `x` holds, which have `tile_count` tiles.
    fn convolve_images(&self, x: &[f32], filters: &Filters, tile_count: usize, mut results: Results<'_>) {
        let (inputs, width) = (self.maps.in_channels, self.maps.out_channels);
        let most = self.at_a_time(CACHED).min(tile_count);
        self.with_memory(most, |v, m| {
            for tiles in Chunks::of(tile_count, most).ranges_after(0) {
                let count = tiles.len();
                self.transform(x, tiles.clone(), v);
                for index in 0..self.form.places() {
                    let (v, m) = (self.place(v, index, count, inputs), place_mut(m, index, count, width));
                    filters.multiply(index, m, v, |m, v, u| gemm(m, Epilogue::Overwrite, 1.0, v, u, false));
                }
                self.write_results(m, tiles, &mut results);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::MaxPooling;
    use super::*;
    use crate::cpu::flex::sizes;
    use crate::cpu::operation::Operation;
    use crate::testing::numbers;
    use burn::backend::flex::FlexTensor;

    fn assert_close(found: &FlexTensor, expected: &FlexTensor, bound: f32, case: &str) {
        let (found, expected): (&[f32], &[f32]) = (found.storage(), expected.storage());
        assert_eq!(found.len(), expected.len(), "{case}");
        let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= bound * largest, "{case}: {found} {expected}");
        }
    }

    #[test]
    fn maps_that_larger_tiles_fill_badly_have_small_ones() {
        let side = |side: usize| {
            let (input, output) = ([side; 2], [side; 2]);
            let maps = Maps {
                kernel: KERNEL,
                bfloat16: None,
                images: 1,
                input,
                output,
                in_channels: 16,
                out_channels: 16,
            };
            Tiles::new(&maps, false).form.side
        };
        assert_eq!([2, 5, 6, 7, 8, 12, 32].map(side), [2, 2, 2, 4, 4, 4, 4]);
    }

    /// Pooled tiles have the bits of a pooling after the tiles, forward and backward.
    fn assert_pooled(tiles: &Tiles<'_>, [x, weight]: [&[f32]; 2], transposed: &Filters, case: &str) {
        let Tiles { maps, form, .. } = *tiles;
        if maps.output.contains(&1) {
            return;
        }
        let pooling = MaxPooling { kernel: Kernel { size: 2, stride: 2, padding: 0 } };
        // Equal outputs, too.
        for weight in [weight, &vec![0.0; weight.len()]] {
            let pooled = Tiles { maps, form, pooled: true };
            let found = pooled.convolve(x, weight, false, true);
            let whole = tiles.convolve(x, weight, false, false).y;
            let (expected, winners) = pooling.forward_saving([whole], [true]);
            assert_eq!(found.y.storage::<f32>(), expected.storage::<f32>(), "{case}");
            let dy = numbers(expected.storage::<f32>().len(), 4);
            let of = ResultGradients { dy: &dy, winners: &found.winners };
            let found = pooled.gradients(x, Some(transposed.clone()), of, true);
            let dy = flex::tensor(dy, sizes::<4>(&expected));
            let [dy] = pooling.clone().backward(winners, dy, [true]);
            let of = ResultGradients { dy: dy.as_ref().unwrap().storage(), winners: &[] };
            let expected = tiles.gradients(x, Some(transposed.clone()), of, true);
            for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                assert_eq!(found.storage::<f32>(), expected.storage::<f32>(), "{case}");
            }
        }
    }

    #[test]
    fn tiles_agree_with_products_of_all_taps() {
        for [images, rows, columns, inputs, outputs] in [
            [2, 8, 8, 32, 48],
            [3, 5, 7, 16, 16],
            [1, 1, 1, 16, 32],
            [5, 2, 1, 16, 16],
            [40, 16, 16, 64, 128],
            [9, 8, 8, 96, 64],
            [33, 4, 4, 128, 144],
            [7, 12, 9, 24, 48],
            [4, 8, 8, 40, 24],
        ] {
            let maps = Maps {
                kernel: KERNEL,
                bfloat16: None,
                images,
                input: [rows, columns],
                output: [rows, columns],
                in_channels: inputs,
                out_channels: outputs,
            };
            let x = numbers(images * rows * columns * inputs, 1);
            let weight = numbers(9 * inputs * outputs, 2);
            let dy = numbers(images * rows * columns * outputs, 3);
            let transposed: Vec<f32> = (0..weight.len())
                .map(|index| {
                    let (row, input) = (index / inputs, index % inputs);
                    weight[(row / outputs * inputs + input) * outputs + row % outputs]
                })
                .collect();
            let outputs = maps.outputs(&x, &weight);
            let gradients = maps.gradients(&x, &weight, &dy, [true; 2]);
            // The factors of larger tiles, up to 3.4, cost a little more than a bit; rounding, all but eight.
            let rounded = Maps { bfloat16: Bfloat16::find(), ..maps };
            for (maps, form, bound) in [
                (&maps, &two::FORM, 1e-5),
                (&maps, &four::FORM, 2e-5),
                (&rounded, &two::FORM, 0.01),
                (&rounded, &four::FORM, 0.03),
            ] {
                let (tiles, case) = (Tiles { maps, form, pooled: false }, format!("{maps:?}, {}", form.side));
                let convolved = tiles.convolve(&x, &weight, true, false);
                assert_close(&convolved.y, &outputs, bound, &case);
                let transposed = || tiles.transposed_filters(&transposed);
                let transposed = convolved.transposed.unwrap_or_else(transposed);
                let of = ResultGradients { dy: &dy, winners: &[] };
                assert_pooled(&tiles, [&x, &weight], &transposed, &case);
                for wanted in [[true, true], [true, false], [false, true]] {
                    let transposed = wanted[0].then(|| transposed.clone());
                    let found = tiles.gradients(&x, transposed, of, wanted[1]);
                    for ((found, expected), wanted) in found.iter().zip(&gradients).zip(wanted) {
                        assert_eq!(found.is_some(), wanted);
                        if let (Some(found), Some(expected)) = (found, expected) {
                            assert_close(found, expected, bound, &case);
                        }
                    }
                }
            }
        }
    }
}
