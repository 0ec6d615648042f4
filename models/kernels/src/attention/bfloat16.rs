//! Self-attention in bfloat16, for models whose weights have eight bits.

use super::DotProduct;
#[cfg(all(feature = "flex", target_arch = "x86_64"))]
use crate::cpu::{attention as fused, flex};
use burn::tensor::Tensor;

/// [`self_attention`](crate::self_attention) whose factors are rounded to bfloat16, eight significant bits: the queries and keys after
/// their preparation, the weights of the values, and the values. Sums are float32.
///
/// `None` if the CPU has no products of bfloat16 numbers on AMX, the tensors are not on flex, not float32, or followed by autodiff, or
/// there are too few tokens for such products to pay.
///
/// # Shapes
///
/// As for [`self_attention`](crate::self_attention).
///
/// # Panics
///
/// If the shapes do not fit.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor, Tolerance};
/// use vitrine_kernels::{DotProduct, self_attention, self_attention_bfloat16};
///
/// let qkv = Tensor::<3>::random([2, 64, 3 * 48], Distribution::Uniform(-1.0, 1.0), &Device::default());
/// let rounded = self_attention_bfloat16(&qkv, 3, &DotProduct::scaled(0.25), None);
/// let exact = self_attention(qkv, 3, DotProduct::scaled(0.25), None);
/// let y = rounded.unwrap_or_else(|| exact.clone()); // on CPUs without AMX
/// y.into_data().assert_approx_eq::<f32>(&exact.into_data(), Tolerance::absolute(4e-3));
/// ```
pub fn self_attention_bfloat16(
    qkv: &Tensor<3>,
    num_heads: usize,
    scores: &DotProduct,
    bias: Option<&Tensor<4>>,
) -> Option<Tensor<3>> {
    super::check(qkv, num_heads, scores, bias);
    #[cfg(all(feature = "flex", target_arch = "x86_64"))]
    if flex::takes_untracked(qkv)
        && bias.is_none_or(flex::takes_untracked)
        && scores.factors.as_ref().is_none_or(flex::takes_untracked)
        && scores.rotation.as_ref().is_none_or(flex::takes_untracked)
    {
        let bfloat16 = fused::Bfloat16::find()?;
        let inputs = fused::PackedInputs {
            qkv: flex::untracked(qkv.clone()),
            bias: bias.cloned().map(flex::untracked),
            factors: scores.factors.clone().map(flex::untracked),
            rotation: scores.rotation.clone().map(flex::untracked),
        };
        let operation =
            fused::SelfAttention { num_heads, scale: scores.scale as f32, normalize: scores.normalize };
        let y = operation.on_bfloat16(bfloat16, inputs)?;
        let [batch, tokens, packed] = qkv.dims();
        crate::counting::count(&[2, batch, tokens, tokens, packed / 3]);
        return Some(flex::wrap(y));
    }
    None
}

#[cfg(all(test, feature = "flex", target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::self_attention_composed;
    use crate::testing::numbers;
    use burn::tensor::{Device, TensorData};

    /// The largest difference that rounding may make, of values between -1 and 1.
    const TOLERANCE: f32 = 1e-2;

    fn tensor<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<D> {
        let values = numbers(shape.iter().product(), seed);
        Tensor::from_data(TensorData::new(values, shape), &Device::flex())
    }

    fn difference(a: Tensor<3>, b: Tensor<3>) -> f32 {
        (a - b).abs().max().into_scalar::<f32>()
    }

    /// Each of the forms of the products against the definition, in float32.
    fn assert_close(shape: [usize; 4], scores: &DotProduct, bias: Option<Tensor<4>>) {
        let [batch, tokens, heads, head_dim] = shape;
        let qkv = tensor([batch, tokens, 3 * heads * head_dim], 1);
        let expected = self_attention_composed(qkv.clone(), heads, scores.clone(), bias.clone());
        for bfloat16 in [fused::Bfloat16::find(), fused::Bfloat16::emulated()].into_iter().flatten() {
            let inputs = fused::PackedInputs {
                qkv: flex::untracked(qkv.clone()),
                bias: bias.clone().map(flex::untracked),
                factors: scores.factors.clone().map(flex::untracked),
                rotation: scores.rotation.clone().map(flex::untracked),
            };
            let operation = fused::SelfAttention {
                num_heads: heads,
                scale: scores.scale as f32,
                normalize: scores.normalize,
            };
            let found = flex::wrap(operation.on_bfloat16(bfloat16, inputs).expect("enough tokens"));
            let difference = difference(found, expected.clone());
            assert!(difference < TOLERANCE, "{shape:?}: {difference}");
            assert!(difference > 0.0, "{shape:?}: nothing was rounded");
        }
    }

    #[test]
    fn rounding_to_bfloat16_changes_little() {
        for shape in
            [[2, 16, 3, 8], [1, 33, 2, 20], [3, 50, 1, 64], [1, 197, 3, 64], [1, 260, 2, 96], [9, 49, 2, 32]]
        {
            assert_close(shape, &DotProduct::scaled(4.0 / (shape[3] as f64).sqrt()), None);
        }
    }

    #[test]
    fn preparation_and_biases_are_kept() {
        let shape = [2, 40, 3, 16];
        let (cos, sin) = (tensor([1, 40, 8], 2), tensor([1, 40, 8], 3));
        let scores = DotProduct {
            scale: 2.0,
            factors: Some(tensor([3], 4) * -6.0),
            rotation: Some(Tensor::cat(vec![cos, sin], 0)),
            normalize: true,
        };
        assert_close(shape, &scores, Some(tensor([2, 3, 40, 40], 5) * 3.0));
        assert_close(shape, &DotProduct::scaled(0.5), Some(tensor([1, 1, 40, 40], 6) * 5.0));
    }

    #[test]
    fn masked_keys_do_not_count_and_special_values_spoil_what_sees_them() {
        let qkv = tensor([1, 32, 3 * 16], 1);
        let masked = Tensor::<4>::zeros([1, 1, 32, 32], &qkv.device())
            .slice_fill([0..1, 0..1, 0..32, 5..6], f32::NEG_INFINITY);
        let spoiled = qkv.clone().slice_fill([0..1, 5..6, 32..48], f32::NAN);
        let Some(seen) = self_attention_bfloat16(&spoiled, 1, &DotProduct::scaled(1.0), None) else { return };
        assert!(seen.is_nan().all().into_scalar::<bool>());
        // Its values are NaN, and 0 times NaN is, too; its key alone is hidden.
        let keys = qkv.slice_fill([0..1, 5..6, 16..32], 1e30);
        let found =
            self_attention_bfloat16(&keys, 1, &DotProduct::scaled(1.0), Some(&masked)).expect("as before");
        let expected = self_attention_composed(keys, 1, DotProduct::scaled(1.0), Some(masked));
        assert!(difference(found, expected) < TOLERANCE);
    }

    #[test]
    fn few_tokens_and_autodiff_stay_in_float32() {
        let rounded = |qkv: Tensor<3>| self_attention_bfloat16(&qkv, 1, &DotProduct::scaled(1.0), None);
        assert!(rounded(tensor([1, 15, 12], 1)).is_none());
        assert!(rounded(tensor([1, 64, 12], 1).autodiff()).is_none());
    }
}
