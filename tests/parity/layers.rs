//! Parity of single layers with PyTorch, timm, and the formulas of the attention literature.

use burn::module::Param;
use burn::tensor::{Bool, Device, Tensor};
use vitrine_models::attention::{
    AttentionSpec, Cbam, ChannelGating, Context, CrossAttention, CrossCovarianceAttention, Efficient,
    MultiHeadAttention, OffsetBias, ScoreFunction, SqueezeExcitation, TableBias, TokenMixer, WindowAttention,
    additive_mask, normalize,
};
use vitrine_models::block::Block;
use vitrine_models::norm::LayerNorm;
use vitrine_models::{
    AttentionOptions, BlockStyle, MlpKind, ModelConfig, Normalizer, Score, position, preset,
};

use super::reference::{
    Arrays, arrays, assert_close, linear, linear_of, param, tensor, tested_device, values,
};

/// The reference arrays, the device, and its tolerance.
fn layers() -> (Arrays, Device, f32) {
    let (device, tolerance) = tested_device();
    (arrays("layers", "io.safetensors"), device, tolerance)
}

fn spec(score: Score) -> AttentionSpec {
    AttentionSpec {
        dim: 48,
        num_heads: 3,
        qkv_bias: true,
        options: AttentionOptions { score, ..AttentionOptions::default() },
        pretrained_window: None,
        norm_epsilon: 1e-5,
        attention_dropout: 0.0,
        dropout: 0.0,
    }
}

#[test]
fn channel_attention() {
    let (all, device, tolerance) = layers();
    // The fixture has channels before rows and columns.
    let gated = |gate: ChannelGating| {
        let map = tensor::<4>(&all["fmap"], &device).permute([0, 2, 3, 1]);
        values(gate.forward_map(map).permute([0, 3, 1, 2]))
    };
    let (fc1, fc2) = ("se.weight.fc1", "se.weight.fc2");
    let se = SqueezeExcitation { fc1: linear(&all, fc1, &device), fc2: linear(&all, fc2, &device) };
    assert_close("se", &gated(ChannelGating::SqueezeExcitation(se)), &all["se.out"].values, tolerance);

    let eca = Efficient { conv: param(&all["eca.weight.conv.weight"], &device) };
    assert_eq!(Efficient::kernel(16), all["eca.weight.conv.weight"].shape[2]);
    assert_close("eca", &gated(ChannelGating::Efficient(eca)), &all["eca.out"].values, tolerance);

    // The reference has a batch norm with running mean 0 and variance 1, which is folded into the convolution here.
    let norm = |name: &str| all[&format!("cbam.weight.spatial.conv.bn.{name}")].values[0];
    assert_eq!((norm("running_mean"), norm("running_var")), (0.0, 1.0));
    let conv = tensor::<4>(&all["cbam.weight.spatial.conv.conv.weight"], &device);
    let cbam = Cbam {
        fc1: linear(&all, "cbam.weight.channel.fc1", &device),
        fc2: linear(&all, "cbam.weight.channel.fc2", &device),
        conv: Param::from_tensor(conv.mul_scalar(norm("weight") / (1.0f32 + 1e-5).sqrt())),
        conv_bias: param(&all["cbam.weight.spatial.conv.bn.bias"], &device),
    };
    assert_close("cbam", &gated(ChannelGating::Cbam(cbam)), &all["cbam.out"].values, tolerance);
}

#[test]
fn cross_covariance_attention() {
    let (all, device, tolerance) = layers();
    let mut layer = CrossCovarianceAttention::new(&spec(Score::ScaledDot), &device);
    layer.qkv = linear(&all, "xca.weight.qkv", &device);
    layer.proj = linear(&all, "xca.weight.proj", &device);
    layer.temperature = param(&all["xca.weight.temperature"], &device);
    let tokens = tensor::<3>(&all["tokens"], &device);
    assert_close("xca", &values(layer.forward(tokens.clone())), &all["xca.out"].values, tolerance);
    let (out, _) = layer.forward_with_weights(tokens);
    assert_close("xca, step by step", &values(out), &all["xca.out"].values, tolerance);
}

#[test]
fn class_attention() {
    let (all, device, tolerance) = layers();
    let mut layer = CrossAttention::new(48, 3, true, &device);
    let part = |name: &str| linear(&all, &format!("class_attention.weight.{name}"), &device);
    (layer.q, layer.k, layer.v, layer.proj) = (part("q"), part("k"), part("v"), part("proj"));
    let tokens = tensor::<3>(&all["tokens"], &device);
    let out = layer.forward(tokens.clone().narrow(1, 0, 1), tokens);
    assert_close("class attention", &values(out), &all["class_attention.out"].values, tolerance);
}

/// A layer with the weights of the reference's `torch.nn.MultiheadAttention`.
fn multi_head(all: &Arrays, name: &str, device: &Device) -> MultiHeadAttention {
    let mut layer = MultiHeadAttention::new(&spec(Score::ScaledDot), device);
    let weight = |part: &str| &all[&format!("{name}.{part}")];
    layer.qkv = linear_of(weight("in_proj_weight"), Some(weight("in_proj_bias")), device);
    layer.proj = linear(all, &format!("{name}.out_proj"), device);
    layer
}

#[test]
fn multi_head_attention_with_separate_inputs_and_a_mask() {
    let (all, device, tolerance) = layers();
    let layer = multi_head(&all, "mha.weight", &device);
    let (tokens, position) =
        (tensor::<3>(&all["tokens"], &device), tensor::<3>(&all["mha.position"], &device));
    let mask = tensor::<2>(&all["mha.mask"], &device).greater_elem(0.5);
    let mask: Tensor<4, Bool> = mask.unsqueeze_dims(&[1, 2]).repeat_dim(2, 17);
    let placed = tokens.clone() + position.clone();
    let (out, weights) =
        layer.forward_separate(placed.clone(), placed, tokens.clone(), Some(additive_mask(mask.clone())));
    assert_close("output", &values(out), &all["mha.out"].values, tolerance);
    assert_close("weights", &values(weights), &all["mha.attn"].values, tolerance);
    // Self-attention takes the positions and the mask as options.
    let context = Context { bias: Some(additive_mask(mask)), position: Some(position), ..Context::default() };
    let out = layer.forward(tokens, &context);
    assert_close("output of self-attention", &values(out), &all["mha.out"].values, tolerance);
}

#[test]
fn the_original_encoder_layer() {
    let (all, device, tolerance) = layers();
    let config = ModelConfig {
        embed_dim: 48,
        num_heads: 3.into(),
        norm_epsilon: 1e-5,
        block: BlockStyle::PostNorm,
        mlp: MlpKind::Relu,
        ..preset::find("vit_pico_patch4_32").unwrap()
    };
    let name = |part: &str| format!("postnorm_encoder.weight.{part}");
    let norm = |part: &str| {
        let mut norm = LayerNorm::new(48, 1e-5, &device);
        norm.weight = param(&all[&name(&format!("{part}.weight"))], &device);
        norm.bias = param(&all[&name(&format!("{part}.bias"))], &device);
        norm
    };
    let mut block = Block::new(&config, 0, 0, &device);
    block.mixer = TokenMixer::MultiHead(multi_head(&all, &name("self_attn"), &device));
    (block.mixer_norm, block.mlp_norm) = (norm("norm1"), norm("norm2"));
    block.mlp.fc1 = linear(&all, &name("linear1"), &device);
    block.mlp.fc2 = linear(&all, &name("linear2"), &device);
    let out = block.forward(tensor(&all["tokens"], &device), &Context::default());
    assert_close("encoder", &values(out), &all["postnorm_encoder.out"].values, tolerance);
}

#[test]
fn window_attention() {
    let (all, device, tolerance) = layers();
    let mut layer = WindowAttention::new(&spec(Score::ScaledDot), [8, 8], 4, 0, &device);
    layer.inner.qkv = linear(&all, "window.weight.qkv", &device);
    layer.inner.proj = linear(&all, "window.weight.proj", &device);
    let table = param(&all["window.weight.relative_position_bias_table"], &device);
    layer.relative_position.as_mut().unwrap().offsets = OffsetBias::Table(TableBias { table });
    let x = tensor::<4>(&all["window.in"], &device).reshape([2, 64, 48]);
    let out = layer.forward(x.clone());
    assert_close("windows", &values(out), &all["window.out"].values, tolerance);
    let (out, _) = layer.forward_with_weights(x);
    assert_close("windows, step by step", &values(out), &all["window.out"].values, tolerance);
}

#[test]
fn scores_and_normalizers() {
    let (all, device, tolerance) = layers();
    let array = |name: &str| tensor::<3>(&all[&format!("score.{name}")], &device).unsqueeze_dim::<4>(1);
    let matrix = |name: &str| tensor::<2>(&all[&format!("score.{name}")], &device);
    for (name, score, normalizer) in [
        ("scaled_dot", Score::ScaledDot, Normalizer::Softmax),
        ("dot", Score::Dot, Normalizer::Softmax),
        ("bilinear", Score::Bilinear, Normalizer::Softmax),
        ("additive", Score::Additive, Normalizer::Softmax),
        ("relu", Score::ScaledDot, Normalizer::Relu),
    ] {
        let spec = AttentionSpec { dim: 8, num_heads: 1, ..spec(score) };
        let mut function = ScoreFunction::new(&spec, &device);
        let vector = || tensor::<1>(&all["score.w_v"], &device).reshape([1, 8, 1]);
        match &mut function {
            ScoreFunction::Bilinear(score) => {
                score.bilinear = Param::from_tensor(matrix("w_b").unsqueeze());
            }
            ScoreFunction::Additive(score) => {
                // The reference multiplies vectors by its matrices from the left.
                score.query = Param::from_tensor(matrix("w_q").transpose().unsqueeze());
                score.key = Param::from_tensor(matrix("w_k").transpose().unsqueeze());
                score.vector = Param::from_tensor(vector());
            }
            ScoreFunction::Dot(_) | ScoreFunction::Cosine(_) | ScoreFunction::Locality(_) => {}
        }
        let weights = normalize(function.forward(array("q"), array("k")), normalizer);
        let out = weights.matmul(array("v"));
        assert_close(name, &values(out), &all[&format!("score.{name}.out")].values, tolerance);
    }
}

#[test]
fn the_sinusoidal_table() {
    let (all, _, _) = layers();
    assert_close("table", &position::sinusoidal(50, 48), &all["sinusoidal.table"].values, 1e-6);
}

#[test]
fn positions_resampled_to_another_grid() {
    let all = arrays("position_resize", "io.safetensors");
    let table = &all["pos_embed"].values;
    for (name, side) in [("to_7x7", 7), ("to_3x3", 3)] {
        // The first row belongs to the class token and is not resampled.
        let mut resampled = table[..48].to_vec();
        resampled.extend(position::resample(&table[48..], [4, 4], [side, side]));
        assert_close(name, &resampled, &all[name].values, 1e-5);
    }
}
