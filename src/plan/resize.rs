//! The choice of how images with other aspect ratios are resized to the model's input: as requested, as for the
//! pretrained weights, or by their shapes and the crops of training.

use clap::ValueEnum;
use vitrine_datasets::{Crop, ResizeRule};
use vitrine_models::ModelConfig;

use super::Evidence;
use crate::recipe::Recipe;

/// Largest median aspect ratio (longer to shorter side) at which images are squashed to squares; they are still
/// recognized then.
const MAX_SQUASHED_RATIO: f64 = 2.0;

/// The values of `--resize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Resize {
    /// Scale both sides: nothing is lost, and shapes are distorted.
    Squash,
    /// Scale the shorter side and cut off both ends of the longer one.
    Crop,
    /// Scale the longer side and pad the shorter one with the mean color.
    Letterbox,
}

impl Resize {
    fn rule(self) -> ResizeRule {
        match self {
            Self::Squash => ResizeRule::Squash,
            Self::Crop => ResizeRule::ShorterSide { crop: 1.0 },
            Self::Letterbox => ResizeRule::Letterbox,
        }
    }
}

/// The requested rule, or else that of the pretrained weights, or else the one that suits the aspect ratios of the
/// images and the random crops of the recipe. Adds a reason to `reasons` if the result may surprise.
pub(super) fn choose(
    asked: Option<Resize>,
    evidence: &Evidence<'_>,
    (model, recipe): (&ModelConfig, &Recipe),
    reasons: &mut Vec<String>,
) -> ResizeRule {
    let pretrained = evidence.pretrained.map(|(_, card)| card.preprocessing.resize);
    let (rule, reason) = match (asked, pretrained) {
        // Pretrained weights that were trained with center crops keep the share of the image that the crop leaves.
        (Some(Resize::Crop), Some(own @ ResizeRule::ShorterSide { .. })) => (own, None),
        (Some(asked), _) => (asked.rule(), None),
        (None, Some(own)) => (own, edge_loss(own, evidence)),
        (None, None) => by_shape(evidence, kept_by_crops(model, recipe, evidence)),
    };
    reasons.extend(reason);
    rule
}

/// A warning if the preprocessing of pretrained weights cuts off edges.
fn edge_loss(rule: ResizeRule, evidence: &Evidence<'_>) -> Option<String> {
    let squares = evidence.survey.aspect_ratios.max <= 1.0;
    let what = match rule {
        ResizeRule::ShorterSide { crop } if crop < 1.0 || !squares => "the shorter side is scaled",
        ResizeRule::SquashCrop { crop } if crop < 1.0 => "both sides are scaled",
        ResizeRule::ShorterSide { .. }
        | ResizeRule::SquashCrop { .. }
        | ResizeRule::Squash
        | ResizeRule::Letterbox => return None,
    };
    Some(format!(
        "images lose their edges: {what} and the center cut out, as the pretrained weights know it; --resize squash or letterbox keeps \
         all of them"
    ))
}

/// The least share of a side that is classified of images that training crops: usual for ImageNet (timm's `crop_pct`).
const LEAST_KEPT: f64 = 0.875;

/// The share of each side, in the middle of an image, in which things are as large as in the random crops of training, on average, or
/// else the least share. They are recognized best at that size (Touvron et al. 2019, 'Fixing the train-test resolution discrepancy',
/// section 3). `None` if that is the whole image, its pixels do not suffice for that size, or each of several labels may stand for its
/// edge.
fn kept_by_crops(model: &ModelConfig, recipe: &Recipe, evidence: &Evidence<'_>) -> Option<f64> {
    let Crop::Resized { scale: [least, most], .. } = recipe.augmentation.crop else { return None };
    // The mean of the square root of an area between both.
    let side = match most - least {
        range if range > 1e-6 => 2.0 / 3.0 * (most.powf(1.5) - least.powf(1.5)) / range,
        _ => most.sqrt(),
    };
    let kept = (100.0 * side.max(LEAST_KEPT)).round() / 100.0;
    let native = f64::from(evidence.native_side());
    let input = model.image_size.height.max(model.image_size.width) as f64;
    (kept < 1.0 && kept * native >= input && !evidence.info.multi_label).then_some(kept)
}

/// The rule for the aspect ratios of the data set, and for crops whose things are as large as in this share of a side, and the reason
/// for it.
fn by_shape(evidence: &Evidence<'_>, kept: Option<f64>) -> (ResizeRule, Option<String>) {
    let ratios = evidence.survey.aspect_ratios;
    let middle = |crop: f64| {
        format!(
            "the middle {:.0}% of each side of an image is classified, where things are more nearly as large as in the random crops of \
             training; --resize squash keeps the edges",
            100.0 * crop
        )
    };
    if ratios.max <= 1.0 {
        return match kept {
            Some(crop) => (ResizeRule::SquashCrop { crop }, Some(middle(crop))),
            None => (ResizeRule::Squash, None),
        };
    }
    let median = format!("the longer side of the median image is {:.2} times its shorter one", ratios.median);
    if ratios.median <= MAX_SQUASHED_RATIO {
        let squashed = format!(
            "images are squashed to squares: {median}; --resize crop or letterbox keeps their shapes"
        );
        return match kept {
            Some(crop) => (ResizeRule::SquashCrop { crop }, Some(format!("{squashed}; {}", middle(crop)))),
            None => (ResizeRule::Squash, Some(squashed)),
        };
    }
    let reason = format!(
        "images keep their shapes and are padded to squares (letterbox): {median}; --resize squash or crop fills the squares"
    );
    (ResizeRule::Letterbox, Some(reason))
}
