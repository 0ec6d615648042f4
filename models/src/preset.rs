//! Presets: named configurations, with all of their sizes.
//!
//! Models for 224 pixels have timm's names, and timm's numbers of parameters at 1000 classes. The small models, for
//! images of 28 and 32 pixels, have the sizes of Compact Transformers (Hassani et al. 2021) and of 'Vision Transformer
//! for Small-Size Datasets' (Lee et al. 2021).

use crate::{
    AttentionOptions, BlockStyle, ChannelAttention, ChannelGate, GatePlace, ImageSize, Mixer, MlpKind,
    ModelConfig, Pool, Position, PositionPlace, RelativePosition, Score, Tokenizer,
};

/// A named configuration.
pub struct Preset {
    /// The name, as `vit_tiny_patch16_224`.
    pub name: &'static str,
    /// The purpose, in a few words.
    pub about: &'static str,
    config: ModelConfig,
}

impl Preset {
    /// The architecture, with the number of classes of the preset.
    pub fn config(&self) -> ModelConfig {
        self.config.clone()
    }
}

/// The configuration of the preset with this name.
pub fn find(name: &str) -> Option<ModelConfig> {
    all().into_iter().find(|preset| preset.name == name).map(|preset| preset.config)
}

/// All presets, from small to large within a family.
pub fn all() -> Vec<Preset> {
    let mut presets = small_images();
    presets.extend(image_net());
    presets
}

/// `(embed_dim, depth, num_heads, mlp_ratio)`.
type Size = (usize, usize, usize, f64);

const TINY: Size = (192, 12, 3, 4.0);
const SMALL: Size = (384, 12, 6, 4.0);
const BASE: Size = (768, 12, 12, 4.0);
const LARGE: Size = (1024, 24, 16, 4.0);
/// The size of Compact Transformers with seven layers.
const COMPACT: Size = (256, 7, 4, 2.0);
/// The size of Lee et al. 2021.
const SMALL_DATA: Size = (192, 9, 12, 2.0);

fn row(name: &'static str, about: &'static str, config: ModelConfig) -> Preset {
    Preset { name, about, config }
}

fn plain(side: usize, patch_size: usize, (embed_dim, depth, num_heads, mlp_ratio): Size) -> ModelConfig {
    ModelConfig {
        image_size: ImageSize::square(side),
        channels: 3,
        num_classes: 1000,
        patch_size,
        embed_dim,
        depth: depth.into(),
        num_heads: num_heads.into(),
        mlp_ratio,
        qkv_bias: true,
        class_token: true,
        distillation_token: false,
        registers: 0,
        class_depth: 0,
        position: Position::Learned,
        position_place: PositionPlace::Tokens,
        prefix_position: true,
        pool: Pool::ClassToken,
        pool_score: None,
        layer_scale: None,
        norm_epsilon: 1e-6,
        embed_norm: false,
        pre_norm: false,
        block: BlockStyle::PreNorm,
        mlp: MlpKind::Gelu,
        head_hidden: Vec::new(),
        dropout: 0.0,
        attention_dropout: 0.0,
        drop_path: 0.0,
        mixers: vec![Mixer::Global],
        adjacency: None,
        pretrained_windows: None,
        tokenizer: Tokenizer::Patch,
        attention: AttentionOptions::default(),
        mlp_norm: false,
        rotary: None,
        channel_attention: None,
    }
}

fn image_net() -> Vec<Preset> {
    let plain = |name, about, patch, size| row(name, about, plain(224, patch, size));
    let distilled = |name, about, size| {
        row(name, about, ModelConfig { distillation_token: true, ..self::plain(224, 16, size) })
    };
    let tiny = ([2, 2, 6, 2], [3, 6, 12, 24], 96);
    vec![
        plain("vit_tiny_patch16_224", "ViT-Ti/16, 5.7 M parameters", 16, TINY),
        plain("vit_small_patch32_224", "ViT-S/32, 22.9 M parameters", 32, SMALL),
        plain("vit_small_patch16_224", "ViT-S/16, 22.1 M parameters", 16, SMALL),
        plain("vit_base_patch32_224", "ViT-B/32, 88.2 M parameters", 32, BASE),
        plain("vit_base_patch16_224", "ViT-B/16, 86.6 M parameters", 16, BASE),
        plain("vit_base_patch8_224", "ViT-B/8, 86.6 M parameters", 8, BASE),
        plain("vit_large_patch16_224", "ViT-L/16, 304 M parameters", 16, LARGE),
        plain("deit_tiny_patch16_224", "DeiT-Ti/16 (Touvron et al. 2021), 5.7 M parameters", 16, TINY),
        plain("deit_small_patch16_224", "DeiT-S/16 (Touvron et al. 2021), 22.1 M parameters", 16, SMALL),
        plain("deit_base_patch16_224", "DeiT-B/16 (Touvron et al. 2021), 86.6 M parameters", 16, BASE),
        distilled(
            "deit_tiny_distilled_patch16_224",
            "DeiT-Ti/16 with a distillation token, 5.9 M parameters",
            TINY,
        ),
        distilled(
            "deit_small_distilled_patch16_224",
            "DeiT-S/16 with a distillation token, 22.4 M parameters",
            SMALL,
        ),
        distilled(
            "deit_base_distilled_patch16_224",
            "DeiT-B/16 with a distillation token, 87.3 M parameters",
            BASE,
        ),
        row(
            "cait_xxs24_224",
            "CaiT-XXS-24 (Touvron et al. 2021), 12.0 M parameters",
            cait((192, 24, 4, 4.0)),
        ),
        row(
            "swin_tiny_patch4_window7_224",
            "Swin-T (Liu et al. 2021), 28.3 M parameters",
            swin(224, 4, 7, tiny),
        ),
        row(
            "swin_small_patch4_window7_224",
            "Swin-S (Liu et al. 2021), 49.6 M parameters",
            swin(224, 4, 7, ([2, 2, 18, 2], [3, 6, 12, 24], 96)),
        ),
        row(
            "swin_base_patch4_window7_224",
            "Swin-B (Liu et al. 2021), 87.8 M parameters",
            swin(224, 4, 7, ([2, 2, 18, 2], [4, 8, 16, 32], 128)),
        ),
        row(
            "swinv2_tiny_window8_256",
            "Swin v2-T (Liu et al. 2022), 28.3 M parameters",
            swin_v2(swin(256, 4, 8, tiny)),
        ),
    ]
}

fn cait(size: Size) -> ModelConfig {
    ModelConfig {
        class_depth: 2,
        layer_scale: Some(1e-5),
        attention: AttentionOptions { talking_heads: true, ..AttentionOptions::default() },
        ..plain(224, 16, size)
    }
}

fn swin<const STAGES: usize>(
    side: usize,
    patch_size: usize,
    window: usize,
    (depth, num_heads, embed_dim): ([usize; STAGES], [usize; STAGES], usize),
) -> ModelConfig {
    ModelConfig {
        depth: depth.into(),
        num_heads: num_heads.into(),
        class_token: false,
        pool: Pool::Mean,
        position: Position::None,
        norm_epsilon: 1e-5,
        embed_norm: true,
        mixers: vec![Mixer::Window(window), Mixer::ShiftedWindow(window)],
        ..plain(side, patch_size, (embed_dim, 1, 1, 4.0))
    }
}

fn swin_v2(swin: ModelConfig) -> ModelConfig {
    ModelConfig {
        block: BlockStyle::ResidualPostNorm,
        attention: AttentionOptions {
            score: Score::Cosine,
            relative_position: Some(RelativePosition::Continuous),
            ..AttentionOptions::default()
        },
        ..swin
    }
}

/// The model with squeeze-and-excitation (Hu et al. 2018) at this place.
fn squeezed(reduction: usize, place: GatePlace, config: ModelConfig) -> ModelConfig {
    let kind = ChannelGate::SqueezeExcitation;
    ModelConfig {
        channel_attention: Some(ChannelAttention { kind, reduction: Some(reduction), place }),
        ..config
    }
}

fn small_images() -> Vec<Preset> {
    let pooled = |side, channels, size| ModelConfig {
        channels,
        class_token: false,
        pool: Pool::Mean,
        position: Position::Sinusoidal2d,
        ..plain(side, 4, size)
    };
    let pico = (96, 4, 3, 4.0);
    let presets = vec![
        row(
            "hybrid_pico_patch4_32",
            "residual convolutions, then attention: 32 pixels in minutes on a CPU, 0.4 M parameters",
            hybrid(32, 4, 64, (128, 1, 4, 2.0)),
        ),
        row(
            "hybrid_micro_patch8_32",
            "with a third stage of convolutions: the default for 32 pixels, 0.9 M parameters",
            hybrid(32, 8, 48, (192, 1, 6, 2.0)),
        ),
        row(
            "hybrid_small_patch8_32",
            "wider: the default for 32 pixels and a quarter of an hour on a CPU, 1.7 M parameters",
            hybrid(32, 8, 64, (256, 1, 8, 2.0)),
        ),
        row(
            "hybrid_base_patch8_32",
            "wider still: the default for 32 pixels and half an hour on a CPU, 3.8 M parameters",
            hybrid(32, 8, 96, (384, 1, 12, 2.0)),
        ),
        row(
            "hybrid_nano_patch8_64",
            "the same for 64 pixels, 0.4 M parameters",
            hybrid(64, 8, 32, (128, 1, 4, 2.0)),
        ),
        row(
            "hybrid_micro_patch24_96",
            "patches of 3 by 3 pixels, then hybrid_micro: the default for 100 pixels and little time on a CPU, 1.0 M parameters",
            hybrid(32, 8, 48, (192, 1, 6, 2.0)).with_stride(3),
        ),
        row(
            "hybrid_nano_patch16_128",
            "patches of 2 by 2 pixels, then hybrid_nano: the default for photos and minutes on a CPU, 0.4 M parameters",
            hybrid(64, 8, 32, (128, 1, 4, 2.0)).with_stride(2),
        ),
        row("vit_pico_patch4_32", "32 pixels in a minute on a CPU, 0.5 M parameters", pooled(32, 3, pico)),
        row(
            "vit_pico_se_patch4_32",
            "the same with squeeze-and-excitation of the tokens, 0.5 M parameters",
            squeezed(8, GatePlace::Mixer, pooled(32, 3, pico)),
        ),
        row(
            "vit_pico_mlp_head_patch4_32",
            "vit_pico with a hidden layer in the head, 0.5 M parameters",
            ModelConfig { head_hidden: vec![192], ..pooled(32, 3, pico) },
        ),
        row(
            "vit_pico_se_pixel_16",
            "every pixel of 16 by 16 is a token; squeeze-and-excitation, MLP head, 0.5 M parameters",
            ModelConfig {
                patch_size: 1,
                head_hidden: vec![192],
                ..squeezed(8, GatePlace::Mixer, pooled(16, 3, pico))
            },
        ),
        row(
            "vit_nano_patch4_32",
            "32 pixels in half an hour on a CPU, 1.2 M parameters",
            pooled(32, 3, (128, 6, 4, 4.0)),
        ),
        row(
            "vit_pico_patch4_28",
            "28 gray pixels in minutes on a CPU, 0.5 M parameters",
            pooled(28, 1, pico),
        ),
        row(
            "vit_lite_7_4",
            "ViT-Lite-7/4 (Hassani et al. 2021), 3.7 M parameters",
            ModelConfig {
                class_token: true,
                pool: Pool::ClassToken,
                ..compact(4, Tokenizer::Patch, COMPACT)
            },
        ),
        row(
            "cvt_7_4",
            "CVT-7/4 (Hassani et al. 2021), 3.7 M parameters",
            compact(4, Tokenizer::Patch, COMPACT),
        ),
        row(
            "cct_2_3x2",
            "CCT-2/3x2 (Hassani et al. 2021), 0.3 M parameters",
            compact(4, Tokenizer::Convolution { layers: 2, kernel_size: 3 }, (128, 2, 2, 1.0)),
        ),
        row(
            "cct_2_3x2_se",
            "the same with squeeze-and-excitation of the tokenizer's maps, 0.3 M parameters",
            squeezed(
                8,
                GatePlace::Tokenizer,
                compact(4, Tokenizer::Convolution { layers: 2, kernel_size: 3 }, (128, 2, 2, 1.0)),
            ),
        ),
        row(
            "cct_7_3x1",
            "CCT-7/3x1 (Hassani et al. 2021), 3.8 M parameters",
            compact(2, Tokenizer::Convolution { layers: 1, kernel_size: 3 }, COMPACT),
        ),
        row(
            "vit_small_data_patch4_32",
            "the baseline of Lee et al. 2021, 2.7 M parameters",
            ModelConfig { qkv_bias: false, drop_path: 0.1, ..plain(32, 4, SMALL_DATA) },
        ),
        row(
            "sl_vit",
            "SL-ViT (Lee et al. 2021): shifted patches, locality attention, 2.7 M parameters",
            small_data(ModelConfig { qkv_bias: false, drop_path: 0.1, ..plain(32, 4, SMALL_DATA) }),
        ),
        row("swin_patch2_window4_32", "the Swin of Lee et al. 2021, 7.0 M parameters", small_swin()),
        row(
            "sl_swin",
            "SL-Swin (Lee et al. 2021): shifted patches, locality attention, 8.5 M parameters",
            small_data(ModelConfig { embed_norm: false, ..small_swin() }),
        ),
        row(
            "swin_pico_patch2_window4_32",
            "a small Swin for 32 pixels, 0.6 M parameters",
            swin(32, 2, 4, ([2, 2, 2], [1, 2, 4], 32)),
        ),
        row("vit_tiny_patch4_32", "ViT-Ti at patch 4, 5.4 M parameters", plain(32, 4, TINY)),
        row("vit_small_patch4_32", "ViT-S at patch 4, 21.3 M parameters", plain(32, 4, SMALL)),
    ];
    let ten_classes = |preset: Preset| Preset { config: preset.config.with_num_classes(10), ..preset };
    presets.into_iter().map(ten_classes).collect()
}

/// A hybrid: residual stages of convolutions, the first with `width` channels, before blocks with rotary positions. Of
/// the presets, it learns most from few images and in little time. The branches of its blocks start near zero, so that
/// the convolutions learn first.
fn hybrid(side: usize, patch_size: usize, width: usize, size: Size) -> ModelConfig {
    ModelConfig {
        class_token: false,
        pool: Pool::Mean,
        position: Position::Rotary,
        layer_scale: Some(0.1),
        tokenizer: Tokenizer::Residual { width, stride: 1 },
        ..plain(side, patch_size, size)
    }
}

/// A Compact Transformer: sequence pooling, and the blocks that the code of Hassani et al. 2021 has.
fn compact(patch_size: usize, tokenizer: Tokenizer, size: Size) -> ModelConfig {
    ModelConfig {
        qkv_bias: false,
        class_token: false,
        pool: Pool::Sequence,
        norm_epsilon: 1e-5,
        block: BlockStyle::Compact,
        attention_dropout: 0.1,
        drop_path: 0.1,
        tokenizer,
        ..plain(32, patch_size, size)
    }
}

fn small_swin() -> ModelConfig {
    ModelConfig { mlp_ratio: 2.0, drop_path: 0.1, ..swin(32, 2, 4, ([2, 6, 4], [3, 6, 12], 96)) }
}

/// `base` with shifted patch tokenization and locality self-attention (Lee et al. 2021, sections 3.1 and 3.2).
fn small_data(base: ModelConfig) -> ModelConfig {
    ModelConfig {
        tokenizer: Tokenizer::ShiftedPatch,
        attention: AttentionOptions { score: Score::Locality, ..base.attention },
        ..base
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use burn::module::Module;
    use burn::tensor::Device;

    #[test]
    fn every_preset_is_valid_and_listed_once() {
        let presets = all();
        for preset in &presets {
            preset.config.validate().unwrap();
            assert_eq!(
                presets.iter().filter(|other| other.name == preset.name).count(),
                1,
                "{}",
                preset.name
            );
        }
        assert_eq!(find("vit_giant_patch1_1"), None);
    }

    #[test]
    fn parameter_counts_are_those_of_the_references() {
        let device = Device::default();
        let count = |name: &str, classes| {
            find(name).unwrap().with_num_classes(classes).init(&device).unwrap().num_params()
        };
        for (name, classes, expected) in [
            ("vit_tiny_patch16_224", 1000, 5_717_416),
            ("vit_small_patch16_224", 1000, 22_050_664),
            ("vit_small_patch32_224", 1000, 22_878_952),
            ("vit_base_patch16_224", 1000, 86_567_656),
            ("vit_base_patch32_224", 1000, 88_224_232),
            ("vit_base_patch8_224", 1000, 86_576_872),
            ("vit_large_patch16_224", 1000, 304_326_632),
            ("deit_tiny_patch16_224", 1000, 5_717_416),
            ("deit_small_patch16_224", 1000, 22_050_664),
            ("deit_base_patch16_224", 1000, 86_567_656),
            ("vit_tiny_patch16_224", 10, 5_526_346),
            ("vit_tiny_patch4_32", 10, 5_362_762),
            ("vit_small_patch4_32", 10, 21_342_346),
            ("deit_tiny_distilled_patch16_224", 1000, 5_910_800),
            ("deit_small_distilled_patch16_224", 1000, 22_436_432),
            ("deit_base_distilled_patch16_224", 1000, 87_338_192),
            ("cait_xxs24_224", 1000, 11_956_264),
            ("swin_tiny_patch4_window7_224", 1000, 28_288_354),
            ("swin_small_patch4_window7_224", 1000, 49_606_258),
            ("swin_base_patch4_window7_224", 1000, 87_768_224),
            ("swinv2_tiny_window8_256", 1000, 28_347_154),
            ("swin_patch2_window4_32", 10, 7_048_612),
            ("vit_small_data_patch4_32", 10, 2_692_426),
            ("sl_vit", 10, 2_729_878),
            ("vit_lite_7_4", 10, 3_716_874),
            ("cvt_7_4", 10, 3_716_619),
            ("cct_2_3x2", 10, 283_723),
            ("cct_7_3x1", 10, 3_760_139),
        ] {
            assert_eq!(count(name, classes), expected, "{name} with {classes} classes");
        }
    }
}
