//! The linear layers of attention pooling, whose keys and values timm stores as one layer and this crate computes as
//! two.

use crate::weights::{LazyTensor, NamedTensor};

/// The start of timm's names of the joined layer.
const JOINED: &str = "attn_pool.kv.";

/// Joins keys and values into timm's layer.
pub(super) fn join_keys_and_values(tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    let mut joined: Vec<NamedTensor> = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        if let Some(kind) = tensor.name.strip_prefix("attn_pool.k.") {
            joined.push(NamedTensor { name: format!("{JOINED}{kind}"), ..tensor });
        } else if let Some(kind) = tensor.name.strip_prefix("attn_pool.v.") {
            let name = format!("{JOINED}{kind}");
            let keys = joined.iter_mut().find(|other| other.name == name).expect("keys come before values");
            keys.shape[0] += tensor.shape[0];
            keys.values.extend(tensor.values);
        } else {
            joined.push(tensor);
        }
    }
    joined
}

/// Splits timm's layer of keys and values in two, which reads it; leaves other tensors as they are.
///
/// # Errors
/// If the layer cannot be read.
pub(super) fn split_keys_and_values<E>(tensor: LazyTensor<'_, E>) -> Result<Vec<LazyTensor<'_, E>>, E> {
    match (tensor.name.strip_prefix(JOINED), tensor.shape.first()) {
        (Some(kind), Some(rows)) if rows.is_multiple_of(2) => {
            let shape: Vec<usize> = [&[rows / 2], &tensor.shape[1..]].concat();
            let kind = kind.to_owned();
            let mut joined = Vec::new();
            (tensor.read)(&mut joined)?;
            let (keys, values) = joined.split_at(joined.len() / 2);
            let part = |part: &str, values: &[f32]| NamedTensor {
                name: format!("attn_pool.{part}.{kind}"),
                shape: shape.clone(),
                values: values.to_vec(),
            };
            Ok(vec![part("k", keys).into(), part("v", values).into()])
        }
        _ => Ok(vec![tensor]),
    }
}
