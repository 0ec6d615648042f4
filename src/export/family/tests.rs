//! Tests that each choice of an architecture is accepted by the libraries that have it and named in the errors of the
//! others.

#![allow(clippy::unwrap_used)]

use vitrine_models::{ChannelAttention, ChannelGate, GatePlace, ImageSize, preset};

use super::*;
use crate::export::testing::{cait, swin, swin_v2, vit};

const ALL: &[Library] = &[Library::Timm, Library::HuggingFace, Library::Torchvision];
const TIMM_AND_HUGGING_FACE: &[Library] = &[Library::Timm, Library::HuggingFace];
const TIMM_AND_TORCHVISION: &[Library] = &[Library::Timm, Library::Torchvision];
const TIMM: &[Library] = &[Library::Timm];
const NONE: &[Library] = &[];

fn windows(config: ModelConfig, side: usize) -> ModelConfig {
    ModelConfig { mixers: vec![Mixer::Window(side), Mixer::ShiftedWindow(side)], ..config }
}

fn with_attention(mut config: ModelConfig, change: impl FnOnce(&mut AttentionOptions)) -> ModelConfig {
    change(&mut config.attention);
    config
}

/// Checks that exactly the libraries `by` accept a model, and that the others name the key `part`.
fn assert_accepted(config: &ModelConfig, by: &[Library], part: &str) {
    assert_eq!(config.validate(), Ok(()), "{part}");
    let family = Family::nearest(config);
    for &library in ALL {
        match Family::of(config, library) {
            Ok(found) => {
                assert!(by.contains(&library), "{library:?} accepts it in spite of {part}: {config:?}");
                assert_eq!(found, family);
            }
            Err(error) => {
                assert!(!by.contains(&library), "{library:?}: {error}");
                let parts = [family.missing_everywhere(config), family.missing(config, library)].concat();
                assert!(parts.contains(&part), "{library:?}: {part} is not in {parts:?}");
                assert!(error.to_string().contains(part), "{library:?}: {part} is not in: {error}");
            }
        }
    }
}

#[test]
fn every_family_is_accepted_by_the_libraries_that_have_it() {
    for (config, family, by, part) in [
        (vit(), Family::Vit, ALL, ""),
        (
            ModelConfig { distillation_token: true, ..vit() },
            Family::Distilled,
            TIMM_AND_HUGGING_FACE,
            "distillation_token",
        ),
        (cait(), Family::Cait, TIMM, "class_depth"),
        (swin(), Family::Swin, ALL, ""),
        (swin_v2(), Family::SwinV2, ALL, ""),
    ] {
        assert_eq!(Family::nearest(&config), family);
        assert_accepted(&config, by, part);
    }
}

#[test]
fn another_pooling_is_proposed_only_where_the_library_could_have_the_rest() {
    let two_depths = |config: ModelConfig| ModelConfig { pool: Pool::TwoDepths { early: 1 }, ..config };
    let without_token = ModelConfig { class_token: false, ..vit() };
    for (config, is_proposed) in [
        (two_depths(vit()), true),
        (two_depths(ModelConfig { pre_norm: true, ..vit() }), false),
        (two_depths(without_token.clone()), false),
        (ModelConfig { pool: Pool::NormalizedMean, ..without_token }, false),
    ] {
        assert_accepted(&config, NONE, "pool");
        let error = Family::of(&config, Library::Timm).unwrap_err().to_string();
        assert_eq!(error.contains("if that of WEIGHTS reads the class token alone"), is_proposed, "{error}");
        assert_eq!(error.contains("--pool own"), is_proposed, "{error}");
    }
}

#[test]
fn every_score_is_accepted_by_the_libraries_that_have_it() {
    for &score in Score::ALL {
        let (usual, v2) = match score {
            Score::ScaledDot => (ALL, NONE),
            Score::Cosine => (NONE, ALL),
            Score::Dot | Score::Bilinear | Score::Additive | Score::Locality => (NONE, NONE),
        };
        for (config, by) in [(vit(), usual), (swin(), usual), (swin_v2(), v2)] {
            let config = with_attention(config, |attention| attention.score = score);
            assert_accepted(&config, by, "attention.score");
        }
    }
}

#[test]
fn every_normalizer_is_accepted_by_the_libraries_that_have_it() {
    for &normalizer in Normalizer::ALL {
        let by = match normalizer {
            Normalizer::Softmax => ALL,
            Normalizer::Relu | Normalizer::Hard | Normalizer::HardSampled => NONE,
        };
        for config in [vit(), swin(), swin_v2()] {
            let config = with_attention(config, |attention| attention.normalizer = normalizer);
            assert_accepted(&config, by, "attention.normalizer");
        }
    }
}

#[test]
fn every_relative_position_is_accepted_by_the_libraries_that_have_it() {
    for kind in RelativePosition::ALL.iter().copied().map(Some).chain([None]) {
        let (usual, v2) = match kind {
            None | Some(RelativePosition::Table) => (ALL, NONE),
            Some(RelativePosition::Continuous) => (NONE, ALL),
            Some(RelativePosition::None) => (NONE, NONE),
        };
        for (config, by) in [(swin(), usual), (swin_v2(), v2)] {
            let config = with_attention(config, |attention| attention.relative_position = kind);
            assert_accepted(&config, by, "attention.relative_position");
        }
    }
}

#[test]
fn every_position_and_place_of_it_is_accepted_by_the_libraries_that_have_it() {
    for &position in Position::ALL {
        let (plain, staged) = match position {
            Position::None => (NONE, ALL),
            Position::Learned => (ALL, NONE),
            Position::Sinusoidal | Position::Sinusoidal2d => (TIMM, NONE),
            Position::Rotary | Position::Conditional | Position::CoordinateMlp => (NONE, NONE),
        };
        assert_accepted(&ModelConfig { position, ..vit() }, plain, "position");
        let swin = ModelConfig { position, ..swin() };
        // Rotary positions are not possible in windows.
        assert_eq!(swin.validate().is_err(), position == Position::Rotary);
        if swin.validate().is_ok() {
            assert_accepted(&swin, staged, "position");
        }
    }
    for &position_place in PositionPlace::ALL {
        let by = match position_place {
            PositionPlace::Tokens => ALL,
            PositionPlace::QueryKey | PositionPlace::FirstQueryKey => NONE,
        };
        assert_accepted(&ModelConfig { position_place, ..vit() }, by, "position_place");
    }
}

#[test]
fn every_pooling_is_accepted_by_the_libraries_that_have_it() {
    for &pool in Pool::EXAMPLES {
        let (plain, staged) = match pool {
            Pool::ClassToken => (ALL, NONE),
            Pool::Mean => (TIMM, ALL),
            Pool::Attention => (TIMM, NONE),
            Pool::NormalizedMean
            | Pool::ClassTokenMean
            | Pool::TwoDepths { .. }
            | Pool::Sequence
            | Pool::Queries(_)
            | Pool::Recurrent { .. }
            | Pool::ClassQueries { .. } => (NONE, NONE),
        };
        assert_accepted(&ModelConfig { pool, ..vit() }, plain, "pool");
        let swin = ModelConfig { pool, ..swin() };
        // A model with stages has no class token.
        let of_plain_models = matches!(
            pool,
            Pool::ClassToken | Pool::ClassTokenMean | Pool::NormalizedMean | Pool::TwoDepths { .. }
        );
        assert_eq!(swin.validate().is_err(), of_plain_models);
        if swin.validate().is_ok() {
            assert_accepted(&swin, staged, "pool");
        }
    }
}

#[test]
fn every_block_and_mlp_is_accepted_by_the_libraries_that_have_it() {
    for &block in BlockStyle::ALL {
        let (plain, staged, part) = match block {
            BlockStyle::PreNorm => (ALL, ALL, "block"),
            BlockStyle::PostNorm | BlockStyle::Compact => (NONE, NONE, "block"),
            // Such a model counts as Swin v2, which has another score function.
            BlockStyle::ResidualPostNorm => (NONE, NONE, "attention.score"),
        };
        assert_accepted(&ModelConfig { block, ..vit() }, plain, "block");
        assert_accepted(&ModelConfig { block, ..swin() }, staged, part);
        let v2 = if block == BlockStyle::ResidualPostNorm { ALL } else { NONE };
        assert_accepted(&ModelConfig { block, ..swin_v2() }, v2, "attention.score");
    }
    for &mlp in MlpKind::ALL {
        let by = match mlp {
            MlpKind::Gelu => ALL,
            MlpKind::GeluTanh
            | MlpKind::QuickGelu
            | MlpKind::Relu
            | MlpKind::SwiGlu
            | MlpKind::DepthwiseChannel => NONE,
        };
        for config in [vit(), swin()] {
            assert_accepted(&ModelConfig { mlp, ..config }, by, "mlp");
        }
    }
}

#[test]
fn mixers_are_global_or_alternate_windows_and_shifted_windows() {
    let pico = || preset::find("vit_pico_patch4_32").unwrap();
    for (config, mixers, by) in [
        (vit(), vec![Mixer::Global], ALL),
        (vit(), vec![Mixer::Neighborhood(1)], NONE),
        (vit(), vec![Mixer::FullNeighborhood(1)], NONE),
        (vit(), vec![Mixer::Graph { neighbors: 4 }], NONE),
        (vit(), vec![Mixer::CrossCovariance], NONE),
        (vit(), vec![Mixer::Global, Mixer::CrossCovariance], NONE),
        (pico(), vec![Mixer::Window(4)], NONE),
        (pico(), vec![Mixer::ShiftedWindow(4)], NONE),
        (pico(), vec![Mixer::Window(4), Mixer::ShiftedWindow(4)], NONE),
        (swin(), vec![Mixer::Window(4), Mixer::ShiftedWindow(4)], ALL),
        (swin(), vec![Mixer::Window(4), Mixer::ShiftedWindow(2)], NONE),
        (swin(), vec![Mixer::ShiftedWindow(4), Mixer::Window(4)], NONE),
        (swin(), vec![Mixer::Window(4)], NONE),
        (swin(), vec![Mixer::Global], NONE),
        (swin(), vec![Mixer::Neighborhood(1)], NONE),
        (swin(), vec![Mixer::CrossCovariance], NONE),
    ] {
        assert_accepted(&ModelConfig { mixers, ..config }, by, "mixers");
    }
}

#[test]
fn errors_name_every_other_key_that_differs() {
    let gate = ChannelAttention { kind: ChannelGate::Cbam, reduction: None, place: GatePlace::Mlp };
    let convolution = Tokenizer::Convolution { layers: 2, kernel_size: 3 };
    let [wide, wider] = [48, 64].map(|width| ImageSize { height: 32, width });
    let qk_norm = |attention: &mut AttentionOptions| attention.qk_norm = true;
    let talking_heads = |attention: &mut AttentionOptions| attention.talking_heads ^= true;
    for (config, by, part) in [
        (ModelConfig { tokenizer: Tokenizer::ShiftedPatch, ..vit() }, NONE, "tokenizer"),
        (ModelConfig { tokenizer: Tokenizer::ShiftedPatch, ..swin() }, NONE, "tokenizer"),
        (ModelConfig { tokenizer: convolution, ..vit() }, NONE, "tokenizer"),
        (ModelConfig { channel_attention: Some(gate), ..vit() }, NONE, "channel_attention"),
        (ModelConfig { head_hidden: vec![8], ..vit() }, NONE, "head_hidden"),
        (ModelConfig { embed_norm: true, ..vit() }, NONE, "embed_norm"),
        (ModelConfig { embed_norm: false, ..swin() }, NONE, "embed_norm"),
        (with_attention(vit(), qk_norm), TIMM, "attention.qk_norm"),
        (with_attention(swin(), qk_norm), NONE, "attention.qk_norm"),
        (with_attention(cait(), qk_norm), NONE, "attention.qk_norm"),
        (with_attention(vit(), talking_heads), NONE, "attention.talking_heads"),
        (with_attention(cait(), talking_heads), NONE, "attention.talking_heads"),
        (ModelConfig { layer_scale: Some(0.1), ..vit() }, TIMM, "layer_scale"),
        (ModelConfig { layer_scale: Some(0.1), ..swin() }, NONE, "layer_scale"),
        (ModelConfig { layer_scale: None, ..cait() }, NONE, "layer_scale"),
        (ModelConfig { registers: 1, ..vit() }, TIMM_AND_HUGGING_FACE, "registers"),
        (ModelConfig { registers: 2, ..vit() }, TIMM, "registers"),
        (ModelConfig { prefix_position: false, ..vit() }, TIMM, "prefix_position"),
        (ModelConfig { channels: 1, ..vit() }, TIMM_AND_HUGGING_FACE, "channels"),
        (ModelConfig { image_size: wide, ..vit() }, TIMM_AND_HUGGING_FACE, "image_size"),
        (ModelConfig { image_size: wider, ..swin() }, TIMM, "image_size"),
        (ModelConfig { norm_epsilon: 1e-6, ..swin() }, TIMM_AND_TORCHVISION, "norm_epsilon"),
        // Windows of 3 do not divide the grids, and windows of 8 are larger than the last grid.
        (windows(swin(), 3), TIMM, "mixers"),
        (windows(swin(), 8), TIMM, "mixers"),
        (windows(swin_v2(), 8), TIMM_AND_HUGGING_FACE, "mixers"),
    ] {
        assert_accepted(&config, by, part);
    }
}
