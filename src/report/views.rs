//! The choice between fewer views of each image and more, by the validation images.

use std::fmt;

use crate::evaluate::{Metrics, percent};
use crate::predict::Views;
use crate::recipe::{Metric, Recipe};
use crate::train::{score_of, standard_error};

/// The gain in the recipe's metric, as a share of 1, that is worth twice the time of classification.
const MIN_GAIN: f64 = 0.001;
/// The standard deviation of the share of mistakes that more views correct, as a part of the share by which they lower the loss toward the
/// least one. As large a share is expected before any mistakes are counted, because losses of few images tell more than counts of mistakes:
/// every image takes part in them. In eight runs on CIFAR-10, parts of it, and emoji, it was 0.8 times as large in the mean with mirror
/// images, and 1.5 times with shifts.
const UNCERTAINTY: f64 = 0.6;
/// The share of mistakes, about, that change places with right answers when views are added: what makes a measured gain
/// uncertain.
const CHANGED: f64 = 0.25;

/// What more views gain on the validation images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ViewGain {
    metric: Metric,
    /// The fewer views and the more.
    views: [Views; 2],
    /// The score with each of them.
    scores: [f64; 2],
    losses: [f64; 2],
    /// The loss of a model that makes no mistakes and is as certain as the smoothed labels in training.
    least_loss: f64,
    samples: usize,
    /// The standard error of the score, if the model has learned from each image and its mirror image alike. Few validation images
    /// cannot tell what both views gain, and they hardly ever harm: they are taken unless the score falls by more than this error.
    learned: Option<f64>,
}

impl ViewGain {
    /// What the second of these views gain, by which measurements, for a model of this recipe.
    pub(super) fn new(recipe: &Recipe, views: [Views; 2], measured: [&Metrics; 2]) -> Self {
        let metric = recipe.metric();
        let scores = measured.map(|metrics| score_of(metric, metrics));
        let samples = measured[0].samples;
        let learned = recipe.fits_mirror_images().then(|| standard_error(metric, scores[0], samples));
        let smoothing = recipe.label_smoothing;
        let least_loss = -(1.0 - smoothing + smoothing / measured[0].per_class.len().max(1) as f64).ln();
        Self {
            metric,
            views,
            scores,
            losses: measured.map(|metrics| metrics.loss),
            least_loss,
            samples,
            learned,
        }
    }

    /// The views that pay. The loss must fall too, because a few images more may be recognized by chance.
    pub(super) fn views(&self) -> Views {
        let pay = match self.learned {
            Some(error) => self.scores[1] >= self.scores[0] - error,
            None => self.losses[1] < self.losses[0] && self.expected() >= MIN_GAIN,
        };
        self.views[usize::from(pay)]
    }

    /// The gain to be expected of other images: the measured one, drawn toward that which the losses speak for the more, the fewer images
    /// it was measured on (the mean of the posterior of a normal distribution with a normal prior). Few images show gains and losses of
    /// several points by chance.
    fn expected(&self) -> f64 {
        let [one, both] = self.scores;
        let measured = both - one;
        match self.metric {
            Metric::Accuracy | Metric::MacroF1 | Metric::BalancedAccuracy => {
                let mistakes = (1.0 - one).max(0.0);
                let [loss, lower] = self.losses.map(|loss| (loss - self.least_loss).max(f64::MIN_POSITIVE));
                let by_losses = (1.0 - lower / loss).max(0.0) * mistakes;
                let variances =
                    [(UNCERTAINTY * by_losses).powi(2), CHANGED * mistakes / self.samples.max(1) as f64];
                let weight = variances[0] / variances.iter().sum::<f64>().max(f64::MIN_POSITIVE);
                by_losses + weight * (measured - by_losses)
            }
            Metric::MeanAveragePrecision | Metric::Loss => measured,
        }
    }
}

impl fmt::Display for ViewGain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, both] = match self.metric {
            Metric::Loss => self.losses.map(|loss| format!("{loss:.4}")),
            _ => self.scores.map(percent),
        };
        let metric = self.metric;
        let (view, option) = match self.views[1].has_shifts() {
            true => ("in two shifts, by a 32nd of its sides", "--tta=shifts"),
            false => ("together with its mirror image", "--tta"),
        };
        let together = format!("each image is classified {view}");
        match self.views() == self.views[1] {
            true if self.learned.is_some() => write!(
                f,
                "{together}, as the head was fitted to both: validation {metric} {both}, and \
                 {one} for images as they are (--no-tta classifies them so, in half the time)"
            ),
            true if self.scores[1] - self.scores[0] < MIN_GAIN => write!(
                f,
                "{together}, in twice the time, as the loss falls: validation {metric} {both}, and {one} without, of images that are too few to \
                 tell (--no-tta classifies images as they are)"
            ),
            true => write!(
                f,
                "{together}, in twice the time: validation {metric} {both} in place of {one} (--no-tta classifies images as they are)"
            ),
            false => write!(
                f,
                "no image is classified {view}: validation {metric} {one}, and {both} so ({option})"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gain(scores: [f64; 2], losses: [f64; 2]) -> ViewGain {
        ViewGain {
            metric: Metric::Accuracy,
            views: [Views::One, Views::Mirrored],
            scores,
            losses,
            least_loss: 0.0,
            samples: 5000,
            learned: None,
        }
    }

    #[test]
    fn mirror_images_must_gain_in_score_and_loss() {
        assert_eq!(gain([0.8, 0.81], [0.6, 0.5]).views(), Views::Mirrored);
        for worthless in [
            gain([0.8, 0.81], [0.5, 0.6]),
            gain([0.8, 0.8], [0.6, 0.5]),
            gain([0.8, 0.799], [0.6, 0.5]),
            gain([0.8, f64::NAN], [0.6, f64::NAN]),
        ] {
            assert_eq!(worthless.views(), Views::One, "{worthless:?}");
        }
    }

    #[test]
    fn few_images_hardly_change_what_is_expected_of_mirror_images() {
        let views = |scores, samples| ViewGain { samples, ..gain(scores, [0.6, 0.5]) }.views();
        // Of 50 images, one more or less is recognized by chance.
        assert_eq!([[0.5, 0.5], [0.5, 0.48]].map(|scores| views(scores, 50)), [Views::Mirrored; 2]);
        assert_eq!([[0.5, 0.5], [0.5, 0.48]].map(|scores| views(scores, 10_000)), [Views::One; 2]);
        assert_eq!(views([0.5, 0.3], 50), Views::One, "a loss of ten images is none by chance");
        assert_eq!(views([0.995, 0.995], 50), Views::One, "there is nothing to gain");
        assert_eq!(views([1.0, 1.0], 50), Views::One);
        // What label smoothing leaves of the loss is not for mistakes.
        let smoothed = ViewGain { least_loss: 0.4, samples: 50, ..gain([0.993, 0.993], [0.6, 0.52]) };
        assert_eq!(smoothed.views(), Views::Mirrored);
        assert_eq!(ViewGain { least_loss: 0.0, ..smoothed }.views(), Views::One);
        let loss = |scores| ViewGain { metric: Metric::Loss, samples: 5, ..gain(scores, [0.6, 0.5]) };
        assert_eq!(
            [[-0.6, -0.5], [-0.6, -0.5995]].map(|scores| loss(scores).views()),
            [Views::Mirrored, Views::One]
        );
        let text = ViewGain { samples: 50, ..gain([0.5, 0.48], [0.6, 0.5]) }.to_string();
        assert!(text.contains("48.0%, and 50.0% without, of images that are too few"), "{text}");
    }

    #[test]
    fn both_views_of_a_model_that_has_learned_them_are_taken_unless_they_are_clearly_worse() {
        for (both, views) in
            [(0.9, Views::Mirrored), (0.77, Views::Mirrored), (0.74, Views::One), (f64::NAN, Views::One)]
        {
            let learned = ViewGain { learned: Some(0.05), ..gain([0.8, both], [0.6, 0.7]) };
            assert_eq!(learned.views(), views, "{both}");
            assert!(learned.to_string().contains("80.0%"), "{learned}");
        }
    }

    #[test]
    fn shifts_are_added_to_the_views_before_them() {
        let shifts = |scores| ViewGain {
            views: [Views::Mirrored, Views::ShiftedMirrored],
            ..gain(scores, [0.5, 0.48])
        };
        assert_eq!(shifts([0.8, 0.81]).views(), Views::ShiftedMirrored);
        assert_eq!(shifts([0.8, 0.79]).views(), Views::Mirrored);
        let text = shifts([0.8, 0.81]).to_string();
        assert!(text.contains("81.0% in place of 80.0%") && text.contains("in two shifts"), "{text}");
        let text = shifts([0.8, 0.79]).to_string();
        assert!(text.contains("no image is classified in two shifts") && text.contains("--tta="), "{text}");
    }

    #[test]
    fn the_reason_names_both_scores_and_the_option() {
        let text = gain([0.8, 0.81], [0.6, 0.5]).to_string();
        assert!(text.contains("81.0% in place of 80.0%") && text.contains("--no-tta"), "{text}");
        let text = gain([0.8, 0.8], [0.6, 0.5]).to_string();
        assert!(text.contains("--tta"), "{text}");
    }
}
