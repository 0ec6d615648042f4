//! The choice of how images with other aspect ratios are resized to the model's input: as requested, as for the
//! pretrained weights, or without cutting off edges.

use clap::ValueEnum;
use vitrine_datasets::ResizeRule;

use super::Evidence;

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
/// images. Adds a reason to `reasons` if the result may surprise.
pub(super) fn choose(
    asked: Option<Resize>,
    evidence: &Evidence<'_>,
    reasons: &mut Vec<String>,
) -> ResizeRule {
    let pretrained = evidence.pretrained.map(|(_, card)| card.preprocessing.resize);
    let (rule, reason) = match (asked, pretrained) {
        // Pretrained weights that were trained with center crops keep the share of the image that the crop leaves.
        (Some(Resize::Crop), Some(own @ ResizeRule::ShorterSide { .. })) => (own, None),
        (Some(asked), _) => (asked.rule(), None),
        (None, Some(own)) => (own, edge_loss(own, evidence)),
        (None, None) => by_shape(evidence),
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

/// The rule for the aspect ratios of the data set, and the reason for it.
fn by_shape(evidence: &Evidence<'_>) -> (ResizeRule, Option<String>) {
    let ratios = evidence.survey.aspect_ratios;
    if ratios.max <= 1.0 {
        return (ResizeRule::Squash, None);
    }
    let median = format!("the longer side of the median image is {:.2} times its shorter one", ratios.median);
    if ratios.median <= MAX_SQUASHED_RATIO {
        let reason = format!(
            "images are squashed to squares, so no edge is lost: {median}; --resize crop or letterbox keeps their shapes"
        );
        return (ResizeRule::Squash, Some(reason));
    }
    let reason = format!(
        "images keep their shapes and are padded to squares (letterbox): {median}; --resize squash or crop fills the squares"
    );
    (ResizeRule::Letterbox, Some(reason))
}
