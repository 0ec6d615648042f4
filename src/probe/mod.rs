//! The linear classifier of a fixed backbone's features: which one, by cross-validation, and its fit.
//!
//! ```
//! use vitrine::probe::{Judgment, Method, Stops, fit};
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
//! let samples = Samples::new(&features, &labels, 2);
//! let fitted = fit(&samples, &originals, &[1.0, 1.0], &judge, Stops::NEVER);
//! assert_eq!(fitted.choice.held_out.expect("images were held out").top1, 1.0);
//! assert!(matches!(fitted.choice.method, Method::Logistic(_)));
//! let logits = fitted.head.logits(&[1.0, 3.0]);
//! assert!(logits[0] > logits[1]);
//! ```

mod cross_validation;
#[cfg(test)]
mod tests;

pub use cross_validation::{Choice, FOLDS, Judgment, Method, choose, predictions};

use vitrine_models::linear_probe::{
    Convergence, LinearHead, Samples, Solution, Stop, logistic_regression, nearest_mean,
};

use crate::evaluate::Predictions;

/// A fitted classifier.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The classifier.
    pub head: LinearHead,
    /// How its method was chosen.
    pub choice: Choice,
    /// How the fit to all images ended. It began at the solution of a fold, if there was one.
    pub convergence: Convergence,
}

/// What ends a fit before it has converged.
#[derive(Clone, Copy)]
pub struct Stops<'a> {
    /// Ends the comparison of methods: the best one until then is taken.
    pub choosing: Stop<'a>,
    /// Ends the fit to all images.
    pub fitting: Stop<'a>,
}

impl Stops<'_> {
    /// Nothing.
    pub const NEVER: Self = Self { choosing: &|| false, fitting: &|| false };
}

/// Fits a classifier to the samples, whose method is [chosen](choose) among them.
pub fn fit(
    samples: &Samples<'_>,
    originals: &[usize],
    class_weights: &[f64],
    judge: &dyn Fn(&Predictions) -> Judgment,
    stops: Stops<'_>,
) -> Fitted {
    let choice = choose(samples, originals, class_weights, judge, stops.choosing);
    let (head, convergence) = choice.method.fit(samples, class_weights, choice.start.as_ref(), stops.fitting);
    Fitted { head, choice, convergence }
}

impl Method {
    /// The classifier that this method makes of the samples, and how the fit ended. `class_weights` has the factor of each
    /// class's losses, which the nearest class mean does not need. A regression begins at `start`; if `stop` ends it, it has not
    /// converged.
    pub fn fit(
        self,
        samples: &Samples<'_>,
        class_weights: &[f64],
        start: Option<&Solution>,
        stop: Stop<'_>,
    ) -> (LinearHead, Convergence) {
        match self {
            Self::Logistic(strength) => logistic_regression(samples, class_weights, strength, start, stop),
            Self::NearestMean(margin) => {
                let rows: Vec<usize> = (0..samples.len()).collect();
                (nearest_mean(samples, &rows, margin), Convergence { steps: 0, converged: true })
            }
        }
    }
}
