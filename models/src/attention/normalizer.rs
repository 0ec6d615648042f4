//! Normalizers: from the scores of a query to attention weights.

use burn::tensor::{Tensor, activation};

use crate::Normalizer;

/// The attention weights of scores, normalized over the last dimension.
///
/// # Shapes
/// - scores, output: `[batch, heads, queries, keys]`
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use vitrine_models::{Normalizer, attention::normalize};
///
/// let scores = Tensor::<4>::from_floats([[[[0.0, 3f32.ln(), -f32::INFINITY]]]], &Device::default());
/// for (normalizer, expected) in [
///     (Normalizer::Softmax, [0.25, 0.75, 0.0]),
///     (Normalizer::Relu, [0.0, 3f32.ln(), 0.0]),
///     (Normalizer::Hard, [0.0, 1.0, 0.0]),
/// ] {
///     let weights = normalize(scores.clone(), normalizer).into_data().try_into_vec_as::<f32>()?;
///     assert!(weights.iter().zip(expected).all(|(weight, expected)| (weight - expected).abs() < 1e-6));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn normalize(scores: Tensor<4>, normalizer: Normalizer) -> Tensor<4> {
    match normalizer {
        Normalizer::Softmax => activation::softmax(scores, 3),
        Normalizer::Relu => activation::relu(scores),
        Normalizer::Hard => {
            let soft = activation::softmax(scores, 3);
            let [.., keys] = soft.dims();
            let best = soft.clone().detach().argmax(3); // [batch, heads, queries, 1]
            let numbers = Tensor::<1, burn::tensor::Int>::arange(0..keys as i64, &soft.device());
            let hard = best.equal(numbers.unsqueeze::<4>()).float();
            // Straight-through: the value is the hard choice, and the gradient is that of softmax.
            soft.clone() + (hard - soft).detach()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use burn::tensor::{Device, Distribution, Tolerance};

    #[test]
    fn hard_weights_choose_one_key_and_have_the_gradient_of_softmax() {
        let device = Device::default().autodiff();
        let scores =
            Tensor::<4>::random([2, 3, 4, 5], Distribution::Normal(0.0, 1.0), &device).require_grad();
        let values = Tensor::<4>::random([2, 3, 5, 2], Distribution::Normal(0.0, 1.0), &device);
        let gradient = |normalizer| {
            let weights = normalize(scores.clone(), normalizer);
            let grads = weights.clone().matmul(values.clone()).sum().backward();
            (weights.into_data(), scores.grad(&grads).unwrap().into_data())
        };
        let (hard, through) = gradient(Normalizer::Hard);
        let (_, soft) = gradient(Normalizer::Softmax);
        through.assert_approx_eq::<f32>(&soft, Tolerance::absolute(1e-6));
        for row in hard.iter::<f32>().collect::<Vec<_>>().chunks(5) {
            assert_eq!(row.iter().filter(|weight| (**weight - 1.0).abs() < 1e-6).count(), 1, "{row:?}");
            assert_eq!(row.iter().filter(|weight| weight.abs() < 1e-6).count(), 4, "{row:?}");
        }
    }
}
