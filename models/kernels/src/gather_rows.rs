//! Rows in another order: how a grid of tokens is split into windows and merged again, with shifts and padding in the
//! same pass.

use super::row_map::{NOWHERE, RowMap};
#[cfg(feature = "flex")]
use crate::cpu::{flex, gather_rows as fused, operation};
use burn::tensor::{Int, Tensor, TensorData};

/// The rows of `x` that `map` names, in the order of the map.
///
/// # Shapes
///
/// - x: `[batch, rows, dim]`
/// - output: `[batch, map.rows(), dim]`
///
/// # Panics
///
/// If the map is for another number of rows.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use vitrine_kernels::RowMap;
///
/// let device = Device::default();
/// let x = Tensor::<3>::from_floats([[[1.0], [2.0], [3.0]]], &device);
/// let map = RowMap::new(&[Some(2), None, Some(0), Some(1)], 3); // the second row is padding
/// let y = vitrine_kernels::gather_rows(x, &map);
/// assert_eq!(y.clone().into_data().try_into_vec_as::<f32>()?, [3.0, 0.0, 1.0, 2.0]);
/// let back = vitrine_kernels::gather_rows(y, &map.inverse());
/// assert_eq!(back.into_data().try_into_vec_as::<f32>()?, [1.0, 2.0, 3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn gather_rows(x: Tensor<3>, map: &RowMap) -> Tensor<3> {
    assert_eq!(x.dims()[1], map.targets.len(), "gather rows: the map is for another number of rows");
    #[cfg(feature = "flex")]
    if flex::takes(&x) {
        return operation::apply(fused::GatherRows { map: map.clone() }, [x.into_dispatch()]);
    }
    gather_rows_composed(x, map)
}

/// The definition of [`gather_rows`], in burn's own operations.
pub fn gather_rows_composed(x: Tensor<3>, map: &RowMap) -> Tensor<3> {
    let [batch, rows, dim] = x.dims();
    let device = x.device();
    let padded = map.sources.contains(&NOWHERE);
    let x = if padded { Tensor::cat(vec![x, Tensor::zeros([batch, 1, dim], &device)], 1) } else { x };
    let sources: Vec<i64> = map.sources.iter().map(|&row| i64::from(row).min(rows as i64)).collect();
    let sources = Tensor::<1, Int>::from_data(TensorData::new(sources, [map.sources.len()]), &device);
    x.select(1, sources)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::testing::{assert_derivative, assert_same};

    type GatherRowsFn = fn(Tensor<3>, &RowMap) -> Tensor<3>;

    fn flat(
        operation: GatherRowsFn,
        [batch, rows, dim]: [usize; 3],
        map: RowMap,
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let output = operation(leaf[0].clone().reshape([batch, rows, dim]), &map);
            let length = output.shape().num_elements();
            output.reshape([length])
        }
    }

    fn maps() -> Vec<(usize, RowMap)> {
        let permuted = RowMap::new(&[Some(2), Some(0), Some(3), Some(1)], 4);
        let padded = RowMap::new(&[None, Some(4), Some(1), None, Some(0)], 5);
        vec![(4, permuted.clone()), (4, permuted.inverse()), (5, padded.clone()), (5, padded.inverse())]
    }

    #[test]
    fn rows_agree_with_the_definition_and_with_central_differences() {
        for (rows, map) in maps() {
            for batch in [0, 1, 3] {
                let shape = [batch, rows, 6];
                let length = shape.iter().product();
                assert_same(
                    &[length],
                    flat(gather_rows, shape, map.clone()),
                    flat(gather_rows_composed, shape, map.clone()),
                );
            }
            assert_derivative(&[2 * rows * 3], flat(gather_rows, [2, rows, 3], map));
        }
    }

    #[test]
    fn the_inverse_puts_every_row_back() {
        let x = Tensor::<3>::random(
            [2, 4, 3],
            burn::tensor::Distribution::Default,
            &burn::tensor::Device::flex(),
        );
        let (_, map) = maps().swap_remove(0);
        let back = gather_rows(gather_rows(x.clone(), &map), &map.inverse());
        assert_eq!(back.into_data(), x.into_data());
    }
}
