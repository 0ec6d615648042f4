//! Fused batch normalization, alone or followed by GELU.
//!
//! The backward pass takes one pass over the map for the sums of each channel, and one for the gradient. It computes
//! the derivative of GELU again rather than keep it.

use crate::cpu::flex::{self, contiguous};
use crate::cpu::operation::Operation;
use crate::cpu::simd::{LANES, mul_add, normal, sum_of_rows, vectorized};
use crate::cpu::threads::{Buffer, Chunks, Shared, parallel};
use burn::backend::{TensorMetadata, flex::FlexTensor};

#[derive(Clone, Debug)]
pub(crate) struct BatchNormalization {
    pub(crate) epsilon: f64,
    /// Whether the moments are those of the input, and not constants.
    pub(crate) of_batch: bool,
    /// Whether GELU follows.
    pub(crate) gelu: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct SavedMap {
    x: FlexTensor,
    channels: Channels,
}

/// The moments and parameters of each channel, once for each row of those that are computed at a time: as many as fill whole vectors.
#[derive(Clone, Debug)]
struct Channels {
    /// The number of channels.
    width: usize,
    mean: Vec<f32>,
    /// The inverse of the standard deviation.
    rate: Vec<f32>,
    gamma: Vec<f32>,
    beta: Vec<f32>,
}

impl Channels {
    /// The elements that the compiler computes at a time: several vectors.
    const AT_A_TIME: usize = 4 * LANES;

    /// The most rows for them, which fill whole vectors of multiples of 8 channels.
    const MOST_ROWS: usize = 8;

    fn new(epsilon: f32, [gamma, beta, mean, variance]: [&[f32]; 4]) -> Self {
        let width = mean.len();
        let rows = Self::AT_A_TIME >> width.trailing_zeros().min(Self::AT_A_TIME.trailing_zeros());
        let rows = rows.min(Self::MOST_ROWS);
        let rate: Vec<f32> = variance.iter().map(|variance| 1.0 / (variance + epsilon).sqrt()).collect();
        let [gamma, beta, mean, rate] = [gamma, beta, mean, &rate].map(|channel| channel.repeat(rows));
        Self { width, mean, rate, gamma, beta }
    }

    /// The sums of each channel, once for each row, from those of its copies.
    fn joined(&self, sums: &[f32]) -> Vec<f32> {
        sum_of_rows(sums, self.width).repeat(self.mean.len() / self.width.max(1))
    }
}

impl Operation<5> for BatchNormalization {
    type Inputs = [(); 5];
    type Saved = SavedMap;

    fn forward(&self, inputs: [FlexTensor; 5]) -> FlexTensor {
        self.forward_saving(inputs, [false; 5]).0
    }

    fn forward_saving(&self, inputs: [FlexTensor; 5], _wanted: [bool; 5]) -> (FlexTensor, SavedMap) {
        let [x, channels @ ..] = inputs.map(contiguous);
        let channels =
            Channels::new(self.epsilon as f32, channels.each_ref().map(|channel| channel.storage()));
        let width = channels.width;
        let data = x.storage::<f32>();
        let mut output = Buffer::new(data.len());
        let outputs = output.shared();
        let chunks = Chunks::new(data.len() / width.max(1), 16);
        let gelu = self.gelu;
        parallel(chunks.count(), |index| {
            let range = chunks.range(index);
            let elements = range.start * width..range.end * width;
            // SAFETY: the chunks are disjoint, and with them their rows.
            let outputs = unsafe { outputs.slice(elements.clone()) };
            normalize(outputs, &data[elements], &channels, gelu);
        });
        // SAFETY: the chunks cover all rows, and each row was written by the task of its chunk.
        let output = flex::tensor(unsafe { output.written() }, x.shape());
        (output, SavedMap { x, channels })
    }

    fn backward(self, saved: SavedMap, gradient: FlexTensor, wanted: [bool; 5]) -> [Option<FlexTensor>; 5] {
        let gradient = contiguous(gradient);
        let (shape, channels) = (gradient.shape(), &saved.channels);
        let (width, wide) = (channels.width, channels.mean.len());
        let (dy, x) = (gradient.storage::<f32>(), saved.x.storage::<f32>());
        let rows = dy.len() / width.max(1);
        // The sums of a chunk, for every copy of a channel, take at most half of the memory of its rows.
        let chunks = Chunks::new(rows, 4 * Channels::MOST_ROWS);
        let mut dx = Buffer::new(dy.len());
        let mut partial = vec![0.0; chunks.count() * 2 * wide];
        let (dx_parts, partials) = (dx.shared(), Shared::new(&mut partial));
        let of_chunk = |index: usize| {
            let range = chunks.range(index);
            range.start * width..range.end * width
        };
        parallel(chunks.count(), |index| {
            let elements = of_chunk(index);
            // SAFETY: the chunks are disjoint, and with them their rows; each chunk has its own sums.
            let (dx, sums) = unsafe {
                (dx_parts.slice(elements.clone()), partials.slice(index * 2 * wide..(index + 1) * 2 * wide))
            };
            let (dgamma, dbeta) = sums.split_at_mut(wide);
            add_sums(dx, &dy[elements.clone()], &x[elements], channels, self.gelu, [dgamma, dbeta]);
        });
        let sums = sum_of_rows(&partial, 2 * wide);
        let [dgamma, dbeta] = [&sums[..wide], &sums[wide..]].map(|sums| channels.joined(sums));
        if wanted[0] {
            let share = if self.of_batch { 1.0 / rows.max(1) as f32 } else { 0.0 };
            parallel(chunks.count(), |index| {
                let elements = of_chunk(index);
                // SAFETY: the chunks are disjoint, and with them their rows.
                let dx = unsafe { dx_parts.slice(elements.clone()) };
                input_gradient(dx, &x[elements], channels, &dgamma, &dbeta, share);
            });
        }
        let [dgamma, dbeta] = [dgamma, dbeta].map(|sums| flex::tensor(sums[..width].to_vec(), [width]));
        // SAFETY: the chunks cover all rows, and each row was written by the task of its chunk.
        let dx = flex::tensor(unsafe { dx.written() }, shape);
        [wanted[0].then_some(dx), wanted[1].then_some(dgamma), wanted[2].then_some(dbeta), None, None]
    }
}

/// The mean and the biased variance of each channel, joined from those of chunks (Chan et al. 1983, equations 2.1).
pub(crate) fn moments(x: FlexTensor) -> [FlexTensor; 2] {
    let x = contiguous(x);
    let shape = x.shape();
    let width = shape[shape.num_dims() - 1];
    let data = x.storage::<f32>();
    let rows = data.len() / width.max(1);
    let chunks = Chunks::new(rows, 64);
    let mut partial = vec![0.0; chunks.count() * 2 * width];
    let partials = Shared::new(&mut partial);
    parallel(chunks.count(), |index| {
        let range = chunks.range(index);
        // SAFETY: each chunk has its own sums.
        let sums = unsafe { partials.slice(index * 2 * width..(index + 1) * 2 * width) };
        let (mean, squares) = sums.split_at_mut(width);
        chunk_moments(&data[range.start * width..range.end * width], mean, squares);
    });
    let (mut mean, mut squares, mut count) = (vec![0.0f64; width], vec![0.0f64; width], 0.0f64);
    for (index, partial) in partial.chunks_exact((2 * width).max(1)).enumerate() {
        let added = chunks.range(index).len() as f64;
        let total = count + added;
        for channel in 0..width {
            let distance = f64::from(partial[channel]) - mean[channel];
            mean[channel] += distance * added / total;
            squares[channel] +=
                f64::from(partial[width + channel]) + distance * distance * count * added / total;
        }
        count = total;
    }
    let mean = mean.into_iter().map(|mean| mean as f32).collect();
    let variance = squares.into_iter().map(|squares| (squares / count.max(1.0)) as f32).collect();
    [flex::tensor(mean, [width]), flex::tensor(variance, [width])]
}

vectorized! {
    /// Writes the normalized rows of `x`.
    fn normalize(outputs: &mut [f32], x: &[f32], channels: &Channels, gelu: bool) {
        let wide = channels.mean.len().max(1);
        for (output, x) in outputs.chunks_mut(wide).zip(x.chunks(wide)) {
            for (((((value, x), mean), rate), gamma), beta) in output.iter_mut().zip(x).zip(&channels.mean).zip(&channels.rate).zip(&channels.gamma).zip(&channels.beta) {
                *value = mul_add::<FMA>((x - mean) * rate, *gamma, *beta);
            }
            if gelu {
                for value in output {
                    let [probability, _] = normal::<FMA>(*value);
                    *value *= probability;
                }
            }
        }
    }

    /// Writes the gradient before GELU, from rows of the gradient of the output, and adds it to the gradients of gamma and
    /// beta.
    fn add_sums(before: &mut [f32], dy: &[f32], x: &[f32], channels: &Channels, gelu: bool, sums: [&mut [f32]; 2]) {
        let ([dgamma, dbeta], wide) = (sums, channels.mean.len().max(1));
        for ((before, dy), x) in before.chunks_mut(wide).zip(dy.chunks(wide)).zip(x.chunks(wide)) {
            if gelu {
                for ((((((before, dy), x), mean), rate), gamma), beta) in before.iter_mut().zip(dy).zip(x).zip(&channels.mean).zip(&channels.rate).zip(&channels.gamma).zip(&channels.beta) {
                    let y = mul_add::<FMA>((x - mean) * rate, *gamma, *beta);
                    let [probability, density] = normal::<FMA>(y);
                    *before = dy * mul_add::<FMA>(y, density, probability);
                }
            } else {
                before.copy_from_slice(dy);
            }
            for (((((dy, x), mean), rate), dgamma), dbeta) in before.iter().zip(x).zip(&channels.mean).zip(&channels.rate).zip(dgamma.iter_mut()).zip(dbeta.iter_mut()) {
                *dgamma = mul_add::<FMA>(*dy, (x - mean) * rate, *dgamma);
                *dbeta += dy;
            }
        }
    }

    /// Changes rows of the gradient of the scaled map into the gradient of the input, in place. `share` is the weight
    /// of a row in the moments: 0 if they are constants.
    fn input_gradient(dy: &mut [f32], x: &[f32], channels: &Channels, dgamma: &[f32], dbeta: &[f32], share: f32) {
        let wide = channels.mean.len().max(1);
        for (dy, x) in dy.chunks_mut(wide).zip(x.chunks(wide)) {
            for ((((((dy, x), mean), rate), gamma), dgamma), dbeta) in dy.iter_mut().zip(x).zip(&channels.mean).zip(&channels.rate).zip(&channels.gamma).zip(dgamma).zip(dbeta) {
                let normalized = (x - mean) * rate;
                *dy = gamma * rate * (*dy - share * mul_add::<FMA>(normalized, *dgamma, *dbeta));
            }
        }
    }

    /// The mean of each channel, and the sum of the squared distances from it.
    fn chunk_moments(x: &[f32], mean: &mut [f32], squares: &mut [f32]) {
        let width = mean.len().max(1);
        for row in x.chunks_exact(width) {
            mean.iter_mut().zip(row).for_each(|(mean, value)| *mean += value);
        }
        let share = 1.0 / (x.len() / width).max(1) as f32;
        mean.iter_mut().for_each(|mean| *mean *= share);
        for row in x.chunks_exact(width) {
            for ((squares, value), mean) in squares.iter_mut().zip(row).zip(mean.iter()) {
                let distance = value - mean;
                *squares = mul_add::<FMA>(distance, distance, *squares);
            }
        }
    }
}
