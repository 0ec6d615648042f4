//! Named configurations: the size table, in one place.
//!
//! Names of 224-pixel models are timm's and their parameter counts equal timm's at 1000 classes. The small ones
//! are for images of 28 and 32 pixels, after the sizes of Compact Transformers (Hassani et al. 2021) and
//! 'Vision Transformer for Small-Size Datasets' (Lee et al. 2021).

use crate::{ImageSize, ModelConfig, Pool, Position};

/// A named configuration.
pub struct Preset {
    /// What the command line calls it.
    pub name: &'static str,
    /// What it is for, in a few words.
    pub about: &'static str,
    config: ModelConfig,
}

impl Preset {
    /// The architecture, for the preset's own number of classes.
    pub fn config(&self) -> ModelConfig {
        self.config.clone()
    }
}

/// The preset of that name.
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

fn plain(side: usize, patch_size: usize, (embed_dim, depth, num_heads, mlp_ratio): Size) -> ModelConfig {
    ModelConfig {
        image_size: ImageSize::square(side),
        channels: 3,
        num_classes: 1000,
        patch_size,
        embed_dim,
        depth,
        num_heads,
        mlp_ratio,
        qkv_bias: true,
        class_token: true,
        registers: 0,
        position: Position::Learned,
        pool: Pool::ClassToken,
        layer_scale: None,
        norm_epsilon: 1e-6,
        head_hidden: Vec::new(),
        dropout: 0.0,
        attention_dropout: 0.0,
        drop_path: 0.0,
    }
}

fn image_net() -> Vec<Preset> {
    let row = |name, about, side, patch, size| Preset { name, about, config: plain(side, patch, size) };
    vec![
        row("vit_tiny_patch16_224", "ViT-Ti/16, 5.7 M parameters", 224, 16, TINY),
        row("vit_small_patch32_224", "ViT-S/32, 22.9 M parameters", 224, 32, SMALL),
        row("vit_small_patch16_224", "ViT-S/16, 22.1 M parameters", 224, 16, SMALL),
        row("vit_base_patch32_224", "ViT-B/32, 88.2 M parameters", 224, 32, BASE),
        row("vit_base_patch16_224", "ViT-B/16, 86.6 M parameters", 224, 16, BASE),
        row("vit_base_patch8_224", "ViT-B/8, 86.6 M parameters", 224, 8, BASE),
        row("vit_large_patch16_224", "ViT-L/16, 304 M parameters", 224, 16, LARGE),
        row("deit_tiny_patch16_224", "DeiT-Ti/16 (Touvron et al. 2021), 5.7 M parameters", 224, 16, TINY),
        row("deit_small_patch16_224", "DeiT-S/16 (Touvron et al. 2021), 22.1 M parameters", 224, 16, SMALL),
        row("deit_base_patch16_224", "DeiT-B/16 (Touvron et al. 2021), 86.6 M parameters", 224, 16, BASE),
    ]
}

fn small_images() -> Vec<Preset> {
    let pooled = |name, about, side, patch, channels, size| Preset {
        name,
        about,
        config: ModelConfig {
            channels,
            num_classes: 10,
            class_token: false,
            pool: Pool::Mean,
            position: Position::Sinusoidal2d,
            ..plain(side, patch, size)
        },
    };
    let token = |name, about, side, patch, size| Preset {
        name,
        about,
        config: ModelConfig { num_classes: 10, ..plain(side, patch, size) },
    };
    vec![
        pooled(
            "vit_pico_patch4_32",
            "32 pixels in a minute on a CPU, 0.5 M parameters",
            32,
            4,
            3,
            (96, 4, 3, 4.0),
        ),
        pooled(
            "vit_nano_patch4_32",
            "32 pixels in half an hour on a CPU, 1.2 M parameters",
            32,
            4,
            3,
            (128, 6, 4, 4.0),
        ),
        pooled(
            "vit_pico_patch4_28",
            "28 grey pixels in minutes on a CPU, 0.5 M parameters",
            28,
            4,
            1,
            (96, 4, 3, 4.0),
        ),
        token(
            "vit_lite_patch4_32",
            "ViT-Lite-7/4 (Hassani et al. 2021), 3.7 M parameters",
            32,
            4,
            (256, 7, 4, 2.0),
        ),
        token(
            "vit_small_data_patch4_32",
            "the baseline of Lee et al. 2021, 2.7 M parameters",
            32,
            4,
            (192, 9, 12, 2.0),
        ),
        token("vit_tiny_patch4_32", "ViT-Ti at patch 4, 5.4 M parameters", 32, 4, TINY),
        token("vit_small_patch4_32", "ViT-S at patch 4, 21.3 M parameters", 32, 4, SMALL),
    ]
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
    fn parameter_counts_are_timms() {
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
            ("vit_small_data_patch4_32", 10, 2_697_610),
            ("vit_lite_patch4_32", 10, 3_722_250),
        ] {
            assert_eq!(count(name, classes), expected, "{name} with {classes} classes");
        }
    }
}
