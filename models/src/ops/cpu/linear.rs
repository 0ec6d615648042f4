//! The linear layer on flex. Rows are cut into chunks; what follows a chunk's product is done while it lies in the cache.

use super::flex::{self, Operation, contiguous, sizes};
use super::gemm::amx;
use super::gemm::{Epilogue, Factor, Matrix, MatrixMut, blocked_product, product, product_of_few_rows};
use super::parallel::{Buffer, Chunks, Shared, parallel, parallel_elements};
use super::sums::Sums;
use super::{gelu, simd};
use burn::backend::{TensorMetadata, flex::FlexTensor};
use burn::tensor::{Shape, Tensor};
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ops) enum Activation {
    None,
    Gelu,
}

pub(in crate::ops) fn apply<const D: usize>(
    activation: Activation,
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let inputs = [Some(x.into_dispatch()), Some(weight.into_dispatch()), bias.map(Tensor::into_dispatch)];
    flex::apply(Linear { activation }, inputs)
}

#[derive(Clone, Debug)]
struct Linear {
    activation: Activation,
}

#[derive(Clone, Debug)]
struct Saved {
    /// For the weight's gradient.
    x: Option<FlexTensor>,
    /// For the input's gradient.
    weight: Option<FlexTensor>,
    /// Of GELU, at each output.
    derivative: Option<FlexTensor>,
    input_shape: Shape,
    features: [usize; 2],
}

impl Operation<3> for Linear {
    type Saved = Saved;

    fn forward(&self, inputs: [Option<FlexTensor>; 3]) -> FlexTensor {
        let [Some(x), Some(weight), bias] = inputs else { unreachable!("both factors are given") };
        let (x, weight) = (contiguous(x), positive(weight));
        self.outputs(&x, &weight, bias, None)
    }

    fn forward_saving(
        &self,
        inputs: [Option<FlexTensor>; 3],
        [_, weight_wanted, _]: [bool; 3],
    ) -> (FlexTensor, Saved) {
        let [Some(x), Some(weight), bias] = inputs else { unreachable!("both factors are given") };
        let (x, weight) = (contiguous(x), positive(weight));
        let [in_features, out_features] = sizes(&weight);
        let rows = rows(&x, in_features);
        let mut derivative = (self.activation == Activation::Gelu).then(|| Buffer::new(rows * out_features));
        let output = self.outputs(&x, &weight, bias, derivative.as_mut().map(Buffer::shared));
        let saved = Saved {
            input_shape: x.shape(),
            features: [in_features, out_features],
            derivative: derivative.map(|data| {
                // SAFETY: `outputs` writes the derivative at each output.
                flex::tensor(unsafe { data.written() }, [rows, out_features])
            }),
            x: weight_wanted.then_some(x),
            weight: Some(weight),
        };
        (output, saved)
    }

    fn backward(self, saved: Saved, gradient: FlexTensor, wanted: [bool; 3]) -> [Option<FlexTensor>; 3] {
        let [in_features, out_features] = saved.features;
        let gradient = contiguous(gradient);
        let rows = rows(&gradient, out_features);
        let size = in_features * out_features;
        // sums over a chunk then take no more memory than the chunk's own inputs and outputs
        let smallest = SMALLEST_CHUNK.max(size / (in_features + out_features).max(1));
        let sum_in_chunks = rows >= smallest * rayon::current_num_threads();
        let (chunks, group) = if sum_in_chunks {
            (Chunks::few(rows, smallest), amx::GROUP)
        } else {
            (Chunks::new(rows, amx::PANEL), amx::PANEL)
        };
        let chunks = chunks.in_groups(group);
        let weight = saved.weight.as_ref().filter(|_| wanted[0]);
        let weight = weight
            .map(|weight| Factor::new(flex::matrix(weight).expect("positive strides").transposed(), rows));
        // where the gemm crate would pack the weight for each piece, a chunk is one
        let piece = weight.as_ref().map_or(PIECE, |weight| weight.rows_at_a_time().max(PIECE));
        let x = saved.x.as_ref().filter(|_| wanted[1]).map(|x| x.storage::<f32>());
        let mut dx = Buffer::new(if wanted[0] { rows * in_features } else { 0 });
        let mut dweight = Sums::new(if x.is_some() && sum_in_chunks { size } else { 0 }, chunks.count());
        let mut dbias = Sums::new(if wanted[2] { out_features } else { 0 }, chunks.count());
        let mut derivative = saved.derivative;
        {
            let derivatives = derivative.as_mut().map(|derivative| Shared::new(derivative.storage_mut()));
            let (dx, dweight, dbias) = (dx.shared(), dweight.shared(), dbias.shared());
            let dy = gradient.storage::<f32>();
            parallel(chunks.count(), |index| {
                let chunk = chunks.range(index);
                // SAFETY: each task has sums of its own.
                let (dweight, dbias) = unsafe { (dweight.part(index), dbias.part(index)) };
                dbias.fill(0.0);
                for range in Chunks::of(chunk.len(), piece).in_groups(group).ranges_after(chunk.start) {
                    let inputs = range.start * in_features..range.end * in_features;
                    let outputs = range.start * out_features..range.end * out_features;
                    let mut dy = &dy[outputs.clone()];
                    if let Some(derivatives) = &derivatives {
                        // SAFETY: the chunks are disjoint.
                        let derivatives = unsafe { derivatives.slice(outputs) };
                        simd::multiply_and_add_rows(derivatives, dy, dbias);
                        dy = derivatives;
                    } else {
                        simd::add_rows(dbias, dy);
                    }
                    let dy = Matrix::new(dy, [range.len(), out_features], [out_features, 1]);
                    if let Some(weight) = &weight {
                        // SAFETY: the chunks are disjoint.
                        let dx = unsafe { dx.slice(inputs.clone()) };
                        let dx = MatrixMut::row_major(dx, in_features);
                        weight.multiply(dx, Epilogue::Overwrite, dy, chunks.count() == 1);
                    }
                    if let Some(x) = x.filter(|_| sum_in_chunks) {
                        let epilogue = if range.start == chunk.start {
                            Epilogue::Overwrite
                        } else {
                            Epilogue::Accumulate
                        };
                        let x = Matrix::new(&x[inputs], [range.len(), in_features], [in_features, 1]);
                        let dweight = MatrixMut::with_gaps(dweight, in_features, out_features, out_features);
                        product(dweight, epilogue, 1.0, x.transposed(), dy);
                    }
                }
            });
        }
        let dweight = x.map(|x| {
            let dweight = if sum_in_chunks {
                // SAFETY: the first piece of each chunk overwrote its sums.
                unsafe { dweight.total() }
            } else {
                let dy = derivative.as_ref().unwrap_or(&gradient).storage::<f32>();
                let x = Matrix::new(x, [rows, in_features], [in_features, 1]).transposed();
                let dy = Matrix::new(dy, [rows, out_features], [out_features, 1]);
                blocked_product(x, dy)
            };
            flex::tensor(dweight, [in_features, out_features])
        });
        // SAFETY: each chunk's task filled its sums with zeros to begin with.
        let dbias = wanted[2].then(|| flex::tensor(unsafe { dbias.total() }, [out_features]));
        // SAFETY: where it is wanted, each chunk's products wrote its rows.
        let dx = wanted[0].then(|| flex::tensor(unsafe { dx.written() }, saved.input_shape));
        [dx, dweight, dbias]
    }
}

impl Linear {
    /// The outputs and, for the backward pass, the activation's `derivative`.
    fn outputs(
        &self,
        x: &FlexTensor,
        weight: &FlexTensor,
        bias: Option<FlexTensor>,
        derivative: Option<Shared<'_>>,
    ) -> FlexTensor {
        let [in_features, out_features] = sizes(weight);
        let rows = rows(x, in_features);
        let mut shape = x.shape();
        let last = shape.num_dims() - 1;
        shape[last] = out_features;

        let bias = bias.map(contiguous);
        let epilogue = bias.as_ref().map_or(Epilogue::Overwrite, |bias| Epilogue::Bias(bias.storage()));
        let weight = flex::matrix(weight).expect("positive strides");
        let mut data = Buffer::new(rows * out_features);
        let (outputs, derivative, x) = (data.shared(), derivative, x.storage::<f32>());
        let all = Matrix::new(&x[..rows * in_features], [rows, in_features], [in_features, 1]);
        if product_of_few_rows(outputs, epilogue, all, weight) {
            parallel_elements(rows * out_features, |range| {
                // SAFETY: the ranges are disjoint.
                unsafe { self.activate(outputs, derivative, range) };
            });
            // SAFETY: the product wrote each output.
            return flex::tensor(unsafe { data.written() }, shape);
        }
        let weight = Factor::new(weight, rows);
        let chunks = Chunks::new(rows, amx::PANEL).in_groups(amx::PANEL);
        let piece = weight.rows_at_a_time();
        parallel(chunks.count(), |index| {
            let chunk = chunks.range(index);
            for range in Chunks::of(chunk.len(), piece).in_groups(amx::PANEL).ranges_after(chunk.start) {
                let elements = range.start * out_features..range.end * out_features;
                let x = &x[range.start * in_features..range.end * in_features];
                // SAFETY: the chunks are disjoint.
                unsafe {
                    weight.multiply(
                        MatrixMut::row_major(outputs.slice(elements.clone()), out_features),
                        epilogue,
                        Matrix::new(x, [range.len(), in_features], [in_features, 1]),
                        chunks.count() == 1,
                    );
                    self.activate(outputs, derivative, elements);
                }
            }
        });
        // SAFETY: the pieces of all chunks cover the rows, and the product wrote each output of theirs.
        flex::tensor(unsafe { data.written() }, shape)
    }

    /// Puts some outputs through the activation.
    ///
    /// # Safety
    ///
    /// No other task may work on these elements.
    unsafe fn activate(&self, outputs: Shared<'_>, derivative: Option<Shared<'_>>, elements: Range<usize>) {
        if self.activation == Activation::None {
            return;
        }
        // SAFETY: no other task works on these elements, as the caller promises.
        let outputs = unsafe { outputs.slice(elements.clone()) };
        let Some(derivative) = derivative else { return gelu::in_place(outputs) };
        // SAFETY: as above.
        gelu::in_place_with_derivative(outputs, unsafe { derivative.slice(elements) });
    }
}

/// Fewer rows are not worth a sum of their own.
const SMALLEST_CHUNK: usize = 128;

/// Rows whose gradients are worked on at a time: their products find them in the cache.
const PIECE: usize = 256;

/// The product of all sizes but the last.
fn rows(tensor: &FlexTensor, features: usize) -> usize {
    let shape = tensor.shape();
    debug_assert_eq!(shape[shape.num_dims() - 1], features);
    shape[..shape.num_dims() - 1].iter().product()
}

/// A tensor that [`flex::matrix`] can read: only a flipped one is copied.
fn positive(tensor: FlexTensor) -> FlexTensor {
    if flex::matrix(&tensor).is_some() { tensor } else { contiguous(tensor) }
}
