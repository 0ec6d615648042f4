//! The inverse of the Hessian of a logistic regression, as if all classes were equally probable for every image: a good first
//! estimate for L-BFGS where features depend on each other (Böhning 1992).
//!
//! The Hessian is the same matrix for every class: `losses * covariance + penalty`, which a Cholesky factor inverts.

use rayon::prelude::*;

use super::samples::Samples;

/// The images whose features are held in float64 at a time.
const IMAGES: usize = 1024;

/// The covariance of the features, `[width, width]`; only the lower triangle is filled.
pub fn covariance(samples: &Samples<'_>) -> Vec<f64> {
    let (width, images) = (samples.width(), samples.len());
    let mut sums = vec![0.0; width * width];
    // Each feature of some images, next to each other.
    let mut centered = vec![0.0; width * IMAGES.min(images)];
    for first in (0..images).step_by(IMAGES) {
        let count = IMAGES.min(images - first);
        centered[..width * count].par_chunks_exact_mut(count).enumerate().for_each(|(place, values)| {
            for (image, value) in values.iter_mut().enumerate() {
                *value = f64::from(samples.row(first + image)[place]) - samples.mean()[place];
            }
        });
        let feature = |place: usize| &centered[place * count..][..count];
        sums.par_chunks_exact_mut(width).enumerate().for_each(|(place, sums)| {
            for (other, sum) in sums[..=place].iter_mut().enumerate() {
                *sum += dot(feature(place), feature(other));
            }
        });
    }
    sums.iter_mut().for_each(|sum| *sum /= images as f64);
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

    /// Multiplies a gradient, `[panels, width + 1, LANES]`, by the inverse.
    pub(super) fn apply<const LANES: usize>(&self, gradient: &mut [f64]) {
        for panel in gradient.chunks_exact_mut((self.width + 1) * LANES) {
            let (rows, _) = panel.as_chunks_mut::<LANES>();
            for place in 0..self.width {
                let (done, rest) = rows.split_at_mut(place);
                let factor = &self.factor[place * self.width..][..=place];
                for (factor, done) in factor.iter().zip(done.iter()) {
                    subtract(&mut rest[0], *factor, done);
                }
                rest[0].iter_mut().for_each(|value| *value /= factor[place]);
            }
            for place in (0..self.width).rev() {
                let (before, rest) = rows.split_at_mut(place);
                let factor = &self.factor[place * self.width..][..=place];
                rest[0].iter_mut().for_each(|value| *value /= factor[place]);
                for (factor, before) in factor.iter().zip(before) {
                    subtract(before, *factor, &rest[0]);
                }
            }
            rows[self.width].iter_mut().for_each(|value| *value /= self.losses);
        }
    }
}

fn subtract<const LANES: usize>(values: &mut [f64; LANES], factor: f64, others: &[f64; LANES]) {
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
        inverse.apply::<2>(&mut solved);
        let pairs = solved.iter().zip(vector.as_flattened());
        assert!(pairs.clone().all(|(a, b)| (a - b).abs() < 1e-9), "{solved:?}");
    }
}
