//! The fused linear layer: a product, and next to it the bias and the activation.
//!
//! ```text
//! forward:
//! for a chunk of rows                    a task; without AMX few and large ones, each of which packs the weight
//!   for up to 192 rows                   on AMX; otherwise all rows
//!     y = x weight + bias                the product's epilogue
//!     y, derivative = gelu(y)            while the rows lie in the cache
//! ```
//!
//! With few rows, the columns of the weight are cut instead ([`product_of_few_rows`]). The backward pass is in
//! [`backward`].

mod backward;
#[cfg(target_arch = "x86_64")]
pub(crate) mod packed;

use super::flex::{self, contiguous, rows, sizes};
use super::gelu;
use super::gemm::amx;
use super::gemm::{Bfloat16, Epilogue, Matrix, MatrixMut, RightFactor, is_for_amx, product_of_few_rows};
use super::operation::{self, Operation, WithBias};
use super::threads::{Buffer, Chunks, Shared, parallel, parallel_elements};
use burn::backend::{TensorMetadata, flex::FlexTensor};
use burn::tensor::{Shape, Tensor};
use std::ops::Range;

/// The function that follows the layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Activation {
    None,
    Gelu,
}

pub(crate) fn apply<const D: usize>(
    activation: Activation,
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    operation::apply(Linear { activation, bfloat16: Bfloat16::wanted() }, WithBias::new(x, weight, bias))
}

#[derive(Clone, Debug)]
struct Linear {
    activation: Activation,
    /// The instructions of products that may be rounded.
    bfloat16: Option<Bfloat16>,
}

#[derive(Clone, Debug)]
struct SavedLinear {
    /// Read for the gradient of the weight; absent if that is not wanted.
    x: Option<FlexTensor>,
    /// Read for the gradient of the input.
    weight: FlexTensor,
    /// The derivative of GELU at each output; absent without GELU.
    derivative: Option<FlexTensor>,
    input_shape: Shape,
}

impl Operation<3> for Linear {
    type Inputs = WithBias;
    type Saved = SavedLinear;

    fn forward(&self, inputs: WithBias<FlexTensor>) -> FlexTensor {
        self.outputs(&readable(inputs), None)
    }

    fn forward_saving(
        &self,
        inputs: WithBias<FlexTensor>,
        [_, weight_wanted, _]: [bool; 3],
    ) -> (FlexTensor, SavedLinear) {
        let inputs = readable(inputs);
        let [_, out_features] = sizes(&inputs.weight);
        let input_shape = inputs.x.shape();
        let rows = rows(&input_shape);
        let mut derivative = (self.activation == Activation::Gelu).then(|| Buffer::new(rows * out_features));
        let output = self.outputs(&inputs, derivative.as_mut().map(Buffer::shared));
        let WithBias { x, weight, .. } = inputs;
        let saved = SavedLinear {
            input_shape,
            derivative: derivative.map(|data| {
                // SAFETY: `outputs` writes the derivative at each output.
                flex::tensor(unsafe { data.written() }, [rows, out_features])
            }),
            x: weight_wanted.then_some(x),
            weight,
        };
        (output, saved)
    }

    fn backward(self, saved: SavedLinear, dy: FlexTensor, wanted: [bool; 3]) -> [Option<FlexTensor>; 3] {
        backward::gradients(saved, dy, wanted, self.bfloat16)
    }
}

impl Linear {
    /// The outputs. Writes the `derivative` of the activation at each of them.
    fn outputs(&self, inputs: &WithBias<FlexTensor>, derivative: Option<Shared<'_>>) -> FlexTensor {
        let [in_features, out_features] = sizes(&inputs.weight);
        let mut shape = inputs.x.shape();
        let (rows, last) = (rows(&shape), shape.num_dims() - 1);
        shape[last] = out_features;

        let epilogue =
            inputs.bias.as_ref().map_or(Epilogue::Overwrite, |bias| Epilogue::Bias(bias.storage()));
        let weight = matrix(&inputs.weight);
        let mut data = Buffer::new(rows * out_features);
        let outputs = Outputs { y: data.shared(), derivative, features: out_features };
        let x = &inputs.x.storage::<f32>()[..rows * in_features];
        let x = Matrix::new(x, [rows, in_features], [in_features, 1]);
        let chunks = row_chunks(rows, [in_features, out_features]);
        if product_of_few_rows(outputs.y, epilogue, x, weight, chunks.count(), self.bfloat16) {
            parallel_elements(rows * out_features, |range| {
                // SAFETY: the ranges of the tasks are disjoint.
                unsafe { self.activate(&outputs, range) };
            });
        } else {
            self.outputs_in_chunks(&outputs, chunks, epilogue, (x, weight));
        }
        // SAFETY: the product wrote each output: `product_of_few_rows` all columns, or `outputs_in_chunks` all rows.
        flex::tensor(unsafe { data.written() }, shape)
    }

    /// Writes the outputs of all rows of `x`, chunk by chunk.
    fn outputs_in_chunks(
        &self,
        outputs: &Outputs<'_>,
        chunks: Chunks,
        epilogue: Epilogue<'_>,
        (x, weight): (Matrix<'_>, Matrix<'_>),
    ) {
        let weight = RightFactor::new(weight, x.rows, self.bfloat16);
        let at_a_time = weight.rows_at_a_time();
        parallel(chunks.count(), |index| {
            let chunk = chunks.range(index);
            for rows in Chunks::of(chunk.len(), at_a_time).in_groups(amx::PANEL).ranges_after(chunk.start) {
                let elements = rows.start * outputs.features..rows.end * outputs.features;
                // SAFETY: the chunks are disjoint, and with them the outputs of their rows.
                unsafe {
                    let y = MatrixMut::row_major(outputs.y.slice(elements.clone()), outputs.features);
                    weight.multiply(y, epilogue, x.block(rows, 0..x.columns), chunks.count() == 1);
                    self.activate(outputs, elements);
                }
            }
        });
    }

    /// Applies the activation to some elements of the outputs, and writes its derivative.
    ///
    /// # Safety
    ///
    /// No other task may read or write these elements of `outputs.y` and `outputs.derivative` at the same time.
    unsafe fn activate(&self, outputs: &Outputs<'_>, elements: Range<usize>) {
        if self.activation == Activation::None {
            return;
        }
        // SAFETY: no other task uses these elements, as the caller promises.
        let y = unsafe { outputs.y.slice(elements.clone()) };
        let Some(derivative) = outputs.derivative else { return gelu::in_place(y) };
        // SAFETY: no other task uses these elements, as the caller promises.
        gelu::in_place_with_derivative(y, unsafe { derivative.slice(elements) });
    }
}

/// How the rows are cut into tasks. AMX takes panels of a weight that is packed once. Without AMX, each task packs it: a few large
/// ones, but some for each thread.
fn row_chunks(rows: usize, [in_features, out_features]: [usize; 2]) -> Chunks {
    const ROWS: usize = 384;
    let chunks = match is_for_amx(rows, in_features, out_features) {
        true => Chunks::new(rows, amx::PANEL),
        false => Chunks::few(rows, ROWS.min(rows.div_ceil(2 * rayon::current_num_threads())).max(amx::PANEL)),
    };
    chunks.in_groups(amx::PANEL)
}

/// What the forward pass writes: rows of so many `features`.
struct Outputs<'a> {
    y: Shared<'a>,
    derivative: Option<Shared<'a>>,
    features: usize,
}

/// The inputs as the layer reads them: the weight through its strides, the others contiguous.
fn readable(WithBias { x, weight, bias }: WithBias<FlexTensor>) -> WithBias<FlexTensor> {
    // Only a flipped weight is copied.
    let weight = if flex::matrix(&weight).is_some() { weight } else { contiguous(weight) };
    WithBias { x: contiguous(x), weight, bias: bias.map(contiguous) }
}

/// The weight of [`readable`] inputs as a matrix.
fn matrix(weight: &FlexTensor) -> Matrix<'_> {
    flex::matrix(weight).expect("positive strides, as `readable` left them")
}
