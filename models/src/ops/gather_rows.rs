//! Rows in another order: how windows are cut from a grid of tokens and put back, with shifts and padding in the same pass.

#[cfg(feature = "flex")]
use super::flex;
use burn::tensor::{Int, Tensor, TensorData};
use std::sync::Arc;

/// Where each row of the output comes from. A row is used at most once, so that the map can be turned around.
#[derive(Clone, Debug)]
pub struct RowMap {
    /// For each output row the input row, or [`NOWHERE`] for a row of zeros.
    sources: Arc<[u32]>,
    /// For each input row the output row, or [`NOWHERE`] for a row that is left out.
    targets: Arc<[u32]>,
}

const NOWHERE: u32 = u32::MAX;

impl RowMap {
    /// A map from `rows` rows; `sources` names for each output row an input row, or none for a row of zeros.
    ///
    /// # Panics
    ///
    /// If a source is no row, or is named twice.
    pub fn new(sources: &[Option<usize>], rows: usize) -> Self {
        let mut targets = vec![NOWHERE; rows];
        for (output, source) in sources.iter().enumerate() {
            if let Some(source) = *source {
                assert!(
                    source < rows && targets[source] == NOWHERE,
                    "row {source} of {rows} is used twice or is none"
                );
                targets[source] = output as u32;
            }
        }
        let sources = sources.iter().map(|source| source.map_or(NOWHERE, |source| source as u32)).collect();
        Self { sources, targets: targets.into() }
    }

    /// Rows of the output.
    pub fn rows(&self) -> usize {
        self.sources.len()
    }

    /// The map that puts the rows back; rows that this one left out become zeros.
    pub fn inverse(&self) -> Self {
        Self { sources: self.targets.clone(), targets: self.sources.clone() }
    }
}

/// The rows that `map` names, in its order.
///
/// # Shapes
///
/// - x: `[batch, rows, dim]`
/// - output: `[batch, map's rows, dim]`
///
/// # Panics
///
/// If the map is for another number of rows.
pub fn gather_rows(x: Tensor<3>, map: &RowMap) -> Tensor<3> {
    assert_eq!(x.dims()[1], map.targets.len(), "gather rows: the map is for another number of rows");
    #[cfg(feature = "flex")]
    if flex::takes(&x) {
        return flex::apply(fused::GatherRows { map: map.clone() }, [Some(x.into_dispatch())]);
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

#[cfg(feature = "flex")]
mod fused {
    //! A copy of every row; the gradient is the same copy with the map turned around.

    use super::super::flex::{self, Operation, contiguous, sizes};
    use super::super::parallel::{Chunks, Shared, buffer, parallel};
    use super::{NOWHERE, RowMap};
    use burn::backend::flex::FlexTensor;

    #[derive(Clone, Debug)]
    pub(super) struct GatherRows {
        pub(super) map: RowMap,
    }

    impl Operation<1> for GatherRows {
        type Saved = ();

        fn forward(&self, [x]: [Option<FlexTensor>; 1]) -> FlexTensor {
            gather(contiguous(x.expect("x is given")), &self.map.sources)
        }

        fn forward_saving(&self, x: [Option<FlexTensor>; 1], _wanted: [bool; 1]) -> (FlexTensor, ()) {
            (self.forward(x), ())
        }

        fn backward(self, (): (), gradient: FlexTensor, _wanted: [bool; 1]) -> [Option<FlexTensor>; 1] {
            [Some(gather(contiguous(gradient), &self.map.targets))]
        }
    }

    fn gather(x: FlexTensor, sources: &[u32]) -> FlexTensor {
        let [batch, rows, dim] = sizes(&x);
        let from = x.storage::<f32>();
        let mut output = buffer(batch * sources.len() * dim);
        let chunks = Chunks::new(batch * sources.len(), 64);
        let shared = Shared::new(&mut output);
        parallel(chunks.count(), |index| {
            for row in chunks.range(index) {
                // SAFETY: the rows are disjoint.
                let to = unsafe { shared.slice(row * dim..(row + 1) * dim) };
                match sources[row % sources.len()] {
                    NOWHERE => to.fill(0.0),
                    source => {
                        let start = (row / sources.len() * rows + source as usize) * dim;
                        to.copy_from_slice(&from[start..start + dim]);
                    }
                }
            }
        });
        flex::tensor(output, [batch, sources.len(), dim])
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::testing::{assert_derivative, assert_same};
    use super::*;

    type Gather = fn(Tensor<3>, &RowMap) -> Tensor<3>;

    fn flat(
        operation: Gather,
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
        let turned = RowMap::new(&[Some(2), Some(0), Some(3), Some(1)], 4);
        let padded = RowMap::new(&[None, Some(4), Some(1), None, Some(0)], 5);
        vec![(4, turned.clone()), (4, turned.inverse()), (5, padded.clone()), (5, padded.inverse())]
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
