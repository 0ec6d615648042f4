//! The inverse of the Hessian of a logistic regression, as if all classes were equally probable for every image: a good first
//! estimate for L-BFGS where features depend on each other (Böhning 1992).
//!
//! The Hessian is the same matrix for every class: `losses * covariance + penalty`, which a Cholesky factor inverts.

use rayon::prelude::*;

use super::samples::Samples;
use vitrine_kernels::{DoubleMatrix, add_product};

/// The images whose features are held in float64 at a time.
const IMAGES: usize = 1024;

/// The covariance of the features, `[width, width]`; only the lower triangle is filled.
pub fn covariance(samples: &Samples<'_>) -> Vec<f64> {
    let (width, images) = (samples.width(), samples.len());
    let mut sums = vec![0.0; width * width];
    let mut centered = vec![0.0; width * IMAGES.min(images)];
    for first in (0..images).step_by(IMAGES) {
        let count = IMAGES.min(images - first);
        let x = &mut centered[..count * width];
        x.par_chunks_exact_mut(width).enumerate().for_each(|(image, x)| {
            let values = samples.row(first + image).iter().zip(samples.mean());
            x.iter_mut().zip(values).for_each(|(x, (value, mean))| *x = f64::from(*value) - mean);
        });
        // Whole blocks on the diagonal, of which the upper halves are not needed.
        sums.par_chunks_mut(BLOCK * width).enumerate().for_each(|(block, sums)| {
            let (features, of_block) = (block * BLOCK, sums.len() / width);
            let left = DoubleMatrix::new(&x[features..], [count, of_block], width).transposed();
            let others = features + of_block;
            let mut products = vec![0.0; of_block * others];
            add_product(&mut products, 1.0, left, DoubleMatrix::new(x, [count, others], width));
            for (sums, products) in sums.chunks_exact_mut(width).zip(products.chunks_exact(others)) {
                sums.iter_mut().zip(products).for_each(|(sum, product)| *sum += product);
            }
        });
    }
    for (place, sums) in sums.chunks_exact_mut(width).enumerate() {
        sums[..=place].iter_mut().for_each(|sum| *sum /= images as f64);
        sums[place + 1..].fill(0.0);
    }
    sums
}

/// The rows of a factor that are finished together, before those below.
const BLOCK: usize = 64;

/// The lower Cholesky factor of `losses * covariance + penalty`.
#[derive(Clone, Debug)]
pub struct Preconditioner {
    /// `[width, width]`.
    factor: Vec<f64>,
    width: usize,
    /// The second derivative by a bias.
    losses: f64,
}

impl Preconditioner {
    /// The preconditioner for the factor `losses` of the covariance, and the penalty.
    pub(super) fn new(covariance: &[f64], width: usize, losses: f64, penalty: f64) -> Self {
        let mut factor = vec![0.0; width * width];
        let solve = |current: &mut [f64], covariance: &[f64], column: usize, other: &[f64]| {
            let value = losses * covariance[column] - dot(&current[..column], &other[..column]);
            current[column] = value / other[column];
        };
        for first in (0..width).step_by(BLOCK) {
            let last = (first + BLOCK).min(width);
            for row in first..last {
                let (done, rest) = factor.split_at_mut(row * width);
                let (current, covariance) = (&mut rest[..width], &covariance[row * width..][..width]);
                for column in first..row {
                    solve(current, covariance, column, &done[column * width..][..width]);
                }
                let square = losses * covariance[row] + penalty - dot(&current[..row], &current[..row]);
                // The penalty keeps the matrix away from a singular one, except for rounding.
                current[row] = square.max(1e-12 * penalty).sqrt();
            }
            let (done, below) = factor.split_at_mut(last * width);
            let below =
                below.par_chunks_exact_mut(width).zip(covariance[last * width..].par_chunks_exact(width));
            below.for_each(|(current, covariance)| {
                for column in first..last {
                    solve(current, covariance, column, &done[column * width..][..width]);
                }
            });
        }
        Self { factor, width, losses }
    }

    /// Multiplies a gradient, `[width + 1, classes]`, by the inverse.
    pub(super) fn apply(&self, gradient: &mut [f64], classes: usize) {
        let (gradient, biases) = gradient.split_at_mut(self.width * classes);
        for first in (0..self.width).step_by(BLOCK) {
            let (done, rest) = gradient.split_at_mut(first * classes);
            let rows = BLOCK.min(self.width - first);
            let block = &mut rest[..rows * classes];
            let before = DoubleMatrix::new(done, [first, classes], classes);
            add_product(block, -1.0, self.part([first, 0], [rows, first]), before);
            self.solve(block, first, classes);
        }
        for first in (0..self.width).step_by(BLOCK).rev() {
            let rows = BLOCK.min(self.width - first);
            let (rest, done) = gradient.split_at_mut((first + rows) * classes);
            let (block, below) = (&mut rest[first * classes..], self.width - first - rows);
            let after = DoubleMatrix::new(done, [below, classes], classes);
            let factor = self.part([first + rows, first], [below, rows]).transposed();
            add_product(block, -1.0, factor, after);
            self.solve_transposed(block, first, classes);
        }
        biases.iter_mut().for_each(|value| *value /= self.losses);
    }

    /// The part of the factor that begins at this row and column.
    fn part(&self, [row, column]: [usize; 2], shape: [usize; 2]) -> DoubleMatrix<'_> {
        DoubleMatrix::new(
            &self.factor[(row * self.width + column).min(self.factor.len())..],
            shape,
            self.width,
        )
    }

    /// Solves the triangle of the factor that begins at `first` for a block of rows.
    fn solve(&self, block: &mut [f64], first: usize, classes: usize) {
        for place in 0..block.len() / classes {
            let (done, rest) = block.split_at_mut(place * classes);
            let factor = &self.factor[(first + place) * self.width + first..][..=place];
            let row = &mut rest[..classes];
            for (factor, done) in factor.iter().zip(done.chunks_exact(classes)) {
                subtract(row, *factor, done);
            }
            row.iter_mut().for_each(|value| *value /= factor[place]);
        }
    }

    /// Solves the transposed triangle, from below.
    fn solve_transposed(&self, block: &mut [f64], first: usize, classes: usize) {
        for place in (0..block.len() / classes).rev() {
            let (before, rest) = block.split_at_mut(place * classes);
            let factor = &self.factor[(first + place) * self.width + first..][..=place];
            let row = &mut rest[..classes];
            row.iter_mut().for_each(|value| *value /= factor[place]);
            for (factor, before) in factor.iter().zip(before.chunks_exact_mut(classes)) {
                subtract(before, *factor, row);
            }
        }
    }
}

fn subtract(values: &mut [f64], factor: f64, others: &[f64]) {
    values.iter_mut().zip(others).for_each(|(value, other)| *value -= factor * other);
}

/// The product of two vectors, in eight sums that the CPU can add at once.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum::<f64>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preconditioner_inverts_the_hessian() {
        let features: Vec<f32> = (0..60u16).map(|place| f32::from(place * place % 17) * 0.25).collect();
        let labels = [0; 20];
        let samples = Samples::new(&features, &labels, 2);
        let covariance = covariance(&samples);
        let (losses, penalty) = (3.0, 0.5);
        let inverse = Preconditioner::new(&covariance, 3, losses, penalty);
        let at = |a: usize, b: usize| covariance[a.max(b) * 3 + a.min(b)];
        assert!((0..3).all(|place| (at(place, place) - samples.variances()[place]).abs() < 1e-12));
        let vector = [[1.0, -2.0], [0.5, 0.0], [3.0, 1.0], [2.0, 4.0]];
        let mut product = [[0.0; 2]; 4];
        for lane in 0..2 {
            for a in 0..3 {
                let sum: f64 = (0..3).map(|b| losses * at(a, b) * vector[b][lane]).sum();
                product[a][lane] = sum + penalty * vector[a][lane];
            }
            product[3][lane] = losses * vector[3][lane];
        }
        let mut solved: Vec<f64> = product.as_flattened().to_vec();
        inverse.apply(&mut solved, 2);
        let pairs = solved.iter().zip(vector.as_flattened());
        assert!(pairs.clone().all(|(a, b)| (a - b).abs() < 1e-9), "{solved:?}");
    }
}
