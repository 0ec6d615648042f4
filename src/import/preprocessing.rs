//! Preprocessing of an imported model: as its files state it, completed with the library's usual preprocessing for such
//! a model.

use vitrine_datasets::{CropRounding, Interpolation, Preprocessing, ResizeRule};
use vitrine_models::weights::{Layout, Reading};
use vitrine_models::{ModelConfig, Pool, Position, Score};

use super::config::{CLIP, HALF, IMAGENET, ModelMetadata};

/// A library's usual preprocessing for a kind of model.
struct DefaultPreprocessing {
    resize: ResizeRule,
    interpolation: Interpolation,
    normalization: ([f32; 3], [f32; 3]),
    /// Whose preprocessing it is, for messages.
    source: &'static str,
}

/// The side of the images that Hugging Face's processor makes for DINOv2, whose positions are stored for 518 pixels.
const DINO_SIDE: usize = 224;

/// The height and width that preprocessing brings images to: as stated, or else, for a backbone whose library is known to make images of
/// another size than that of the stored positions, as it does.
pub(super) fn image_size(metadata: &ModelMetadata, layout: Layout, reading: &Reading) -> Option<[usize; 2]> {
    let config = &reading.config;
    let is_dino = layout == Layout::HuggingFace && is_dino(config) && config.position == Position::Learned;
    let is_open = metadata.resize.is_none() && !reading.has_head && config.image_size.height > DINO_SIDE;
    metadata.image_size.or_else(|| (is_dino && is_open).then_some([DINO_SIDE; 2]))
}

/// Whether an architecture is one of DINOv2's.
fn is_dino(config: &ModelConfig) -> bool {
    config.patch_size == 14 && config.layer_scale.is_some()
}

/// The stated preprocessing, completed with the library's usual one. A warning says which parts were assumed.
pub(super) fn choose(
    metadata: &ModelMetadata,
    layout: Layout,
    config: &ModelConfig,
    warnings: &mut Vec<String>,
) -> Preprocessing {
    let default = default_for(layout, config, metadata.name.as_deref());
    let missing: Vec<&str> = [
        ("resizing", metadata.resize.is_none()),
        ("interpolation", metadata.interpolation.is_none()),
        ("mean and deviation", metadata.mean.is_none() || metadata.std.is_none()),
    ]
    .into_iter()
    .filter_map(|(what, missing)| missing.then_some(what))
    .collect();
    if !missing.is_empty() {
        warnings.push(format!(
            "{}: not stated, so {} is assumed: state it with `vitrine import --mean`, `--std` and `--crop`, or in preprocessor_config.json",
            missing.join(", "),
            default.source
        ));
    }
    let size = [config.image_size.height, config.image_size.width];
    let (mean, std) = default.normalization;
    Preprocessing {
        image_size: size,
        channels: config.channels,
        resize: metadata.resize.unwrap_or(default.resize),
        interpolation: metadata.interpolation.unwrap_or(default.interpolation),
        mean: of_channels(metadata.mean.as_deref().unwrap_or(&mean), config.channels),
        std: of_channels(metadata.std.as_deref().unwrap_or(&std), config.channels),
        crop_rounding: match layout {
            Layout::HuggingFace => CropRounding::Down,
            Layout::Timm | Layout::Torchvision | Layout::Microsoft => CropRounding::HalfToEven,
        },
    }
}

/// A model's preprocessing for a variant of it with another image size or number of channels.
pub fn preprocessing_for(preprocessing: &Preprocessing, model: &ModelConfig) -> Preprocessing {
    Preprocessing {
        image_size: [model.image_size.height, model.image_size.width],
        channels: model.channels,
        mean: of_channels(&preprocessing.mean, model.channels),
        std: of_channels(&preprocessing.std, model.channels),
        ..preprocessing.clone()
    }
}

/// A value per channel for another number of channels: the mean of the values.
fn of_channels(values: &[f32], channels: usize) -> Vec<f32> {
    if values.len() == channels {
        return values.to_vec();
    }
    vec![values.iter().sum::<f32>() / values.len().max(1) as f32; channels]
}

/// The library's usual preprocessing. `name` is timm's name of the architecture.
fn default_for(layout: Layout, config: &ModelConfig, name: Option<&str>) -> DefaultPreprocessing {
    use Interpolation::{Bicubic, Bilinear};
    let shorter = |crop| ResizeRule::ShorterSide { crop };
    let is_swin = config.num_stages() > 1;
    let is_dino = is_dino(config);
    let is_siglip = config.pool == Pool::Attention;
    let is_dino_v3 = config.position == Position::Rotary;
    let is_beit = !is_swin && config.attention.relative_position.is_some();
    let (resize, interpolation, normalization, source) = match layout {
        Layout::Torchvision => {
            let filter = if is_swin || config.image_size.height > 224 { Bicubic } else { Bilinear };
            (shorter(torchvision_crop(config)), filter, IMAGENET, "torchvision's for such a model")
        }
        Layout::HuggingFace if config.pre_norm => (shorter(1.0), Bicubic, CLIP, "Hugging Face's for CLIP"),
        Layout::HuggingFace if is_dino_v3 => {
            (ResizeRule::Squash, Bilinear, IMAGENET, "Hugging Face's for DINOv3")
        }
        Layout::HuggingFace if is_swin => (ResizeRule::Squash, Bicubic, IMAGENET, "Hugging Face's for Swin"),
        Layout::HuggingFace if is_dino => {
            (shorter(224.0 / 256.0), Bicubic, IMAGENET, "Hugging Face's for DINOv2")
        }
        Layout::HuggingFace if is_siglip => (ResizeRule::Squash, Bicubic, HALF, "Hugging Face's for SigLIP"),
        Layout::HuggingFace if config.distillation_token || config.registers == 1 => {
            (ResizeRule::SquashCrop { crop: 224.0 / 256.0 }, Bicubic, IMAGENET, "Hugging Face's for DeiT")
        }
        Layout::HuggingFace if is_beit => (ResizeRule::Squash, Bicubic, HALF, "Hugging Face's for BEiT"),
        Layout::HuggingFace => (ResizeRule::Squash, Bilinear, HALF, "Hugging Face's for ViT"),
        Layout::Microsoft => (shorter(224.0 / 256.0), Bicubic, IMAGENET, "Microsoft's for Swin"),
        Layout::Timm if config.pre_norm => (shorter(1.0), Bicubic, CLIP, "OpenAI's for CLIP"),
        Layout::Timm if is_dino_v3 => (shorter(1.0), Bicubic, IMAGENET, "timm's for DINOv3"),
        Layout::Timm if is_swin => (shorter(0.9), Bicubic, IMAGENET, "timm's for Swin"),
        Layout::Timm if config.class_depth > 0 => (shorter(1.0), Bicubic, IMAGENET, "timm's for CaiT"),
        Layout::Timm if is_dino => (shorter(1.0), Bicubic, IMAGENET, "timm's for DINOv2"),
        Layout::Timm if config.distillation_token || name.is_some_and(|name| name.starts_with("deit")) => {
            (shorter(0.9), Bicubic, IMAGENET, "timm's for DeiT")
        }
        Layout::Timm if name.is_some_and(|name| name.starts_with("beitv2")) => {
            (shorter(0.9), Bicubic, IMAGENET, "timm's for BEiT v2")
        }
        Layout::Timm if is_beit => {
            let crop = if config.image_size.height > 224 { 1.0 } else { 0.9 };
            (shorter(crop), Bicubic, HALF, "timm's for BEiT")
        }
        Layout::Timm => (shorter(0.9), Bicubic, HALF, "timm's for ViT"),
    };
    DefaultPreprocessing { resize, interpolation, normalization, source }
}

/// The share of the scaled side that is kept by the `transforms` of torchvision's oldest weights for an architecture.
fn torchvision_crop(config: &ModelConfig) -> f64 {
    let side = config.image_size.height as f64;
    let is_v2 = config.attention.score == Score::Cosine;
    let scaled = match (config.num_stages(), config.embed_dim, config.depth.sum()) {
        (1, 1024, _) if config.patch_size == 16 => 242.0,
        // SWAG's weights, for larger images, have no crop.
        (1, ..) if side > 224.0 => side,
        (1, ..) => 256.0,
        (_, 96, _) if is_v2 => 260.0,
        (..) if is_v2 => 272.0,
        (_, 96, ..=12) => 232.0,
        (_, 96, _) => 246.0,
        (..) => 238.0,
    };
    (side / scaled).min(1.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use vitrine_models::{AttentionOptions, ImageSize, RelativePosition, preset};

    use super::*;

    fn named(name: &str) -> ModelConfig {
        preset::find(name).unwrap()
    }

    fn vit() -> ModelConfig {
        named("vit_tiny_patch16_224")
    }

    #[test]
    fn a_dinov2_backbone_of_hugging_face_has_images_of_224_unless_others_are_stated() {
        let dino = ModelConfig {
            image_size: ImageSize::square(518),
            patch_size: 14,
            layer_scale: Some(1e-5),
            position: Position::Learned,
            ..vit()
        };
        let size = |layout, config: &ModelConfig, has_head, stated| {
            let reading =
                Reading { config: config.clone(), has_head, guesses: Vec::new(), notes: Vec::new() };
            image_size(&ModelMetadata { image_size: stated, ..ModelMetadata::default() }, layout, &reading)
        };
        assert_eq!(size(Layout::HuggingFace, &dino, false, None), Some([224; 2]));
        assert_eq!(size(Layout::HuggingFace, &dino, false, Some([448; 2])), Some([448; 2]));
        assert_eq!(size(Layout::HuggingFace, &dino, true, None), None, "a classifier has its size");
        assert_eq!(size(Layout::Timm, &dino, false, None), None);
        assert_eq!(size(Layout::HuggingFace, &vit(), false, None), None);
    }

    #[test]
    fn unstated_preprocessing_is_the_librarys_for_such_a_model() {
        use Interpolation::{Bicubic, Bilinear};
        use Layout::{HuggingFace, Microsoft, Timm, Torchvision};
        let swin = || named("swin_tiny_patch4_window7_224");
        let distilled = || named("deit_tiny_distilled_patch16_224");
        let dino = || ModelConfig { patch_size: 14, layer_scale: Some(1e-5), ..vit() };
        let large = ModelConfig { image_size: ImageSize::square(384), ..vit() };
        let siglip = ModelConfig { pool: Pool::Attention, ..vit() };
        let clip = || ModelConfig { pre_norm: true, ..vit() };
        let dino_v3 = || ModelConfig { position: Position::Rotary, ..vit() };
        let deit = ModelConfig { registers: 1, ..vit() };
        let beit = |side: usize| {
            let relative_position = Some(RelativePosition::Table);
            let attention = AttentionOptions { relative_position, ..AttentionOptions::default() };
            ModelConfig { attention, image_size: ImageSize::square(side), ..vit() }
        };
        let shorter = |crop| ResizeRule::ShorterSide { crop };
        let squashed = ResizeRule::SquashCrop { crop: 0.875 };
        for (layout, config, name, resize, interpolation, (mean, _)) in [
            (Torchvision, vit(), None, shorter(0.875), Bilinear, IMAGENET),
            (Torchvision, large, None, shorter(1.0), Bicubic, IMAGENET),
            (Torchvision, swin(), None, shorter(224.0 / 232.0), Bicubic, IMAGENET),
            (HuggingFace, vit(), None, ResizeRule::Squash, Bilinear, HALF),
            (HuggingFace, swin(), None, ResizeRule::Squash, Bicubic, IMAGENET),
            (HuggingFace, dino(), None, shorter(0.875), Bicubic, IMAGENET),
            (HuggingFace, siglip, None, ResizeRule::Squash, Bicubic, HALF),
            (HuggingFace, beit(224), None, ResizeRule::Squash, Bicubic, HALF),
            (Timm, beit(224), None, shorter(0.9), Bicubic, HALF),
            (Timm, beit(384), None, shorter(1.0), Bicubic, HALF),
            (Timm, beit(224), Some("beitv2_base_patch16_224"), shorter(0.9), Bicubic, IMAGENET),
            (HuggingFace, clip(), None, shorter(1.0), Bicubic, CLIP),
            (HuggingFace, dino_v3(), None, ResizeRule::Squash, Bilinear, IMAGENET),
            (Timm, clip(), None, shorter(1.0), Bicubic, CLIP),
            (Timm, dino_v3(), None, shorter(1.0), Bicubic, IMAGENET),
            (HuggingFace, distilled(), None, squashed, Bicubic, IMAGENET),
            (HuggingFace, deit, None, squashed, Bicubic, IMAGENET),
            (Microsoft, swin(), None, shorter(0.875), Bicubic, IMAGENET),
            (Timm, vit(), None, shorter(0.9), Bicubic, HALF),
            (Timm, vit(), Some("deit_tiny_patch16_224"), shorter(0.9), Bicubic, IMAGENET),
            (Timm, distilled(), None, shorter(0.9), Bicubic, IMAGENET),
            (Timm, swin(), None, shorter(0.9), Bicubic, IMAGENET),
            (Timm, dino(), None, shorter(1.0), Bicubic, IMAGENET),
            (Timm, named("cait_xxs24_224"), None, shorter(1.0), Bicubic, IMAGENET),
        ] {
            let metadata = ModelMetadata { name: name.map(str::to_owned), ..ModelMetadata::default() };
            let mut warnings = Vec::new();
            let chosen = choose(&metadata, layout, &config, &mut warnings);
            let case = format!("{layout:?} {name:?} {}", config.patch_size);
            assert_eq!((chosen.resize, chosen.interpolation), (resize, interpolation), "{case}");
            assert_eq!(chosen.mean, mean, "{case}");
            let rounding = if layout == HuggingFace { CropRounding::Down } else { CropRounding::HalfToEven };
            assert_eq!(chosen.crop_rounding, rounding, "{case}");
            assert!(warnings.len() == 1 && warnings[0].contains("--mean"), "{case}: {warnings:?}");
        }
    }

    #[test]
    fn torchvisions_crops_are_those_of_its_oldest_weights() {
        let v2 = || named("swinv2_tiny_window8_256");
        for (config, scaled) in [
            (named("vit_base_patch16_224"), 256.0),
            (named("vit_large_patch16_224"), 242.0),
            (named("swin_tiny_patch4_window7_224"), 232.0),
            (named("swin_small_patch4_window7_224"), 246.0),
            (named("swin_base_patch4_window7_224"), 238.0),
            (v2(), 260.0),
            (ModelConfig { embed_dim: 128, ..v2() }, 272.0),
        ] {
            let side = config.image_size.height as f64;
            assert_eq!(torchvision_crop(&config), side / scaled, "{scaled}");
        }
    }

    #[test]
    fn stated_preprocessing_is_kept_except_for_size_and_channels() {
        let stated = ModelMetadata {
            image_size: Some([224; 2]),
            resize: Some(ResizeRule::Squash),
            interpolation: Some(Interpolation::Lanczos),
            mean: Some(vec![0.25, 0.5, 0.75]),
            std: Some(vec![0.125; 3]),
            ..ModelMetadata::default()
        };
        let mut warnings = Vec::new();
        let chosen = choose(&stated, Layout::Timm, &vit(), &mut warnings);
        assert_eq!((chosen.resize, chosen.interpolation), (ResizeRule::Squash, Interpolation::Lanczos));
        assert_eq!((chosen.mean, chosen.std), (vec![0.25, 0.5, 0.75], vec![0.125; 3]));
        assert_eq!((chosen.image_size, chosen.channels), ([224; 2], 3));
        assert_eq!(warnings, Vec::<String>::new());
        // Size and channels are the model's; a single channel has the mean of three.
        let gray = ModelConfig { image_size: ImageSize::square(32), channels: 1, ..vit() };
        let chosen = choose(&stated, Layout::Timm, &gray, &mut warnings);
        assert_eq!((chosen.image_size, chosen.mean, chosen.std), ([32; 2], vec![0.5], vec![0.125]));
        assert_eq!(warnings, Vec::<String>::new());
    }
    #[test]
    fn preprocessing_is_adapted_to_another_size_and_number_of_channels() {
        let preprocessing = Preprocessing {
            image_size: [32; 2],
            channels: 3,
            resize: ResizeRule::Squash,
            interpolation: Interpolation::Lanczos,
            mean: vec![0.25, 0.5, 0.75],
            std: vec![0.125; 3],
            crop_rounding: CropRounding::Down,
        };
        let gray = ModelConfig {
            image_size: ImageSize { height: 48, width: 64 },
            channels: 1,
            ..named("vit_pico_patch4_32")
        };
        let expected = Preprocessing {
            image_size: [48, 64],
            channels: 1,
            mean: vec![0.5],
            std: vec![0.125],
            ..preprocessing.clone()
        };
        assert_eq!(preprocessing_for(&preprocessing, &gray), expected);
    }
}
