//! Tensor operations (composed definitions).
use burn::tensor::{Tensor, activation};

/// Affine map over the last dimension.
pub fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let mut dims = x.dims();
    let input = dims[D - 1];
    let rows = dims[..D - 1].iter().product::<usize>();
    let [_, output] = weight.dims();
    let y = x.reshape([rows, input]).matmul(weight);
    let y = match bias {
        Some(bias) => y + bias.unsqueeze::<2>(),
        None => y,
    };
    dims[D - 1] = output;
    y.reshape(dims)
}
/// Linear, then GELU.
pub fn linear_gelu<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    activation::gelu(linear(x, weight, bias))
}
/// GELU.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    activation::gelu(x)
}
/// Layer norm.
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    burn::tensor::module::layer_norm(x, gamma, Some(beta), epsilon)
}
/// Self attention.
pub fn self_attention(qkv: Tensor<3>, num_heads: usize, scale: f64, bias: Option<Tensor<4>>) -> Tensor<3> {
    let [batch, tokens, width] = qkv.dims();
    let dim = width / 3;
    let packed = qkv.reshape([batch, tokens, 3, num_heads, dim / num_heads]).permute([2, 0, 3, 1, 4]);
    let part = |i: usize| packed.clone().narrow(0, i, 1).squeeze_dim::<4>(0);
    attention(part(0), part(1), part(2), scale, bias).swap_dims(1, 2).reshape([batch, tokens, dim])
}
/// Attention.
pub fn attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, scale: f64, bias: Option<Tensor<4>>) -> Tensor<4> {
    let scores = q.matmul(k.swap_dims(2, 3)).mul_scalar(scale);
    let scores = match bias {
        Some(bias) => scores + bias,
        None => scores,
    };
    activation::softmax(scores, 3).matmul(v)
}
/// Residual.
pub fn residual(
    x: Tensor<3>,
    branch: Tensor<3>,
    gamma: Option<Tensor<1>>,
    keep: Option<Tensor<1>>,
) -> Tensor<3> {
    let branch = match gamma {
        Some(gamma) => branch * gamma.unsqueeze::<3>(),
        None => branch,
    };
    let branch = match keep {
        Some(keep) => {
            let [batch] = keep.dims();
            branch * keep.reshape([batch, 1, 1])
        }
        None => branch,
    };
    x + branch
}
/// Cross entropy.
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
    (activation::log_softmax(logits, 1) * targets).sum_dim(1).mean().neg()
}
