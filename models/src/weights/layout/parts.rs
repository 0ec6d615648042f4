//! Tensors that libraries store in parts, joined, biases that they leave out, as zeros, and dimensions of one that they leave out.

use std::collections::BTreeMap;

use crate::weights::NamedTensor;

/// The tensors with the parts of plain blocks joined and missing biases added:
///
/// - `mlp.fc1_g` and `mlp.fc1_x` (timm's `SwiGLU`) become the two halves of `mlp.fc1`; without a gate, `mlp.fc1_x` is it;
/// - `mlp.w12` and `mlp.w3` (DINOv2's own files) are `mlp.fc1` and `mlp.fc2`;
/// - `attn.q_bias` and `attn.v_bias` of all blocks become `attn.qkv.bias`, in which keys have zeros;
/// - the patch embedding of a model with a norm before its blocks (CLIP) gets a bias of zeros.
pub(super) fn completed(tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    let (parts, mut whole): (Vec<_>, Vec<_>) =
        tensors.into_iter().map(renamed).partition(|tensor| is_part(&tensor.name));
    let mut parts: BTreeMap<String, NamedTensor> =
        parts.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    let names: Vec<String> = parts.keys().cloned().collect();
    let keys_have_a_bias = whole.iter().any(|tensor| tensor.name.ends_with(".attn.qkv.bias"));
    for name in names {
        let joined = match name.rsplit_once('.') {
            Some((attention, "q_bias")) if !keys_have_a_bias => joined_biases(&mut parts, attention),
            _ if name.contains(".mlp.fc1_x.") => joined_gate(&mut parts, &name),
            _ => None,
        };
        whole.extend(joined);
    }
    // A part without its partner is left as it is, so that the check of keys names it.
    whole.extend(parts.into_values());
    if whole.iter().any(|tensor| tensor.name == "norm_pre.weight") {
        whole.extend(zero_bias(&whole));
    }
    whole
}

fn renamed(tensor: NamedTensor) -> NamedTensor {
    let name = tensor.name.replace(".mlp.w12.", ".mlp.fc1.").replace(".mlp.w3.", ".mlp.fc2.");
    NamedTensor { name, ..tensor }
}

fn is_part(name: &str) -> bool {
    let is_bias = name.ends_with(".attn.q_bias") || name.ends_with(".attn.v_bias");
    // The biases of Swin v2, whose blocks are in `layers`, are its own.
    name.starts_with("blocks.") && (is_bias || name.contains(".mlp.fc1_g.") || name.contains(".mlp.fc1_x."))
}

/// `attn.qkv.bias` of a block from the biases of queries and values.
fn joined_biases(parts: &mut BTreeMap<String, NamedTensor>, attention: &str) -> Option<NamedTensor> {
    let [q, v] = ["q_bias", "v_bias"].map(|part| format!("{attention}.{part}"));
    if parts.get(&q)?.shape != parts.get(&v)?.shape {
        return None;
    }
    let (q, v) = (parts.remove(&q)?, parts.remove(&v)?);
    let keys = vec![0.0; q.values.len()];
    let shape = vec![3 * q.values.len()];
    Some(NamedTensor {
        name: format!("{attention}.qkv.bias"),
        shape,
        values: [q.values, keys, v.values].concat(),
    })
}

/// `mlp.fc1` from the layer to the hidden values, called `name`, and the gate, if there is one.
fn joined_gate(parts: &mut BTreeMap<String, NamedTensor>, name: &str) -> Option<NamedTensor> {
    let gate = name.replace(".fc1_x.", ".fc1_g.");
    let (whole, hidden) = (name.replace(".fc1_x.", ".fc1."), parts.get(name)?);
    let Some(gates) = parts.get(&gate) else {
        return parts.remove(name).map(|hidden| NamedTensor { name: whole, ..hidden });
    };
    if gates.shape != hidden.shape || hidden.shape.is_empty() {
        return None;
    }
    let (gates, hidden) = (parts.remove(&gate)?, parts.remove(name)?);
    let shape = [&[2 * hidden.shape[0]], &hidden.shape[1..]].concat();
    Some(NamedTensor { name: whole, shape, values: [gates.values, hidden.values].concat() })
}

/// The bias of zeros of a patch embedding that has none.
fn zero_bias(tensors: &[NamedTensor]) -> Option<NamedTensor> {
    let (weight, name) = ("patch_embed.proj.weight", "patch_embed.proj.bias");
    let rows = *tensors.iter().find(|tensor| tensor.name == weight)?.shape.first()?;
    let is_missing = tensors.iter().all(|tensor| tensor.name != name);
    is_missing.then(|| NamedTensor { name: name.to_owned(), shape: vec![rows], values: vec![0.0; rows] })
}

/// Adds a batch dimension to positions that are an embedding layer `[tokens, dim]`, as in SigLIP and CLIP, and two
/// dimensions to a class token that is a vector, as in CLIP.
pub(super) fn with_batch_dimensions(mut tensor: NamedTensor) -> NamedTensor {
    match (tensor.name.as_str(), tensor.shape.len()) {
        ("pos_embed", 2) => tensor.shape.insert(0, 1),
        ("cls_token", 1) => tensor.shape.splice(0..0, [1, 1]).for_each(drop),
        _ => {}
    }
    tensor
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, shape: &[usize], first: f32) -> NamedTensor {
        let count: usize = shape.iter().product();
        let values = (0..count).map(|value| first + value as f32).collect();
        NamedTensor { name: name.to_owned(), shape: shape.to_vec(), values }
    }

    fn joined(tensors: Vec<NamedTensor>) -> Vec<(String, Vec<usize>, Vec<f32>)> {
        completed(tensors).into_iter().map(|tensor| (tensor.name, tensor.shape, tensor.values)).collect()
    }

    #[test]
    fn gates_come_before_hidden_values_and_keys_have_no_bias() {
        let all = joined(vec![
            tensor("blocks.0.mlp.fc1_x.weight", &[1, 2], 5.0),
            tensor("blocks.0.mlp.fc1_g.weight", &[1, 2], 1.0),
            tensor("blocks.0.attn.v_bias", &[2], 7.0),
            tensor("blocks.0.attn.q_bias", &[2], 3.0),
            tensor("blocks.1.mlp.fc1_x.bias", &[1], 9.0),
        ]);
        assert_eq!(
            all,
            [
                ("blocks.0.attn.qkv.bias".to_owned(), vec![6], vec![3.0, 4.0, 0.0, 0.0, 7.0, 8.0]),
                ("blocks.0.mlp.fc1.weight".to_owned(), vec![2, 2], vec![1.0, 2.0, 5.0, 6.0]),
                ("blocks.1.mlp.fc1.bias".to_owned(), vec![1], vec![9.0]),
            ]
        );
    }

    #[test]
    fn parts_without_a_partner_and_swins_biases_stay() {
        for name in ["blocks.0.attn.q_bias", "blocks.0.mlp.fc1_g.bias", "layers.0.blocks.0.attn.v_bias"] {
            assert_eq!(joined(vec![tensor(name, &[1], 2.0)]), [(name.to_owned(), vec![1], vec![2.0])]);
        }
    }

    #[test]
    fn patches_have_a_bias_of_zeros_before_a_norm() {
        let patches = || tensor("patch_embed.proj.weight", &[2, 3, 1, 1], 0.0);
        let all = joined(vec![patches(), tensor("norm_pre.weight", &[2], 0.0)]);
        assert_eq!(all.last(), Some(&("patch_embed.proj.bias".to_owned(), vec![2], vec![0.0; 2])));
        assert_eq!(joined(vec![patches()]).len(), 1);
    }
}
