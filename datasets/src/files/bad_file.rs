//! A file or an image that could not be read, as lists and reports keep it.

use serde::{Deserialize, Serialize};

use super::Fault;

/// A file or an image that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadFile {
    /// The name that messages use: a path, or a place inside an archive.
    pub name: String,
    /// Why it could not be read.
    pub message: String,
    /// Whether it is larger than the limit on the size of a file, so that a higher limit would let it be read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_too_large: bool,
}

impl BadFile {
    /// The file `name`, which cannot be read because of `fault`.
    pub fn new(name: impl Into<String>, fault: &Fault) -> Self {
        let is_too_large = matches!(fault, Fault::TooLarge { .. });
        Self { name: name.into(), message: fault.to_string(), is_too_large }
    }
}
