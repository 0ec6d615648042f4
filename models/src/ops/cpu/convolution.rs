//! Convolution on flex, as products with the pixels that each output reads side by side (Chellapilla et al. 2006, section 3), or where it
//! suits in [tiles](winograd).
//!
//! ```text
//! for a chunk of whole images                    a task
//!   for up to PIECE outputs                      their pixels, gathered: second-level cache
//!     forward:  y = pixels * weight
//!     backward: dweight += pixels^T * dy         the pixels are gathered again rather than kept
//!               dx += scattered (dy * weight^T)
//! ```

mod winograd;

use super::flex::{self, Operation, contiguous, sizes};
use super::gemm::amx;
use super::gemm::{Epilogue, Factor, Matrix, MatrixMut, product};
use super::parallel::{Buffer, Chunks, parallel};
use super::simd;
use super::sliding::Kernel;
use super::sums::Sums;
use burn::backend::flex::FlexTensor;
use std::ops::Range;
use winograd::Tiles;

/// Outputs whose pixels are gathered at a time.
const PIECE: usize = 256;

#[derive(Clone, Debug)]
pub(in crate::ops) struct Convolve {
    pub(in crate::ops) kernel: Kernel,
}

#[derive(Clone, Debug)]
pub(in crate::ops) struct Saved {
    x: FlexTensor,
    weight: FlexTensor,
}

impl Operation<2> for Convolve {
    type Saved = Saved;

    fn forward(&self, inputs: [Option<FlexTensor>; 2]) -> FlexTensor {
        self.forward_saving(inputs, [false; 2]).0
    }

    fn forward_saving(&self, inputs: [Option<FlexTensor>; 2], _wanted: [bool; 2]) -> (FlexTensor, Saved) {
        let [Some(x), Some(weight)] = inputs.map(|input| input.map(contiguous)) else {
            unreachable!("both factors are given")
        };
        let maps = Maps::new(self.kernel, &x, &weight);
        let output = match maps.suit_winograd() {
            true => Tiles(&maps).convolve(x.storage(), weight.storage()),
            false => maps.outputs(x.storage(), weight.storage()),
        };
        (output, Saved { x, weight })
    }

    fn backward(self, saved: Saved, gradient: FlexTensor, wanted: [bool; 2]) -> [Option<FlexTensor>; 2] {
        let maps = Maps::new(self.kernel, &saved.x, &saved.weight);
        let (x, weight, gradient) = (saved.x.storage(), saved.weight.storage(), contiguous(gradient));
        match maps.suit_winograd() {
            true => Tiles(&maps).gradients(x, weight, gradient.storage(), wanted),
            false => maps.gradients(x, weight, gradient.storage(), wanted),
        }
    }
}

/// Sizes of a convolution.
#[derive(Clone, Copy, Debug)]
struct Maps {
    kernel: Kernel,
    images: usize,
    input: [usize; 2],
    output: [usize; 2],
    in_channels: usize,
    out_channels: usize,
}

impl Maps {
    fn new(kernel: Kernel, x: &FlexTensor, weight: &FlexTensor) -> Self {
        let ([images, rows, columns, in_channels], [_, out_channels]) = (sizes(x), sizes(weight));
        let (input, output) = ([rows, columns], [rows, columns].map(|size| kernel.places(size)));
        Self { kernel, images, input, output, in_channels, out_channels }
    }

    /// Values that an output reads.
    fn taps(&self) -> usize {
        self.kernel.size * self.kernel.size * self.in_channels
    }

    /// Outputs of an image.
    fn places(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// Values of an image.
    fn image(&self) -> usize {
        self.input[0] * self.input[1] * self.in_channels
    }

    /// The convolution's outputs.
    fn outputs(&self, x: &[f32], weight: &[f32]) -> FlexTensor {
        let (taps, width) = (self.taps(), self.out_channels);
        let rows = self.images * self.places();
        let factor = Factor::new(Matrix::new(weight, [taps, width], [width, 1]), rows);
        let mut data = Buffer::new(rows * width);
        let outputs = data.shared();
        let chunks = Chunks::new(rows, amx::PANEL).in_groups(amx::PANEL);
        parallel(chunks.count(), |index| {
            let chunk = chunks.range(index);
            let mut pixels = vec![0.0; chunk.len().min(PIECE + amx::GROUP) * taps];
            for range in pieces(chunk) {
                let pixels = &mut pixels[..range.len() * taps];
                self.gather(x, range.clone(), pixels);
                // SAFETY: the chunks are disjoint.
                let outputs = unsafe { outputs.slice(range.start * width..range.end * width) };
                let pixels = Matrix::new(pixels, [range.len(), taps], [taps, 1]);
                factor.multiply(MatrixMut::row_major(outputs, width), Epilogue::Overwrite, pixels, false);
            }
        });
        // SAFETY: the pieces of all chunks cover the rows, and the product wrote each output of theirs.
        let outputs = unsafe { data.written() };
        flex::tensor(outputs, [self.images, self.output[0], self.output[1], width])
    }

    /// The gradients of the map and of the weight where they are wanted.
    fn gradients(&self, x: &[f32], weight: &[f32], dy: &[f32], wanted: [bool; 2]) -> [Option<FlexTensor>; 2] {
        let (taps, width, places, image) = (self.taps(), self.out_channels, self.places(), self.image());
        // Chunks of whole images: no two add to the same pixel.
        let chunks = Chunks::few(self.images, SMALLEST_CHUNK.div_ceil(places.max(1)));
        let transposed = Matrix::new(weight, [taps, width], [width, 1]).transposed();
        let factor = wanted[0].then(|| Factor::new(transposed, self.images * places));
        let mut dx = Buffer::new(if wanted[0] { self.images * image } else { 0 });
        let mut dweight = Sums::new(if wanted[1] { taps * width } else { 0 }, chunks.count());
        {
            let (dx, dweight) = (dx.shared(), dweight.shared());
            parallel(chunks.count(), |index| {
                let images = chunks.range(index);
                let outputs = images.start * places..images.end * places;
                let mut pixels = vec![0.0; outputs.len().min(PIECE + amx::GROUP) * taps];
                // SAFETY: each task has sums of its own.
                let dweight = unsafe { dweight.part(index) };
                if let Some(factor) = &factor {
                    // SAFETY: the chunks are disjoint.
                    let dx = unsafe { dx.slice(images.start * image..images.end * image) };
                    dx.fill(0.0);
                    for range in pieces(outputs.clone()) {
                        let pixels = &mut pixels[..range.len() * taps];
                        let dy = Matrix::new(&dy[range.start * width..], [range.len(), width], [width, 1]);
                        factor.multiply(MatrixMut::row_major(pixels, taps), Epilogue::Overwrite, dy, false);
                        self.scatter(pixels, range.start - outputs.start..range.end - outputs.start, dx);
                    }
                }
                if wanted[1] {
                    self.add_to_weight(x, dy, outputs, &mut pixels, dweight);
                }
            });
        }
        let shape = [self.images, self.input[0], self.input[1], self.in_channels];
        // SAFETY: each chunk's task wrote its images.
        let dx = wanted[0].then(|| flex::tensor(unsafe { dx.written() }, shape));
        // SAFETY: each chunk's task wrote its sums.
        let dweight = wanted[1].then(|| flex::tensor(unsafe { dweight.total() }, [taps, width]));
        [dx, dweight]
    }

    /// The part of some outputs in the gradient of the weight, which it overwrites.
    fn add_to_weight(
        &self,
        x: &[f32],
        dy: &[f32],
        outputs: Range<usize>,
        pixels: &mut [f32],
        dweight: &mut [f32],
    ) {
        let (taps, width) = (self.taps(), self.out_channels);
        let mut epilogue = Epilogue::Overwrite;
        for range in pieces(outputs) {
            let pixels = &mut pixels[..range.len() * taps];
            self.gather(x, range.clone(), pixels);
            let pixels = Matrix::new(pixels, [range.len(), taps], [taps, 1]).transposed();
            let dy = Matrix::new(&dy[range.start * width..], [range.len(), width], [width, 1]);
            product(MatrixMut::row_major(dweight, width), epilogue, 1.0, pixels, dy);
            epilogue = Epilogue::Accumulate;
        }
        if epilogue == Epilogue::Overwrite {
            dweight.fill(0.0);
        }
    }

    /// Copies what some outputs read into rows of `pixels`; zeros where that lies outside.
    fn gather(&self, x: &[f32], outputs: Range<usize>, pixels: &mut [f32]) {
        match self.kernel.size * self.in_channels {
            // Of images: without a call for each copy.
            9 => self.gather_by(x, outputs, pixels, copy::<9>),
            _ => self.gather_by(x, outputs, pixels, <[f32]>::copy_from_slice),
        }
    }

    #[inline(always)]
    fn gather_by(
        &self,
        x: &[f32],
        outputs: Range<usize>,
        pixels: &mut [f32],
        copy: impl Fn(&mut [f32], &[f32]),
    ) {
        let (taps, segment) = (self.taps(), self.kernel.size * self.in_channels);
        for (pixels, place) in pixels.chunks_exact_mut(taps.max(1)).zip(self.places_of(outputs)) {
            for (to, line) in pixels.chunks_exact_mut(segment.max(1)).zip(self.lines(place)) {
                match line {
                    None => to.fill(0.0),
                    Some(line) if line.values.len() == segment => copy(to, &x[line.values]),
                    Some(line) => {
                        to.fill(0.0);
                        to[line.missing..][..line.values.len()].copy_from_slice(&x[line.values]);
                    }
                }
            }
        }
    }

    /// Adds rows of gradients to what their outputs read.
    fn scatter(&self, pixels: &[f32], outputs: Range<usize>, dx: &mut [f32]) {
        let (taps, segment) = (self.taps(), self.kernel.size * self.in_channels);
        for (pixels, place) in pixels.chunks_exact(taps.max(1)).zip(self.places_of(outputs)) {
            for (from, line) in pixels.chunks_exact(segment.max(1)).zip(self.lines(place)) {
                if let Some(line) = line {
                    let from = &from[line.missing..][..line.values.len()];
                    simd::add(&mut dx[line.values], from);
                }
            }
        }
    }

    /// The image, row and column of some outputs.
    fn places_of(&self, outputs: Range<usize>) -> impl Iterator<Item = [usize; 3]> {
        let [rows, columns] = self.output.map(|size| size.max(1));
        let first = outputs.start / columns;
        let mut next = [first / rows, first % rows, outputs.start % columns];
        outputs.map(move |_| {
            let [image, row, column] = next;
            next = match (column + 1 < columns, row + 1 < rows) {
                (true, _) => [image, row, column + 1],
                (false, true) => [image, row + 1, 0],
                (false, false) => [image + 1, 0, 0],
            };
            [image, row, column]
        })
    }

    /// For each row of the kernel, the values of the map that it covers for an output; nothing where it lies outside.
    fn lines(&self, [image, row, column]: [usize; 3]) -> impl Iterator<Item = Option<Line>> {
        let Kernel { size: kernel_size, stride, padding } = self.kernel;
        let ([rows, columns], channels) = (self.input, self.in_channels);
        let (top, left) = (row * stride, column * stride);
        // Columns of the padded map, of which the first and last `padding` are not there.
        let start = left.clamp(padding, padding + columns);
        let end = (left + kernel_size).clamp(padding, padding + columns);
        (top..top + kernel_size).map(move |row| {
            let row = row.checked_sub(padding).filter(|&row| row < rows)?;
            let first = (image * rows + row) * columns;
            Some(Line {
                missing: start.saturating_sub(left).min(kernel_size) * channels,
                values: (first + start - padding) * channels..(first + end - padding) * channels,
            })
        })
    }
}

/// Copies `N` values, or however many there are.
#[inline(always)]
fn copy<const N: usize>(to: &mut [f32], from: &[f32]) {
    match (<&mut [f32; N]>::try_from(&mut *to), <&[f32; N]>::try_from(from)) {
        (Ok(to), Ok(from)) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}

/// What a row of the kernel covers.
struct Line {
    /// Values before the map begins.
    missing: usize,
    /// In the map.
    values: Range<usize>,
}

/// Fewer outputs are not worth a sum of their own.
const SMALLEST_CHUNK: usize = 256;

fn pieces(chunk: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    Chunks::of(chunk.len(), PIECE).in_groups(amx::GROUP).ranges_after(chunk.start)
}
