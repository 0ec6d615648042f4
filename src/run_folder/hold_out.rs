//! Which training images are kept for validation.

use vitrine_datasets::Fold;

/// How a validation split is made, where the data set has none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HoldOut {
    /// Share of each class: above 0 and below 1. Without effect where there is a fold.
    pub fraction: f64,
    /// Chooses the images, by their content.
    pub seed: u64,
    /// One of several equal parts.
    pub fold: Option<Fold>,
}
