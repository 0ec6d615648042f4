//! Multi-head attention against its definition, and its weights.

#![allow(clippy::unwrap_used)]
use super::*;
use crate::AttentionOptions;
use burn::tensor::{Bool, Distribution, TensorData, Tolerance};

fn layer(options: AttentionOptions, device: &Device) -> (MultiHeadAttention, Tensor<3>) {
    let spec = AttentionSpec {
        dim: 24,
        num_heads: 3,
        qkv_bias: true,
        options,
        pretrained_window: None,
        norm_epsilon: 1e-6,
        attention_dropout: 0.0,
        dropout: 0.0,
    };
    let x = Tensor::random([2, 9, 24], Distribution::Normal(0.0, 10.0), device);
    (MultiHeadAttention::new(&spec, device), x)
}

fn every_option() -> Vec<AttentionOptions> {
    let mut all = Vec::new();
    for &score in Score::ALL {
        for &normalizer in Normalizer::ALL {
            all.push(AttentionOptions { score, normalizer, ..Default::default() });
        }
        all.push(AttentionOptions { score, talking_heads: true, ..Default::default() });
        all.push(AttentionOptions { score, qk_norm: true, ..Default::default() });
    }
    all
}

#[test]
fn asking_for_weights_does_not_change_the_output_and_softmax_rows_sum_to_one() {
    for options in every_option() {
        let (layer, x) = layer(options, &Device::default());
        let plain = layer.forward(x.clone(), &Context::default());
        let (same, weights) = layer.forward_with_weights(x.clone(), &Context::default());
        plain.into_data().assert_approx_eq::<f32>(&same.clone().into_data(), Tolerance::absolute(1e-5));
        let (separate, _) = layer.forward_separate(x.clone(), x.clone(), x, None);
        separate.into_data().assert_approx_eq::<f32>(&same.into_data(), Tolerance::absolute(1e-5));
        if options.normalizer == Normalizer::Softmax && !options.talking_heads {
            let ones = Tensor::<4>::ones([2, 3, 9, 1], &weights.device());
            weights
                .sum_dim(3)
                .into_data()
                .assert_approx_eq::<f32>(&ones.into_data(), Tolerance::absolute(1e-5));
        }
    }
}

#[test]
fn asking_for_weights_does_not_change_the_output_with_rotary_positions() {
    let device = Device::default();
    let context = Context {
        rotary: Some(Rotary::new([2, 4], 1, 8, crate::RotaryOptions::default(), &device)),
        ..Default::default()
    };
    for options in every_option() {
        let (layer, x) = layer(options, &device);
        let rotated = layer.forward(x.clone(), &context);
        let (same, _) = layer.forward_with_weights(x.clone(), &context);
        rotated.clone().into_data().assert_approx_eq::<f32>(&same.into_data(), Tolerance::absolute(1e-5));
        if options.talking_heads {
            continue; // mixed heads start almost equal, so that positions have almost no influence
        }
        // The positions must have an influence.
        let change = (rotated - layer.forward(x, &Context::default())).abs().max();
        assert!(change.into_scalar::<f32>() > 1e-3, "{options:?}");
    }
}

#[test]
fn a_masked_token_has_no_influence() {
    let device = Device::default();
    for options in every_option() {
        let (layer, x) = layer(options, &device);
        let [_, tokens, dim] = x.dims();
        let mask: Vec<bool> = (0..tokens * tokens).map(|i| i % tokens == tokens - 1).collect();
        let mask = Tensor::<4, Bool>::from_data(TensorData::new(mask, [1, 1, tokens, tokens]), &device);
        let other = Tensor::cat(
            vec![x.clone().narrow(1, 0, tokens - 1), Tensor::ones([2, 1, dim], &device).mul_scalar(7.0)],
            1,
        );
        let context = Context { bias: Some(additive_mask(mask)), ..Default::default() };
        let see = |x: Tensor<3>| layer.forward(x, &context).narrow(1, 0, tokens - 1);
        see(x).into_data().assert_approx_eq::<f32>(&see(other).into_data(), Tolerance::absolute(1e-6));
    }
}

#[test]
fn with_locality_no_token_sees_itself() {
    let options = AttentionOptions { score: Score::Locality, ..Default::default() };
    let (layer, x) = layer(options, &Device::default());
    let (_, weights) = layer.forward_with_weights(x, &Context::default());
    let own = weights * Tensor::<2>::eye(9, &Device::default()).unsqueeze::<4>();
    assert_eq!(own.sum().into_scalar::<f32>(), 0.0);
}
