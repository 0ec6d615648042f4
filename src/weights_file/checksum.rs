//! The checksum of weights, whatever file they are in.

use sha2::{Digest, Sha256};
use vitrine_models::weights::NamedTensor;

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
