//! Layer normalisation over the last dimension (Ba et al., arXiv:1607.06450).

#[cfg(feature = "flex")]
use super::flex;
use burn::tensor::{Tensor, module};

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, mean and (biased) variance over the last dimension.
///
/// # Shapes
///
/// - x: `[..., features]`
/// - gamma, beta: `[features]`
/// - output: `[..., features]`
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    #[cfg(feature = "flex")]
    if flex::takes(&x) && flex::takes(&gamma) && flex::takes(&beta) {
        assert!(
            gamma.dims()[0] == x.dims()[D - 1] && beta.dims()[0] == x.dims()[D - 1],
            "layer norm: features of input, gamma and beta"
        );
        let inputs = [Some(x.into_dispatch()), Some(gamma.into_dispatch()), Some(beta.into_dispatch())];
        return flex::apply(fused::LayerNorm { epsilon }, inputs);
    }
    layer_norm_composed(x, gamma, beta, epsilon)
}

/// The definition of [`layer_norm`], in burn's own operations.
pub fn layer_norm_composed<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    module::layer_norm(x, gamma, Some(beta), epsilon)
}

#[cfg(feature = "flex")]
mod fused {
    //! A row is read from memory once; the backward pass has each row's mean and deviation and needs no further pass for them.

    use super::super::flex::{self, Operation, contiguous, sizes};
    use super::super::math::{mul_add, sum, vectorized};
    use super::super::parallel::{Chunks, Shared, buffer, parallel};
    use burn::backend::{TensorMetadata, flex::FlexTensor};
    use burn::tensor::Shape;

    #[derive(Clone, Debug)]
    pub(super) struct LayerNorm {
        pub(super) epsilon: f64,
    }

    #[derive(Clone, Debug)]
    pub(super) struct Saved {
        x: FlexTensor,
        gamma: FlexTensor,
        /// Of each row: mean, and one over the standard deviation.
        statistics: Vec<[f32; 2]>,
    }

    impl Operation<3> for LayerNorm {
        type Saved = Saved;

        fn forward(&self, inputs: [Option<FlexTensor>; 3]) -> FlexTensor {
            self.forward_saving(inputs, [false; 3]).0
        }

        fn forward_saving(&self, inputs: [Option<FlexTensor>; 3], _wanted: [bool; 3]) -> (FlexTensor, Saved) {
            let [Some(x), Some(gamma), Some(beta)] = inputs.map(|input| input.map(contiguous)) else {
                unreachable!("all inputs are given")
            };
            let shape = x.shape();
            let [features] = sizes(&gamma);
            let rows = rows(&shape);
            let mut output = buffer(rows * features);
            let mut statistics = vec![0.0; rows * 2];
            let chunks = Chunks::new(rows, 16);
            {
                let (outputs, statistics) = (Shared::new(&mut output), Shared::new(&mut statistics));
                let (x, gamma, beta) = (x.storage::<f32>(), gamma.storage::<f32>(), beta.storage::<f32>());
                parallel(chunks.count(), |index| {
                    let range = chunks.range(index);
                    // SAFETY: the chunks are disjoint.
                    let (outputs, statistics) = unsafe {
                        (
                            outputs.slice(range.start * features..range.end * features),
                            statistics.slice(range.start * 2..range.end * 2),
                        )
                    };
                    let x = &x[range.start * features..range.end * features];
                    normalize(x, gamma, beta, self.epsilon as f32, outputs, statistics.as_chunks_mut().0);
                });
            }
            let statistics = statistics.as_chunks().0.to_vec();
            (flex::tensor(output, shape), Saved { x, gamma, statistics })
        }

        fn backward(self, saved: Saved, gradient: FlexTensor, wanted: [bool; 3]) -> [Option<FlexTensor>; 3] {
            let gradient = contiguous(gradient);
            let shape = gradient.shape();
            let [features] = sizes(&saved.gamma);
            let chunks = Chunks::new(rows(&shape), 16);
            let mut dx = buffer(gradient.shape().num_elements());
            let mut partial = vec![0.0; chunks.count() * 2 * features];
            {
                let (dx, partial) = (Shared::new(&mut dx), Shared::new(&mut partial));
                let (dy, x, gamma) =
                    (gradient.storage::<f32>(), saved.x.storage::<f32>(), saved.gamma.storage::<f32>());
                parallel(chunks.count(), |index| {
                    let range = chunks.range(index);
                    let elements = range.start * features..range.end * features;
                    // SAFETY: the chunks are disjoint, and each has its own sums.
                    let (dx, partial) = unsafe {
                        (
                            dx.slice(elements.clone()),
                            partial.slice(index * 2 * features..(index + 1) * 2 * features),
                        )
                    };
                    let (dgamma, dbeta) = partial.split_at_mut(features);
                    let (dy, x, statistics) = (&dy[elements.clone()], &x[elements], &saved.statistics[range]);
                    normalize_backward(dy, x, gamma, statistics, dx, dgamma, dbeta);
                });
            }
            let mut sums = vec![0.0; 2 * features];
            for partial in partial.chunks_exact((2 * features).max(1)) {
                sums.iter_mut().zip(partial).for_each(|(sum, partial)| *sum += partial);
            }
            let dbeta = wanted[2].then(|| flex::tensor(sums[features..].to_vec(), [features]));
            sums.truncate(features);
            let dgamma = wanted[1].then(|| flex::tensor(sums, [features]));
            [wanted[0].then(|| flex::tensor(dx, shape)), dgamma, dbeta]
        }
    }

    fn rows(shape: &Shape) -> usize {
        shape[..shape.num_dims() - 1].iter().product()
    }

    vectorized! {
        /// Rows and the statistics of each.
        fn normalize(x: &[f32], gamma: &[f32], beta: &[f32], epsilon: f32, output: &mut [f32], statistics: &mut [[f32; 2]]) {
            let features = gamma.len();
            for (row, statistics) in statistics.iter_mut().enumerate() {
                let elements = row * features..(row + 1) * features;
                let (x, output) = (&x[elements.clone()], &mut output[elements]);
                let mean = sum(x, x, |x, _| x) / features as f32;
                let variance = sum(x, x, |x, _| (x - mean) * (x - mean)) / features as f32;
                let rate = 1.0 / (variance + epsilon).sqrt();
                *statistics = [mean, rate];
                for (((output, x), gamma), beta) in output.iter_mut().zip(x).zip(gamma).zip(beta) {
                    *output = mul_add::<FMA>((x - mean) * rate, *gamma, *beta);
                }
            }
        }

        /// The gradient of rows; adds their part to the gradients of gamma and beta.
        fn normalize_backward(dy: &[f32], x: &[f32], gamma: &[f32], statistics: &[[f32; 2]], dx: &mut [f32], dgamma: &mut [f32], dbeta: &mut [f32]) {
            let features = gamma.len();
            for (row, &[mean, rate]) in statistics.iter().enumerate() {
                let elements = row * features..(row + 1) * features;
                let (dy, x, dx) = (&dy[elements.clone()], &x[elements.clone()], &mut dx[elements]);
                // the row of dx first holds the gradient of the normalised row
                for ((dx, dy), gamma) in dx.iter_mut().zip(dy).zip(gamma) {
                    *dx = dy * gamma;
                }
                let common = sum(dx, x, |dx, _| dx) / features as f32;
                let along = sum(dx, x, |dx, x| dx * ((x - mean) * rate)) / features as f32;
                for ((((dx, dy), x), dgamma), dbeta) in dx.iter_mut().zip(dy).zip(x).zip(dgamma.iter_mut()).zip(dbeta.iter_mut()) {
                    let normalized = (x - mean) * rate;
                    *dx = rate * (*dx - common - normalized * along);
                    *dgamma += dy * normalized;
                    *dbeta += dy;
                }
            }
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::testing::{assert_derivative, assert_same, assert_same_special};
    use super::*;

    type LayerNorm = fn(Tensor<3>, Tensor<1>, Tensor<1>, f64) -> Tensor<3>;

    fn run(
        operation: LayerNorm,
        [batch, tokens, features]: [usize; 3],
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            operation(
                leaf[0].clone().reshape([batch, tokens, features]),
                leaf[1].clone(),
                leaf[2].clone(),
                1e-6,
            )
            .reshape([batch * tokens * features])
        }
    }

    #[test]
    fn layer_norm_agrees_with_its_definition() {
        for [batch, tokens, features] in
            [[2, 5, 7], [1, 1, 16], [64, 65, 24], [3, 17, 193], [0, 4, 5], [7, 1, 3]]
        {
            let lengths = [batch * tokens * features, features, features];
            assert_same(
                &lengths,
                run(layer_norm, [batch, tokens, features]),
                run(layer_norm_composed, [batch, tokens, features]),
            );
        }
    }

    #[test]
    fn layer_norm_reads_views() {
        let view = |operation: LayerNorm| {
            move |leaf: &[Tensor<1>]| {
                let x = leaf[0].clone().reshape([4, 6, 5]).permute([1, 2, 0]); // [6, 5, 4]
                operation(x, leaf[1].clone(), leaf[2].clone(), 1e-5).swap_dims(0, 2).reshape([120])
            }
        };
        assert_same(&[120, 4, 4], view(layer_norm), view(layer_norm_composed));
    }

    #[test]
    fn layer_norm_has_the_derivative_of_central_differences() {
        assert_derivative(&[2 * 3 * 8, 8, 8], run(layer_norm, [2, 3, 8]));
    }

    #[test]
    fn layer_norm_keeps_special_values() {
        assert_same_special(
            &[2 * 3 * 5, 5, 5],
            run(layer_norm, [2, 3, 5]),
            run(layer_norm_composed, [2, 3, 5]),
        );
    }
}
