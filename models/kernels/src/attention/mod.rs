//! Softmax attention (Vaswani et al., arXiv:1706.03762, section 3.2.1), from one packed tensor or from separate
//! queries, keys and values.

mod bfloat16;
mod dot_product;
mod neighborhood;

pub use bfloat16::self_attention_bfloat16;
pub use dot_product::{DotProduct, l2_normalize, rotate, rotate_heads};
pub use neighborhood::{neighborhood_attention, neighborhood_attention_composed};

#[cfg(feature = "flex")]
use crate::cpu::{attention as fused, flex, operation};
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Tensor, module};

/// Multi-head self-attention without its two linear layers: `softmax(scores + bias) * v` for each head. The
/// [scores](DotProduct) are `scale * q * k^T`, of queries and keys that may be rotated and normalized first.
///
/// # Shapes
///
/// - qkv: `[batch, tokens, 3 * dim]`; each token holds the queries of all heads, then the keys, then the values, as in
///   timm
/// - bias: `[bias_batch, 1 or heads, tokens, tokens]`; `bias_batch` divides the batch, and sample `i` gets bias
///   `i % bias_batch`
/// - output: `[batch, tokens, dim]`; each token holds the outputs of all heads, one after the other
///
/// # Panics
///
/// If the shapes do not fit.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use vitrine_kernels::DotProduct;
///
/// // One sample of two tokens of width 1: all scores are 0, so that each token gets the mean of both values.
/// let qkv = Tensor::<3>::from_floats([[[0.0, 0.0, 1.0], [0.0, 0.0, 3.0]]], &Device::default());
/// let y = vitrine_kernels::self_attention(qkv, 1, DotProduct::scaled(1.0), None);
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [2.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn self_attention(
    qkv: Tensor<3>,
    num_heads: usize,
    scores: DotProduct,
    bias: Option<Tensor<4>>,
) -> Tensor<3> {
    let [batch, tokens, packed] = qkv.dims();
    check(&qkv, num_heads, &scores, bias.as_ref());
    let scores = DotProduct { rotation: scores.rotation.map(Tensor::detach), ..scores };
    crate::counting::count(&[2, batch, tokens, tokens, packed / 3]);
    #[cfg(feature = "flex")]
    if flex::takes(&qkv)
        && flex::takes_option(&bias)
        && flex::takes_option(&scores.factors)
        && flex::takes_option(&scores.rotation)
    {
        let DotProduct { scale, factors, rotation, normalize } = scores;
        let inputs = fused::PackedInputs {
            qkv: qkv.into_dispatch(),
            bias: bias.map(Tensor::into_dispatch),
            factors: factors.map(Tensor::into_dispatch),
            rotation: rotation.map(Tensor::into_dispatch),
        };
        let operation = fused::SelfAttention { num_heads, scale: scale as f32, normalize };
        return operation::apply(operation, inputs);
    }
    self_attention_composed(qkv, num_heads, scores, bias)
}

/// Checks the shapes of self-attention.
///
/// # Panics
///
/// If they do not fit.
fn check(qkv: &Tensor<3>, num_heads: usize, scores: &DotProduct, bias: Option<&Tensor<4>>) {
    let [batch, tokens, packed] = qkv.dims();
    assert!(
        num_heads > 0 && packed % (3 * num_heads) == 0,
        "self attention: {packed} features are not q, k and v of {num_heads} heads"
    );
    scores.check([num_heads, tokens, packed / (3 * num_heads)]);
    check_bias(bias, [batch, num_heads, tokens, tokens]);
}

/// The definition of [`self_attention`], in burn's own operations.
pub fn self_attention_composed(
    qkv: Tensor<3>,
    num_heads: usize,
    scores: DotProduct,
    bias: Option<Tensor<4>>,
) -> Tensor<3> {
    let [batch, tokens, packed] = qkv.dims();
    let [q, k, v] = packed_heads(qkv, num_heads);
    let [q, k] = scores.prepare_composed(q, k);
    attention_composed(q, k, v, scores.scale, bias).swap_dims(1, 2).reshape([batch, tokens, packed / 3])
}

/// The queries, keys and values of `qkv`, each `[batch, heads, tokens, head_dim]`.
fn packed_heads(qkv: Tensor<3>, num_heads: usize) -> [Tensor<4>; 3] {
    let [batch, tokens, packed] = qkv.dims();
    let dim = packed / 3;
    [0, 1, 2].map(|part| {
        let part = qkv.clone().narrow(2, part * dim, dim);
        part.reshape([batch, tokens, num_heads, dim / num_heads]).swap_dims(1, 2)
    })
}

/// Attention of queries to keys and values, which may be computed from other tokens:
/// `softmax(scale * q * k^T + bias) * v`.
///
/// # Shapes
///
/// - q: `[batch, heads, queries, head_dim]`
/// - k, v: `[batch, heads, keys, head_dim]`
/// - bias: `[bias_batch, 1 or heads, queries, keys]`; `bias_batch` divides the batch, and sample `i` gets bias
///   `i % bias_batch`
/// - output: `[batch, heads, queries, head_dim]`
///
/// # Panics
///
/// If the shapes do not fit.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::default();
/// let array = |values: [[f32; 1]; 2]| Tensor::<2>::from_floats(values, &device).reshape([1, 1, 2, 1]);
/// let query = array([[1.0], [1.0]]).narrow(2, 0, 1); // one query, two keys
/// let mask = Tensor::<4>::from_floats([[[[0.0, -1e30]]]], &device); // the second key is masked
/// let y = vitrine_kernels::attention(query, array([[1.0], [9.0]]), array([[5.0], [7.0]]), 1.0, Some(mask));
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [5.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, scale: f64, bias: Option<Tensor<4>>) -> Tensor<4> {
    let [batch, heads, queries, head_dim] = q.dims();
    let keys = k.dims()[2];
    assert!(
        k.dims() == v.dims() && k.dims() == [batch, heads, keys, head_dim],
        "attention: q {:?}, k {:?}, v {:?}",
        q.dims(),
        k.dims(),
        v.dims()
    );
    check_bias(bias.as_ref(), [batch, heads, queries, keys]);
    crate::counting::count(&[2, batch, heads, queries, keys, head_dim]);
    #[cfg(feature = "flex")]
    if flex::takes(&q) && flex::takes(&k) && flex::takes(&v) && flex::takes_option(&bias) {
        let bias = bias.map(Tensor::into_dispatch);
        let [q, k, v] = [q, k, v].map(Tensor::into_dispatch);
        let operation = fused::Attention { scale: scale as f32 };
        return operation::apply(operation, fused::SeparateInputs { q, k, v, bias });
    }
    attention_composed(q, k, v, scale, bias)
}

/// The definition of [`attention`], in burn's own operations.
pub fn attention_composed(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    scale: f64,
    bias: Option<Tensor<4>>,
) -> Tensor<4> {
    let [batch, _heads, _queries, head_dim] = q.dims();
    let bias = bias.map(|bias| bias_of_batch(bias, batch));
    // burn's flash kernels take only the usual scale, and only if it is not stated.
    let usual = (scale * (head_dim as f64).sqrt() - 1.0).abs() < 1e-12;
    let options = AttentionModuleOptions { scale: (!usual).then_some(scale), ..Default::default() };
    module::attention(q, k, v, None, bias, options)
}

/// The bias as burn's operations broadcast it: a single bias as it is, several repeated so that sample `i` gets bias
/// `i % bias_batch`.
///
/// # Shapes
///
/// - bias: `[bias_batch, heads, queries, keys]`
/// - output: `[1 or batch, heads, queries, keys]`
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let bias = Tensor::<4>::from_floats([[[[1.0]]], [[[2.0]]]], &Device::default());
/// let repeated = vitrine_kernels::bias_of_batch(bias, 4);
/// assert_eq!(repeated.into_data().try_into_vec_as::<f32>()?, [1.0, 2.0, 1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn bias_of_batch(bias: Tensor<4>, batch: usize) -> Tensor<4> {
    match bias.dims()[0] {
        1 => bias,
        bias_batch => bias.repeat_dim(0, batch.checked_div(bias_batch).unwrap_or(1)),
    }
}

fn check_bias(bias: Option<&Tensor<4>>, [batch, heads, queries, keys]: [usize; 4]) {
    if let Some(bias) = bias {
        let [bias_batch, bias_heads, bias_queries, bias_keys] = bias.dims();
        let fits = bias_batch > 0 && batch % bias_batch == 0 && (bias_heads == 1 || bias_heads == heads);
        assert!(
            fits && [bias_queries, bias_keys] == [queries, keys],
            "attention: bias {:?} for scores [{batch}, {heads}, {queries}, {keys}]",
            bias.dims()
        );
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::testing::{assert_derivative, assert_same, assert_same_special};

    type SelfAttentionFn = fn(Tensor<3>, usize, DotProduct, Option<Tensor<4>>) -> Tensor<3>;
    type AttentionFn = fn(Tensor<4>, Tensor<4>, Tensor<4>, f64, Option<Tensor<4>>) -> Tensor<4>;

    fn packed(
        operation: SelfAttentionFn,
        [batch, tokens, heads, head_dim]: [usize; 4],
        bias: Option<[usize; 2]>,
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let qkv = leaf[0].clone().reshape([batch, tokens, 3 * heads * head_dim]);
            let bias = bias.map(|[batch, heads]| leaf[1].clone().reshape([batch, heads, tokens, tokens]));
            operation(qkv * 2.0, heads, DotProduct::scaled(0.3), bias)
                .reshape([batch * tokens * heads * head_dim])
        }
    }

    #[test]
    fn self_attention_agrees_with_its_definition() {
        for [batch, tokens, heads, head_dim] in
            [[2, 5, 3, 7], [1, 1, 1, 4], [8, 65, 3, 16], [1, 197, 2, 8], [2, 300, 1, 4]]
        {
            let shape = [batch, tokens, heads, head_dim];
            let length = shape.iter().product::<usize>() * 3;
            assert_same(
                &[length],
                packed(self_attention, shape, None),
                packed(self_attention_composed, shape, None),
            );
        }
    }

    #[test]
    fn self_attention_takes_an_empty_batch() {
        let x = Tensor::<3>::zeros([0, 4, 30], &burn::tensor::Device::flex().autodiff()).require_grad();
        let output = self_attention(x.clone(), 2, DotProduct::scaled(1.0), None);
        assert_eq!(output.dims(), [0, 4, 10]);
        assert_eq!(x.grad(&output.sum().backward()).unwrap().dims(), [0, 4, 30]);
    }

    #[test]
    fn self_attention_adds_biases_that_samples_and_heads_share() {
        for [bias_batch, bias_heads] in [[1, 1], [1, 3], [6, 1], [6, 3], [2, 3], [3, 1]] {
            let shape = [6, 10, 3, 4];
            let lengths = [6 * 10 * 3 * 4 * 3, bias_batch * bias_heads * 100];
            let bias = Some([bias_batch, bias_heads]);
            assert_same(
                &lengths,
                packed(self_attention, shape, bias),
                packed(self_attention_composed, shape, bias),
            );
        }
        // More keys than the probabilities are kept for.
        let (shape, bias) = ([1, 270, 2, 4], Some([1, 2]));
        assert_same(
            &[270 * 24, 2 * 270 * 270],
            packed(self_attention, shape, bias),
            packed(self_attention_composed, shape, bias),
        );
    }

    fn separate(
        operation: AttentionFn,
        [batch, heads, queries, keys, head_dim]: [usize; 5],
        bias: bool,
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let q = leaf[0].clone().reshape([batch, heads, queries, head_dim]);
            let k = leaf[1].clone().reshape([batch, keys, heads, head_dim]).swap_dims(1, 2);
            let v = leaf[2].clone().reshape([batch, heads, head_dim, keys]).swap_dims(2, 3);
            let bias = bias.then(|| leaf[3].clone().reshape([1, heads, queries, keys]));
            operation(q, k, v, 0.7, bias).reshape([batch * queries * heads * head_dim])
        }
    }

    #[test]
    fn attention_agrees_with_its_definition() {
        for [batch, heads, queries, keys, head_dim] in [
            [2, 3, 5, 7, 4],
            [1, 1, 1, 1, 1],
            [64, 3, 16, 16, 8],
            [3, 2, 49, 49, 32],
            [0, 2, 3, 4, 5],
            [1, 2, 1, 197, 8],
            [1, 2, 130, 20, 8],
        ] {
            let shape = [batch, heads, queries, keys, head_dim];
            let [q, k] = [queries, keys].map(|tokens| batch * heads * tokens * head_dim);
            assert_same(
                &[q, k, k],
                separate(attention, shape, false),
                separate(attention_composed, shape, false),
            );
            let lengths = [q, k, k, heads * queries * keys];
            assert_same(
                &lengths,
                separate(attention, shape, true),
                separate(attention_composed, shape, true),
            );
        }
    }

    #[test]
    fn attention_has_the_derivative_of_central_differences() {
        assert_derivative(&[2 * 3 * 24, 2 * 9], packed(self_attention, [2, 3, 2, 4], Some([1, 2])));
        assert_derivative(&[24, 32, 32, 24], separate(attention, [1, 2, 3, 4, 4], true));
    }

    #[test]
    fn attention_keeps_special_values() {
        let (shape, bias) = ([2, 3, 2, 4], Some([1, 2]));
        assert_same_special(
            &[2 * 3 * 24, 2 * 9],
            packed(self_attention, shape, bias),
            packed(self_attention_composed, shape, bias),
        );
    }

    #[test]
    fn a_bias_of_minus_infinity_masks_keys() {
        let mask = |operation: SelfAttentionFn| {
            move |leaf: &[Tensor<1>]| {
                let mask = [
                    [0.0, f32::NEG_INFINITY, 0.0],
                    [0.0, 0.0, f32::NEG_INFINITY],
                    [f32::NEG_INFINITY, 0.0, 0.0],
                ];
                let bias = Tensor::<2>::from_floats(mask, &leaf[0].device()).unsqueeze::<4>();
                let qkv = leaf[0].clone().reshape([2, 3, 24]);
                operation(qkv, 2, DotProduct::scaled(0.5), Some(bias)).reshape([48])
            }
        };
        assert_same(&[144], mask(self_attention), mask(self_attention_composed));
    }
}
