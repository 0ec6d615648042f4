//! Attention of each patch of a grid to the patches around it (Hassani et al., arXiv:2204.07143, section 3), whose cost
//! grows linearly with the number of patches.

#[cfg(feature = "flex")]
use crate::cpu::{flex, neighborhood as fused, operation};
use crate::neighbors::Neighborhood;
use burn::tensor::{Tensor, TensorData, activation};

/// Softmax attention of the patches to their neighborhoods: `softmax(scale * q * k^T) * v` over the tokens of each.
///
/// # Shapes
///
/// - q: `[batch, heads, rows * columns, head_dim]`, of the patches
/// - k, v: `[batch, heads, prefix + rows * columns, head_dim]`
/// - output: `[batch, heads, rows * columns, head_dim]`
///
/// # Panics
///
/// If the shapes do not fit.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use vitrine_kernels::{Border, Neighborhood, neighborhood_attention};
///
/// // Four patches in a row with equal keys: each gets the mean of its neighbors' values.
/// let device = Device::default();
/// let same = Tensor::<4>::zeros([1, 1, 4, 1], &device);
/// let values = Tensor::<1>::from_floats([0.0, 2.0, 4.0, 6.0], &device).reshape([1, 1, 4, 1]);
/// let neighborhood = Neighborhood { grid: [1, 4], prefix: 0, radius: 1, border: Border::Cut };
/// let y = neighborhood_attention(same.clone(), same, values, 1.0, neighborhood);
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [1.0, 2.0, 4.0, 5.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn neighborhood_attention(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    scale: f64,
    neighborhood: Neighborhood,
) -> Tensor<4> {
    let [batch, heads, patches, head_dim] = q.dims();
    let tokens = neighborhood.prefix + patches;
    assert!(
        patches == neighborhood.patches()
            && k.dims() == v.dims()
            && k.dims() == [batch, heads, tokens, head_dim],
        "neighborhood attention: q {:?}, k {:?}, v {:?} for {neighborhood:?}",
        q.dims(),
        k.dims(),
        v.dims()
    );
    crate::counting::count(&[2, batch, heads, head_dim, neighborhood.pairs()]);
    #[cfg(feature = "flex")]
    if flex::takes(&q) && flex::takes(&k) && flex::takes(&v) {
        let inputs = [q, k, v].map(Tensor::into_dispatch);
        return operation::apply(fused::NeighborhoodAttention { scale: scale as f32, neighborhood }, inputs);
    }
    neighborhood_attention_composed(q, k, v, scale, neighborhood)
}

/// The definition of [`neighborhood_attention`], in burn's own operations: one shifted copy of the keys for each offset,
/// so that memory grows with the number of patches, not with its square.
pub fn neighborhood_attention_composed(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    scale: f64,
    neighborhood: Neighborhood,
) -> Tensor<4> {
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
    let near = offsets
        .iter()
        .map(|&offset| (q.clone() * shift(&key_map, offset)).sum_dim(3) + outside(neighborhood, offset, &q));
    let mut scores: Vec<Tensor<4>> = near.collect();
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
    use crate::testing::{assert_derivative, assert_same, assert_same_special};

    type NeighborhoodFn = fn(Tensor<4>, Tensor<4>, Tensor<4>, f64, Neighborhood) -> Tensor<4>;

    /// The operation of flat inputs: queries and keys lie token by token in memory, as a joint projection leaves them.
    fn flat(
        operation: NeighborhoodFn,
        [batch, heads, head_dim]: [usize; 3],
        neighborhood: Neighborhood,
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let patches = neighborhood.patches();
            let tokens = patches + neighborhood.prefix;
            let view = |leaf: &Tensor<1>, tokens: usize| -> Tensor<4> {
                leaf.clone().reshape([batch, tokens, heads, head_dim]).swap_dims(1, 2)
            };
            let [q, k, v] = [view(&leaf[0], patches), view(&leaf[1], tokens), view(&leaf[2], tokens)];
            operation(q * 2.0, k, v, 0.7, neighborhood).reshape([batch * heads * patches * head_dim])
        }
    }

    fn lengths([batch, heads, head_dim]: [usize; 3], neighborhood: Neighborhood) -> [usize; 3] {
        let width = batch * heads * head_dim;
        let tokens = neighborhood.patches() + neighborhood.prefix;
        [neighborhood.patches() * width, tokens * width, tokens * width]
    }

    #[test]
    fn neighborhood_attention_agrees_with_its_definition() {
        for border in [Border::Cut, Border::Moved] {
            for (shape, grid, prefix, radius) in [
                ([2, 3, 7], [4, 6], 0, 1),
                ([1, 1, 1], [1, 1], 0, 1),
                ([1, 2, 16], [5, 17], 1, 2),
                ([1, 1, 4], [3, 33], 5, 3),
                ([2, 1, 20], [7, 7], 1, 9),
            ] {
                let neighborhood = Neighborhood { grid, prefix, radius, border };
                assert_same(
                    &lengths(shape, neighborhood),
                    flat(neighborhood_attention, shape, neighborhood),
                    flat(neighborhood_attention_composed, shape, neighborhood),
                );
            }
        }
    }

    #[test]
    fn neighborhood_attention_takes_an_empty_batch() {
        let device = burn::tensor::Device::flex().autodiff();
        let neighborhood = Neighborhood { grid: [2, 3], prefix: 1, radius: 1, border: Border::Cut };
        let q = Tensor::<4>::zeros([0, 2, 6, 4], &device).require_grad();
        let k = Tensor::<4>::zeros([0, 2, 7, 4], &device);
        let output = neighborhood_attention(q.clone(), k.clone(), k, 1.0, neighborhood);
        assert_eq!(output.dims(), [0, 2, 6, 4]);
        assert_eq!(q.grad(&output.sum().backward()).unwrap().dims(), [0, 2, 6, 4]);
    }

    #[test]
    fn the_definition_is_attention_with_a_mask() {
        for border in [Border::Cut, Border::Moved] {
            let (shape, neighborhood) =
                ([2, 2, 5], Neighborhood { grid: [4, 5], prefix: 2, radius: 1, border });
            let masked = |q: Tensor<4>, k, v, scale, n: Neighborhood| {
                let tokens = n.prefix + n.patches();
                let mask: Vec<f32> = (0..n.patches() * tokens)
                    .map(|pair| {
                        let (query, key) = (pair / tokens, pair % tokens);
                        let near = |axis: usize, place: fn(usize, usize) -> usize| {
                            let columns = n.grid[1];
                            n.span(axis, place(query, columns)).contains(&place(key - n.prefix, columns))
                        };
                        let is_seen = key < n.prefix || (near(0, |p, c| p / c) && near(1, |p, c| p % c));
                        if is_seen { 0.0 } else { f32::NEG_INFINITY }
                    })
                    .collect();
                let mask = TensorData::new(mask, [1, 1, n.patches(), tokens]);
                let bias = Tensor::from_data(mask, &q.device());
                crate::attention_composed(q, k, v, scale, Some(bias))
            };
            assert_same(
                &lengths(shape, neighborhood),
                flat(neighborhood_attention_composed, shape, neighborhood),
                flat(masked, shape, neighborhood),
            );
        }
    }

    #[test]
    fn neighborhood_attention_has_the_derivative_of_central_differences() {
        for border in [Border::Cut, Border::Moved] {
            let (shape, neighborhood) =
                ([1, 2, 3], Neighborhood { grid: [3, 4], prefix: 1, radius: 1, border });
            let operation = flat(neighborhood_attention, shape, neighborhood);
            assert_derivative(&lengths(shape, neighborhood), operation);
        }
    }

    #[test]
    fn neighborhood_attention_keeps_special_values() {
        // In the definition, a key that is not finite also reaches the patches that do not attend to it, as 0 times
        // infinity, so that only queries can be compared.
        assert_same_special(
            &[15 * 8],
            |leaf| finite_keys(neighborhood_attention, leaf),
            |leaf| finite_keys(neighborhood_attention_composed, leaf),
        );
    }

    /// The operation with finite keys and values.
    fn finite_keys(operation: NeighborhoodFn, leaf: &[Tensor<1>]) -> Tensor<1> {
        let neighborhood = Neighborhood { grid: [3, 5], prefix: 1, radius: 1, border: Border::Cut };
        let fixed = Tensor::from_floats(crate::testing::numbers(16 * 8, 4).as_slice(), &leaf[0].device());
        flat(operation, [1, 2, 4], neighborhood)(&[leaf[0].clone(), fixed.clone(), fixed])
    }
}
