//! Linear layers with weights that are packed once, as the CPU's products read them, for inference.

#[cfg(all(feature = "flex", target_arch = "x86_64"))]
use crate::cpu::{
    flex,
    gemm::{Panels, has_panels, is_for_amx, pack, pack_in_place},
    linear::{Activation, packed},
};
#[cfg(all(feature = "flex", target_arch = "x86_64"))]
use crate::linear::linear_untracked;
#[cfg(all(feature = "flex", target_arch = "x86_64"))]
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use std::ops::Range;

/// The weight of a linear layer, or some of its outputs, as the products of this CPU read it.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use vitrine_kernels::{PackedWeight, linear_packed};
///
/// let device = Device::default();
/// let weight = Tensor::<2>::from_floats([[1.0, 0.0, -1.0], [0.0, 10.0, 1.0]], &device); // [in_features, out_features]
/// if PackedWeight::suits(&weight) {
///     let packed = PackedWeight::new(weight.clone());
///     assert_eq!(packed.unpacked().into_data(), weight.into_data());
///     let x = Tensor::<2>::from_floats([[1.0, 2.0]], &device);
///     let y = linear_packed(&x, &packed.outputs(1..3), None, false).expect("x is where the weight is");
///     assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [20.0, 1.0]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PackedWeight {
    /// The values of the panels.
    #[cfg(all(feature = "flex", target_arch = "x86_64"))]
    values: FlexTensor,
    /// In features and out features.
    #[cfg(all(feature = "flex", target_arch = "x86_64"))]
    sizes: [usize; 2],
    outputs: Range<usize>,
}

impl PackedWeight {
    /// Whether the products of this CPU read a weight `[in_features, out_features]` faster if it is packed: if it is on flex and no
    /// autodiff follows it, on AVX-512, unless AMX computes the products.
    pub fn suits(weight: &Tensor<2>) -> bool {
        #[cfg(all(feature = "flex", target_arch = "x86_64"))]
        {
            let [inner, columns] = weight.dims();
            has_panels() && flex::takes_untracked(weight) && !is_for_amx(MANY_ROWS, inner, columns)
        }
        #[cfg(not(all(feature = "flex", target_arch = "x86_64")))]
        {
            let _ = weight;
            false
        }
    }

    /// Packs a weight: in its own memory, if nothing else has it and it lies there as PyTorch stores it, or else in a copy.
    ///
    /// # Panics
    ///
    /// If the weight does not [suit](Self::suits) that.
    pub fn new(weight: Tensor<2>) -> Self {
        assert!(Self::suits(&weight), "the weight is not on flex, or packed weights are of no use here");
        #[cfg(all(feature = "flex", target_arch = "x86_64"))]
        {
            let sizes = weight.dims();
            let outputs = 0..sizes[1];
            Self { values: packed_values(flex::untracked(weight), sizes), sizes, outputs }
        }
        #[cfg(not(all(feature = "flex", target_arch = "x86_64")))]
        unreachable!("no weight suits")
    }

    #[cfg(all(feature = "flex", target_arch = "x86_64"))]
    fn panels(&self) -> Panels<'_> {
        Panels::new(self.values.storage(), self.sizes)
    }

    /// The weight of some of the outputs, which shares its memory.
    ///
    /// # Panics
    ///
    /// If there are no such outputs.
    pub fn outputs(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.outputs.len(), "there are no such outputs");
        let mut part = self.clone();
        part.outputs = self.outputs.start + range.start..self.outputs.start + range.end;
        part
    }

    /// The weight `[in_features, out_features]`.
    pub fn unpacked(&self) -> Tensor<2> {
        #[cfg(all(feature = "flex", target_arch = "x86_64"))]
        {
            let weight = flex::wrap::<2>(flex::tensor(self.panels().unpacked(), self.sizes));
            weight.narrow(1, self.outputs.start, self.outputs.len())
        }
        #[cfg(not(all(feature = "flex", target_arch = "x86_64")))]
        unreachable!("no weight was packed")
    }
}

/// The values of the panels of a weight of these sizes.
#[cfg(all(feature = "flex", target_arch = "x86_64"))]
fn packed_values(mut weight: FlexTensor, sizes: [usize; 2]) -> FlexTensor {
    let layout = weight.layout();
    let is_stored = layout.strides() == [1, sizes[0] as isize] && layout.start_offset() == 0;
    if is_stored
        && let Some(values) = weight.try_storage_mut::<f32>()
        && values.len() == sizes[0] * sizes[1]
        && pack_in_place(values, sizes)
    {
        return weight;
    }
    let weight = if flex::matrix(&weight).is_some_and(|matrix| matrix.compact()) {
        weight
    } else {
        flex::contiguous(weight)
    };
    let matrix = flex::matrix(&weight).expect("row-major, or compact before");
    let values = pack(matrix).expect("the CPU has panels, as `suits` has found");
    let length = values.len();
    flex::tensor(values, [length])
}

/// A number of rows that decides which products a weight is for.
#[cfg(all(feature = "flex", target_arch = "x86_64"))]
const MANY_ROWS: usize = 512;

/// [`linear`](crate::linear), or [`linear_gelu`](crate::linear_gelu) if `is_gelu`, with a weight that was packed before. `None` if `x`
/// is not on flex, is not float32, or is followed by autodiff.
///
/// # Panics
///
/// If the shapes do not fit.
pub fn linear_packed<const D: usize>(
    x: &Tensor<D>,
    weight: &PackedWeight,
    bias: Option<Tensor<1>>,
    is_gelu: bool,
) -> Option<Tensor<D>> {
    #[cfg(all(feature = "flex", target_arch = "x86_64"))]
    {
        let (panels, outputs) = (weight.panels(), &weight.outputs);
        let activation = if is_gelu { Activation::Gelu } else { Activation::None };
        linear_untracked(x, [panels.inner(), outputs.len()], bias, |x, rows, bias| {
            packed::multiply(x, rows, panels, outputs.clone(), bias, activation)
        })
    }
    #[cfg(not(all(feature = "flex", target_arch = "x86_64")))]
    {
        let _ = (x, weight, bias, is_gelu);
        None
    }
}

#[cfg(all(test, feature = "flex", target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::testing::numbers;
    use burn::tensor::{Device, TensorData, Tolerance};

    fn tensor<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<D> {
        let values = numbers(shape.iter().product(), seed);
        Tensor::from_data(TensorData::new(values, shape), &Device::flex())
    }

    #[test]
    fn a_packed_layer_is_that_of_its_weight() {
        for [rows, inputs, outputs] in [[1, 40, 70], [197, 65, 130], [1600, 16, 33], [0, 4, 5], [3, 0, 4]] {
            let (x, bias) = (tensor([rows, inputs], 1), tensor([outputs], 3));
            // As a weight lies in a file of PyTorch, and as one of burn's.
            for weight in [tensor([outputs, inputs], 2).transpose(), tensor([inputs, outputs], 2)] {
                if !PackedWeight::suits(&weight) {
                    return;
                }
                let packed = PackedWeight::new(weight.clone());
                assert_eq!(packed.unpacked().into_data(), weight.clone().into_data());
                for is_gelu in [false, true] {
                    let found = linear_packed(&x, &packed, Some(bias.clone()), is_gelu).unwrap();
                    let of = if is_gelu { crate::linear_gelu } else { crate::linear };
                    let expected = of(x.clone(), weight.clone(), Some(bias.clone()));
                    found
                        .into_data()
                        .assert_approx_eq::<f32>(&expected.into_data(), Tolerance::absolute(1e-5));
                }
                let part = linear_packed(&x, &packed.outputs(2..outputs), None, false).unwrap();
                let expected = crate::linear(x.clone(), weight.narrow(1, 2, outputs - 2), None);
                part.into_data().assert_approx_eq::<f32>(&expected.into_data(), Tolerance::absolute(1e-5));
            }
        }
    }

    #[test]
    fn an_output_depends_on_its_row_alone() {
        let (x, weight) = (tensor([1700, 50], 1), tensor([50, 100], 2));
        if !PackedWeight::suits(&weight) {
            return;
        }
        let packed = PackedWeight::new(weight);
        let of = |x: Tensor<2>| linear_packed(&x, &packed, None, true).unwrap().into_data();
        let all = linear_packed(&x, &packed, None, true).unwrap();
        for row in [0, 5, 800, 1699] {
            assert_eq!(of(x.clone().narrow(0, row, 1)), all.clone().narrow(0, row, 1).into_data());
        }
    }

    #[test]
    fn what_autodiff_follows_is_left_to_the_weight_itself() {
        assert!(!PackedWeight::suits(&tensor([4, 4], 1).autodiff()));
        if !PackedWeight::suits(&tensor([4, 4], 1)) {
            return;
        }
        let packed = PackedWeight::new(tensor([4, 4], 1));
        assert!(linear_packed(&tensor::<2>([2, 4], 2).autodiff(), &packed, None, false).is_none());
    }

    #[test]
    fn memory_that_others_have_is_left_alone() {
        let stored: Tensor<2> = tensor([32, 48], 1);
        let weight = || stored.clone().transpose();
        if !PackedWeight::suits(&weight()) {
            return;
        }
        let shared = PackedWeight::new(weight());
        let unique = flex::untracked(tensor::<2>([32, 48], 1).transpose());
        let place = |tensor: &FlexTensor| tensor.storage::<f32>().as_ptr();
        let before = place(&unique);
        let own = PackedWeight::new(flex::wrap(unique));
        assert_eq!(place(&own.values), before);
        assert_ne!(place(&shared.values), place(&flex::untracked(stored.clone())));
        assert_eq!(stored.clone().into_data(), tensor::<2>([32, 48], 1).into_data());
        for packed in [shared, own] {
            assert_eq!(packed.unpacked().into_data(), weight().into_data());
        }
    }
}
