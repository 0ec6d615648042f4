//! Multinomial logistic regression with an L2 penalty, fitted to convergence: the objective of scikit-learn's
//! `LogisticRegression`, `C * sum of losses + 0.5 * ||W||^2`, in which the intercept is not penalized.
//!
//! The features are centered, which changes nothing but the intercept, and makes the problem easier. Images go through in blocks,
//! whose features are held in float64 for two products:
//!
//! ```text
//! for a block of images:              x: [images, width + 1], the last feature is 1, for the intercept
//!     z = x * parameters              [images, classes], cut by images
//!     losses, and d = softmax(z) - one-hot
//!     gradient += x^T * d             [width + 1, classes], cut by features
//! ```

use rayon::prelude::*;

use super::lbfgs::{Minimum, minimize};
use super::linear_head::LinearHead;
use super::preconditioner::Preconditioner;
use super::samples::Samples;
use vitrine_kernels::{DoubleMatrix, add_product};

/// The images of a block.
pub(super) const BLOCK: usize = 2048;
/// The images whose losses are computed at a time, on one thread.
const IMAGES: usize = 256;
/// The features whose part of the gradient is computed at a time, on one thread.
const FEATURES: usize = 192;
/// The largest component of the gradient of the mean loss at the end of a fit. Directions in which the features hardly vary are
/// held by the penalty alone, so that this must be small for coefficients that are exact to four decimals.
const TOLERANCE: f64 = 1e-8;

/// How a fit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convergence {
    /// Number of steps.
    pub steps: usize,
    /// Whether the gradient is as small as it should be.
    pub converged: bool,
}

/// A logistic regression on some of the samples.
#[derive(Clone, Copy)]
pub struct LogisticRegression<'a> {
    /// The samples.
    pub samples: &'a Samples<'a>,
    /// The [`preconditioner`] for this strength.
    pub preconditioner: &'a Preconditioner,
    /// The samples that it is fitted to.
    pub rows: &'a [usize],
    /// The factor of each class's losses, `[classes]`.
    pub class_weights: &'a [f64],
    /// The inverse of the penalty, `C`.
    pub strength: f64,
}

/// A fitted regression.
#[derive(Clone, Debug)]
pub struct Solution {
    /// `[width + 1, classes]`; the last row is the intercept.
    parameters: Vec<f64>,
    /// How the fit ended.
    convergence: Convergence,
}

/// Whether a fit should end before it has converged, because the time is over or the user asked to stop.
pub type Stop<'a> = &'a (dyn Fn() -> bool + Sync);

/// The multinomial logistic regression of all samples, with scikit-learn's objective: `strength` is its `C`.
///
/// `class_weights` has the factor of each class's losses, `[classes]`. The fit begins at `start`, if there is one, which should be the
/// solution for similar samples. If `stop` ends the fit, it has not converged.
pub fn logistic_regression(
    samples: &Samples<'_>,
    class_weights: &[f64],
    strength: f64,
    start: Option<&Solution>,
    stop: Stop<'_>,
) -> (LinearHead, Convergence) {
    let rows: Vec<usize> = (0..samples.len()).collect();
    let regression = LogisticRegression {
        samples,
        preconditioner: &preconditioner(samples, class_weights, strength),
        rows: &rows,
        class_weights,
        strength,
    };
    let solution = regression.fit(start, TOLERANCE, stop);
    (regression.head(&solution), solution.convergence)
}

/// A first estimate of the inverse of the Hessian of a regression on these samples. It serves regressions on most of the samples as well.
pub fn preconditioner(samples: &Samples<'_>, class_weights: &[f64], strength: f64) -> Preconditioner {
    let weights: f64 = samples.labels().iter().map(|&label| class_weights[label]).sum();
    let share = 1.0 / samples.classes() as f64;
    let losses = strength * weights * share * (1.0 - share);
    Preconditioner::new(samples.covariance(), samples.width(), losses, penalty(samples.classes()))
}

/// The factor of `0.5 * ||W||^2`. For two classes scikit-learn fits a single vector, the difference of the two rows; these are half of it
/// each, and the sum of their squares is half of its square.
fn penalty(classes: usize) -> f64 {
    if classes == 2 { 2.0 } else { 1.0 }
}

impl LogisticRegression<'_> {
    /// Fits the regression until no component of the gradient of the mean loss is larger than `tolerance` (scikit-learn's
    /// `tol`), or until `stop`. It begins with an earlier solution, for another strength, if there is one.
    pub fn fit(&self, start: Option<&Solution>, tolerance: f64, stop: Stop<'_>) -> Solution {
        let classes = self.samples.classes();
        let fresh = || vec![0.0; (self.samples.width() + 1) * classes];
        let start = start.map_or_else(fresh, |start| start.parameters.clone());
        let weights = self.rows.iter().map(|&row| self.class_weights[self.samples.labels()[row]]);
        let scale = self.strength * weights.sum::<f64>();
        let function = |parameters: &[f64]| self.objective(parameters);
        let precondition = |gradient: &mut [f64]| self.preconditioner.apply(gradient, classes);
        let Minimum { point, steps, converged } =
            minimize(&function, start, &precondition, tolerance * scale, stop);
        Solution { parameters: point, convergence: Convergence { steps, converged } }
    }

    /// The objective and its gradient.
    fn objective(&self, parameters: &[f64]) -> (f64, Vec<f64>) {
        let (classes, width) = (self.samples.classes(), self.samples.width());
        let columns = width + 1;
        let images = BLOCK.min(self.rows.len());
        let (mut x, mut slopes) = (vec![0.0; images * columns], vec![0.0; images * classes]);
        let mut value = 0.0;
        let mut gradient = vec![0.0; parameters.len()];
        for rows in self.rows.chunks(BLOCK) {
            let (x, slopes) = (&mut x[..rows.len() * columns], &mut slopes[..rows.len() * classes]);
            let parts = x.par_chunks_mut(IMAGES * columns).zip(slopes.par_chunks_mut(IMAGES * classes));
            let losses: Vec<f64> = parts
                .zip(rows.par_chunks(IMAGES))
                .map(|((x, slopes), rows)| self.losses(rows, parameters, x, slopes))
                .collect();
            value += losses.iter().sum::<f64>();
            let slopes = DoubleMatrix::new(slopes, [rows.len(), classes], classes);
            gradient.par_chunks_mut(FEATURES * classes).enumerate().for_each(|(place, gradient)| {
                let shape = [rows.len(), gradient.len() / classes];
                let x = DoubleMatrix::new(&x[place * FEATURES..], shape, columns);
                add_product(gradient, 1.0, x.transposed(), slopes);
            });
        }
        value *= self.strength;
        gradient.iter_mut().for_each(|slope| *slope *= self.strength);
        let penalty = penalty(classes);
        for (parameter, slope) in parameters.iter().zip(&mut gradient).take(width * classes) {
            value += 0.5 * penalty * parameter * parameter;
            *slope += penalty * parameter;
        }
        (value, gradient)
    }

    /// The sum of the losses of some images, whose features and slopes by the logits are written to `x`, `[images, width + 1]`, and
    /// `slopes`, `[images, classes]`.
    fn losses(&self, rows: &[usize], parameters: &[f64], x: &mut [f64], slopes: &mut [f64]) -> f64 {
        let (classes, columns) = (self.samples.classes(), self.samples.width() + 1);
        for (x, &row) in x.chunks_exact_mut(columns).zip(rows) {
            let centered = self.samples.row(row).iter().zip(self.samples.mean());
            let centered = centered.map(|(value, mean)| f64::from(*value) - mean).chain([1.0]);
            x.iter_mut().zip(centered).for_each(|(x, value)| *x = value);
        }
        slopes.fill(0.0);
        let x = DoubleMatrix::new(x, [rows.len(), columns], columns);
        add_product(slopes, 1.0, x, DoubleMatrix::new(parameters, [columns, classes], classes));
        slopes.chunks_exact_mut(classes).zip(rows).map(|(logits, &row)| self.slopes(row, logits)).sum()
    }

    /// Replaces the logits of an image by the gradient of its loss, and returns the loss.
    fn slopes(&self, row: usize, logits: &mut [f64]) -> f64 {
        let label = self.samples.labels()[row];
        let weight = self.class_weights[label];
        let true_logit = logits[label];
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut sum = 0.0;
        for value in &mut *logits {
            *value = (*value - largest).exp();
            sum += *value;
        }
        logits.iter_mut().for_each(|value| *value *= weight / sum);
        logits[label] -= weight;
        weight * (sum.ln() + largest - true_logit)
    }

    /// The regression's classifier.
    pub fn head(&self, solution: &Solution) -> LinearHead {
        let (classes, width) = (self.samples.classes(), self.samples.width());
        let (weight, bias) = solution.parameters.split_at(width * classes);
        let of_class = |class: usize| weight.iter().skip(class).step_by(classes).copied();
        let weight: Vec<f64> = (0..classes).flat_map(of_class).collect();
        LinearHead::of_centered(&weight, bias, self.samples.mean())
    }
}
