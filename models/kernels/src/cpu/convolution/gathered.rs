//! Convolution as products with the inputs of each place, gathered into a row (Chellapilla et al. 2006, section 3;
//! im2col).
//!
//! ```text
//! for a chunk of whole images                 a task
//!   for up to PIECE places                    their inputs, one row per place: second-level cache
//!     forward:  y = inputs * weight
//!     backward: dweight += inputs^T * dy      the inputs are gathered again rather than kept
//!               dx += scattered (dy * weight^T)
//! ```

use super::{Kernel, Maps};
use crate::cpu::flex;
use crate::cpu::gemm::{Epilogue, Matrix, MatrixMut, RightFactor, amx, product_rounding};
use crate::cpu::simd;
use crate::cpu::threads::sums::Sums;
use crate::cpu::threads::{Buffer, Chunks, parallel};
use burn::backend::flex::FlexTensor;
use std::ops::Range;

/// The places whose inputs are gathered at a time.
const PIECE: usize = 256;

/// The fewest places of a chunk with its own sums: for fewer, adding up the sums costs too much.
pub(super) const SMALLEST_CHUNK: usize = 256;

impl Maps {
    /// The convolution's outputs.
    pub(super) fn outputs(&self, x: &[f32], weight: &[f32]) -> FlexTensor {
        let (taps, width) = (self.taps(), self.out_channels);
        let rows = self.images * self.places();
        let weight = RightFactor::new(Matrix::new(weight, [taps, width], [width, 1]), rows, self.bfloat16);
        let mut data = Buffer::new(rows * width);
        let outputs = data.shared();
        let chunks = Chunks::new(rows, amx::PANEL).in_groups(amx::PANEL);
        parallel(chunks.count(), |index| {
            let chunk = chunks.range(index);
            let mut inputs = self.memory_for_inputs(chunk.len());
            for range in pieces(chunk) {
                let inputs = &mut inputs[..range.len() * taps];
                self.gather(x, range.clone(), inputs);
                // SAFETY: the chunks are disjoint, and with them the outputs of their places.
                let outputs = unsafe { outputs.slice(range.start * width..range.end * width) };
                let inputs = Matrix::new(inputs, [range.len(), taps], [taps, 1]);
                weight.multiply(MatrixMut::row_major(outputs, width), Epilogue::Overwrite, inputs, false);
            }
        });
        // SAFETY: the pieces of all chunks cover all places, and the product of each piece wrote the outputs of its
        // places.
        let outputs = unsafe { data.written() };
        flex::tensor(outputs, [self.images, self.output[0], self.output[1], width])
    }

    /// The gradients of x and of the weight, where they are wanted.
    pub(super) fn gradients(
        &self,
        x: &[f32],
        weight: &[f32],
        dy: &[f32],
        [x_wanted, weight_wanted]: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let (taps, width, places, image) = (self.taps(), self.out_channels, self.places(), self.image());
        // Chunks of whole images, so that no two tasks add to the same pixel.
        let chunks = Chunks::few(self.images, SMALLEST_CHUNK.div_ceil(places.max(1)));
        let transposed = Matrix::new(weight, [taps, width], [width, 1]).transposed();
        let transposed = x_wanted.then(|| RightFactor::new(transposed, self.images * places, self.bfloat16));
        let mut dx = Buffer::new(if x_wanted { self.images * image } else { 0 });
        let mut dweight = Sums::new(if weight_wanted { taps * width } else { 0 }, chunks.count());
        {
            let (dx, dweight) = (dx.shared(), dweight.shared());
            parallel(chunks.count(), |index| {
                let images = chunks.range(index);
                let outputs = images.start * places..images.end * places;
                let mut inputs = self.memory_for_inputs(outputs.len());
                if let Some(weight) = &transposed {
                    // SAFETY: the chunks are disjoint, and with them their images.
                    let dx = unsafe { dx.slice(images.start * image..images.end * image) };
                    self.write_dx(weight, dy, outputs.clone(), &mut inputs, dx);
                }
                if weight_wanted {
                    // SAFETY: each chunk has its own sums.
                    let dweight = unsafe { dweight.part(index) };
                    self.write_dweight(x, dy, outputs, &mut inputs, dweight);
                }
            });
        }
        let shape = [self.images, self.input[0], self.input[1], self.in_channels];
        // SAFETY: the gradient is wanted, so each chunk's task wrote its images.
        let dx = x_wanted.then(|| flex::tensor(unsafe { dx.written() }, shape));
        // SAFETY: the gradient is wanted, so each chunk's task wrote its sums.
        let dweight = weight_wanted.then(|| flex::tensor(unsafe { dweight.total() }, [taps, width]));
        [dx, dweight]
    }

    /// Memory for the inputs of a piece of `places` places.
    fn memory_for_inputs(&self, places: usize) -> Vec<f32> {
        vec![0.0; places.min(PIECE + amx::GROUP) * self.taps()]
    }

    /// The gradient of the images whose places are `outputs`: `dy weight^T`, scattered. `inputs` is scratch memory.
    fn write_dx(
        &self,
        weight: &RightFactor<'_>,
        dy: &[f32],
        outputs: Range<usize>,
        inputs: &mut [f32],
        dx: &mut [f32],
    ) {
        let (taps, width) = (self.taps(), self.out_channels);
        dx.fill(0.0);
        for range in pieces(outputs.clone()) {
            let inputs = &mut inputs[..range.len() * taps];
            let dy = Matrix::new(&dy[range.start * width..], [range.len(), width], [width, 1]);
            weight.multiply(MatrixMut::row_major(inputs, taps), Epilogue::Overwrite, dy, false);
            self.scatter(inputs, range.start - outputs.start..range.end - outputs.start, dx);
        }
    }

    /// The part that the places `outputs` have in the gradient of the weight: `inputs^T dy`. `inputs` is scratch
    /// memory.
    fn write_dweight(
        &self,
        x: &[f32],
        dy: &[f32],
        outputs: Range<usize>,
        inputs: &mut [f32],
        dweight: &mut [f32],
    ) {
        let (taps, width) = (self.taps(), self.out_channels);
        let mut epilogue = Epilogue::Overwrite;
        for range in pieces(outputs) {
            let inputs = &mut inputs[..range.len() * taps];
            self.gather(x, range.clone(), inputs);
            let inputs = Matrix::new(inputs, [range.len(), taps], [taps, 1]).transposed();
            let dy = Matrix::new(&dy[range.start * width..], [range.len(), width], [width, 1]);
            let dweight = MatrixMut::row_major(dweight, width);
            product_rounding(self.bfloat16, dweight, epilogue, 1.0, inputs, dy);
            epilogue = Epilogue::Accumulate;
        }
        if epilogue == Epilogue::Overwrite {
            dweight.fill(0.0);
        }
    }

    /// Copies the inputs of some places into the rows of `inputs`; 0 for inputs outside the map.
    fn gather(&self, x: &[f32], outputs: Range<usize>, inputs: &mut [f32]) {
        match self.kernel.size * self.in_channels {
            // 3 by 3 on color images: copies of a constant length need no call.
            9 => self.gather_by(x, outputs, inputs, copy::<9>),
            _ => self.gather_by(x, outputs, inputs, <[f32]>::copy_from_slice),
        }
    }

    #[inline(always)]
    fn gather_by(
        &self,
        x: &[f32],
        outputs: Range<usize>,
        inputs: &mut [f32],
        copy: impl Fn(&mut [f32], &[f32]),
    ) {
        let (taps, segment) = (self.taps(), self.kernel.size * self.in_channels);
        for (inputs, place) in inputs.chunks_exact_mut(taps.max(1)).zip(self.places_of(outputs)) {
            for (to, row) in inputs.chunks_exact_mut(segment.max(1)).zip(self.covered_rows(place)) {
                match row {
                    None => to.fill(0.0),
                    Some(row) if row.values.len() == segment => copy(to, &x[row.values]),
                    Some(row) => {
                        to.fill(0.0);
                        to[row.missing..][..row.values.len()].copy_from_slice(&x[row.values]);
                    }
                }
            }
        }
    }

    /// Adds the gradients of the inputs of some places, one row per place, to the gradients of the pixels that these
    /// inputs are.
    fn scatter(&self, inputs: &[f32], outputs: Range<usize>, dx: &mut [f32]) {
        let (taps, segment) = (self.taps(), self.kernel.size * self.in_channels);
        for (inputs, place) in inputs.chunks_exact(taps.max(1)).zip(self.places_of(outputs)) {
            for (from, row) in inputs.chunks_exact(segment.max(1)).zip(self.covered_rows(place)) {
                if let Some(row) = row {
                    let from = &from[row.missing..][..row.values.len()];
                    simd::add(&mut dx[row.values], from);
                }
            }
        }
    }

    /// The image, row and column of each of some places.
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

    /// The values that each row of the kernel covers at a place; `None` for a row outside the map.
    fn covered_rows(&self, [image, row, column]: [usize; 3]) -> impl Iterator<Item = Option<CoveredRow>> {
        let Kernel { size: kernel_size, stride, padding } = self.kernel;
        let ([rows, columns], channels) = (self.input, self.in_channels);
        let (top, left) = (row * stride, column * stride);
        // Columns of the padded map, whose first and last `padding` columns are not in memory.
        let start = left.clamp(padding, padding + columns);
        let end = (left + kernel_size).clamp(padding, padding + columns);
        (top..top + kernel_size).map(move |row| {
            let row = row.checked_sub(padding).filter(|&row| row < rows)?;
            let first = (image * rows + row) * columns;
            Some(CoveredRow {
                missing: start.saturating_sub(left).min(kernel_size) * channels,
                values: (first + start - padding) * channels..(first + end - padding) * channels,
            })
        })
    }
}

/// Copies `N` values; slices of another length are copied, too, but by a call.
#[inline(always)]
fn copy<const N: usize>(to: &mut [f32], from: &[f32]) {
    match (<&mut [f32; N]>::try_from(&mut *to), <&[f32; N]>::try_from(from)) {
        (Ok(to), Ok(from)) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}

/// The values of the map that a row of the kernel covers.
struct CoveredRow {
    /// The number of values before them that lie outside the map.
    missing: usize,
    /// Where they lie among the values of the map.
    values: Range<usize>,
}

/// The places of a chunk that are worked on at a time.
fn pieces(chunk: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    Chunks::of(chunk.len(), PIECE).in_groups(amx::GROUP).ranges_after(chunk.start)
}
