//! The order of the values of queries and keys in a head with rotary positions. Scores do not depend on it if both have
//! the same, so that the weights of another library are brought into the order of this crate.

use super::NamedTensor;
use crate::ModelConfig;

/// Which values of a head of `4n` values are rotated together: those of the rows first, and of each axis those of the
/// highest frequency first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RotaryPairs {
    /// The first quarter with the second for the rows, and the third with the fourth for the columns: this crate's own.
    #[default]
    Quarters,
    /// The first half with the second; rows have the first half of each (DINOv3, `rotate_half`).
    Halves,
    /// Neighbors; rows have the first half of the values (timm's `rot`).
    Neighbors,
    /// Neighbors; columns have the first half of the values (timm's `rot` with the indexing `xy`).
    NeighborsColumnsFirst,
}

/// timm's frequencies of all blocks: `[2, blocks, heads, head_dim / 2]`.
pub(crate) const FREQUENCIES: &str = "rope.freqs";

impl RotaryPairs {
    /// Whether the columns come first.
    fn columns_first(self) -> bool {
        match self {
            Self::Quarters | Self::Halves | Self::Neighbors => false,
            Self::NeighborsColumnsFirst => true,
        }
    }

    /// The index in this order of the value at each index of this crate's order.
    fn sources(self, head_dim: usize) -> Vec<usize> {
        let quarter = head_dim / 4;
        (0..head_dim)
            .map(|index| {
                let (axis, second, pair) = (index / (2 * quarter), index / quarter % 2, index % quarter);
                match self {
                    Self::Quarters => index,
                    Self::Halves => second * 2 * quarter + axis * quarter + pair,
                    Self::Neighbors => axis * 2 * quarter + 2 * pair + second,
                    Self::NeighborsColumnsFirst => (1 - axis) * 2 * quarter + 2 * pair + second,
                }
            })
            .collect()
    }
}

/// The tensors of a model with rotary positions, with queries and keys in the order of this crate, and learned frequencies in the
/// blocks that they are of. Those of other models are not changed.
///
/// # Examples
///
/// ```
/// use vitrine_models::weights::{NamedTensor, RotaryPairs, reorder_rotary};
/// use vitrine_models::{ModelConfig, Position, preset};
///
/// let plain = preset::find("vit_pico_patch4_32").expect("listed");
/// let config = ModelConfig { embed_dim: 4, num_heads: 1.into(), position: Position::Rotary, ..plain };
/// let bias = NamedTensor {
///     name: "blocks.0.attn.qkv.bias".to_owned(),
///     shape: vec![12],
///     values: (0..12).map(|value| value as f32).collect(),
/// };
/// let ours = reorder_rotary(vec![bias], &config, RotaryPairs::Halves);
/// // Queries and keys; the order of values does not change.
/// assert_eq!(ours[0].values, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
/// ```
pub fn reorder_rotary(
    tensors: Vec<NamedTensor>,
    config: &ModelConfig,
    pairs: RotaryPairs,
) -> Vec<NamedTensor> {
    let head_dim = config.embed_dim / config.num_heads[0].max(1);
    let is_rotary = config.rotary_options().is_some();
    if !is_rotary || !head_dim.is_multiple_of(4) {
        return tensors;
    }
    let tensors = tensors.into_iter().flat_map(|tensor| match tensor.name == FREQUENCIES {
        true => frequencies_of_blocks(tensor, config.num_heads[0], head_dim, pairs),
        false => vec![tensor],
    });
    if pairs == RotaryPairs::Quarters {
        return tensors.collect();
    }
    let sources = pairs.sources(head_dim);
    tensors
        .map(|tensor| match tensor.name.rsplit_once(".attn.").map(|(_, part)| part) {
            Some("qkv.weight" | "qkv.bias") => {
                let rows = 2 * config.embed_dim;
                reordered(tensor, &sources, rows)
            }
            Some("q_norm.weight" | "q_norm.bias" | "k_norm.weight" | "k_norm.bias") => {
                reordered(tensor, &sources, head_dim)
            }
            _ => tensor,
        })
        .collect()
}

/// timm's [`FREQUENCIES`], each block's in a tensor of its own, `[2, heads, head_dim / 2]`: those of the rows first, and of the pairs
/// of values in the order of this crate.
fn frequencies_of_blocks(
    tensor: NamedTensor,
    num_heads: usize,
    head_dim: usize,
    pairs: RotaryPairs,
) -> Vec<NamedTensor> {
    let half = head_dim / 2;
    let &[2, blocks, heads, width] = &tensor.shape[..] else { return vec![tensor] };
    if [heads, width] != [num_heads, half] || tensor.values.len() != 2 * blocks * heads * half {
        return vec![tensor]; // of another shape, which the check of keys reports
    }
    let swaps = pairs.columns_first();
    // The pairs of the other axis are half of all pairs away.
    let source = |pair: usize| if swaps { (pair + half / 2) % half } else { pair };
    let value = |axis: usize, block: usize, head: usize, pair: usize| {
        let axis = if swaps { 1 - axis } else { axis };
        tensor.values[((axis * blocks + block) * heads + head) * half + source(pair)]
    };
    let of_block = |block: usize| NamedTensor {
        name: format!("blocks.{block}.attn.rotary.frequencies"),
        shape: vec![2, heads, half],
        values: (0..2 * heads * half)
            .map(|index| value(index / (heads * half), block, index / half % heads, index % half))
            .collect(),
    };
    (0..blocks).map(of_block).collect()
}

/// The tensor with the first `rows` rows reordered, head by head.
fn reordered(tensor: NamedTensor, sources: &[usize], rows: usize) -> NamedTensor {
    let all = tensor.shape.first().copied().unwrap_or(0);
    if all < rows || !tensor.values.len().is_multiple_of(all.max(1)) {
        return tensor; // of another shape, which the check of keys reports
    }
    let width = tensor.values.len() / all;
    let mut values = tensor.values.clone();
    for row in 0..rows {
        let head = row / sources.len() * sources.len();
        let source = head + sources[row % sources.len()];
        values[row * width..][..width].copy_from_slice(&tensor.values[source * width..][..width]);
    }
    NamedTensor { values, ..tensor }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_of_all_blocks_are_divided_among_them() {
        // Two blocks, one head, four pairs: 100 for the second axis, 10 for the second block, and the number of the pair.
        let values =
            |axis: usize, block: usize| (0..4).map(move |pair| (100 * axis + 10 * block + pair) as f32);
        let all = [[0, 0], [0, 1], [1, 0], [1, 1]].into_iter().flat_map(|[axis, block]| values(axis, block));
        let all =
            NamedTensor { name: FREQUENCIES.to_owned(), shape: vec![2, 2, 1, 4], values: all.collect() };
        let second = |pairs| frequencies_of_blocks(all.clone(), 1, 8, pairs).remove(1);
        let rows_first = second(RotaryPairs::Neighbors);
        assert_eq!(
            (rows_first.name.as_str(), &rows_first.shape[..]),
            ("blocks.1.attn.rotary.frequencies", &[2, 1, 4][..])
        );
        assert_eq!(rows_first.values, [10.0, 11.0, 12.0, 13.0, 110.0, 111.0, 112.0, 113.0]);
        let columns_first = second(RotaryPairs::NeighborsColumnsFirst);
        assert_eq!(columns_first.values, [112.0, 113.0, 110.0, 111.0, 12.0, 13.0, 10.0, 11.0]);
        // Of other heads than the architecture's: left to the check of keys.
        assert_eq!(frequencies_of_blocks(all.clone(), 2, 8, RotaryPairs::Neighbors), [all]);
    }

    #[test]
    fn each_order_names_every_value_once() {
        for pairs in [
            RotaryPairs::Quarters,
            RotaryPairs::Halves,
            RotaryPairs::Neighbors,
            RotaryPairs::NeighborsColumnsFirst,
        ] {
            let mut sources = pairs.sources(16);
            sources.sort_unstable();
            assert_eq!(sources, (0..16).collect::<Vec<_>>(), "{pairs:?}");
        }
        assert_eq!(RotaryPairs::Halves.sources(8), [0, 1, 4, 5, 2, 3, 6, 7]);
        assert_eq!(RotaryPairs::Neighbors.sources(8), [0, 2, 1, 3, 4, 6, 5, 7]);
    }
}
