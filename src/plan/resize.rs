//! How images of other shapes become the model's input: as asked for, as the pretrained weights know it, or so that no edge is lost.

use clap::ValueEnum;
use vitrine_datasets::ResizeRule;

use super::Evidence;

/// Images whose longer side is at most so many times the shorter one are still told apart when they are squashed to a square.
const MILD: f64 = 2.0;

/// What `--resize` names.
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

/// The rule that was asked for, else that of the pretrained weights, else one that suits the shapes of the images; says what may
/// surprise.
pub(super) fn choose(
    asked: Option<Resize>,
    evidence: &Evidence<'_>,
    reasons: &mut Vec<String>,
) -> ResizeRule {
    let pretrained = evidence.pretrained.map(|(_, card)| card.preprocessing.resize);
    let (rule, reason) = match (asked, pretrained) {
        // Weights that know a crop keep their share of it.
        (Some(Resize::Crop), Some(own @ ResizeRule::ShorterSide { .. })) => (own, None),
        (Some(asked), _) => (asked.rule(), None),
        (None, Some(own)) => (own, loss(own, evidence)),
        (None, None) => by_shape(evidence),
    };
    reasons.extend(reason);
    rule
}

/// What pretrained weights' own preprocessing cuts off.
fn loss(rule: ResizeRule, evidence: &Evidence<'_>) -> Option<String> {
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

/// The rule for the images' shapes, and what to say of it.
fn by_shape(evidence: &Evidence<'_>) -> (ResizeRule, Option<String>) {
    let ratios = evidence.survey.aspect_ratios;
    if ratios.max <= 1.0 {
        return (ResizeRule::Squash, None);
    }
    let median = format!("the longer side of the median image is {:.2} times its shorter one", ratios.median);
    if ratios.median <= MILD {
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
