//! Fused max pooling.
//!
//! ```text
//! forward:
//! for a chunk of output rows                    a task
//!   for each output, LANES channels at a time   the largest value and its tap: registers
//!     for each tap inside the image             reads the pixel under the tap
//! backward:
//! for a chunk of input rows                     a task
//!   for each pixel, LANES channels at a time    the gradient: a register
//!     for each output that saw the pixel        adds the gradient of the output if the pixel was its largest value
//! ```
//!
//! The backward pass goes over the pixels, not the outputs, so that no two tasks write to the same pixel.

use super::sliding::{Kernel, Map};
use crate::cpu::flex::{self, contiguous, sizes};
use crate::cpu::operation::Operation;
use crate::cpu::simd::{LANES, vectorized};
use crate::cpu::threads::{Buffer, Shared, parallel_rows};
use burn::backend::flex::FlexTensor;

#[derive(Clone, Debug)]
pub(crate) struct MaxPooling {
    /// A kernel of at most 256 taps, so that the index of a tap is a byte.
    pub(crate) kernel: Kernel,
}

#[derive(Clone, Debug)]
pub(crate) struct SavedWinners {
    /// The shape of the input.
    shape: [usize; 4],
    /// For each output, the tap that held the largest value.
    winners: Vec<u8>,
}

impl Operation<1> for MaxPooling {
    type Inputs = [(); 1];
    type Saved = SavedWinners;

    fn forward(&self, [x]: [FlexTensor; 1]) -> FlexTensor {
        self.pool(&contiguous(x), &mut [])
    }

    fn forward_saving(&self, [x]: [FlexTensor; 1], _wanted: [bool; 1]) -> (FlexTensor, SavedWinners) {
        let x = contiguous(x);
        let shape = sizes(&x);
        let mut winners = vec![0; self.output_shape(shape).iter().product()];
        let output = self.pool(&x, &mut winners);
        (output, SavedWinners { shape, winners })
    }

    fn backward(
        self,
        saved: SavedWinners,
        gradient: FlexTensor,
        _wanted: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let gradient = contiguous(gradient);
        let [batch, rows, columns, channels] = saved.shape;
        let outputs = self.output_shape(saved.shape);
        let width = columns * channels;
        let mut dx = Buffer::new(batch * rows * width);
        {
            let (dx, dy) = (dx.shared(), gradient.storage::<f32>());
            parallel_rows(batch * rows, width, |index| {
                let (image, row) = (index / rows, index % rows);
                let (dy, winners) = (Map::new(dy, image, outputs), Map::new(&saved.winners, image, outputs));
                // SAFETY: the rows of the tasks are disjoint.
                let dx = unsafe { dx.slice(index * width..(index + 1) * width) };
                gather_row(self.kernel, dy, winners, row, dx);
            });
        }
        // SAFETY: each row was written by its task.
        [Some(flex::tensor(unsafe { dx.written() }, saved.shape))]
    }
}

impl MaxPooling {
    fn output_shape(&self, [batch, rows, columns, channels]: [usize; 4]) -> [usize; 4] {
        [batch, self.kernel.places(rows), self.kernel.places(columns), channels]
    }

    /// The outputs. Writes the tap of each largest value to `winners`, unless that is empty.
    fn pool(&self, x: &FlexTensor, winners: &mut [u8]) -> FlexTensor {
        let shape = sizes(x);
        let [batch, rows, columns, channels] = self.output_shape(shape);
        let width = columns * channels;
        let mut output = Buffer::new(batch * rows * width);
        {
            let (x, outputs, winners) = (x.storage::<f32>(), output.shared(), Shared::new(winners));
            parallel_rows(batch * rows, width, |index| {
                let elements = index * width..(index + 1) * width;
                let kept = if winners.len() == 0 { 0..0 } else { elements.clone() };
                // SAFETY: the rows of the tasks are disjoint.
                let (output, winners) = unsafe { (outputs.slice(elements), winners.slice(kept)) };
                pool_row(self.kernel, Map::new(x, index / rows, shape), index % rows, output, winners);
            });
        }
        // SAFETY: each row was written by its task.
        flex::tensor(unsafe { output.written() }, [batch, rows, columns, channels])
    }
}

vectorized! {
    /// Writes a row of outputs, and the taps of the largest values to `winners`, unless that is empty.
    fn pool_row(kernel: Kernel, x: Map<'_>, row: usize, output: &mut [f32], winners: &mut [u8]) {
        for (column, output) in output.chunks_exact_mut(x.channels).enumerate() {
            let place = [row, column];
            let winners = winners.get_mut(column * x.channels..(column + 1) * x.channels).unwrap_or_default();
            let whole = x.channels / LANES * LANES;
            for channel in (0..whole).step_by(LANES) {
                pool_lanes::<LANES>(kernel, x, place, channel, (&mut *output, &mut *winners));
            }
            for channel in whole..x.channels {
                pool_lanes::<1>(kernel, x, place, channel, (&mut *output, &mut *winners));
            }
        }
    }

    /// Writes the gradient of a row of the input.
    fn gather_row(kernel: Kernel, dy: Map<'_>, winners: Map<'_, u8>, row: usize, dx: &mut [f32]) {
        for (column, dx) in dx.chunks_exact_mut(dy.channels).enumerate() {
            let (groups, rest) = dx.as_chunks_mut::<LANES>();
            let whole = groups.len() * LANES;
            for (group, dx) in groups.iter_mut().enumerate() {
                *dx = gather_lanes(kernel, dy, winners, [row, column], group * LANES);
            }
            for (lane, dx) in rest.iter_mut().enumerate() {
                [*dx] = gather_lanes(kernel, dy, winners, [row, column], whole + lane);
            }
        }
    }
}

/// Writes `N` channels of an output, and the taps of their largest values: the first tap of equal values, but the last
/// tap that holds NaN.
#[inline(always)]
fn pool_lanes<const N: usize>(
    kernel: Kernel,
    x: Map<'_>,
    [row, column]: [usize; 2],
    channel: usize,
    (output, winners): (&mut [f32], &mut [u8]),
) {
    let [rows, columns] = x.size;
    let (tap_rows, tap_columns) = (kernel.inside(row, rows), kernel.inside(column, columns));
    // The first tap, which remains if all values are minus infinity.
    let mut taps = [(tap_rows.start * kernel.size + tap_columns.start) as u32; N];
    let mut best = [f32::NEG_INFINITY; N];
    for down in tap_rows {
        let first_pixel = kernel.pixel(row, down) * columns;
        for across in tap_columns.clone() {
            let values = x.lanes::<N>(first_pixel + kernel.pixel(column, across), channel);
            keep_larger((&mut best, &mut taps), *values, (down * kernel.size + across) as u32);
        }
    }
    output[channel..channel + N].copy_from_slice(&best);
    if !winners.is_empty() {
        let winners = &mut winners[channel..channel + N];
        for lane in 0..N {
            winners[lane] = taps[lane] as u8;
        }
    }
}

/// Keeps, of `N` channels, the values of a tap that are larger than the best ones so far, or NaN.
#[inline(always)]
pub(super) fn keep_larger<const N: usize>(
    (best, taps): (&mut [f32; N], &mut [u32; N]),
    values: [f32; N],
    tap: u32,
) {
    for lane in 0..N {
        // Masks of all bits or none: the compiler does not vectorize a choice by a condition.
        let wins = u32::from(values[lane] > best[lane]) | u32::from(values[lane].is_nan());
        let mask = wins.wrapping_neg();
        best[lane] = f32::from_bits(values[lane].to_bits() & mask | best[lane].to_bits() & !mask);
        taps[lane] = tap & mask | taps[lane] & !mask;
    }
}

/// The gradients of `N` channels where the tap was the largest value, else 0.
#[inline(always)]
pub(super) fn of_tap<const N: usize>(gradients: &[f32; N], winners: &[u8; N], tap: u8) -> [f32; N] {
    let mut kept = [0.0; N];
    for lane in 0..N {
        let mask = u32::from(winners[lane] == tap).wrapping_neg();
        kept[lane] = f32::from_bits(gradients[lane].to_bits() & mask);
    }
    kept
}

/// The gradient of `N` channels of a pixel, from `channel` on.
#[inline(always)]
fn gather_lanes<const N: usize>(
    kernel: Kernel,
    dy: Map<'_>,
    winners: Map<'_, u8>,
    [row, column]: [usize; 2],
    channel: usize,
) -> [f32; N] {
    let [rows, columns] = dy.size;
    let mut sums = [0.0; N];
    for down in kernel.covering(row, rows) {
        for across in kernel.covering(column, columns) {
            let place = down * columns + across;
            let tap = (kernel.tap(down, row) * kernel.size + kernel.tap(across, column)) as u8;
            let gradients = of_tap::<N>(dy.lanes(place, channel), winners.lanes(place, channel), tap);
            for lane in 0..N {
                sums[lane] += gradients[lane];
            }
        }
    }
    sums
}
