//! The rule by which training images are held out for validation.

use vitrine_datasets::Fold;

/// How training images are held out for validation if the data set has no validation split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HoldOut {
    /// Share of each class that is held out, above 0 and below 1. Ignored if there is a `fold`.
    pub fraction: f64,
    /// Seed of the choice, which also depends on the content of the images.
    pub seed: u64,
    /// The fold that is held out, in cross-validation.
    pub fold: Option<Fold>,
}
