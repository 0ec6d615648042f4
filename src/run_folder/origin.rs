//! What a run was begun with and on, beyond what was asked for: by this a repetition sees whether it has the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use vitrine_datasets::{Fingerprint, Split};
use vitrine_models::weights::NamedTensor;

/// The conditions of a run. All of it may be missing: earlier versions of the program did not write it down.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Origin {
    /// Threads that computed: the bits of sums depend on their number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Where it was computed, as `--device` names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The checksum of the pretrained weights, see [`checksum`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// What each split of the data set held, before any images were kept for validation.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<Split, Fingerprint>,
}

impl Origin {
    /// Whether nothing is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// The SHA-256 of weights, whatever their order, in hexadecimal.
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
    fn every_value_name_and_shape_counts_and_the_order_does_not() {
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
