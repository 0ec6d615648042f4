//! The conditions under which a run began, beyond its settings: threads, device, weights, and data. A repeated run
//! compares them with its own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vitrine_datasets::{Fingerprint, Split};

/// The conditions under which a run began. Earlier versions of the program did not record them, so any may be missing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Origin {
    /// Number of threads that computed, on which the last bits of sums depend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// The device that computed, as `--device` names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The [`checksum`](crate::weights_file::checksum) of the pretrained weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// The fingerprint of each split of the data set, before any images were held out for validation.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<Split, Fingerprint>,
}

impl Origin {
    /// Whether no condition was recorded.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}
