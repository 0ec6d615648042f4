//! An image that could not be read.

use serde::{Deserialize, Serialize};

/// An image that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadFile {
    /// What messages call it.
    pub name: String,
    /// What is wrong.
    pub message: String,
}
