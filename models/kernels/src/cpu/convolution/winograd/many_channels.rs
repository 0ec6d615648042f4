//! The same for so many channels that the transformed filters do not fit into the second-level cache: the threads share
//! the places, so that each reads its filters once for many tiles, and sums the gradient of its own filters.
//!
//! ```text
//! for a block of images                        v and m: third-level cache
//!   v = B^T x B                                a task for each piece of whole images; [pieces][places][tiles][in]
//!   m[p] = v[p] * u[p]                         a task for each place
//!   y = A^T m A                                a task for each piece
//! ```

use super::{Factor, Filters, MatrixMut, ResultGradients, SharedResults, Tiles, plane};
use crate::cpu::flex;
use crate::cpu::gemm::{Epilogue, unpacked_product};
use crate::cpu::simd::LANES;
use crate::cpu::threads::{Buffer, Chunks, Shared, parallel, parallel_elements, with_scratch};
use burn::backend::flex::FlexTensor;
use std::ops::Range;

/// The number of values of transformed filters from which on the threads share the places.
const MANY: usize = 192 * 1024;

/// The number of tiles of a piece, whose products at one place fit into the second-level cache next to the filters.
const PIECE: usize = 32;

/// The number of values of transformed tiles of a block.
const BLOCK: usize = 3 * 1024 * 1024;

/// The sizes of the memory of a block.
#[derive(Clone, Copy)]
struct Layout {
    places: usize,
    /// The tiles of an image.
    tiles: usize,
    /// Channels of the inputs and of the outputs.
    channels: [usize; 2],
}

/// The images that the threads compute at a time, with their transformed tiles.
struct Block<'a> {
    images: Range<usize>,
    /// Pieces of whole images.
    pieces: Chunks,
    layout: Layout,
    /// For each piece the transformed pixels, then the transformed outputs.
    memory: Shared<'a>,
}

impl Layout {
    /// The number of elements for `images` images, in pieces that each have at least one image.
    fn length(&self, images: usize) -> usize {
        images * self.places * (self.tiles * self.channels.iter().sum::<usize>() + 2 * LANES)
    }
}

impl<'a> Block<'a> {
    /// Runs `task` in parallel with each piece: its images in the block, and among all images.
    fn for_each_piece(&self, task: impl Fn(Range<usize>, Range<usize>) + Sync) {
        parallel(self.pieces.count(), |index| {
            let piece = self.pieces.range(index);
            let start = self.images.start;
            task(piece.clone(), start + piece.start..start + piece.end);
        });
    }

    /// The number of tiles of a piece.
    fn tiles(&self, piece: &Range<usize>) -> usize {
        piece.len() * self.layout.tiles
    }

    /// The start of a factor of a piece, 0 for the pixels and 1 for the outputs, and the number of its elements.
    fn extent(&self, piece: &Range<usize>, factor: usize) -> (usize, usize) {
        let size =
            |factor: usize| self.layout.places * plane(self.tiles(piece), self.layout.channels[factor]);
        let before = if factor == 0 { 0 } else { size(0) };
        (self.layout.length(piece.start) + before, size(factor))
    }

    /// A factor of a piece, at all places.
    ///
    /// # Safety
    ///
    /// While the result is in use, no other task may use this factor of this piece.
    unsafe fn factor(&self, piece: &Range<usize>, factor: usize) -> &'a mut [f32] {
        let (start, length) = self.extent(piece, factor);
        // SAFETY: as the caller promises.
        unsafe { self.memory.slice(start..start + length) }
    }

    /// Both factors of a piece at one place, each `[tiles, channels]`.
    ///
    /// # Safety
    ///
    /// While the result is in use, no other task may use this place of this piece.
    unsafe fn place(&self, piece: &Range<usize>, place: usize) -> [&'a mut [f32]; 2] {
        [0, 1].map(|factor| {
            let (tiles, channels) = (self.tiles(piece), self.layout.channels[factor]);
            let start = self.extent(piece, factor).0 + place * plane(tiles, channels);
            // SAFETY: as the caller promises.
            unsafe { self.memory.slice(start..start + tiles * channels) }
        })
    }
}

impl Tiles<'_> {
    /// Whether the threads share the places.
    pub(super) fn has_many_channels(&self) -> bool {
        self.form.places() * self.maps.in_channels * self.maps.out_channels >= MANY
    }

    /// Runs `task` for blocks that together have all images.
    fn for_each_block(&self, mut task: impl FnMut(&Block<'_>)) {
        let maps = self.maps;
        let layout = Layout {
            places: self.form.places(),
            tiles: self.count(1),
            channels: [maps.in_channels, maps.out_channels],
        };
        let threads = rayon::current_num_threads();
        let most = (BLOCK / layout.length(1).max(1)).max(threads);
        for images in Chunks::of(maps.images, most).ranges_after(0) {
            let piece = PIECE.div_ceil(layout.tiles.max(1)).min(images.len().div_ceil(threads)).max(1);
            let pieces = Chunks::of(images.len(), piece);
            with_scratch(layout.length(images.len()), |memory| {
                task(&Block { images, pieces, layout, memory: Shared::new(memory) });
            });
        }
    }

    /// Writes the convolution's results.
    pub(super) fn convolve_by_place(&self, x: &[f32], filters: &Filters, results: SharedResults<'_>) {
        let (inputs, width) = (self.maps.in_channels, self.maps.out_channels);
        self.for_each_block(|block| {
            self.transform_block(block, x);
            parallel(self.form.places(), |place| {
                for piece in block.pieces.ranges_after(0) {
                    // SAFETY: this task alone has this place of each piece.
                    let [v, m] = unsafe { block.place(&piece, place) };
                    let v = Factor::new(v, [block.tiles(&piece), inputs], self.bfloat16());
                    filters.multiply(place, MatrixMut::row_major(m, width), v, |m, v, u| {
                        unpacked_product(m, Epilogue::Overwrite, 1.0, v, u);
                    });
                }
            });
            block.for_each_piece(|piece, images| {
                // SAFETY: this task alone has this piece, and the results of its images.
                let (m, mut results) = unsafe { (block.factor(&piece, 1), results.of(&images)) };
                self.write_results(m, 0..block.tiles(&piece), &mut results);
            });
        });
    }

    /// `v` of a block.
    fn transform_block(&self, block: &Block<'_>, x: &[f32]) {
        let image = self.maps.image();
        block.for_each_piece(|piece, images| {
            // SAFETY: this task alone has this piece.
            let v = unsafe { block.factor(&piece, 0) };
            self.transform(&x[images.start * image..images.end * image], 0..block.tiles(&piece), v);
        });
    }

    /// `dm` of a block.
    fn transform_gradients_of_block(&self, block: &Block<'_>, of: ResultGradients<'_>) {
        let result = self.result_of_image();
        block.for_each_piece(|piece, images| {
            // SAFETY: this task alone has this piece.
            let dm = unsafe { block.factor(&piece, 1) };
            self.transform_gradients(of.of(&images, result), 0..block.tiles(&piece), dm);
        });
    }

    /// The gradients of x, for which the transposed filters are needed, and of the weight, if it is wanted.
    pub(super) fn gradients_by_place(
        &self,
        x: &[f32],
        filters: Option<&Filters>,
        of: ResultGradients<'_>,
        weight_wanted: bool,
    ) -> [Option<FlexTensor>; 2] {
        let maps = self.maps;
        let (inputs, width) = (maps.in_channels, maps.out_channels);
        let (size, x_wanted) = (inputs * width, filters.is_some());
        let mut dx = Buffer::new(if x_wanted { maps.images * maps.image() } else { 0 });
        let mut du = Buffer::new(if weight_wanted { self.form.places() * size } else { 0 });
        let (dx_parts, du_parts) = (dx.shared(), du.shared());
        self.for_each_block(|block| {
            if weight_wanted {
                self.transform_block(block, x);
            }
            self.transform_gradients_of_block(block, of);
            parallel(self.form.places(), |place| {
                // SAFETY: this task alone has this place.
                let mut du =
                    weight_wanted.then(|| unsafe { du_parts.slice(place * size..(place + 1) * size) });
                for piece in block.pieces.ranges_after(0) {
                    // SAFETY: this task alone has this place of each piece.
                    let [v, dm] = unsafe { block.place(&piece, place) };
                    let dm = Factor::new(dm, [block.tiles(&piece), width], self.bfloat16());
                    if let Some(du) = &mut du {
                        let is_first = block.images.start + piece.start == 0;
                        let epilogue = if is_first { Epilogue::Overwrite } else { Epilogue::Accumulate };
                        let v = Factor::new(v, [block.tiles(&piece), inputs], self.bfloat16());
                        let du = MatrixMut::row_major(du, width);
                        v.multiply_columns(du, epilogue, dm, unpacked_product);
                    }
                    if let Some(filters) = filters {
                        // The memory of v holds its gradient afterwards.
                        filters.multiply(place, MatrixMut::row_major(v, inputs), dm, |dv, dm, u| {
                            unpacked_product(dv, Epilogue::Overwrite, 1.0, dm, u);
                        });
                    }
                }
            });
            if x_wanted {
                self.add_block_to_dx(block, dx_parts);
            }
        });
        let shape = [maps.images, maps.input[0], maps.input[1], inputs];
        // SAFETY: the gradient is wanted, so the pieces of all blocks wrote their images.
        let dx = x_wanted.then(|| flex::tensor(unsafe { dx.written() }, shape));
        // SAFETY: the gradient is wanted, so each place wrote its sums.
        let dweight = weight_wanted.then(|| self.of_taps(&unsafe { du.written() }));
        [dx, dweight]
    }

    /// Transforms the gradients of the pixels of a block back, to its images.
    fn add_block_to_dx(&self, block: &Block<'_>, dx: Shared<'_>) {
        let (image, inputs) = (self.maps.image(), self.maps.in_channels);
        block.for_each_piece(|piece, images| {
            // SAFETY: this task alone has this piece, and the gradients of its images.
            let (dv, dx) =
                unsafe { (block.factor(&piece, 0), dx.slice(images.start * image..images.end * image)) };
            dx.fill(0.0);
            let tiles = block.tiles(&piece);
            for tile in 0..tiles {
                let pixels = self.inputs(tile);
                (self.form.add_to_pixels)(&dv[tile * inputs..], plane(tiles, inputs), inputs, &pixels, dx);
            }
        });
    }

    /// The gradient of the weight from the gradient of its transformed filters.
    fn of_taps(&self, du: &[f32]) -> FlexTensor {
        let (inputs, width) = (self.maps.in_channels, self.maps.out_channels);
        let mut dweight = Buffer::new(self.maps.taps() * width);
        let parts = dweight.shared();
        parallel_elements(inputs * width, |range| {
            // SAFETY: the ranges of the tasks are disjoint.
            unsafe { (self.form.weight_gradient)(du, inputs * width, range, parts) }
        });
        // SAFETY: the ranges cover all elements of every tap.
        flex::tensor(unsafe { dweight.written() }, [self.maps.taps(), width])
    }
}
