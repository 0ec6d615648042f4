//! Configurations for tests, of this crate and of the program: every choice that a configuration offers, in models that
//! are small enough to test them all.

#![allow(dead_code)]

use vitrine_models::{
    AttentionOptions, BlockStyle, ChannelAttention, ChannelGate, GatePlace, ImageSize, Mixer, MlpKind,
    ModelConfig, Normalizer, Pool, Position, PositionPlace, RelativePosition, RotaryCoordinates,
    RotaryOptions, Score, Tokenizer, preset,
};

/// A plain model of six patches, two channels and five classes.
pub fn base() -> ModelConfig {
    ModelConfig {
        image_size: ImageSize { height: 8, width: 12 },
        channels: 2,
        patch_size: 4,
        embed_dim: 24,
        depth: 2.into(),
        num_heads: 3.into(),
        num_classes: 5,
        ..preset::find("vit_pico_patch4_32").expect("listed")
    }
}

/// A model for every choice, and some models with several choices.
pub fn variants() -> Vec<ModelConfig> {
    let mut all = positions_and_pools();
    let token = ModelConfig { class_token: true, registers: 1, ..base() };
    for &score in Score::ALL {
        for &normalizer in Normalizer::ALL {
            let attention = AttentionOptions { score, normalizer, ..AttentionOptions::default() };
            all.push(ModelConfig { attention, ..token.clone() });
        }
    }
    for (qk_norm, talking_heads) in [(true, false), (false, true), (true, true)] {
        let attention = AttentionOptions { qk_norm, talking_heads, ..AttentionOptions::default() };
        all.push(ModelConfig { attention, ..token.clone() });
    }
    for mixers in [
        vec![Mixer::Neighborhood(1)],
        vec![Mixer::FullNeighborhood(1)],
        vec![Mixer::Graph { neighbors: 2 }],
        vec![Mixer::CrossCovariance],
        vec![Mixer::Global, Mixer::CrossCovariance],
    ] {
        all.push(ModelConfig { mixers, ..token.clone() });
    }
    let edges = Some(vec![[0, 1], [1, 0], [4, 2], [5, 3]]);
    let mixers = vec![Mixer::Adjacency, Mixer::Global];
    all.push(ModelConfig { mixers, adjacency: edges, ..token.clone() });
    // Neighborhoods with every score, and with queries and keys that are normalized, rotated, or have positions.
    for &score in Score::ALL {
        let attention = AttentionOptions { score, ..AttentionOptions::default() };
        all.push(ModelConfig { attention, mixers: vec![Mixer::Neighborhood(1)], ..token.clone() });
    }
    let mixers = vec![Mixer::FullNeighborhood(1)];
    for qk_norm in [false, true] {
        let attention = AttentionOptions { qk_norm, ..AttentionOptions::default() };
        let (num_heads, position) = (2.into(), Position::Rotary);
        all.push(ModelConfig { attention, num_heads, position, mixers: mixers.clone(), ..token.clone() });
    }
    let position_place = PositionPlace::QueryKey;
    all.push(ModelConfig { position_place, mixers: mixers.clone(), ..base() });
    all.push(ModelConfig { mixers, ..stages() });
    for relative_position in RelativePosition::ALL.iter().copied().map(Some).chain([None]) {
        let attention = AttentionOptions { relative_position, ..AttentionOptions::default() };
        let mixers = vec![Mixer::Window(2), Mixer::ShiftedWindow(2)];
        all.push(ModelConfig { patch_size: 2, mixers, attention, ..base() });
    }
    let attention = AttentionOptions {
        relative_position: Some(RelativePosition::Continuous),
        ..AttentionOptions::default()
    };
    all.push(ModelConfig { attention, pretrained_windows: Some([2, 4].into()), ..stages() });
    // Among all tokens, with tokens before the patches and without.
    for relative_position in [RelativePosition::Table, RelativePosition::Continuous] {
        let attention =
            AttentionOptions { relative_position: Some(relative_position), ..AttentionOptions::default() };
        all.push(ModelConfig { attention, ..base() });
        all.push(ModelConfig { attention, ..token.clone() });
    }
    // Padded windows with every score, and with dropout of attention weights.
    let ways = Score::ALL.iter().map(|&score| (score, 0.0)).chain([(Score::ScaledDot, 0.1)]);
    for (score, attention_dropout) in ways {
        let attention = AttentionOptions { score, ..AttentionOptions::default() };
        let config = ModelConfig { attention, attention_dropout, ..stages() };
        // A score that masks a token from itself is not valid in windows of one token.
        all.extend(config.validate().is_ok().then_some(config));
    }
    for &block in BlockStyle::ALL {
        for &mlp in MlpKind::ALL {
            all.push(ModelConfig { block, mlp, ..token.clone() });
        }
        all.push(ModelConfig { block, ..stages() });
    }
    let convolution = Tokenizer::Convolution { layers: 2, kernel_size: 3 };
    let residual = Tokenizer::Residual { width: 6, stride: 1 };
    for &kind in ChannelGate::ALL {
        for &place in GatePlace::ALL {
            let reduction = kind.has_bottleneck().then_some(4);
            let channel_attention = Some(ChannelAttention { kind, reduction, place });
            if place == GatePlace::Tokenizer {
                for tokenizer in [convolution, residual] {
                    all.push(ModelConfig { channel_attention, tokenizer, ..token.clone() });
                }
            } else {
                all.push(ModelConfig { channel_attention, ..token.clone() });
                all.push(ModelConfig { channel_attention, ..stages() });
            }
        }
    }
    all.push(ModelConfig { tokenizer: Tokenizer::ShiftedPatch, ..token.clone() });
    all.push(ModelConfig { tokenizer: Tokenizer::ShiftedPatch, ..stages() });
    all.push(ModelConfig { tokenizer: convolution, ..token.clone() });
    all.push(ModelConfig { tokenizer: residual, ..token.clone() });
    all.push(ModelConfig { tokenizer: Tokenizer::Residual { width: 6, stride: 2 }, ..token });
    all.push(ModelConfig { position: Position::Conditional, ..stages() });
    let with_class = ModelConfig { class_token: true, pool: Pool::ClassToken, ..base() };
    all.push(ModelConfig { distillation_token: true, ..with_class.clone() });
    all.push(ModelConfig { class_depth: 2, layer_scale: Some(0.1), ..with_class });
    all
}

/// A model of two stages, whose windows do not divide the grid.
fn stages() -> ModelConfig {
    ModelConfig {
        image_size: ImageSize { height: 10, width: 14 },
        patch_size: 2,
        depth: [2, 1].into(),
        num_heads: [3, 6].into(),
        position: Position::None,
        embed_norm: true,
        mixers: vec![Mixer::Window(3), Mixer::ShiftedWindow(3)],
        ..base()
    }
}

fn reads_class_token(pool: Pool) -> bool {
    matches!(pool, Pool::ClassToken | Pool::ClassTokenMean)
}

fn positions_and_pools() -> Vec<ModelConfig> {
    let mut all = Vec::new();
    // The mean also with a class token, which it leaves out, and two depths with one, which they read.
    let with_token = [(Pool::Mean, true), (Pool::TwoDepths { early: 1 }, true)];
    let pools = Pool::EXAMPLES.iter().map(|&pool| (pool, reads_class_token(pool))).chain(with_token);
    for &position in Position::ALL {
        for (pool, class_token) in pools.clone() {
            for (registers, patch_size) in [(0, 4), (2, 2)] {
                all.push(ModelConfig {
                    position,
                    pool,
                    class_token,
                    registers,
                    patch_size,
                    head_hidden: if pool == Pool::Mean { vec![16; registers / 2] } else { Vec::new() },
                    // With rotary positions, the width of a head must be a multiple of 4.
                    num_heads: if position == Position::Rotary { 2.into() } else { 3.into() },
                    ..base()
                });
            }
        }
        if !matches!(position, Position::None | Position::Rotary | Position::Conditional) {
            for position_place in [PositionPlace::QueryKey, PositionPlace::FirstQueryKey] {
                all.push(ModelConfig { position, position_place, class_token: true, ..base() });
            }
        }
    }
    for pool in Pool::EXAMPLES.iter().copied().filter(|pool| pool.attends()) {
        for &score in Score::ALL {
            let config = ModelConfig { pool, pool_score: Some(score), class_token: false, ..base() };
            all.extend(config.validate().is_ok().then_some(config));
        }
        let mlp = MlpKind::Relu;
        all.push(ModelConfig { pool, mlp, class_token: false, block: BlockStyle::PostNorm, ..base() });
        all.push(ModelConfig { pool, ..stages() });
    }
    for &coordinates in RotaryCoordinates::ALL {
        let rotary = Some(RotaryOptions { base: 50.0, coordinates, ..RotaryOptions::default() });
        let num_heads: vitrine_models::PerStage = 2.into();
        for position in [Position::Rotary, Position::Learned] {
            all.push(ModelConfig { position, rotary, num_heads: num_heads.clone(), ..base() });
        }
    }
    let learned = RotaryOptions { base: 10.0, learned: true, ..RotaryOptions::default() };
    let scaled = RotaryOptions { grid: Some([4, 4]), ..RotaryOptions::default() };
    for (rotary, mixer) in [
        (learned, Mixer::Global),
        (learned, Mixer::FullNeighborhood(1)),
        (learned, Mixer::Graph { neighbors: 2 }),
        (scaled, Mixer::Global),
    ] {
        let (position, num_heads, mixers) = (Position::Rotary, 2.into(), vec![mixer]);
        all.push(ModelConfig { position, rotary: Some(rotary), num_heads, mixers, registers: 1, ..base() });
    }
    all.push(ModelConfig { pre_norm: true, class_token: true, ..base() });
    for mlp in [MlpKind::Gelu, MlpKind::SwiGlu, MlpKind::DepthwiseChannel] {
        all.push(ModelConfig { mlp, mlp_norm: true, ..base() });
    }
    // Every pixel is a token.
    all.push(ModelConfig { patch_size: 1, layer_scale: Some(0.5), ..base() });
    all.push(ModelConfig {
        position: Position::Learned,
        prefix_position: false,
        class_token: true,
        ..base()
    });
    all
}
