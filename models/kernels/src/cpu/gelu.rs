//! Fused GELU.
//!
//! The forward pass also computes the derivative, because most of the work is the same. The backward pass is then a
//! multiplication.

use crate::cpu::flex::{self, contiguous};
use crate::cpu::operation::Operation;
use crate::cpu::simd::{mul_add, multiply, normal, vectorized};
use crate::cpu::threads::{Buffer, Shared, parallel_elements};
use burn::backend::{TensorMetadata, flex::FlexTensor};

#[derive(Clone, Debug)]
pub(crate) struct Gelu;

impl Operation<1> for Gelu {
    type Inputs = [(); 1];
    /// The derivative at each input.
    type Saved = FlexTensor;

    fn forward(&self, [x]: [FlexTensor; 1]) -> FlexTensor {
        let mut x = contiguous(x);
        let data = Shared::new(x.storage_mut());
        parallel_elements(data.len(), |range| {
            // SAFETY: the ranges of the tasks are disjoint.
            let values = unsafe { data.slice(range) };
            in_place(values);
        });
        x
    }

    fn forward_saving(&self, [x]: [FlexTensor; 1], _wanted: [bool; 1]) -> (FlexTensor, FlexTensor) {
        let mut x = contiguous(x);
        let shape = x.shape();
        let mut derivative = Buffer::new(shape.num_elements());
        let (data, derivatives) = (Shared::new(x.storage_mut()), derivative.shared());
        parallel_elements(data.len(), |range| {
            // SAFETY: the ranges of the tasks are disjoint.
            let (values, derivatives) = unsafe { (data.slice(range.clone()), derivatives.slice(range)) };
            in_place_with_derivative(values, derivatives);
        });
        // SAFETY: the ranges cover all elements, and each element was written by the task of its range.
        let derivative = unsafe { derivative.written() };
        (x, flex::tensor(derivative, shape))
    }

    fn backward(
        self,
        mut derivative: FlexTensor,
        gradient: FlexTensor,
        _wanted: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let gradient = contiguous(gradient);
        let dy = gradient.storage::<f32>();
        let derivatives = Shared::new(derivative.storage_mut());
        parallel_elements(dy.len(), |range| {
            // SAFETY: the ranges of the tasks are disjoint.
            let derivatives = unsafe { derivatives.slice(range.clone()) };
            multiply(derivatives, &dy[range]);
        });
        [Some(derivative)]
    }
}

vectorized! {
    /// Replaces each value by its GELU.
    pub(crate) fn in_place(values: &mut [f32]) {
        for value in values {
            let [probability, _] = normal::<FMA>(*value);
            *value *= probability;
        }
    }

    /// Replaces each value by its GELU, and writes the derivative at the value to `derivative`.
    pub(crate) fn in_place_with_derivative(values: &mut [f32], derivative: &mut [f32]) {
        for (value, derivative) in values.iter_mut().zip(derivative) {
            let x = *value;
            let [probability, density] = normal::<FMA>(x);
            *value = x * probability;
            *derivative = mul_add::<FMA>(x, density, probability);
        }
    }
}
