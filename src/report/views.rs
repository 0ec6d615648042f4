//! The choice between one view of each image and two, by the validation images.

use std::fmt;

use crate::evaluate::{Metrics, percent};
use crate::predict::Views;
use crate::recipe::Metric;
use crate::train::score_of;

/// The gain in the recipe's metric, as a share of 1, that is worth twice the time of classification.
const MIN_GAIN: f64 = 0.002;

/// What mirror images gain on the validation images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MirrorGain {
    metric: Metric,
    /// The score of the images as they are, and of each with its mirror image.
    scores: [f64; 2],
    losses: [f64; 2],
}

impl MirrorGain {
    pub(super) fn new(metric: Metric, one: &Metrics, both: &Metrics) -> Self {
        Self {
            metric,
            scores: [one, both].map(|metrics| score_of(metric, metrics)),
            losses: [one.loss, both.loss],
        }
    }

    /// The views that pay. The loss must fall too, because a few images more may be recognized by chance.
    pub(super) fn views(&self) -> Views {
        let [one, both] = self.scores;
        let falls = self.losses[1] < self.losses[0];
        if falls && both - one >= MIN_GAIN { Views::Mirrored } else { Views::One }
    }
}

impl fmt::Display for MirrorGain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, both] = match self.metric {
            Metric::Loss => self.losses.map(|loss| format!("{loss:.4}")),
            _ => self.scores.map(percent),
        };
        let metric = self.metric;
        match self.views() {
            Views::Mirrored => write!(
                f,
                "each image is classified together with its mirror image, in twice the time: validation {metric} {both} in \
                 place of {one} (--no-tta classifies images as they are)"
            ),
            Views::One | Views::MirrorImage => write!(
                f,
                "images are classified as they are: validation {metric} {one}, and {both} together with mirror images (--tta \
                 adds these)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gain(scores: [f64; 2], losses: [f64; 2]) -> MirrorGain {
        MirrorGain { metric: Metric::Accuracy, scores, losses }
    }

    #[test]
    fn mirror_images_must_gain_in_score_and_loss() {
        assert_eq!(gain([0.8, 0.81], [0.6, 0.5]).views(), Views::Mirrored);
        for worthless in [
            gain([0.8, 0.81], [0.5, 0.6]),
            gain([0.8, 0.8], [0.6, 0.5]),
            gain([0.8, 0.801], [0.6, 0.5]),
            gain([0.8, f64::NAN], [0.6, f64::NAN]),
        ] {
            assert_eq!(worthless.views(), Views::One, "{worthless:?}");
        }
    }

    #[test]
    fn the_reason_names_both_scores_and_the_option() {
        let text = gain([0.8, 0.81], [0.6, 0.5]).to_string();
        assert!(text.contains("81.0% in place of 80.0%") && text.contains("--no-tta"), "{text}");
        let text = gain([0.8, 0.8], [0.6, 0.5]).to_string();
        assert!(text.contains("--tta"), "{text}");
    }
}
