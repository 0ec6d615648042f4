//! Linear classifiers that are fitted to the features of a fixed backbone: logistic regression, and the nearest class mean for
//! classes of very few images.
//!
//! ```
//! use vitrine_models::linear_probe::{Samples, logistic_regression};
//!
//! // Two features of 20 images: the sign of the first is the class, and the second is noise.
//! let features: Vec<f32> = (0..20).flat_map(|i| [if i % 2 == 0 { 1.0 } else { -1.0 }, (i % 7) as f32]).collect();
//! let labels: Vec<usize> = (0..20).map(|i| i % 2).collect();
//! let samples = Samples::new(&features, &labels, 2);
//! let (head, convergence) = logistic_regression(&samples, &[1.0, 1.0], 1.0, None, &|| false);
//! assert!(convergence.converged);
//! let logits = head.logits(&[1.0, 3.0]);
//! assert!(logits[0] > logits[1]);
//! ```

mod lbfgs;
mod linear_head;
mod logistic;
mod memory;
mod nearest_mean;
mod preconditioner;
mod samples;
#[cfg(test)]
mod tests;

pub use linear_head::LinearHead;
pub use logistic::{Convergence, LogisticRegression, Solution, Stop, logistic_regression, preconditioner};
pub use memory::{MANY_PARAMETERS, fit_bytes, parameters};
pub use nearest_mean::nearest_mean;
pub use preconditioner::Preconditioner;
pub use samples::Samples;
