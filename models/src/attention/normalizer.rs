//! Normalizers: from the scores of a query to attention weights.

use burn::tensor::{Device, Distribution, Int, Tensor, activation};

use crate::Normalizer;
use crate::graph::{Attribute, FLOAT, Graph, Value};

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
        Normalizer::Hard => hardest(scores),
        // Like dropout, sampling is for training: inference on a device without autodiff takes the best key.
        Normalizer::HardSampled if scores.device().is_autodiff() => {
            let noise = gumbel(scores.dims(), &scores.device());
            hardest(scores + noise)
        }
        Normalizer::HardSampled => hardest(scores),
    }
}

/// [`normalize`] outside training, as operators.
pub(super) fn trace(graph: &mut Graph, scores: &Value, normalizer: Normalizer) -> Value {
    match normalizer {
        Normalizer::Softmax => graph.softmax(scores),
        Normalizer::Relu => graph.unary("Relu", scores),
        Normalizer::Hard | Normalizer::HardSampled => {
            let mut dims = scores.dims.clone();
            let keys = std::mem::replace(&mut dims[3], 1);
            let best = graph.node("ArgMax", &[scores], vec![("axis", Attribute::Int(3))], dims);
            let numbers = graph.integers(&(0..keys as i64).collect::<Vec<_>>());
            let chosen = graph.binary("Equal", &best, &numbers);
            graph.node("Cast", &[&chosen], vec![("to", Attribute::Int(FLOAT))], chosen.dims.clone())
        }
    }
}

/// All weight for the key with the highest score. Straight-through: the value is that choice, and the gradient is that
/// of softmax.
fn hardest(scores: Tensor<4>) -> Tensor<4> {
    let soft = activation::softmax(scores, 3);
    let [.., keys] = soft.dims();
    let best = soft.clone().detach().argmax(3); // [batch, heads, queries, 1]
    let numbers = Tensor::<1, Int>::arange(0..keys as i64, &soft.device());
    let hard = best.equal(numbers.unsqueeze::<4>()).float();
    soft.clone() + (hard - soft).detach()
}

/// Noise from the standard Gumbel distribution: the key with the highest sum of score and noise is a draw by softmax
/// (Gumbel 1954; Jang et al. 2017, equation 1). It comes from the device's own generator, as dropout does.
fn gumbel(shape: [usize; 4], device: &Device) -> Tensor<4> {
    // Away from 0 and 1, where the logarithms are infinite.
    let uniform = Tensor::<4>::random(shape, Distribution::Uniform(1e-7, 1.0 - 1e-7), device);
    uniform.log().neg().log().neg()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use burn::tensor::Tolerance;

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

    #[test]
    fn sampling_is_pytorchs_gumbel_softmax() {
        // torch.nn.functional.gumbel_softmax(scores, tau=1, hard=True), with the noise that it drew.
        let device = Device::default().autodiff();
        let array = |values: [[f32; 4]; 2]| Tensor::<2>::from_floats(values, &device).reshape([1, 1, 2, 4]);
        let scores = array([[0.5, -1.0, 2.0, 0.1], [1.0, 0.9, -0.3, 0.4]]).require_grad();
        let noise =
            array([[-0.026899, 1.201383, 0.803898, 0.971460], [1.173101, -0.645369, 0.144067, -0.241479]]);
        let values = array([[1.0, 2.0, -1.0, 3.0], [0.5, -2.0, 1.0, 4.0]]);
        let weights = hardest(scores.clone() + noise);
        let grads = (weights.clone() * values).sum().backward();
        let expected =
            array([[0.000000, 0.000000, 1.000000, 0.000000], [1.000000, 0.000000, 0.000000, 0.000000]]);
        weights.into_data().assert_approx_eq::<f32>(&expected.into_data(), Tolerance::absolute(1e-6));
        let expected =
            array([[0.084096, 0.119041, -0.618481, 0.415344], [-0.078215, -0.277947, 0.027730, 0.328431]]);
        let gradient = scores.grad(&grads).unwrap().into_data();
        gradient.assert_approx_eq::<f32>(&expected.inner().into_data(), Tolerance::absolute(1e-5));
    }

    #[test]
    fn keys_are_drawn_by_their_softmax_weight() {
        let device = Device::default();
        let draws = 20_000;
        let scores = Tensor::<1>::from_floats([0.1f32.ln(), 0.2f32.ln(), 0.7f32.ln()], &device);
        let scores = scores.reshape([1, 1, 1, 3]).repeat_dim(2, draws);
        let drawn = hardest(scores.clone() + gumbel(scores.dims(), &device)).mean_dim(2);
        // Four standard errors of the share 0.2.
        let tolerance = 4.0 * (0.2f64 * 0.8 / draws as f64).sqrt();
        let expected = burn::tensor::TensorData::from([[[[0.1f32, 0.2, 0.7]]]]);
        drawn.into_data().assert_approx_eq::<f32>(&expected, Tolerance::absolute(tolerance));
    }
}
