//! How the validation split of a data set came about.

use serde::{Deserialize, Serialize};

/// How the validation split came about.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationOrigin {
    /// There is none.
    Absent,
    /// The source has one of its own.
    Given,
    /// Taken out of the training samples, class by class, by their content and a seed.
    SplitOff {
        /// The share asked for; that of a class deviates by chance.
        fraction: f64,
        /// The seed that chose.
        seed: u64,
    },
    /// One of several equal parts of the training samples, class by class, by their content and a seed.
    Fold {
        /// Which one.
        fold: Fold,
        /// The seed that dealt them out.
        seed: u64,
    },
}

/// One of several equal parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fold {
    /// Its number, from 1 on.
    pub number: usize,
    /// Of how many.
    pub of: usize,
}
