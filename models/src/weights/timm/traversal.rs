//! Traversals of a model that read or replace all of its parameters.

use super::names::ParameterPath;
use crate::weights::{LazyTensor, NamedTensor, WeightsError};
use burn::module::{ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};
use rayon::prelude::*;
use std::collections::BTreeMap;
use vitrine_kernels::reads_transposed_weights;

/// Collects the keys and shapes of all parameters, and their values if they are wanted.
pub(super) struct Export {
    pub(super) path: ParameterPath,
    pub(super) with_values: bool,
    pub(super) tensors: Vec<NamedTensor>,
}

impl ModuleVisitor for Export {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shape = self.path.stored_shape(&param.lazy_shape().to_vec());
        if !self.with_values {
            self.tensors.push(NamedTensor { name: self.path.key(), shape, values: Vec::new() });
            return;
        }
        let value = param.val();
        let value = if self.path.is_linear_weight(D) { value.swap_dims(0, 1) } else { value };
        let values = value.into_data().convert::<f32>().try_into_vec::<f32>().expect("converted to f32");
        self.tensors.push(NamedTensor { name: self.path.key(), shape, values });
    }
}

/// Replaces the values of all parameters by stored ones.
pub(super) struct Import<'a, E> {
    pub(super) path: ParameterPath,
    pub(super) tensors: BTreeMap<String, LazyTensor<'a, E>>,
    pub(super) errors: WeightsError,
    /// The error of the first parameter that could not be read, after which none is.
    pub(super) unreadable: Option<E>,
    /// Whether linear weights may be views of their stored form.
    pub(super) views: bool,
}

impl<E> ModuleMapper for Import<'_, E> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let key = self.path.key();
        let Some(tensor) = self.tensors.remove(&key) else {
            self.errors.missing.push(key);
            return param;
        };
        let shape = param.lazy_shape().to_vec();
        let expected = self.path.stored_shape(&shape);
        if tensor.shape != expected {
            self.errors.mismatched.push(mismatch(&key, &tensor.shape, &expected));
            return param;
        }
        // The values of a model that will not be used need not be read.
        if self.unreadable.is_some() || self.errors != WeightsError::default() {
            return param;
        }
        let mut values = Vec::new();
        if let Err(error) = (tensor.read)(&mut values) {
            self.unreadable = Some(error);
            return param;
        }
        if values.len() != expected.iter().product::<usize>() {
            self.errors.mismatched.push(mismatch(&key, &[values.len()], &expected));
            return param;
        }
        let device = param.lazy_device();
        let value = match (&*shape, self.path.is_linear_weight(D)) {
            (&[input, output], true) if self.views && reads_transposed_weights(&device) => {
                Tensor::from_data(TensorData::new(values, [output, input]), &device).swap_dims(0, 1)
            }
            (&[input, _], true) => {
                let mut transposed = vec![0.0; values.len()];
                transpose(&values, input, &mut transposed);
                Tensor::from_data(TensorData::new(transposed, shape), &device)
            }
            _ => Tensor::from_data(TensorData::new(values, shape), &device),
        };
        let id = param.id;
        param.transform_for_load(value, id)
    }
}

/// Side of the tiles of [`transpose`]: a cache line of values.
const TILE: usize = 16;

/// Transposes `[output, input]` to `[input, output]`, with all threads.
///
/// Tiles are gathered in a buffer and written line by line: rows that are a multiple of 4 KiB apart would drive each other out
/// of the cache if single values were written.
fn transpose(from: &[f32], input: usize, to: &mut [f32]) {
    let output = from.len().checked_div(input).unwrap_or(0);
    to.par_chunks_mut((TILE * output).max(1)).enumerate().for_each(|(band, to)| {
        let first = band * TILE;
        let columns = to.len() / output;
        let mut tile = [[0.0; TILE]; TILE];
        for rows in (0..output).step_by(TILE) {
            let count = TILE.min(output - rows);
            for row in 0..count {
                let start = (rows + row) * input + first;
                for (line, value) in tile.iter_mut().zip(&from[start..start + columns]) {
                    line[row] = *value;
                }
            }
            for (line, to) in tile.iter().zip(to.chunks_exact_mut(output)) {
                to[rows..rows + count].copy_from_slice(&line[..count]);
            }
        }
    });
}

/// The message for a tensor of another shape.
pub(super) fn mismatch(key: &str, stored: &[usize], needed: &[usize]) -> String {
    format!("{key} (stored {stored:?}, needed {needed:?})")
}

#[cfg(test)]
mod tests {
    use super::transpose;

    #[test]
    fn every_value_goes_to_its_place_whatever_the_shape() {
        for (output, input) in [(1, 1), (3, 5), (16, 16), (17, 40), (64, 33), (0, 4)] {
            let from: Vec<f32> = (0..output * input).map(|value| value as f32).collect();
            let mut to = vec![-1.0; from.len()];
            transpose(&from, input, &mut to);
            for row in 0..output {
                for column in 0..input {
                    assert_eq!(to[column * output + row], from[row * input + column], "{output}x{input}");
                }
            }
        }
    }
}
