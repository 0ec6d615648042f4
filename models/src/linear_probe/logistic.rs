//! Multinomial logistic regression with an L2 penalty, fitted to convergence: the objective of scikit-learn's
//! `LogisticRegression`, `C * sum of losses + 0.5 * ||W||^2`, in which the intercept is not penalized.
//!
//! The features are centered, which changes nothing but the intercept, and makes the problem easier. A pass over them
//! takes four images at a time, so that each feature is read from memory once:
//!
//! ```text
//! for 4 images:                       x: [width + 1, 4], the last feature is 1, for the intercept
//!     for 4 classes (a panel):        z[4, 4] = x^T * parameters[panel], of [width + 1, 4]
//!     losses, and d = softmax(z) - one-hot
//!     for 4 classes (a panel):        gradient[panel] += x * d, of [width + 1, 4]
//! ```

use rayon::prelude::*;

use super::lbfgs::{Minimum, minimize};
use super::linear_head::LinearHead;
use super::preconditioner::{Preconditioner, covariance};
use super::samples::Samples;

/// Images at a time, and classes of a panel.
const LANES: usize = 4;
/// A block of logits: four images, and four classes of each.
type Block = [[f64; LANES]; LANES];
/// The smallest number of images whose gradients are summed on one thread.
const MIN_CHUNK: usize = 128;
/// The largest number of such sums, each as large as the parameters.
const MAX_CHUNKS: usize = 16;
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
    /// For every four classes a matrix `[width + 1, 4]`.
    parameters: Vec<f64>,
    /// How the fit ended.
    convergence: Convergence,
}

/// The multinomial logistic regression of all samples, with scikit-learn's objective: `strength` is its `C`.
///
/// `class_weights` has the factor of each class's losses, `[classes]`.
pub fn logistic_regression(
    samples: &Samples<'_>,
    class_weights: &[f64],
    strength: f64,
) -> (LinearHead, Convergence) {
    let rows: Vec<usize> = (0..samples.len()).collect();
    let regression = LogisticRegression {
        samples,
        preconditioner: &preconditioner(samples, &covariance(samples), class_weights, strength),
        rows: &rows,
        class_weights,
        strength,
    };
    let solution = regression.fit(None, TOLERANCE);
    (regression.head(&solution), solution.convergence)
}

/// A first estimate of the inverse of the Hessian of a regression on these samples, whose features have this [`covariance`]. It serves
/// regressions on most of the samples as well.
pub fn preconditioner(
    samples: &Samples<'_>,
    covariance: &[f64],
    class_weights: &[f64],
    strength: f64,
) -> Preconditioner {
    let weights: f64 = samples.labels().iter().map(|&label| class_weights[label]).sum();
    let share = 1.0 / samples.classes() as f64;
    let losses = strength * weights * share * (1.0 - share);
    Preconditioner::new(covariance, samples.width(), losses, penalty(samples.classes()))
}

/// The factor of `0.5 * ||W||^2`. For two classes scikit-learn fits a single vector, the difference of the two rows; these are half of it
/// each, and the sum of their squares is half of its square.
fn penalty(classes: usize) -> f64 {
    if classes == 2 { 2.0 } else { 1.0 }
}

impl LogisticRegression<'_> {
    /// Fits the regression until no component of the gradient of the mean loss is larger than `tolerance` (scikit-learn's
    /// `tol`). It begins with an earlier solution, for another strength, if there is one.
    pub fn fit(&self, start: Option<&Solution>, tolerance: f64) -> Solution {
        let of_panel = LANES * (self.samples.width() + 1);
        let fresh = || vec![0.0; self.samples.classes().div_ceil(LANES) * of_panel];
        let start = start.map_or_else(fresh, |start| start.parameters.clone());
        let weights = self.rows.iter().map(|&row| self.class_weights[self.samples.labels()[row]]);
        let scale = self.strength * weights.sum::<f64>();
        let function = |parameters: &[f64]| self.objective(parameters);
        let precondition = |gradient: &mut [f64]| self.preconditioner.apply::<LANES>(gradient);
        let Minimum { point, steps, converged } =
            minimize(&function, start, &precondition, tolerance * scale);
        Solution { parameters: point, convergence: Convergence { steps, converged } }
    }

    /// The objective and its gradient.
    fn objective(&self, parameters: &[f64]) -> (f64, Vec<f64>) {
        let chunk = self.rows.len().div_ceil(MAX_CHUNKS).max(MIN_CHUNK);
        let sums: Vec<(f64, Vec<f64>)> =
            self.rows.par_chunks(chunk).map(|rows| self.losses(rows, parameters)).collect();
        let mut value = 0.0;
        let mut gradient = vec![0.0; parameters.len()];
        for (loss, part) in sums {
            value += loss;
            gradient.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        value *= self.strength;
        gradient.iter_mut().for_each(|slope| *slope *= self.strength);
        let (penalty, width) = (penalty(self.samples.classes()), self.samples.width());
        let of_panel = LANES * (width + 1);
        for (panel, slopes) in parameters.chunks_exact(of_panel).zip(gradient.chunks_exact_mut(of_panel)) {
            for (parameter, slope) in panel.iter().zip(slopes).take(LANES * width) {
                value += 0.5 * penalty * parameter * parameter;
                *slope += penalty * parameter;
            }
        }
        (value, gradient)
    }

    /// The sum of the losses of some images, and its gradient.
    fn losses(&self, rows: &[usize], parameters: &[f64]) -> (f64, Vec<f64>) {
        let of_panel = LANES * (self.samples.width() + 1);
        let mut x = vec![[0.0; LANES]; self.samples.width() + 1];
        let mut blocks = vec![Block::default(); parameters.len() / of_panel];
        let mut value = 0.0;
        let mut gradient = vec![0.0; parameters.len()];
        for rows in rows.chunks(LANES) {
            self.gather(rows, &mut x);
            for (block, panel) in blocks.iter_mut().zip(parameters.chunks_exact(of_panel)) {
                *block = logits(&x, panel);
            }
            for lane in 0..LANES {
                value += self.slopes(rows.get(lane).copied(), lane, &mut blocks);
            }
            for (block, panel) in blocks.iter().zip(gradient.chunks_exact_mut(of_panel)) {
                add_products(&x, block, panel);
            }
        }
        (value, gradient)
    }

    /// Copies the features of up to four images, less their mean over all images, into `x`, followed by a one.
    fn gather(&self, rows: &[usize], x: &mut [[f64; LANES]]) {
        let (last, features) = x.split_last_mut().expect("there is the one of the intercept");
        *last = [1.0; LANES];
        for (lane, &row) in rows.iter().enumerate() {
            let centered = self.samples.row(row).iter().zip(self.samples.mean());
            for (x, (value, mean)) in features.iter_mut().zip(centered) {
                x[lane] = f64::from(*value) - mean;
            }
        }
    }

    /// Replaces the logits of an image by the gradient of its loss, and returns the loss. Without an image, both are zero.
    fn slopes(&self, row: Option<usize>, lane: usize, blocks: &mut [Block]) -> f64 {
        let Some(row) = row else {
            blocks.iter_mut().for_each(|block| block[lane] = [0.0; LANES]);
            return 0.0;
        };
        let (classes, label) = (self.samples.classes(), self.samples.labels()[row]);
        let weight = self.class_weights[label];
        // Places past the last class have the probability 0.
        let last = blocks.len() - 1;
        blocks[last][lane][classes - last * LANES..].fill(f64::NEG_INFINITY);
        let true_logit = blocks[label / LANES][lane][label % LANES];
        let largest = blocks.iter().flat_map(|block| block[lane]).fold(f64::NEG_INFINITY, f64::max);
        let mut sum = 0.0;
        for value in blocks.iter_mut().flat_map(|block| &mut block[lane]) {
            *value = (*value - largest).exp();
            sum += *value;
        }
        blocks.iter_mut().flat_map(|block| &mut block[lane]).for_each(|value| *value *= weight / sum);
        blocks[label / LANES][lane][label % LANES] -= weight;
        weight * (sum.ln() + largest - true_logit)
    }

    /// The regression's classifier.
    pub fn head(&self, solution: &Solution) -> LinearHead {
        let width = self.samples.width();
        let of_panel = LANES * (width + 1);
        let value = |class: usize, feature: usize| {
            solution.parameters[class / LANES * of_panel + feature * LANES + class % LANES]
        };
        let classes = 0..self.samples.classes();
        let weight: Vec<f64> =
            classes.clone().flat_map(|class| (0..width).map(move |feature| value(class, feature))).collect();
        let bias: Vec<f64> = classes.map(|class| value(class, width)).collect();
        LinearHead::of_centered(&weight, &bias, self.samples.mean())
    }
}

/// `x^T * panel`.
fn logits(x: &[[f64; LANES]], panel: &[f64]) -> Block {
    let mut block = Block::default();
    for (x, weights) in x.iter().zip(panel.as_chunks::<LANES>().0) {
        for (sums, x) in block.iter_mut().zip(x) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += x * weight;
            }
        }
    }
    block
}

/// `panel += x * block`.
fn add_products(x: &[[f64; LANES]], block: &Block, panel: &mut [f64]) {
    for (x, sums) in x.iter().zip(panel.as_chunks_mut::<LANES>().0) {
        for (slopes, x) in block.iter().zip(x) {
            for (sum, slope) in sums.iter_mut().zip(slopes) {
                *sum += x * slope;
            }
        }
    }
}
