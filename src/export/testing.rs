//! Test models that other libraries implement, and export jobs for them.

use std::path::Path;

use vitrine_datasets::{CropRounding, Interpolation, Preprocessing, ResizeRule};
use vitrine_models::{
    AttentionOptions, BlockStyle, ModelConfig, Pool, Position, RelativePosition, Score, preset,
};

use super::{Family, Job, Library};
use crate::model_file::ModelCard;
use crate::weights_file::Precision;

/// A ViT as in the original paper, which every library implements.
pub(super) fn vit() -> ModelConfig {
    ModelConfig {
        class_token: true,
        pool: Pool::ClassToken,
        position: Position::Learned,
        ..preset::find("vit_pico_patch4_32").expect("listed")
    }
}

pub(super) fn cait() -> ModelConfig {
    let attention = AttentionOptions { talking_heads: true, ..AttentionOptions::default() };
    ModelConfig { class_depth: 1, layer_scale: Some(0.1), attention, ..vit() }
}

pub(super) fn swin() -> ModelConfig {
    preset::find("swin_pico_patch2_window4_32").expect("listed")
}

pub(super) fn swin_v2() -> ModelConfig {
    ModelConfig {
        block: BlockStyle::ResidualPostNorm,
        attention: AttentionOptions {
            score: Score::Cosine,
            relative_position: Some(RelativePosition::Continuous),
            ..AttentionOptions::default()
        },
        ..swin()
    }
}

/// A model card with preprocessing and class names.
pub(super) fn card(model: ModelConfig) -> ModelCard {
    let preprocessing = Preprocessing {
        image_size: [model.image_size.height, model.image_size.width],
        channels: model.channels,
        resize: ResizeRule::ShorterSide { crop: 0.8 },
        interpolation: Interpolation::Bicubic,
        mean: vec![0.5; model.channels],
        std: vec![0.25; model.channels],
        crop_rounding: CropRounding::HalfToEven,
    };
    let classes = (0..model.num_classes).map(|class| format!("kind {class}")).collect();
    ModelCard::new(model, classes, preprocessing)
}

/// An export job for a card.
pub(super) fn job<'a>(card: &'a ModelCard, library: Library, output: &'a Path) -> Job<'a> {
    let family = Family::of(&card.model, library).expect("the library has it");
    Job { card, family, library, output, precision: Precision::F32 }
}
