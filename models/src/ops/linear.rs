//! The linear layer, alone or followed by GELU, as one matrix product over all tokens.

#[cfg(feature = "flex")]
use super::flex;
use super::gelu;
use burn::tensor::Tensor;

/// `x * weight + bias`.
///
/// # Shapes
///
/// - x: `[..., in_features]`
/// - weight: `[in_features, out_features]`
/// - bias: `[out_features]`
/// - output: `[..., out_features]`
pub fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    #[cfg(test)]
    super::counting::count(&[x.shape().num_elements(), weight.dims()[1]]);
    #[cfg(feature = "flex")]
    if flex::takes(&x) && flex::takes(&weight) && flex::takes_option(&bias) {
        return fused::apply(fused::Activation::None, x, weight, bias);
    }
    linear_composed(x, weight, bias)
}

/// `gelu(x * weight + bias)`: the first half of a transformer's MLP. Shapes as for [`linear`].
pub fn linear_gelu<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    #[cfg(test)]
    super::counting::count(&[x.shape().num_elements(), weight.dims()[1]]);
    #[cfg(feature = "flex")]
    if flex::takes(&x) && flex::takes(&weight) && flex::takes_option(&bias) {
        return fused::apply(fused::Activation::Gelu, x, weight, bias);
    }
    linear_gelu_composed(x, weight, bias)
}

/// The definition of [`linear`], in burn's own operations.
pub fn linear_composed<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let [in_features, out_features] = weight.dims();
    let mut shape = x.dims();
    let rows = shape[..D - 1].iter().product::<usize>();
    shape[D - 1] = out_features;
    let y = x.reshape([rows, in_features]).matmul(weight);
    let y = match bias {
        Some(bias) => y + bias.unsqueeze(),
        None => y,
    };
    y.reshape(shape)
}

/// The definition of [`linear_gelu`], in burn's own operations.
pub fn linear_gelu_composed<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    gelu::gelu_composed(linear_composed(x, weight, bias))
}

#[cfg(feature = "flex")]
mod fused {
    //! Rows are cut into chunks; a chunk's product, bias and activation are done while it lies in the cache.

    use super::super::flex::{self, Operation, contiguous, sizes};
    use super::super::matrix::{Existing, Factor, Matrix, MatrixMut, product, product_of_few_rows};
    use super::super::parallel::{Chunks, Shared, buffer, parallel, parallel_elements};
    use super::super::{gelu, math};
    use burn::backend::{TensorMetadata, flex::FlexTensor};
    use burn::tensor::{Shape, Tensor};
    use std::ops::Range;

    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(super) enum Activation {
        None,
        Gelu,
    }

    pub(super) fn apply<const D: usize>(
        activation: Activation,
        x: Tensor<D>,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
    ) -> Tensor<D> {
        assert_eq!(x.dims()[D - 1], weight.dims()[0], "linear: in_features of the input and of the weight");
        assert!(
            bias.as_ref().is_none_or(|bias| bias.dims()[0] == weight.dims()[1]),
            "linear: out_features of the weight and of the bias"
        );
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
            let mut derivative = (self.activation == Activation::Gelu).then(|| buffer(rows * out_features));
            let output = self.outputs(&x, &weight, bias, derivative.as_deref_mut());
            let saved = Saved {
                input_shape: x.shape(),
                features: [in_features, out_features],
                derivative: derivative.map(|data| flex::tensor(data, [rows, out_features])),
                x: weight_wanted.then_some(x),
                weight: Some(weight),
            };
            (output, saved)
        }

        fn backward(self, saved: Saved, gradient: FlexTensor, wanted: [bool; 3]) -> [Option<FlexTensor>; 3] {
            let [in_features, out_features] = saved.features;
            let gradient = contiguous(gradient);
            let rows = rows(&gradient, out_features);
            let chunks = Chunks::few(rows, 128);
            let count = chunks.count();
            let weight = saved.weight.as_ref().filter(|_| wanted[0]);
            let weight = weight.map(|weight| {
                Factor::new(flex::matrix(weight).expect("positive strides").transposed(), rows)
            });
            let x = saved.x.as_ref().filter(|_| wanted[1]).map(|x| x.storage::<f32>());
            let mut dx = buffer(if wanted[0] { rows * in_features } else { 0 });
            // of each chunk
            let mut dweights = buffer(if x.is_some() { count * in_features * out_features } else { 0 });
            let mut dbiases = vec![0.0; if wanted[2] { count * out_features } else { 0 }];
            let mut derivative = saved.derivative;
            {
                let slopes = derivative.as_mut().map(|derivative| Shared::new(derivative.storage_mut()));
                let (dx, dweights, dbiases, dy) = (
                    Shared::new(&mut dx),
                    Shared::new(&mut dweights),
                    Shared::new(&mut dbiases),
                    gradient.storage::<f32>(),
                );
                let part = |size: usize, index: usize| index * size..(index + 1) * size;
                parallel(count, |index| {
                    let chunk = chunks.range(index);
                    for range in pieces(chunk.clone(), PIECE) {
                        let inputs = range.start * in_features..range.end * in_features;
                        let outputs = range.start * out_features..range.end * out_features;
                        let mut dy = &dy[outputs.clone()];
                        if let Some(slopes) = &slopes {
                            // SAFETY: the chunks are disjoint.
                            let slopes = unsafe { slopes.slice(outputs) };
                            math::multiply(slopes, dy);
                            dy = slopes;
                        }
                        if wanted[2] {
                            // SAFETY: one row of sums for each chunk.
                            math::add_rows(unsafe { dbiases.slice(part(out_features, index)) }, dy);
                        }
                        let dy = Matrix::new(dy, [range.len(), out_features], [out_features, 1]);
                        if let Some(weight) = &weight {
                            // SAFETY: the chunks are disjoint.
                            let dx = unsafe { dx.slice(inputs.clone()) };
                            weight.multiply(
                                MatrixMut::row_major(dx, in_features),
                                Existing::Overwrite,
                                dy,
                                false,
                            );
                        }
                        if let Some(x) = x {
                            // SAFETY: one matrix of sums for each chunk.
                            let dweight = unsafe { dweights.slice(part(in_features * out_features, index)) };
                            let existing =
                                if range.start == chunk.start { Existing::Overwrite } else { Existing::Add };
                            let x = Matrix::new(&x[inputs], [range.len(), in_features], [in_features, 1]);
                            let target =
                                MatrixMut::with_gaps(dweight, in_features, out_features, out_features);
                            product(target, existing, 1.0, x.transposed(), dy);
                        }
                    }
                });
            }
            let dweight = x.is_some().then(|| {
                flex::tensor(sum_of_parts(dweights, in_features * out_features), [in_features, out_features])
            });
            let dbias = wanted[2].then(|| {
                let mut sums = vec![0.0; out_features];
                math::add_rows(&mut sums, &dbiases);
                flex::tensor(sums, [out_features])
            });
            [wanted[0].then(|| flex::tensor(dx, saved.input_shape)), dweight, dbias]
        }
    }

    impl Linear {
        /// The outputs and, for the backward pass, the activation's `derivative`.
        fn outputs(
            &self,
            x: &FlexTensor,
            weight: &FlexTensor,
            bias: Option<FlexTensor>,
            derivative: Option<&mut [f32]>,
        ) -> FlexTensor {
            let [in_features, out_features] = sizes(weight);
            let rows = rows(x, in_features);
            let mut shape = x.shape();
            let last = shape.num_dims() - 1;
            shape[last] = out_features;

            let bias = bias.map(contiguous);
            let existing = bias.as_ref().map_or(Existing::Overwrite, |bias| Existing::Bias(bias.storage()));
            let weight = flex::matrix(weight).expect("positive strides");
            let mut data = buffer(rows * out_features);
            let (outputs, derivative, x) =
                (Shared::new(&mut data), derivative.map(Shared::new), x.storage::<f32>());
            let all = Matrix::new(&x[..rows * in_features], [rows, in_features], [in_features, 1]);
            if product_of_few_rows(outputs, existing, all, weight) {
                parallel_elements(rows * out_features, |range| {
                    // SAFETY: the ranges are disjoint.
                    unsafe { self.activate(outputs, derivative, range) };
                });
                return flex::tensor(data, shape);
            }
            let weight = Factor::new(weight, rows);
            let chunks = Chunks::new(rows, 32);
            parallel(chunks.count(), |index| {
                for range in pieces(chunks.range(index), weight.rows_at_a_time()) {
                    let elements = range.start * out_features..range.end * out_features;
                    let x = &x[range.start * in_features..range.end * in_features];
                    // SAFETY: the chunks are disjoint.
                    unsafe {
                        weight.multiply(
                            MatrixMut::row_major(outputs.slice(elements.clone()), out_features),
                            existing,
                            Matrix::new(x, [range.len(), in_features], [in_features, 1]),
                            chunks.count() == 1,
                        );
                        self.activate(outputs, derivative, elements);
                    }
                }
            });
            flex::tensor(data, shape)
        }

        /// Puts some outputs through the activation.
        ///
        /// # Safety
        ///
        /// No other task may work on these elements.
        unsafe fn activate(
            &self,
            outputs: Shared<'_>,
            derivative: Option<Shared<'_>>,
            elements: Range<usize>,
        ) {
            if self.activation == Activation::None {
                return;
            }
            // SAFETY: by the caller's word.
            let outputs = unsafe { outputs.slice(elements.clone()) };
            match derivative {
                None => gelu::in_place(outputs),
                // SAFETY: by the caller's word.
                Some(derivative) => {
                    gelu::in_place_with_derivative(outputs, unsafe { derivative.slice(elements) })
                }
            }
        }
    }

    /// Rows whose gradients are worked on at a time: their products find them in the cache.
    const PIECE: usize = 256;

    /// The range in pieces of `length`, the last one shorter.
    fn pieces(range: Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
        let end = range.end;
        range.step_by(length).map(move |start| start..start.saturating_add(length).min(end))
    }

    /// The sum of groups of `size` elements, in order; 0 if there are none.
    fn sum_of_parts(mut parts: Vec<f32>, size: usize) -> Vec<f32> {
        if parts.len() > size {
            let (sums, others) = parts.split_at_mut(size);
            let sums = Shared::new(sums);
            parallel_elements(size, |range| {
                // SAFETY: the ranges are disjoint.
                let sums = unsafe { sums.slice(range.clone()) };
                for other in others.chunks_exact(size) {
                    math::add(sums, &other[range.clone()]);
                }
            });
        }
        parts.resize(size, 0.0);
        parts
    }

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
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::testing::{assert_derivative, assert_same, assert_same_special};
    use super::*;

    /// Batch, tokens, inputs and outputs; the last two are for a matrix unit where there is one, with few rows and with many.
    const SHAPES: [[usize; 4]; 8] = [
        [2, 5, 7, 3],
        [1, 1, 8, 10],
        [64, 65, 24, 40],
        [3, 17, 192, 1],
        [0, 4, 5, 6],
        [1, 100, 16, 33],
        [3, 70, 80, 100],
        [64, 65, 72, 100],
    ];

    #[test]
    fn linear_agrees_with_its_definition() {
        for [batch, tokens, inputs, outputs] in SHAPES {
            let run = |operation: fn(Tensor<3>, Tensor<2>, Option<Tensor<1>>) -> Tensor<3>, bias: bool| {
                move |leaf: &[Tensor<1>]| {
                    let [x, weight] = [leaf[0].clone(), leaf[1].clone()];
                    operation(
                        x.reshape([batch, tokens, inputs]),
                        weight.reshape([inputs, outputs]),
                        bias.then(|| leaf[2].clone()),
                    )
                    .reshape([batch * tokens * outputs])
                }
            };
            let lengths = [batch * tokens * inputs, inputs * outputs, outputs];
            assert_same(&lengths, run(linear, true), run(linear_composed, true));
            assert_same(&lengths, run(linear_gelu, true), run(linear_gelu_composed, true));
            assert_same(&lengths[..2], run(linear, false), run(linear_composed, false));
            assert_same(&lengths[..2], run(linear_gelu, false), run(linear_gelu_composed, false));
        }
    }

    #[test]
    fn linear_reads_views() {
        let run = |operation: fn(Tensor<3>, Tensor<2>, Option<Tensor<1>>) -> Tensor<3>| {
            move |leaf: &[Tensor<1>]| {
                let x = leaf[0].clone().reshape([7, 6, 5]).swap_dims(0, 1).narrow(1, 2, 4); // [6, 4, 5]
                let weight = leaf[1].clone().reshape([9, 5]).transpose();
                operation(x, weight, Some(leaf[2].clone())).swap_dims(1, 2).reshape([6 * 4 * 9])
            }
        };
        assert_same(&[210, 45, 9], run(linear), run(linear_composed));
        assert_same(&[210, 45, 9], run(linear_gelu), run(linear_gelu_composed));
        let flipped = |operation: fn(Tensor<3>, Tensor<2>, Option<Tensor<1>>) -> Tensor<3>| {
            move |leaf: &[Tensor<1>]| {
                operation(
                    leaf[0].clone().reshape([7, 6, 5]).flip([0, 2]),
                    leaf[1].clone().reshape([5, 9]).flip([0]),
                    None,
                )
                .reshape([7 * 6 * 9])
            }
        };
        assert_same(&[210, 45], flipped(linear), flipped(linear_composed));
    }

    #[test]
    fn linear_has_the_derivative_of_central_differences() {
        let run = |operation: fn(Tensor<2>, Tensor<2>, Option<Tensor<1>>) -> Tensor<2>| {
            move |leaf: &[Tensor<1>]| {
                operation(
                    leaf[0].clone().reshape([3, 5]),
                    leaf[1].clone().reshape([5, 4]),
                    Some(leaf[2].clone()),
                )
                .reshape([12])
            }
        };
        assert_derivative(&[15, 20, 4], run(linear));
        assert_derivative(&[15, 20, 4], run(linear_gelu));
    }

    #[test]
    fn linear_keeps_special_values() {
        let run = |operation: fn(Tensor<2>, Tensor<2>, Option<Tensor<1>>) -> Tensor<2>| {
            move |leaf: &[Tensor<1>]| {
                operation(
                    leaf[0].clone().reshape([3, 5]),
                    leaf[1].clone().reshape([5, 4]),
                    Some(leaf[2].clone()),
                )
                .reshape([12])
            }
        };
        assert_same_special(&[15, 20, 4], run(linear), run(linear_composed));
        assert_same_special(&[15, 20, 4], run(linear_gelu), run(linear_gelu_composed));
    }
}
