//! Fused depth-wise convolution.
//!
//! ```text
//! forward, and backward for x (with the taps in reverse order):
//! for a chunk of rows                             a task
//!   for each output, LANES channels at a time     the sum: a register
//!     for each tap inside the map                 reads the pixel under the tap, and the weights of the tap
//! backward for weight and bias:
//! for a chunk of rows                             a task, with its own sums
//!   for LANES channels at a time, for each tap    the sum: a register
//!     for each output of the row                  reads the gradient of the output, and the pixel under the tap
//! ```

use super::sliding::{Kernel, Map};
use crate::cpu::flex::{self, contiguous, sizes};
use crate::cpu::operation::{Inputs, Operation, WithBias};
use crate::cpu::simd::{self, LANES, mul_add, vectorized};
use crate::cpu::threads::{Buffer, Chunks, Shared, parallel, parallel_rows};
use burn::backend::flex::FlexTensor;

#[derive(Clone, Debug)]
pub(crate) struct DepthwiseConvolution {
    /// A kernel of stride 1, with the padding that keeps the size of the map.
    pub(crate) kernel: Kernel,
}

#[derive(Clone, Debug)]
pub(crate) struct SavedDepthwise {
    /// Read for the gradients of weight and bias; absent if neither is wanted.
    x: Option<FlexTensor>,
    weight: FlexTensor,
}

impl Operation<3> for DepthwiseConvolution {
    type Inputs = WithBias;
    type Saved = SavedDepthwise;

    fn forward(&self, inputs: WithBias<FlexTensor>) -> FlexTensor {
        self.forward_saving(inputs, [false; 3]).0
    }

    fn forward_saving(
        &self,
        inputs: WithBias<FlexTensor>,
        wanted: [bool; 3],
    ) -> (FlexTensor, SavedDepthwise) {
        let WithBias { x, weight, bias } = WithBias::map(inputs, contiguous);
        let bias = bias.as_ref().map_or(&[][..], |bias| bias.storage::<f32>());
        let output = self.convolve(&x, weight.storage(), bias);
        (output, SavedDepthwise { x: (wanted[1] || wanted[2]).then_some(x), weight })
    }

    fn backward(
        self,
        saved: SavedDepthwise,
        gradient: FlexTensor,
        wanted: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let gradient = contiguous(gradient);
        let [taps, channels] = sizes(&saved.weight);
        let dx = wanted[0].then(|| {
            let taps = saved.weight.storage::<f32>().chunks_exact(channels.max(1));
            let reversed: Vec<f32> = taps.rev().flatten().copied().collect();
            self.convolve(&gradient, &reversed, &[])
        });
        let Some(x) = saved.x else { return [dx, None, None] };
        let mut sums = self.sums(&x, &gradient);
        let dbias = wanted[2].then(|| flex::tensor(sums[taps * channels..].to_vec(), [channels]));
        sums.truncate(taps * channels);
        [dx, wanted[1].then(|| flex::tensor(sums, [taps, channels])), dbias]
    }
}

impl DepthwiseConvolution {
    /// The convolution with `weight`, added to `bias` unless that is empty.
    fn convolve(&self, x: &FlexTensor, weight: &[f32], bias: &[f32]) -> FlexTensor {
        let shape = sizes(x);
        let [batch, rows, columns, channels] = shape;
        let width = columns * channels;
        let mut output = Buffer::new(batch * rows * width);
        {
            let (x, outputs) = (x.storage::<f32>(), output.shared());
            parallel_rows(batch * rows, width, |index| {
                // SAFETY: the rows of the tasks are disjoint.
                let output = unsafe { outputs.slice(index * width..(index + 1) * width) };
                let x = Map::new(x, index / rows, shape);
                convolve_row(self.kernel, x, index % rows, [weight, bias], output);
            });
        }
        // SAFETY: each row was written by its task.
        flex::tensor(unsafe { output.written() }, shape)
    }

    /// The gradient of the weight, followed by that of the bias: sums over chunks of rows, added in order.
    fn sums(&self, x: &FlexTensor, gradient: &FlexTensor) -> Vec<f32> {
        /// The fewest rows of a chunk with its own sums: for fewer, adding up the sums costs too much.
        const SMALLEST_CHUNK: usize = 16;
        let shape = sizes(x);
        let [batch, rows, columns, channels] = shape;
        let width = columns * channels;
        let size = (self.kernel.size * self.kernel.size + 1) * channels;
        let chunks = Chunks::few(if width == 0 { 0 } else { batch * rows }, SMALLEST_CHUNK);
        let mut partial = vec![0.0; chunks.count() * size];
        {
            let (x, dy, partial) = (x.storage::<f32>(), gradient.storage::<f32>(), Shared::new(&mut partial));
            parallel(chunks.count(), |chunk| {
                // SAFETY: each chunk has its own sums.
                let sums = unsafe { partial.slice(chunk * size..(chunk + 1) * size) };
                for index in chunks.range(chunk) {
                    let dy = &dy[index * width..(index + 1) * width];
                    add_row(self.kernel, Map::new(x, index / rows, shape), index % rows, dy, sums);
                }
            });
        }
        simd::sum_of_rows(&partial, size)
    }
}

vectorized! {
    /// Writes a row of outputs.
    fn convolve_row(kernel: Kernel, x: Map<'_>, row: usize, parameters: [&[f32]; 2], output: &mut [f32]) {
        for (column, output) in output.chunks_exact_mut(x.channels).enumerate() {
            let (groups, rest) = output.as_chunks_mut::<LANES>();
            let whole = groups.len() * LANES;
            for (group, output) in groups.iter_mut().enumerate() {
                *output = convolve_lanes::<FMA, LANES>(kernel, x, [row, column], parameters, group * LANES);
            }
            for (lane, output) in rest.iter_mut().enumerate() {
                [*output] = convolve_lanes::<FMA, 1>(kernel, x, [row, column], parameters, whole + lane);
            }
        }
    }

    /// Adds the part that a row of outputs with the gradient `dy` has in the gradients of the weight and, after it, of
    /// the bias.
    fn add_row(kernel: Kernel, x: Map<'_>, row: usize, dy: &[f32], sums: &mut [f32]) {
        let (weight, bias) = sums.split_at_mut(kernel.size * kernel.size * x.channels);
        let whole = x.channels / LANES * LANES;
        for channel in (0..whole).step_by(LANES) {
            add_lanes::<FMA, LANES>(kernel, x, [row, channel], dy, weight);
        }
        for channel in whole..x.channels {
            add_lanes::<FMA, 1>(kernel, x, [row, channel], dy, weight);
        }
        for dy in dy.chunks_exact(x.channels) {
            bias.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
        }
    }
}

/// `N` channels of an output, from `channel` on.
#[inline(always)]
fn convolve_lanes<const FMA: bool, const N: usize>(
    kernel: Kernel,
    x: Map<'_>,
    [row, column]: [usize; 2],
    [weight, bias]: [&[f32]; 2],
    channel: usize,
) -> [f32; N] {
    let [rows, columns] = x.size;
    let mut sums = [0.0; N];
    if !bias.is_empty() {
        sums.copy_from_slice(&bias[channel..channel + N]);
    }
    for down in kernel.inside(row, rows) {
        let first_pixel = kernel.pixel(row, down) * columns;
        for across in kernel.inside(column, columns) {
            let values = x.lanes::<N>(first_pixel + kernel.pixel(column, across), channel);
            let weight = &weight[(down * kernel.size + across) * x.channels + channel..][..N];
            for lane in 0..N {
                sums[lane] = mul_add::<FMA>(values[lane], weight[lane], sums[lane]);
            }
        }
    }
    sums
}

/// Adds the part that a row of outputs has in the gradients of the weights of `N` channels, from `channel` on.
#[inline(always)]
fn add_lanes<const FMA: bool, const N: usize>(
    kernel: Kernel,
    x: Map<'_>,
    [row, channel]: [usize; 2],
    dy: &[f32],
    weight: &mut [f32],
) {
    let ([rows, columns], Kernel { size, padding, .. }) = (x.size, kernel);
    for down in kernel.inside(row, rows) {
        let first_pixel = kernel.pixel(row, down) * columns;
        for across in 0..size {
            let mut sums = [0.0; N];
            // The columns of outputs at which the tap lies inside the map.
            let first = padding.saturating_sub(across);
            let end = (columns + padding).saturating_sub(across).min(columns);
            for column in first..end {
                let values = x.lanes::<N>(first_pixel + kernel.pixel(column, across), channel);
                let dy = &dy[column * x.channels + channel..][..N];
                for lane in 0..N {
                    sums[lane] = mul_add::<FMA>(dy[lane], values[lane], sums[lane]);
                }
            }
            let weight = &mut weight[(down * size + across) * x.channels + channel..][..N];
            weight.iter_mut().zip(sums).for_each(|(weight, sum)| *weight += sum);
        }
    }
}
