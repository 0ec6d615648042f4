//! The inverse of the Hessian of a logistic regression, as if all classes were equally probable for every image: a good first
//! estimate for L-BFGS where features depend on each other (Böhning 1992).
//!
//! The Hessian is the same matrix for every class: `losses * covariance + penalty`, which a Cholesky factor inverts.

use vitrine_kernels::Cholesky;

/// The inverse of `losses * covariance + penalty`.
#[derive(Clone, Debug)]
pub struct Preconditioner {
    factor: Cholesky,
    width: usize,
    /// The second derivative by a bias.
    losses: f64,
}

impl Preconditioner {
    /// The preconditioner for the factor `losses` of the covariance, and the penalty.
    pub(super) fn new(covariance: &[f64], width: usize, losses: f64, penalty: f64) -> Self {
        let mut hessian: Vec<f64> = covariance.iter().map(|value| losses * value).collect();
        hessian.iter_mut().step_by(width + 1).for_each(|diagonal| *diagonal += penalty);
        // The penalty keeps the matrix away from a singular one, except for rounding.
        Self { factor: Cholesky::new(&hessian, width, 1e-12 * penalty), width, losses }
    }

    /// Multiplies a gradient, `[width + 1, classes]`, by the inverse.
    pub(super) fn apply(&self, gradient: &mut [f64], classes: usize) {
        let (gradient, biases) = gradient.split_at_mut(self.width * classes);
        self.factor.solve_lower(gradient, classes);
        self.factor.solve_upper(gradient, classes);
        biases.iter_mut().for_each(|value| *value /= self.losses);
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::Samples;
    use super::*;

    #[test]
    fn the_preconditioner_inverts_the_hessian() {
        let features: Vec<f32> = (0..60u16).map(|place| f32::from(place * place % 17) * 0.25).collect();
        let labels = [0; 20];
        let samples = Samples::new(&features, &labels, 2);
        let covariance = samples.covariance();
        let (losses, penalty) = (3.0, 0.5);
        let inverse = Preconditioner::new(covariance, 3, losses, penalty);
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
