//! Attention masks, which are true where a query must not see a key, and the additive form of a mask.

use burn::tensor::{Bool, Device, Tensor, TensorData};

use crate::{ConfigError, ModelConfig};

/// The additive form of a mask: a bias of scores that keeps queries from the keys that `mask` marks.
///
/// The bias is large and negative, but finite in float32 and bfloat16, so that under softmax a query whose keys are all
/// masked attends to all of them equally instead of giving NaN.
///
/// # Shapes
/// - mask: `[batch or 1, heads or 1, queries, keys]`, true where a query must not see a key
/// - output: the same
///
/// # Examples
///
/// ```
/// use burn::tensor::{Bool, Device, Tensor, activation};
/// use vitrine_models::attention::additive_mask;
///
/// let device = Device::default();
/// let mask = Tensor::<4, Bool>::from_data([[[[false, true, false], [true, true, true]]]], &device);
/// let scores = Tensor::<4>::zeros([1, 1, 2, 3], &device) + additive_mask(mask);
/// let weights = activation::softmax(scores, 3).into_data().try_into_vec_as::<f32>()?;
/// assert_eq!(weights[..3], [0.5, 0.0, 0.5]);
/// assert!(weights[3..].iter().all(|weight| (weight - 1.0 / 3.0).abs() < 1e-6));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn additive_mask(mask: Tensor<4, Bool>) -> Tensor<4> {
    mask.float().mul_scalar(HIDDEN)
}

/// The bias of a masked key: far below every score, and far enough from the end of the range that a score can be added
/// to it.
pub(super) const HIDDEN: f64 = -1e30;

/// The mask of a grid in which every token sees the tokens that are at most `radius` rows and columns away. Prefix
/// tokens see all tokens, and all tokens see them.
///
/// # Shapes
/// - output: `[1, 1, tokens, tokens]`, prefix tokens first
///
/// # Examples
///
/// ```
/// use burn::tensor::Device;
/// use vitrine_models::attention::neighborhood;
///
/// let mask = neighborhood([1, 4], 0, 1, &Device::default());
/// assert_eq!(mask.dims(), [1, 1, 4, 4]);
/// let hidden: Vec<bool> = mask.into_data().iter::<bool>().collect();
/// assert_eq!(hidden[..4], [false, false, true, true]); // patch 0 sees itself and patch 1
/// assert_eq!(hidden[4..8], [false, false, false, true]);
/// ```
pub fn neighborhood(
    [rows, columns]: [usize; 2],
    prefix: usize,
    radius: usize,
    device: &Device,
) -> Tensor<4, Bool> {
    let place = |token: usize| token.checked_sub(prefix).map(|patch| [patch / columns, patch % columns]);
    mask(prefix + rows * columns, device, |query, key| match (place(query), place(key)) {
        (Some(query), Some(key)) => (0..2).any(|axis| query[axis].abs_diff(key[axis]) > radius),
        _ => false,
    })
}

/// Checks that a neighborhood is larger than a token and smaller than the grid.
pub(super) fn check_neighborhood(radius: usize, config: &ModelConfig) -> Result<(), ConfigError> {
    let side = config.grid().into_iter().max().unwrap_or(0);
    match radius {
        0 => Err(ConfigError("`mixers`: `neighborhood` needs a radius of at least 1".into())),
        _ if radius + 1 >= side => Err(ConfigError(format!(
            "`mixers`: a `neighborhood` of {radius} holds the whole grid ({side} tokens per side): use `global`"
        ))),
        _ => Ok(()),
    }
}

/// The mask of a graph with edges `(query, key)`: every token sees itself, and the keys of its edges.
///
/// # Shapes
/// - output: `[1, 1, tokens, tokens]`
///
/// # Panics
/// If an edge names a token that does not exist.
///
/// # Examples
///
/// ```
/// use burn::tensor::Device;
/// use vitrine_models::attention::adjacency;
///
/// let hidden = adjacency(3, &[(0, 1)], &Device::default()).into_data();
/// let hidden: Vec<bool> = hidden.iter::<bool>().collect();
/// assert_eq!(hidden[..3], [false, false, true]); // token 0 sees itself and token 1
/// assert_eq!(hidden[3..6], [true, false, true]); // token 1 sees only itself: edges have a direction
/// ```
pub fn adjacency(tokens: usize, edges: &[(usize, usize)], device: &Device) -> Tensor<4, Bool> {
    let mut joined = vec![false; tokens * tokens];
    for &(query, key) in edges {
        assert!(
            query < tokens && key < tokens,
            "the edge ({query}, {key}) names a token beyond the {tokens} tokens"
        );
        joined[query * tokens + key] = true;
    }
    mask(tokens, device, |query, key| query != key && !joined[query * tokens + key])
}

fn mask(tokens: usize, device: &Device, hidden: impl Fn(usize, usize) -> bool) -> Tensor<4, Bool> {
    let values: Vec<bool> = (0..tokens * tokens).map(|i| hidden(i / tokens, i % tokens)).collect();
    Tensor::from_data(TensorData::new(values, [1, 1, tokens, tokens]), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(mask: Tensor<4, Bool>, tokens: usize) -> Vec<String> {
        let values: Vec<bool> = mask.into_data().iter::<bool>().collect();
        values.chunks(tokens).map(|row| row.iter().map(|&h| if h { '.' } else { 'x' }).collect()).collect()
    }

    #[test]
    fn neighbors_are_near_in_rows_and_columns_and_all_tokens_see_a_class_token() {
        let device = Device::default();
        let mask = rows(neighborhood([3, 3], 1, 1, &device), 10);
        assert_eq!(mask[0], "xxxxxxxxxx");
        assert_eq!(mask[1], "xxx.xx....");
        assert_eq!(mask[5], "xxxxxxxxxx");
        assert_eq!(mask[9], "x....xx.xx");
    }

    #[test]
    fn a_graph_has_its_edges_and_loops() {
        let mask = rows(adjacency(3, &[(0, 1), (2, 0)], &Device::default()), 3);
        assert_eq!(mask, ["xx.", ".x.", "x.x"]);
    }
}
