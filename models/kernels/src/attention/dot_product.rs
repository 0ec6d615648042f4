//! The scores of self-attention: dot products of queries and keys that may be rotated, normalized and scaled first.

use burn::tensor::Tensor;

/// The score of a query and a key: `scale * factors[head] * q · k`. The vectors are first rotated and then normalized,
/// if that is asked for.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use vitrine_kernels::DotProduct;
///
/// // Two tokens with the queries 1 and 1, the keys 1 and 9, and the values 5 and 7.
/// let device = Device::default();
/// let qkv = Tensor::<3>::from_floats([[[1.0, 1.0, 5.0], [1.0, 9.0, 7.0]]], &device);
/// // Normalized, both keys are the same, so that both values have the same weight.
/// let cosine = DotProduct { normalize: true, ..DotProduct::scaled(1.0) };
/// let y = vitrine_kernels::self_attention(qkv, 1, cosine, None);
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [6.0, 6.0]);
///
/// // Two tokens whose queries and keys are all [1, 0, 0, 0], with values of 5 and of 7. The second token is rotated by a
/// // right angle.
/// let token = |value: f32| [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, value, value, value, value];
/// let qkv = Tensor::<3>::from_floats([[token(5.0), token(7.0)]], &device);
/// let rotation = Tensor::from_floats([[[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]], &device);
/// // The tokens are now at a right angle to each other: at this scale, each sees only itself.
/// let rotary = DotProduct { rotation: Some(rotation), ..DotProduct::scaled(200.0) };
/// let y = vitrine_kernels::self_attention(qkv, 1, rotary, None);
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [5.0, 5.0, 5.0, 5.0, 7.0, 7.0, 7.0, 7.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DotProduct {
    /// A factor of all scores.
    pub scale: f64,
    /// A factor of the scores of each head, which may be a learned parameter: `[heads]`.
    pub factors: Option<Tensor<1>>,
    /// The cosines, then the sines, of the angles by which the queries and keys of each token are rotated:
    /// `[2, tokens, head_dim / 2]`. They get no gradient. In each half of a head, the value `a` at index `i` of the
    /// first quarter and the value `b` at index `i` of the second quarter are a pair, which becomes
    /// `[a * cos - b * sin, b * cos + a * sin]`. `head_dim` must be a multiple of 4.
    pub rotation: Option<Tensor<3>>,
    /// Whether each query and each key is divided by its length, or by 1e-12 if it is shorter.
    pub normalize: bool,
}

impl DotProduct {
    /// `scale * q · k`, of queries and keys without preparation.
    pub fn scaled(scale: f64) -> Self {
        Self { scale, factors: None, rotation: None, normalize: false }
    }

    /// Checks the shapes for attention of these sizes.
    ///
    /// # Panics
    ///
    /// If the shapes do not fit.
    pub(super) fn check(&self, [heads, tokens, head_dim]: [usize; 3]) {
        if let Some(factors) = &self.factors {
            assert_eq!(factors.dims(), [heads], "self attention: there must be a factor for each head");
        }
        if let Some(rotation) = &self.rotation {
            assert!(
                head_dim.is_multiple_of(4) && rotation.dims() == [2, tokens, head_dim / 2],
                "self attention: rotation {:?} of {tokens} tokens and heads of width {head_dim}",
                rotation.dims()
            );
        }
    }

    /// Queries and keys, `[batch, heads, tokens, head_dim]`, prepared for their dot product in burn's own operations.
    pub(super) fn prepare_composed(&self, q: Tensor<4>, k: Tensor<4>) -> [Tensor<4>; 2] {
        let [q, k] = [q, k].map(|x| {
            let x = match &self.rotation {
                Some(rotation) => rotate(x, rotation.clone()),
                None => x,
            };
            if self.normalize { l2_normalize(x) } else { x }
        });
        match &self.factors {
            Some(factors) => [q * factors.clone().reshape([1, -1, 1, 1]), k],
            None => [q, k],
        }
    }
}

/// Vectors rotated as [`DotProduct::rotation`] describes, in burn's own operations.
///
/// # Shapes
///
/// - x, output: `[batch, heads, tokens, head_dim]`
/// - rotation: `[2, tokens, head_dim / 2]`
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::default();
/// let x = Tensor::<4>::from_floats([[[[1.0, 2.0, 3.0, 4.0]]]], &device);
/// // A right angle in the first half, none in the second.
/// let rotation = Tensor::<3>::from_floats([[[0.0, 1.0]], [[1.0, 0.0]]], &device);
/// let y = vitrine_kernels::rotate(x, rotation);
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [-2.0, 1.0, 3.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn rotate(x: Tensor<4>, rotation: Tensor<3>) -> Tensor<4> {
    rotate_heads(x, rotation.unsqueeze_dim(1))
}

/// [`rotate`] with a rotation for each head, or one for all.
///
/// # Shapes
///
/// - x, output: `[batch, heads, tokens, head_dim]`
/// - rotation: `[2, heads or 1, tokens, head_dim / 2]`
///
/// # Panics
///
/// If the shapes do not fit.
pub fn rotate_heads(x: Tensor<4>, rotation: Tensor<4>) -> Tensor<4> {
    let shape = x.dims();
    let [batch, heads, tokens, head_dim] = shape;
    let of_heads = rotation.dims()[1];
    assert!(
        [1, heads].contains(&of_heads) && rotation.dims() == [2, of_heads, tokens, head_dim / 2],
        "rotation {:?} of {heads} heads of width {head_dim} and {tokens} tokens",
        rotation.dims()
    );
    let x: Tensor<6> = x.reshape([batch, heads, tokens, 2, 2, head_dim / 4]);
    let (a, b) = (x.clone().narrow(4, 0, 1), x.narrow(4, 1, 1));
    let [cos, sin] = [0, 1]
        .map(|part| rotation.clone().narrow(0, part, 1).reshape([1, of_heads, tokens, 2, 1, head_dim / 4]));
    let rotated = vec![a.clone() * cos.clone() - b.clone() * sin.clone(), b * cos + a * sin];
    Tensor::cat(rotated, 4).reshape(shape)
}

/// Every vector of the last dimension divided by its length, or by 1e-12 if it is shorter, in burn's own operations.
/// PyTorch calls this `normalize`.
///
/// # Shapes
///
/// - x, output: `[batch, heads, tokens, head_dim]`
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<4>::from_floats([[[[3.0, 4.0], [0.0, 0.0]]]], &Device::default());
/// let y = vitrine_kernels::l2_normalize(x).into_data().try_into_vec_as::<f32>()?;
/// assert!((y[0] - 0.6).abs() < 1e-6 && (y[1] - 0.8).abs() < 1e-6 && y[2..] == [0.0, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn l2_normalize(x: Tensor<4>) -> Tensor<4> {
    // The bound comes before the root, because the gradient of the root at 0 is infinite.
    let length = x.clone().powi_scalar(2).sum_dim(3).clamp_min(1e-24).sqrt();
    x / length
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::testing::{assert_derivative, assert_same, assert_same_special, assert_same_within, numbers};
    use crate::{self_attention, self_attention_composed};
    use burn::tensor::TensorData;

    type ScoredAttentionFn = fn(Tensor<3>, usize, DotProduct, Option<Tensor<4>>) -> Tensor<3>;

    /// The steps that prepare queries and keys, and whether there is a bias.
    #[derive(Clone, Copy, Debug)]
    struct Steps {
        factors: bool,
        rotate: bool,
        normalize: bool,
        bias: bool,
    }

    fn every_step() -> impl Iterator<Item = Steps> {
        (0..16).map(|bits| Steps {
            factors: bits & 1 > 0,
            rotate: bits & 2 > 0,
            normalize: bits & 4 > 0,
            bias: bits & 8 > 0,
        })
    }

    /// `operation` as a function of packed queries, keys and values, of factors, and of a bias.
    fn run(
        operation: ScoredAttentionFn,
        [batch, tokens, heads, head_dim]: [usize; 4],
        steps: Steps,
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let table = || {
                let angles = numbers(tokens * head_dim / 2, 5);
                let values =
                    angles.iter().map(|x| (3.0 * x).cos()).chain(angles.iter().map(|x| (3.0 * x).sin()));
                TensorData::new(values.collect(), [2, tokens, head_dim / 2])
            };
            let scores = DotProduct {
                scale: 0.3,
                factors: steps.factors.then(|| leaf[1].clone() * 5.0),
                rotation: steps.rotate.then(|| Tensor::from_data(table(), &leaf[0].device())),
                normalize: steps.normalize,
            };
            let bias = steps.bias.then(|| leaf[leaf.len() - 1].clone().reshape([1, heads, tokens, tokens]));
            let qkv = leaf[0].clone().reshape([batch, tokens, 3 * heads * head_dim]);
            operation(qkv * 2.0, heads, scores, bias).reshape([batch * tokens * heads * head_dim])
        }
    }

    fn lengths([batch, tokens, heads, head_dim]: [usize; 4], steps: Steps) -> Vec<usize> {
        let factors = steps.factors.then_some(heads);
        let bias = steps.bias.then_some(heads * tokens * tokens);
        [batch * tokens * heads * head_dim * 3].into_iter().chain(factors).chain(bias).collect()
    }

    #[test]
    fn each_step_agrees_with_its_definition() {
        for steps in every_step() {
            for shape in [[2, 5, 3, 8], [3, 1, 1, 4], [1, 9, 2, 20]] {
                let lengths = lengths(shape, steps);
                // The gradient of a factor is a long sum of terms of both signs, which loses precision.
                assert_same_within(
                    if steps.factors { 5e-5 } else { 1e-5 },
                    &lengths,
                    run(self_attention, shape, steps),
                    run(self_attention_composed, shape, steps),
                );
            }
        }
    }

    #[test]
    fn all_steps_together_agree_with_their_definition_at_many_tokens() {
        let steps = Steps { factors: true, rotate: true, normalize: true, bias: false };
        // In turn: many pairs of sample and head, queries cut into blocks, probabilities that are computed again.
        for shape in [[8, 65, 3, 16], [1, 197, 2, 32], [1, 300, 1, 12]] {
            let lengths = lengths(shape, steps);
            assert_same(
                &lengths,
                run(self_attention, shape, steps),
                run(self_attention_composed, shape, steps),
            );
        }
    }

    #[test]
    fn heads_of_an_odd_width_can_be_normalized() {
        let steps = Steps { factors: true, rotate: false, normalize: true, bias: false };
        let shape = [2, 5, 3, 7];
        let lengths = lengths(shape, steps);
        assert_same(&lengths, run(self_attention, shape, steps), run(self_attention_composed, shape, steps));
    }

    #[test]
    fn queries_and_keys_of_almost_no_length_agree_with_the_definition() {
        let small = |operation: ScoredAttentionFn, size: f64| {
            move |leaf: &[Tensor<1>]| {
                let [qk, v] = [(0, 24), (1, 12)].map(|(i, dim)| leaf[i].clone().reshape([2, 3, dim]));
                let scores = DotProduct { normalize: true, ..DotProduct::scaled(5.0) };
                operation(Tensor::cat(vec![qk.mul_scalar(size), v], 2), 3, scores, None).reshape([72])
            }
        };
        for size in [1e-13, 0.0] {
            assert_same(&[144, 72], small(self_attention, size), small(self_attention_composed, size));
        }
    }

    #[test]
    fn a_factor_of_zero_has_a_gradient() {
        let zero = |operation: ScoredAttentionFn| {
            move |leaf: &[Tensor<1>]| {
                let factors = Some(leaf[1].clone() * Tensor::from_floats([0.0, 1.0], &leaf[1].device()));
                let scores = DotProduct { factors, ..DotProduct::scaled(1.0) };
                operation(leaf[0].clone().reshape([2, 3, 24]), 2, scores, None).reshape([48])
            }
        };
        assert_same(&[144, 2], zero(self_attention), zero(self_attention_composed));
    }

    #[test]
    fn the_steps_have_the_derivative_of_central_differences() {
        let steps = Steps { factors: true, rotate: true, normalize: true, bias: true };
        let shape = [2, 3, 2, 4];
        assert_derivative(&lengths(shape, steps), run(self_attention, shape, steps));
    }

    #[test]
    fn the_steps_keep_special_values() {
        let steps = Steps { factors: true, rotate: true, normalize: true, bias: false };
        let shape = [2, 3, 2, 4];
        assert_same_special(
            &lengths(shape, steps),
            run(self_attention, shape, steps),
            run(self_attention_composed, shape, steps),
        );
    }
}
