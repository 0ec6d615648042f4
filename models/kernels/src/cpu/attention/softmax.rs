//! Softmax over rows of scores that are padded to whole vectors.

use crate::cpu::simd::{LANES, exp, fold, largest, sum, vectorized};

vectorized! {
    /// Softmax of each row of `keys` scores, after a bias (which has no padding) is added; 0 in the padding.
    pub(super) fn softmax(rows: &mut [f32], keys: usize, bias: Option<&[f32]>) {
        for (index, row) in rows.chunks_exact_mut(keys.next_multiple_of(LANES).max(1)).enumerate() {
            if let Some(bias) = bias {
                row.iter_mut().zip(&bias[index * keys..(index + 1) * keys]).for_each(|(score, bias)| *score += bias);
            }
            row[keys..].fill(f32::NEG_INFINITY);
            let largest = largest(row);
            let mut total = [0.0f32; LANES];
            for group in row.as_chunks_mut::<LANES>().0 {
                for lane in 0..LANES {
                    group[lane] = exp::<FMA>(group[lane] - largest);
                    total[lane] += group[lane];
                }
            }
            let rate = 1.0 / fold(total, |left, right| left + right);
            for group in row.as_chunks_mut::<LANES>().0 {
                for value in group {
                    *value *= rate;
                }
            }
        }
    }

    /// Changes the gradient of rows of probabilities into the gradient of their scores, in place.
    pub(super) fn softmax_backward(probabilities: &[f32], gradient: &mut [f32], keys: usize) {
        let width = keys.next_multiple_of(LANES).max(1);
        for (probabilities, gradient) in probabilities.chunks_exact(width).zip(gradient.chunks_exact_mut(width)) {
            gradient[keys..].fill(0.0);
            let common = sum(probabilities, gradient, |probability, gradient| probability * gradient);
            for (probabilities, gradient) in probabilities.as_chunks::<LANES>().0.iter().zip(gradient.as_chunks_mut::<LANES>().0) {
                for lane in 0..LANES {
                    gradient[lane] = probabilities[lane] * (gradient[lane] - common);
                }
            }
        }
    }
}
