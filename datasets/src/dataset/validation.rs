//! The origin of a validation split: part of the data set, a random fraction of the training images, or a
//! cross-validation fold.

use serde::{Deserialize, Serialize};

/// Where a validation split comes from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationOrigin {
    /// There is no validation split.
    Absent,
    /// The source has a validation split of its own.
    Given,
    /// A fraction of each class's training images, chosen by their content and a seed.
    SplitOff {
        /// The requested fraction; the actual fraction of a class varies by chance.
        fraction: f64,
        /// The seed of the choice.
        seed: u64,
    },
    /// A cross-validation fold of the training images.
    Fold {
        /// The fold.
        fold: Fold,
        /// The seed by which the images were assigned to folds.
        seed: u64,
    },
}

/// One of several parts of equal size into which the training images are divided for cross-validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fold {
    /// Number of the fold, from 1 to `of`.
    pub number: usize,
    /// Number of folds.
    pub of: usize,
}
