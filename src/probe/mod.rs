//! The linear classifier of a fixed backbone's features: which one, by cross-validation, and its fit.
//!
//! ```
//! use vitrine::probe::{Judgment, Method, fit};
//! use vitrine_models::linear_probe::Samples;
//!
//! // Two features of 20 images: the sign of the first is the class, and the second is noise.
//! let features: Vec<f32> = (0..20).flat_map(|i| [if i % 2 == 0 { 1.0 } else { -1.0 }, (i % 7) as f32]).collect();
//! let labels: Vec<usize> = (0..20).map(|i| i % 2).collect();
//! let judge = |predictions: &vitrine::evaluate::Predictions| {
//!     let right = predictions.answers().zip(predictions.labels()).filter(|(a, b)| *a == b.only()).count();
//!     let top1 = right as f64 / predictions.len() as f64;
//!     Judgment { score: top1, error: 0.0, loss: 0.0, top1 }
//! };
//! let originals: Vec<usize> = (0..20).collect();
//! let fitted = fit(&Samples::new(&features, &labels, 2), &originals, &[1.0, 1.0], &judge);
//! assert_eq!(fitted.held_out.expect("images were held out").top1, 1.0);
//! assert!(matches!(fitted.method, Method::Logistic(_)));
//! let logits = fitted.head.logits(&[1.0, 3.0]);
//! assert!(logits[0] > logits[1]);
//! ```

mod cross_validation;
#[cfg(test)]
mod tests;

pub use cross_validation::{FOLDS, Judgment, Method, predictions};

use cross_validation::{candidates, choose};
use vitrine_models::linear_probe::{Convergence, LinearHead, Samples, logistic_regression, nearest_mean};

use crate::evaluate::Predictions;

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
/// `originals` has for each sample the index of the first one with the same content, which is its own unless it is a copy: copies are
/// held out together. `class_weights` has the factor of each class's losses. `judge` judges the predictions for held-out images.
pub fn fit(
    samples: &Samples<'_>,
    originals: &[usize],
    class_weights: &[f64],
    judge: &dyn Fn(&Predictions) -> Judgment,
) -> Fitted {
    let methods = candidates(samples);
    let (method, held_out) = choose(samples, originals, &methods, class_weights, judge);
    let (head, convergence) = method.fit(samples, class_weights);
    let strength = |method: &Method| match method {
        Method::Logistic(strength) => Some(*strength),
        Method::NearestMean(_) => None,
    };
    Fitted { head, method, strengths: methods.iter().filter_map(strength).collect(), held_out, convergence }
}

impl Method {
    /// The classifier that this method makes of the samples, and how the fit ended. `class_weights` has the factor of each
    /// class's losses, which the nearest class mean does not need.
    pub fn fit(self, samples: &Samples<'_>, class_weights: &[f64]) -> (LinearHead, Convergence) {
        match self {
            Self::Logistic(strength) => logistic_regression(samples, class_weights, strength),
            Self::NearestMean(margin) => {
                let rows: Vec<usize> = (0..samples.len()).collect();
                (nearest_mean(samples, &rows, margin), Convergence { steps: 0, converged: true })
            }
        }
    }
}
