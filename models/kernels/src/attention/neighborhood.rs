//! Attention of each patch of a grid to the patches around it (Hassani et al., arXiv:2204.07143, section 3), whose cost
//! grows linearly with the number of patches.

use super::{DotProduct, attention_composed, packed_heads};
#[cfg(feature = "flex")]
use crate::cpu::{attention as fused, flex, operation};
use crate::neighbors::Neighborhood;
use burn::tensor::{Tensor, TensorData, activation};

/// [`self_attention`](crate::self_attention) in which each patch attends only to its neighborhood and to the prefix
/// tokens. Prefix tokens attend to all tokens.
///
/// # Shapes
///
/// - qkv: `[batch, prefix + rows * columns, 3 * dim]`; each token holds the queries of all heads, then the keys, then
///   the values. The prefix tokens come first, then the patches row by row.
/// - output: `[batch, prefix + rows * columns, dim]`; each token holds the outputs of all heads, one after the other
///
/// A key or value that is not finite may also reach patches that do not attend to it.
///
/// # Panics
///
/// If the shapes do not fit, or the grid is empty.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use vitrine_kernels::{Border, DotProduct, Neighborhood, neighborhood_attention};
///
/// // Four patches of width 1 in a row, with equal keys: each gets the mean of its neighbors' values.
/// let token = |value: f32| [0.0, 0.0, value];
/// let qkv = Tensor::<3>::from_floats([[0.0, 2.0, 4.0, 6.0].map(token)], &Device::default());
/// let neighborhood = Neighborhood { grid: [1, 4], prefix: 0, radius: 1, border: Border::Cut };
/// let y = neighborhood_attention(qkv, 1, DotProduct::scaled(1.0), neighborhood);
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [1.0, 2.0, 4.0, 5.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn neighborhood_attention(
    qkv: Tensor<3>,
    num_heads: usize,
    scores: DotProduct,
    neighborhood: Neighborhood,
) -> Tensor<3> {
    let [batch, tokens, packed] = qkv.dims();
    assert!(
        num_heads > 0 && packed % (3 * num_heads) == 0,
        "neighborhood attention: {packed} features are not q, k and v of {num_heads} heads"
    );
    assert!(
        neighborhood.patches() > 0 && tokens == neighborhood.tokens(),
        "neighborhood attention: {tokens} tokens for {neighborhood:?}"
    );
    scores.check([num_heads, tokens, packed / (3 * num_heads)]);
    let scores = DotProduct { rotation: scores.rotation.map(Tensor::detach), ..scores };
    crate::counting::count(&[2, batch, neighborhood.pairs(), packed / 3]);
    #[cfg(feature = "flex")]
    if flex::takes(&qkv) && flex::takes_option(&scores.factors) && flex::takes_option(&scores.rotation) {
        let DotProduct { scale, factors, rotation, normalize } = scores;
        let inputs = fused::PackedInputs {
            qkv: qkv.into_dispatch(),
            bias: None,
            factors: factors.map(Tensor::into_dispatch),
            rotation: rotation.map(Tensor::into_dispatch),
        };
        let attention = fused::SelfAttention { num_heads, scale: scale as f32, normalize };
        return operation::apply(fused::NeighborhoodAttention { attention, neighborhood }, inputs);
    }
    neighborhood_attention_composed(qkv, num_heads, scores, neighborhood)
}

/// The definition of [`neighborhood_attention`], in burn's own operations: one shifted copy of the keys for each offset,
/// so that memory grows with the number of patches, not with its square.
pub fn neighborhood_attention_composed(
    qkv: Tensor<3>,
    num_heads: usize,
    scores: DotProduct,
    neighborhood: Neighborhood,
) -> Tensor<3> {
    let [batch, tokens, packed] = qkv.dims();
    let Neighborhood { prefix, .. } = neighborhood;
    let [q, k, v] = packed_heads(qkv, num_heads);
    let [q, k] = scores.prepare_composed(q, k);
    let of_patches = q.clone().narrow(2, prefix, neighborhood.patches());
    let mut mixed = near(of_patches, [k.clone(), v.clone()], scores.scale, neighborhood);
    if prefix > 0 {
        let of_prefix = attention_composed(q.narrow(2, 0, prefix), k, v, scores.scale, None);
        mixed = Tensor::cat(vec![of_prefix, mixed], 2);
    }
    mixed.swap_dims(1, 2).reshape([batch, tokens, packed / 3])
}

/// The outputs of the patches.
///
/// # Shapes
///
/// - q, output: `[batch, heads, rows * columns, head_dim]`
/// - k, v: `[batch, heads, prefix + rows * columns, head_dim]`
fn near(q: Tensor<4>, [k, v]: [Tensor<4>; 2], scale: f64, neighborhood: Neighborhood) -> Tensor<4> {
    let [batch, heads, patches, head_dim] = q.dims();
    let Neighborhood { grid: [rows, columns], prefix, .. } = neighborhood;
    let q = q.mul_scalar(scale);
    let before = |x: &Tensor<4>| x.clone().narrow(2, 0, prefix);
    let padded = |x: Tensor<4>| {
        let map = x.narrow(2, prefix, patches).reshape([batch, heads, rows, columns, head_dim]);
        pad(pad(map, 2, neighborhood.reach(0)), 3, neighborhood.reach(1))
    };
    let shift = |x: &Tensor<5>, [row, column]: [usize; 2]| -> Tensor<4> {
        x.clone().narrow(2, row, rows).narrow(3, column, columns).reshape([batch, heads, patches, head_dim])
    };
    let [key_map, value_map] = [k.clone(), v.clone()].map(padded);
    let offsets = offsets(neighborhood);
    let of_offsets = offsets
        .iter()
        .map(|&offset| (q.clone() * shift(&key_map, offset)).sum_dim(3) + outside(neighborhood, offset, &q));
    let mut scores: Vec<Tensor<4>> = of_offsets.collect();
    if prefix > 0 {
        scores.push(q.matmul(before(&k).swap_dims(2, 3)));
    }
    let weights = activation::softmax(Tensor::cat(scores, 3), 3);
    let terms = offsets
        .iter()
        .enumerate()
        .map(|(index, &offset)| weights.clone().narrow(3, index, 1) * shift(&value_map, offset));
    let of_prefix = (prefix > 0).then(|| weights.clone().narrow(3, offsets.len(), prefix).matmul(before(&v)));
    terms.chain(of_prefix).reduce(|sum, term| sum + term).expect("a patch sees itself")
}

/// The offsets from a patch to those that any patch attends to, as places in the padded map.
fn offsets(neighborhood: Neighborhood) -> Vec<[usize; 2]> {
    let count = |axis| {
        let [low, high] = neighborhood.reach(axis);
        (high - low) as usize + 1
    };
    (0..count(0)).flat_map(|row| (0..count(1)).map(move |column| [row, column])).collect()
}

/// Minus infinity for the patches that do not attend to the one at this offset, and 0 for the others: `[1, 1, patches,
/// 1]`.
fn outside(neighborhood: Neighborhood, [row, column]: [usize; 2], like: &Tensor<4>) -> Tensor<4> {
    let [rows, columns] = neighborhood.grid;
    let seen = |axis: usize, index: usize, offset: usize| {
        let other = (index + offset).checked_add_signed(neighborhood.reach(axis)[0]);
        other.is_some_and(|other| neighborhood.span(axis, index).contains(&other))
    };
    let values: Vec<f32> = (0..rows * columns)
        .map(|patch| {
            let is_seen = seen(0, patch / columns, row) && seen(1, patch % columns, column);
            if is_seen { 0.0 } else { f32::NEG_INFINITY }
        })
        .collect();
    Tensor::from_data(TensorData::new(values, [1, 1, rows * columns, 1]), &like.device())
}

/// The map with zeros on both sides along a dimension, as far as `reach` goes.
fn pad(map: Tensor<5>, dimension: usize, [low, high]: [isize; 2]) -> Tensor<5> {
    let zeros = |count: usize| {
        let mut shape = map.dims();
        shape[dimension] = count;
        Tensor::zeros(shape, &map.device())
    };
    Tensor::cat(vec![zeros(low.unsigned_abs()), map.clone(), zeros(high.unsigned_abs())], dimension)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::neighbors::Border;
    use crate::testing::{assert_derivative, assert_same, assert_same_special, assert_same_within, numbers};

    type NeighborhoodFn = fn(Tensor<3>, usize, DotProduct, Neighborhood) -> Tensor<3>;

    /// The operation of a flat input, on a permuted view of it.
    fn flat(
        operation: NeighborhoodFn,
        [batch, heads, head_dim]: [usize; 3],
        neighborhood: Neighborhood,
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let (tokens, dim) = (neighborhood.tokens(), heads * head_dim);
            let qkv = leaf[0].clone().reshape([tokens, batch, 3 * dim]).swap_dims(0, 1);
            operation(qkv * 2.0, heads, DotProduct::scaled(0.7), neighborhood).reshape([batch * tokens * dim])
        }
    }

    fn length([batch, heads, head_dim]: [usize; 3], neighborhood: Neighborhood) -> [usize; 1] {
        [batch * neighborhood.tokens() * 3 * heads * head_dim]
    }

    /// Both borders, of grids around the size of a tile, and with a radius larger than the grid.
    fn every_neighborhood() -> impl Iterator<Item = ([usize; 3], Neighborhood)> {
        [Border::Cut, Border::Moved].into_iter().flat_map(|border| {
            [
                ([2, 3, 7], [4, 6], 0, 1),
                ([1, 1, 1], [1, 1], 0, 1),
                ([1, 2, 16], [5, 17], 1, 2),
                ([1, 1, 4], [3, 33], 5, 3),
                ([1, 3, 32], [14, 14], 1, 3),
                ([40, 1, 4], [9, 3], 2, 1),
                ([2, 1, 20], [7, 7], 1, 9),
            ]
            .map(|(shape, grid, prefix, radius)| (shape, Neighborhood { grid, prefix, radius, border }))
        })
    }

    #[test]
    fn neighborhood_attention_agrees_with_its_definition() {
        for (shape, neighborhood) in every_neighborhood() {
            assert_same(
                &length(shape, neighborhood),
                flat(neighborhood_attention, shape, neighborhood),
                flat(neighborhood_attention_composed, shape, neighborhood),
            );
        }
    }

    /// The operation with factors, a rotation, and normalized queries and keys, or some of these.
    fn prepared(
        operation: NeighborhoodFn,
        [rotate, normalize]: [bool; 2],
        neighborhood: Neighborhood,
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let tokens = neighborhood.tokens();
            let angles = numbers(4 * tokens, 5);
            let values = angles.iter().map(|x| (3.0 * x).cos()).chain(angles.iter().map(|x| (3.0 * x).sin()));
            let table = TensorData::new(values.collect(), [2, tokens, 4]);
            let scores = DotProduct {
                scale: 0.3,
                factors: Some(leaf[1].clone() * 5.0),
                rotation: rotate.then(|| Tensor::from_data(table, &leaf[0].device())),
                normalize,
            };
            let qkv = leaf[0].clone().reshape([2, tokens, 3 * 24]);
            operation(qkv * 2.0, 3, scores, neighborhood).reshape([2 * tokens * 24])
        }
    }

    #[test]
    fn queries_and_keys_are_prepared_as_in_the_definition() {
        for border in [Border::Cut, Border::Moved] {
            for steps in [[false, false], [true, false], [false, true], [true, true]] {
                let neighborhood = Neighborhood { grid: [9, 10], prefix: 1, radius: 2, border };
                // The gradient of a factor is a long sum of terms of both signs, which loses precision.
                assert_same_within(
                    5e-5,
                    &[2 * 91 * 72, 3],
                    prepared(neighborhood_attention, steps, neighborhood),
                    prepared(neighborhood_attention_composed, steps, neighborhood),
                );
            }
        }
    }

    #[test]
    fn neighborhood_attention_takes_an_empty_batch() {
        let neighborhood = Neighborhood { grid: [2, 3], prefix: 1, radius: 1, border: Border::Cut };
        let qkv = Tensor::<3>::zeros([0, 7, 24], &burn::tensor::Device::flex().autodiff()).require_grad();
        let output = neighborhood_attention(qkv.clone(), 2, DotProduct::scaled(1.0), neighborhood);
        assert_eq!(output.dims(), [0, 7, 8]);
        assert_eq!(qkv.grad(&output.sum().backward()).unwrap().dims(), [0, 7, 24]);
    }

    #[test]
    fn the_definition_is_attention_with_a_mask() {
        for border in [Border::Cut, Border::Moved] {
            let neighborhood = Neighborhood { grid: [4, 5], prefix: 2, radius: 1, border };
            let masked: NeighborhoodFn = |qkv, heads, scores, neighborhood| {
                let tokens = neighborhood.tokens();
                let mask: Vec<f32> = (0..tokens * tokens)
                    .map(|pair| {
                        if sees(neighborhood, pair / tokens, pair % tokens) { 0.0 } else { f32::NEG_INFINITY }
                    })
                    .collect();
                let bias = Tensor::from_data(TensorData::new(mask, [1, 1, tokens, tokens]), &qkv.device());
                crate::self_attention_composed(qkv, heads, scores, Some(bias))
            };
            let shape = [2, 2, 5];
            assert_same(
                &length(shape, neighborhood),
                flat(neighborhood_attention_composed, shape, neighborhood),
                flat(masked, shape, neighborhood),
            );
            let count = (0..22 * 22).filter(|pair| sees(neighborhood, pair / 22, pair % 22)).count();
            assert_eq!(count, neighborhood.pairs());
        }
    }

    /// Whether the token `query` attends to the token `key`.
    fn sees(neighborhood: Neighborhood, query: usize, key: usize) -> bool {
        let Neighborhood { grid: [_, columns], prefix, .. } = neighborhood;
        let near = |axis: usize, place: fn(usize, usize) -> usize| {
            neighborhood.span(axis, place(query - prefix, columns)).contains(&place(key - prefix, columns))
        };
        query < prefix || key < prefix || (near(0, |p, c| p / c) && near(1, |p, c| p % c))
    }

    #[test]
    fn neighborhood_attention_has_the_derivative_of_central_differences() {
        for border in [Border::Cut, Border::Moved] {
            let (shape, neighborhood) =
                ([1, 2, 3], Neighborhood { grid: [3, 4], prefix: 1, radius: 1, border });
            let operation = flat(neighborhood_attention, shape, neighborhood);
            assert_derivative(&length(shape, neighborhood), operation);
        }
    }

    #[test]
    fn neighborhood_attention_keeps_special_values() {
        // A key or value that is not finite also reaches patches that do not attend to it, as 0 times infinity, so that
        // only queries can be compared.
        assert_same_special(
            &[16 * 8],
            |leaf| finite_keys(neighborhood_attention, leaf),
            |leaf| finite_keys(neighborhood_attention_composed, leaf),
        );
    }

    /// The operation with finite keys and values.
    fn finite_keys(operation: NeighborhoodFn, leaf: &[Tensor<1>]) -> Tensor<1> {
        let neighborhood = Neighborhood { grid: [3, 5], prefix: 1, radius: 1, border: Border::Cut };
        let fixed = Tensor::from_floats(numbers(16 * 16, 4).as_slice(), &leaf[0].device());
        let parts = [(leaf[0].clone(), 8), (fixed, 16)].map(|(part, width)| part.reshape([1, 16, width]));
        operation(Tensor::cat(parts.to_vec(), 2), 2, DotProduct::scaled(0.7), neighborhood).reshape([16 * 8])
    }
}
