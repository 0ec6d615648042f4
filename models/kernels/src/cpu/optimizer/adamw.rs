//! Fused AdamW, and the passes over gradients before it: the sum of squares and a factor.

use crate::cpu::flex::{self, contiguous};
use crate::cpu::simd::{sum, vectorized};
use crate::cpu::threads::{Chunks, Shared, parallel, parallel_elements};
use burn::backend::TensorMetadata;
use burn::tensor::Tensor;

pub(crate) fn adamw<const D: usize>(
    coefficients: Coefficients,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    averages: [Tensor<D>; 2],
) -> (Tensor<D>, [Tensor<D>; 2]) {
    let [mut parameter, gradient] = [parameter, gradient].map(|tensor| contiguous(flex::untracked(tensor)));
    let [mut mean, mut square] = averages.map(|tensor| contiguous(flex::untracked(tensor)));
    {
        let [parameter, mean, square] =
            [&mut parameter, &mut mean, &mut square].map(|tensor| Shared::new(tensor.storage_mut()));
        let gradient = gradient.storage::<f32>();
        parallel_elements(gradient.len(), |range| {
            // SAFETY: the ranges of the tasks are disjoint.
            let [parameter, mean, square] =
                [parameter, mean, square].map(|data| unsafe { data.slice(range.clone()) });
            step(coefficients, parameter, &gradient[range], mean, square);
        });
    }
    (flex::wrap(parameter), [flex::wrap(mean), flex::wrap(square)])
}

/// The coefficients of an update.
#[derive(Clone, Copy)]
pub(crate) struct Coefficients {
    pub(crate) betas: [f32; 2],
    pub(crate) epsilon: f32,
    /// The part of the parameter that weight decay keeps.
    pub(crate) kept: f32,
    /// The learning rate divided by the correction of the first average.
    pub(crate) rate: f32,
    /// The inverse of the correction of the second average.
    pub(crate) square_rate: f32,
}

vectorized! {
    fn step(numbers: Coefficients, parameter: &mut [f32], gradient: &[f32], mean: &mut [f32], square: &mut [f32]) {
        let [beta_1, beta_2] = numbers.betas;
        for (((parameter, gradient), mean), square) in parameter.iter_mut().zip(gradient).zip(mean).zip(square) {
            *mean = *mean * beta_1 + gradient * (1.0 - beta_1);
            *square = *square * beta_2 + gradient * gradient * (1.0 - beta_2);
            let root = (*square * numbers.square_rate).sqrt() + numbers.epsilon;
            *parameter = *parameter * numbers.kept - numbers.rate * *mean / root;
        }
    }

    fn square(values: &[f32]) -> f32 {
        sum(values, values, |left, right| left * right)
    }

    fn scale(values: &mut [f32], factor: f32) {
        values.iter_mut().for_each(|value| *value *= factor);
    }
}

pub(crate) fn sum_of_squares<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let x = contiguous(flex::untracked(x));
    let data = x.storage::<f32>();
    let chunks = Chunks::new(data.len().div_ceil(64), 128);
    let mut sums = vec![0.0; chunks.count()];
    let shared = Shared::new(&mut sums);
    parallel(chunks.count(), |index| {
        let range = chunks.range(index);
        let range = range.start * 64..(range.end * 64).min(data.len());
        // SAFETY: each task writes a sum of its own.
        let sums = unsafe { shared.slice(index..index + 1) };
        sums[0] = square(&data[range]);
    });
    flex::wrap(flex::tensor(vec![sums.iter().sum()], [1]))
}

pub(crate) fn scaled<const D: usize>(x: Tensor<D>, factor: Tensor<1>) -> Tensor<D> {
    let mut x = contiguous(flex::untracked(x));
    let factor = contiguous(flex::untracked(factor)).storage::<f32>()[0];
    let length = x.shape().num_elements();
    let data = Shared::new(x.storage_mut());
    parallel_elements(length, |range| {
        // SAFETY: the ranges of the tasks are disjoint.
        scale(unsafe { data.slice(range) }, factor);
    });
    flex::wrap(x)
}
