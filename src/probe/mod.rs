//! A linear classifier that is fitted to the features of a fixed backbone: logistic regression, or the nearest class mean
//! for classes of very few images.
//!
//! ```
//! use vitrine::probe::{Judgment, Method, Samples, fit};
//!
//! // Two features of 20 images: the sign of the first is the class, and the second is noise.
//! let features: Vec<f32> = (0..20).flat_map(|i| [if i % 2 == 0 { 1.0 } else { -1.0 }, (i % 7) as f32]).collect();
//! let labels: Vec<usize> = (0..20).map(|i| i % 2).collect();
//! let judge = |predictions: &vitrine::evaluate::Predictions| {
//!     let right = predictions.answers().zip(predictions.labels()).filter(|(a, b)| *a == b.only()).count();
//!     let top1 = right as f64 / predictions.len() as f64;
//!     Judgment { score: top1, error: 0.0, loss: 0.0, top1 }
//! };
//! let fitted = fit(&Samples::new(&features, &labels, 2), &[1.0, 1.0], &judge);
//! assert_eq!(fitted.held_out.expect("images were held out").top1, 1.0);
//! assert!(matches!(fitted.method, Method::Logistic(_)));
//! let logits = fitted.head.logits(&[1.0, 3.0]);
//! assert!(logits[0] > logits[1]);
//! ```

mod cross_validation;
mod lbfgs;
mod linear_head;
mod logistic;
mod nearest_mean;
mod preconditioner;
mod samples;

pub use cross_validation::{FOLDS, Judgment, Method};
pub use linear_head::LinearHead;
pub use samples::Samples;

use cross_validation::{candidates, choose};
use logistic::{LogisticRegression, Solution};
use nearest_mean::nearest_mean;
use preconditioner::covariance;

use crate::evaluate::Predictions;

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

/// A fitted classifier.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The classifier.
    pub head: LinearHead,
    /// The method that cross-validation has chosen.
    pub method: Method,
    /// The strengths of logistic regression that were compared.
    pub strengths: Vec<f64>,
    /// The judgment of the method's predictions for held-out images; `None` if no image could be held out.
    pub held_out: Option<Judgment>,
    /// How the fit to all images ended.
    pub convergence: Convergence,
}

/// Fits a classifier to the samples. The method is chosen by stratified cross-validation among them.
///
/// `class_weights` has the factor of each class's losses. `judge` judges the predictions for held-out images.
pub fn fit(samples: &Samples<'_>, class_weights: &[f64], judge: &dyn Fn(&Predictions) -> Judgment) -> Fitted {
    let methods = candidates(samples);
    let (method, held_out) = choose(samples, &methods, class_weights, judge);
    let (head, convergence) = match method {
        Method::Logistic(strength) => logistic_regression(samples, class_weights, strength),
        Method::NearestMean(margin) => {
            let rows: Vec<usize> = (0..samples.len()).collect();
            (nearest_mean(samples, &rows, margin), Convergence { steps: 0, converged: true })
        }
    };
    let strength = |method: &Method| match method {
        Method::Logistic(strength) => Some(*strength),
        Method::NearestMean(_) => None,
    };
    Fitted { head, method, strengths: methods.iter().filter_map(strength).collect(), held_out, convergence }
}

/// The multinomial logistic regression of the samples, with scikit-learn's objective: `strength` is its `C`.
///
/// `class_weights` has the factor of each class's losses.
pub fn logistic_regression(
    samples: &Samples<'_>,
    class_weights: &[f64],
    strength: f64,
) -> (LinearHead, Convergence) {
    let rows: Vec<usize> = (0..samples.len()).collect();
    let regression = LogisticRegression {
        samples,
        covariance: &covariance(samples),
        rows: &rows,
        class_weights,
        strength,
    };
    let solution = regression.fit(None, TOLERANCE);
    let Solution { steps, converged, .. } = solution;
    (regression.head(&solution), Convergence { steps, converged })
}
