//! What is done to an image where the files say nothing: what the library does for such a model.

use vitrine_datasets::{CropRounding, Interpolation, Preprocessing, ResizeRule};
use vitrine_models::weights::Layout;
use vitrine_models::{ModelConfig, Pool, Score};

use super::description::Description;

/// Mean and standard deviation of ImageNet's pixels, as the models' authors rounded them.
const IMAGENET: ([f32; 3], [f32; 3]) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
/// Values from -1 to 1.
const HALF: ([f32; 3], [f32; 3]) = ([0.5; 3], [0.5; 3]);

/// What a library does when nothing else is said.
struct Usual {
    resize: ResizeRule,
    interpolation: Interpolation,
    normalization: ([f32; 3], [f32; 3]),
    why: &'static str,
}

/// The stated preprocessing, filled up with the layout's usual one; `notes` says so.
pub(super) fn choose(
    description: &Description,
    layout: Layout,
    config: &ModelConfig,
    notes: &mut Vec<String>,
) -> Preprocessing {
    let usual = usual(layout, config, description.name.as_deref());
    let missing: Vec<&str> = [
        ("resizing", description.resize.is_none()),
        ("interpolation", description.interpolation.is_none()),
        ("mean and deviation", description.mean.is_none() || description.std.is_none()),
    ]
    .into_iter()
    .filter_map(|(what, missing)| missing.then_some(what))
    .collect();
    if !missing.is_empty() {
        notes.push(format!(
            "{}: not stated, so {} is assumed: state it with `vitrine import --mean`, `--std` and `--crop`, or in preprocessor_config.json",
            missing.join(", "),
            usual.why
        ));
    }
    let size = [config.image_size.height, config.image_size.width];
    let (mean, std) = usual.normalization;
    Preprocessing {
        image_size: size,
        channels: config.channels,
        resize: description.resize.unwrap_or(usual.resize),
        interpolation: description.interpolation.unwrap_or(usual.interpolation),
        mean: of_channels(description.mean.as_deref().unwrap_or(&mean), config.channels),
        std: of_channels(description.std.as_deref().unwrap_or(&std), config.channels),
        crop_rounding: match layout {
            Layout::HuggingFace => CropRounding::Down,
            Layout::Timm | Layout::Torchvision | Layout::Microsoft => CropRounding::HalfToEven,
        },
    }
}

/// The same values for another number of channels: their mean.
pub(crate) fn of_channels(values: &[f32], channels: usize) -> Vec<f32> {
    if values.len() == channels {
        return values.to_vec();
    }
    vec![values.iter().sum::<f32>() / values.len().max(1) as f32; channels]
}

fn usual(layout: Layout, config: &ModelConfig, preset: Option<&str>) -> Usual {
    use Interpolation::{Bicubic, Bilinear};
    let shorter = |crop| ResizeRule::ShorterSide { crop };
    let is_swin = config.num_stages() > 1;
    let is_dino = config.patch_size == 14 && config.layer_scale.is_some();
    let is_siglip = config.pool == Pool::Attention;
    let (resize, interpolation, normalization, why) = match layout {
        Layout::Torchvision => {
            let filter = if is_swin || config.image_size.height > 224 { Bicubic } else { Bilinear };
            (shorter(torchvision_crop(config)), filter, IMAGENET, "torchvision's for such a model")
        }
        Layout::HuggingFace if is_swin => (ResizeRule::Squash, Bicubic, IMAGENET, "Hugging Face's for Swin"),
        Layout::HuggingFace if is_dino => {
            (shorter(224.0 / 256.0), Bicubic, IMAGENET, "Hugging Face's for DINOv2")
        }
        Layout::HuggingFace if is_siglip => (ResizeRule::Squash, Bicubic, HALF, "Hugging Face's for SigLIP"),
        Layout::HuggingFace if config.distillation_token || config.registers == 1 => {
            (ResizeRule::SquashCrop { crop: 224.0 / 256.0 }, Bicubic, IMAGENET, "Hugging Face's for DeiT")
        }
        Layout::HuggingFace => (ResizeRule::Squash, Bilinear, HALF, "Hugging Face's for ViT"),
        Layout::Microsoft => (shorter(224.0 / 256.0), Bicubic, IMAGENET, "Microsoft's for Swin"),
        Layout::Timm if is_swin => (shorter(0.9), Bicubic, IMAGENET, "timm's for Swin"),
        Layout::Timm if config.class_depth > 0 => (shorter(1.0), Bicubic, IMAGENET, "timm's for CaiT"),
        Layout::Timm if is_dino => (shorter(1.0), Bicubic, IMAGENET, "timm's for DINOv2"),
        Layout::Timm if config.distillation_token || preset.is_some_and(|name| name.starts_with("deit")) => {
            (shorter(0.9), Bicubic, IMAGENET, "timm's for DeiT")
        }
        Layout::Timm => (shorter(0.9), Bicubic, HALF, "timm's for ViT"),
    };
    Usual { resize, interpolation, normalization, why }
}

/// The share of the scaled side that torchvision's `transforms` of a model's first weights keep.
fn torchvision_crop(config: &ModelConfig) -> f64 {
    let side = config.image_size.height as f64;
    let is_v2 = config.attention.score == Score::Cosine;
    let scaled = match (config.num_stages(), config.embed_dim, config.depth.sum()) {
        (1, 1024, _) if config.patch_size == 16 => 242.0,
        // Weights of SWAG, for larger images, are not cropped.
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
    use vitrine_models::{ImageSize, preset};

    use super::*;

    fn named(name: &str) -> ModelConfig {
        preset::find(name).unwrap()
    }

    fn vit() -> ModelConfig {
        named("vit_tiny_patch16_224")
    }

    #[test]
    fn what_nothing_states_is_what_the_library_does_for_such_a_model() {
        use Interpolation::{Bicubic, Bilinear};
        use Layout::{HuggingFace, Microsoft, Timm, Torchvision};
        let swin = || named("swin_tiny_patch4_window7_224");
        let distilled = || named("deit_tiny_distilled_patch16_224");
        let dino = || ModelConfig { patch_size: 14, layer_scale: Some(1e-5), ..vit() };
        let large = ModelConfig { image_size: ImageSize::square(384), ..vit() };
        let siglip = ModelConfig { pool: Pool::Attention, ..vit() };
        let deit = ModelConfig { registers: 1, ..vit() };
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
            let description = Description { name: name.map(str::to_owned), ..Description::default() };
            let mut notes = Vec::new();
            let chosen = choose(&description, layout, &config, &mut notes);
            let case = format!("{layout:?} {name:?} {}", config.patch_size);
            assert_eq!((chosen.resize, chosen.interpolation), (resize, interpolation), "{case}");
            assert_eq!(chosen.mean, mean, "{case}");
            let rounding = if layout == HuggingFace { CropRounding::Down } else { CropRounding::HalfToEven };
            assert_eq!(chosen.crop_rounding, rounding, "{case}");
            assert!(notes.len() == 1 && notes[0].contains("--mean"), "{case}: {notes:?}");
        }
    }

    #[test]
    fn torchvisions_crops_are_those_of_its_first_weights() {
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
    fn what_is_stated_is_taken_as_it_is() {
        let stated = Description {
            image_size: Some([224; 2]),
            resize: Some(ResizeRule::Squash),
            interpolation: Some(Interpolation::Lanczos),
            mean: Some(vec![0.25, 0.5, 0.75]),
            std: Some(vec![0.125; 3]),
            ..Description::default()
        };
        let mut notes = Vec::new();
        let chosen = choose(&stated, Layout::Timm, &vit(), &mut notes);
        assert_eq!((chosen.resize, chosen.interpolation), (ResizeRule::Squash, Interpolation::Lanczos));
        assert_eq!((chosen.mean, chosen.std), (vec![0.25, 0.5, 0.75], vec![0.125; 3]));
        assert_eq!((chosen.image_size, chosen.channels), ([224; 2], 3));
        assert_eq!(notes, Vec::<String>::new());
        // A model takes its own size, and a gray one the mean of the channels.
        let gray = ModelConfig { image_size: ImageSize::square(32), channels: 1, ..vit() };
        let chosen = choose(&stated, Layout::Timm, &gray, &mut notes);
        assert_eq!((chosen.image_size, chosen.mean, chosen.std), ([32; 2], vec![0.5], vec![0.125]));
        assert_eq!(notes, Vec::<String>::new());
    }
}
