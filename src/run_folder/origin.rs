//! The conditions under which a run began, beyond its settings: threads, device, weights, and data. A repeated run
//! compares them with its own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use vitrine_datasets::{Fingerprint, Split};
use vitrine_models::weights::NamedTensor;

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
    /// The [`checksum`] of the pretrained weights.
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

/// The SHA-256 of weights in hexadecimal, which does not depend on the order of the tensors.
pub fn checksum(tensors: &[NamedTensor]) -> String {
    let mut sorted: Vec<&NamedTensor> = tensors.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hasher = Sha256::new();
    for NamedTensor { name, shape, values } in sorted {
        hasher.update(format!("{name} {shape:?}\n"));
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        hasher.update(bytes);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_depends_on_values_names_and_shapes_but_not_on_the_order() {
        let tensor = |name: &str, shape: &[usize], values: &[f32]| NamedTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            values: values.to_vec(),
        };
        let (a, b) = (tensor("a", &[2], &[1.0, 2.0]), tensor("b", &[1], &[0.0]));
        let usual = checksum(&[a.clone(), b.clone()]);
        assert_eq!(usual, checksum(&[b.clone(), a.clone()]));
        for other in [
            tensor("c", &[2], &[1.0, 2.0]),
            tensor("a", &[1, 2], &[1.0, 2.0]),
            tensor("a", &[2], &[1.0, 2.5]),
        ] {
            assert_ne!(usual, checksum(&[other, b.clone()]));
        }
    }
}
