//! Attention masks, which are true where a query must not see a key, and the additive form of a mask.

use burn::tensor::{Bool, Device, Tensor, TensorData};
use vitrine_kernels::Neighborhood;

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

/// The mask of a grid in which patches see their neighborhood. Prefix tokens see all tokens, and all tokens see them.
///
/// # Shapes
/// - output: `[1, 1, tokens, tokens]`, prefix tokens first
///
/// # Examples
///
/// ```
/// use burn::tensor::Device;
/// use vitrine_kernels::{Border, Neighborhood};
/// use vitrine_models::attention::neighborhood;
///
/// let around = Neighborhood { grid: [1, 4], prefix: 0, radius: 1, border: Border::Cut };
/// let mask = neighborhood(&around, &Device::default());
/// assert_eq!(mask.dims(), [1, 1, 4, 4]);
/// let hidden: Vec<bool> = mask.into_data().iter::<bool>().collect();
/// assert_eq!(hidden[..4], [false, false, true, true]); // patch 0 sees itself and patch 1
/// assert_eq!(hidden[4..8], [false, false, false, true]);
/// ```
pub fn neighborhood(around: &Neighborhood, device: &Device) -> Tensor<4, Bool> {
    let Neighborhood { grid: [_, columns], prefix, .. } = *around;
    let place = |token: usize| token.checked_sub(prefix).map(|patch| [patch / columns, patch % columns]);
    mask(around.tokens(), device, |query, key| match (place(query), place(key)) {
        (Some(query), Some(key)) => (0..2).any(|axis| !around.span(axis, query[axis]).contains(&key[axis])),
        _ => false,
    })
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

/// The mask of all pairs of tokens for which `hidden` is true of query and key.
fn mask(tokens: usize, device: &Device, hidden: impl Fn(usize, usize) -> bool) -> Tensor<4, Bool> {
    let values: Vec<bool> = (0..tokens * tokens).map(|i| hidden(i / tokens, i % tokens)).collect();
    Tensor::from_data(TensorData::new(values, [1, 1, tokens, tokens]), device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vitrine_kernels::Border;

    fn rows(mask: Tensor<4, Bool>, tokens: usize) -> Vec<String> {
        let values: Vec<bool> = mask.into_data().iter::<bool>().collect();
        values.chunks(tokens).map(|row| row.iter().map(|&h| if h { '.' } else { 'x' }).collect()).collect()
    }

    #[test]
    fn neighbors_are_near_in_rows_and_columns_and_all_tokens_see_a_class_token() {
        let device = Device::default();
        let around = Neighborhood { grid: [3, 3], prefix: 1, radius: 1, border: Border::Cut };
        let mask = rows(neighborhood(&around, &device), 10);
        assert_eq!(mask[0], "xxxxxxxxxx");
        assert_eq!(mask[1], "xxx.xx....");
        assert_eq!(mask[5], "xxxxxxxxxx");
        assert_eq!(mask[9], "x....xx.xx");
    }

    #[test]
    fn a_full_neighborhood_is_moved_into_the_grid() {
        let around = Neighborhood { grid: [1, 5], prefix: 0, radius: 1, border: Border::Moved };
        assert_eq!(
            rows(neighborhood(&around, &Device::default()), 5),
            ["xxx..", "xxx..", ".xxx.", "..xxx", "..xxx"]
        );
    }

    #[test]
    fn a_graph_has_its_edges_and_loops() {
        let mask = rows(adjacency(3, &[(0, 1), (2, 0)], &Device::default()), 3);
        assert_eq!(mask, ["xx.", ".x.", "x.x"]);
    }
}
