//! Caveats about a result: it may be chance, and the training may have been too short or too long.

use std::fmt;

use crate::evaluate::{Metrics, percent, wilson_interval};
use crate::events::EpochRow;
use crate::recipe::Metric;

/// A reason not to trust a result, or not to stop at it.
#[derive(Clone, Debug, PartialEq)]
pub enum Caveat {
    /// The predictions agree with the classes no more than predictions that ignore the images would.
    AtChance {
        /// The accuracy of predictions that ignore the images, from 0 to 1.
        chance: f64,
        /// The measured accuracy, from 0 to 1, and the number of images it was measured on.
        measured: (f64, usize),
    },
    /// The last epoch was the best one, and validation accuracy was still rising.
    StillImproving {
        /// The metric by which it was the best.
        metric: Metric,
        /// An earlier epoch, to compare with.
        epoch: usize,
        /// The validation accuracies of that epoch and of the last one, from 0 to 1.
        accuracies: [f64; 2],
        /// Whether the run is one of a series, whose runs are not made longer.
        in_series: bool,
    },
    /// Validation loss rose while training loss fell.
    Overfitted {
        /// The epoch with the least validation loss.
        epoch: usize,
        /// The validation losses of that epoch and of the last one.
        losses: [f64; 2],
    },
    /// Some logits were NaN or infinite.
    NotFinite {
        /// The number of images with such logits.
        images: usize,
    },
}

/// A result is better than chance if it exceeds chance by this many standard errors: 97.5%, one-sided.
const ERRORS: f64 = 1.96;
/// The same for images that have also chosen the best epoch: the best of several epochs is partly luck.
const CHOSEN_ERRORS: f64 = 3.0;

/// A validation loss below this is as low as smoothed labels allow: a model that is always right has 0.105 with a
/// smoothing of 0.1.
const SMALL_LOSS: f64 = 0.15;

impl Caveat {
    /// The caveats about a result and the training that led to it, if there are any.
    ///
    /// `metric` has chosen the best epoch of `history`, whose validation accuracies were measured on `validation_images`
    /// images. `has_chosen` says that `metrics` were measured on images that have also chosen the best epoch.
    pub fn of(
        metrics: &Metrics,
        history: &[EpochRow],
        metric: Metric,
        validation_images: usize,
        has_chosen: bool,
    ) -> Vec<Self> {
        let improving = still_improving(history, metric, validation_images);
        let overfitted = if improving.is_some() { None } else { overfitted(history) };
        let not_finite = (metrics.invalid > 0).then_some(Self::NotFinite { images: metrics.invalid });
        [not_finite, at_chance(metrics, has_chosen), improving, overfitted].into_iter().flatten().collect()
    }

    /// The caveat about a run of a series.
    #[must_use]
    pub fn in_series(mut self) -> Self {
        if let Self::StillImproving { in_series, .. } = &mut self {
            *in_series = true;
        }
        self
    }

    /// The caveat in a few words.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AtChance { .. } => "at chance",
            Self::StillImproving { .. } => "still improving",
            Self::Overfitted { .. } => "overfitted",
            Self::NotFinite { .. } => "logits that are not finite",
        }
    }
}

impl fmt::Display for Caveat {
    /// One sentence: the observation, and usually a remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name())?;
        match self {
            Self::AtChance { chance, measured: (top1, images) } if top1 > chance => write!(
                f,
                "{} on {images} images is not distinguishable from chance ({}); measure on more images, or train longer",
                percent(*top1),
                percent(*chance)
            ),
            Self::AtChance { chance, .. } => write!(
                f,
                "chance alone would give {}; the model has learned nothing that these images can show",
                percent(*chance)
            ),
            Self::StillImproving { metric, epoch, accuracies: [before, after], in_series } => {
                let by = if *metric == Metric::Accuracy { String::new() } else { format!(" by {metric}") };
                let longer = match in_series {
                    true => "longer runs (a new series with more --epochs or --time) are",
                    false => "a longer run (--resume with --epochs or --time) is",
                };
                write!(
                    f,
                    "the last epoch was the best{by}, and validation accuracy rose from {} after epoch {epoch} to {}; {longer} \
                     likely to help",
                    percent(*before),
                    percent(*after)
                )
            }
            Self::Overfitted { epoch, losses: [least, last] } => write!(
                f,
                "validation loss rose from {least:.3} in epoch {epoch} to {last:.3} while training loss fell; \
                 more images, stronger augmentation or fewer epochs are likely to help"
            ),
            Self::NotFinite { images } => {
                write!(f, "NaN or infinity for {images} images, which count as wrong; the model is broken")
            }
        }
    }
}

/// The probability from which on it is thought possible that guesses recognize all images.
const UNLIKELY: f64 = 0.01;

/// The caveat that predictions agree with the classes no more than by chance.
///
/// Chance is judged by Cohen's kappa and the standard error that kappa has at chance, so that a model which recognizes
/// a rare class counts as better than one that always predicts the most frequent class. Images of a single class cannot
/// show a difference.
fn at_chance(metrics: &Metrics, has_chosen: bool) -> Option<Caveat> {
    if let Some(of_labels) = &metrics.multi_label {
        let (found, chance) = (of_labels.mean_average_precision, of_labels.chance_average_precision);
        let measured = (found, metrics.samples);
        return (found <= chance).then_some(Caveat::AtChance { chance, measured });
    }
    let classes_seen = metrics.per_class.iter().filter(|class| class.support > 0).count();
    // The standard error says too little about few images that are all recognized.
    let all_by_luck = metrics.chance().powi(i32::try_from(metrics.samples).unwrap_or(i32::MAX));
    if metrics.top1 == 1.0 && all_by_luck < UNLIKELY {
        return None;
    }
    let required = if has_chosen { CHOSEN_ERRORS } else { ERRORS };
    (classes_seen > 1 && metrics.errors_above_chance() <= required)
        .then(|| Caveat::AtChance { chance: metrics.chance(), measured: (metrics.top1, metrics.samples) })
}

/// The caveat that the last epoch is the best one by `metric`, and its accuracy higher than that of the epoch a quarter of the
/// run earlier by more than the sampling error.
fn still_improving(history: &[EpochRow], metric: Metric, images: usize) -> Option<Caveat> {
    let (last, earlier) = history.split_last()?;
    let (best, after) = (last.score(metric)?, last.val_top1?);
    let compared = earlier.get(earlier.len().checked_sub((history.len() / 4).max(1))?)?;
    let before = compared.val_top1?;
    let is_best = earlier.iter().all(|row| row.score(metric).is_none_or(|score| score < best));
    let [lower, _] = wilson_interval((after * images as f64).round() as usize, images);
    let accuracies = [before, after];
    let epoch = compared.epoch;
    let improving = Caveat::StillImproving { metric, epoch, accuracies, in_series: false };
    (is_best && before < lower).then_some(improving)
}

/// The caveat that validation loss ended at least a tenth above its lowest value while training loss fell.
fn overfitted(history: &[EpochRow]) -> Option<Caveat> {
    let last = history.last()?;
    let least = history
        .iter()
        .filter(|row| row.val_loss.is_some_and(f64::is_finite))
        .min_by(|a, b| a.val_loss.unwrap_or(f64::NAN).total_cmp(&b.val_loss.unwrap_or(f64::NAN)))?;
    let losses @ [lowest, highest] = [least.val_loss?, last.val_loss?];
    // A loss close to zero may double without any image being classified differently.
    let rose = highest > SMALL_LOSS && highest - lowest > (0.1 * lowest).max(0.02);
    (rose && last.train_loss < least.train_loss).then_some(Caveat::Overfitted { epoch: least.epoch, losses })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::Predictions;

    /// Epochs with these training losses, validation losses, and validation accuracies.
    fn history(rows: &[(f64, f64, f64)]) -> Vec<EpochRow> {
        let row = |(index, &(train_loss, val_loss, val_top1)): (usize, &(f64, f64, f64))| EpochRow {
            epoch: index + 1,
            step: index,
            seconds: 1.0,
            learning_rate: 1e-3,
            train_loss,
            train_top1: None,
            val_loss: Some(val_loss),
            val_top1: Some(val_top1),
            images_per_second: 1.0,
            val_macro_f1: None,
            val_balanced_accuracy: None,
            val_mean_average_precision: None,
            kept: false,
        };
        rows.iter().enumerate().map(row).collect()
    }

    /// Metrics of two classes from a confusion matrix: rows are true classes, columns are predictions.
    fn metrics(confusion: [[usize; 2]; 2]) -> Metrics {
        let mut predictions = Predictions::new(2);
        for (label, row) in confusion.iter().enumerate() {
            for (chosen, &count) in row.iter().enumerate() {
                let logits = if chosen == 0 { [1.0, 0.0] } else { [0.0, 1.0] };
                (0..count).for_each(|_| predictions.push(&[label], &logits));
            }
        }
        Metrics::compute(&predictions, &["a".to_owned(), "b".to_owned()])
    }

    fn names(metrics: &Metrics, history: &[EpochRow]) -> Vec<&'static str> {
        Caveat::of(metrics, history, Metric::Accuracy, 1000, false).iter().map(Caveat::name).collect()
    }

    #[test]
    fn a_result_at_chance_has_a_caveat() {
        for at_chance in [
            [[50, 0], [50, 0]],
            [[25, 25], [25, 25]],
            [[30, 20], [22, 28]],
            [[95, 0], [5, 0]],
            [[2, 0], [0, 1]],
        ] {
            assert_eq!(names(&metrics(at_chance), &[]), ["at chance"], "{at_chance:?}");
        }
        // Recognizing rare classes is better than chance, even if the accuracy is no higher than by always predicting
        // the frequent class.
        for better in [[[40, 10], [10, 40]], [[880, 20], [40, 60]], [[5, 0], [0, 5]], [[0, 9], [0, 0]]] {
            assert!(names(&metrics(better), &[]).is_empty(), "{better:?}");
        }
        let sentence =
            Caveat::of(&metrics([[95, 0], [5, 0]]), &[], Metric::Accuracy, 0, false)[0].to_string();
        assert!(sentence.starts_with("at chance: chance alone") && sentence.contains("95.0%"), "{sentence}");
        // A class of 1 image in 326, once recognized and once not.
        assert!(names(&metrics([[1300, 0], [0, 4]]), &[]).is_empty());
        assert_eq!(names(&metrics([[1300, 0], [4, 0]]), &[]), ["at chance"]);
        // 2.4 standard errors above chance: enough, unless the images have also chosen the best epoch.
        let lucky = metrics([[31, 19], [19, 31]]);
        assert!(Caveat::of(&lucky, &[], Metric::Accuracy, 0, false).is_empty());
        assert_eq!(Caveat::of(&lucky, &[], Metric::Accuracy, 0, true)[0].name(), "at chance");
        // Eight images are enough if all are recognized, whichever epoch they have chosen: guesses do that once in 256 times.
        assert!(Caveat::of(&metrics([[4, 0], [0, 4]]), &[], Metric::Accuracy, 0, true).is_empty());
        // All predictions are right, but three images are too few to exclude chance.
        let sentence = Caveat::of(&metrics([[2, 0], [0, 1]]), &[], Metric::Accuracy, 0, false)[0].to_string();
        assert!(sentence.starts_with("at chance: 100.0% on 3 images is not"), "{sentence}");
    }

    #[test]
    fn an_accuracy_that_still_rises_has_a_caveat() {
        let good = metrics([[50, 0], [0, 50]]);
        let rising = history(&[(2.0, 2.0, 0.2), (1.5, 1.5, 0.4), (1.2, 1.3, 0.6), (1.0, 1.1, 0.7)]);
        assert_eq!(names(&good, &rising), ["still improving"]);
        let sentence = Caveat::of(&good, &rising, Metric::Accuracy, 1000, false)[0].to_string();
        assert!(sentence.contains("from 60.0% after epoch 3 to 70.0%"), "{sentence}");
        assert!(sentence.ends_with("; a longer run (--resume with --epochs or --time) is likely to help"));
        let sentence =
            Caveat::of(&good, &rising, Metric::Accuracy, 1000, false).remove(0).in_series().to_string();
        assert!(sentence.contains("a new series") && !sentence.contains("--resume"), "{sentence}");
        // No caveat: a rise within the sampling error of ten images, a plateau, a best epoch before the last, and a
        // single epoch.
        assert!(Caveat::of(&good, &rising, Metric::Accuracy, 10, false).is_empty());
        for over in [
            &[(2.0, 2.0, 0.2), (1.5, 1.5, 0.6), (1.2, 1.3, 0.7), (1.0, 1.3, 0.705)][..],
            &[(2.0, 2.0, 0.2), (1.5, 1.5, 0.8), (1.2, 1.3, 0.6), (1.0, 1.3, 0.7)],
            &[(2.0, 2.0, 0.2)],
        ] {
            assert!(names(&good, &history(over)).is_empty(), "{over:?}");
        }
    }

    #[test]
    fn the_metric_that_chooses_the_epoch_says_whether_the_last_one_is_the_best() {
        let good = metrics([[50, 0], [0, 50]]);
        let mut rising = history(&[(2.0, 2.0, 0.2), (1.5, 1.5, 0.4), (1.2, 1.3, 0.6)]);
        let caveats = |rows: &[EpochRow], metric| Caveat::of(&good, rows, metric, 1000, false);
        for (precisions, is_last_best) in [([0.5, 0.6, 0.7], true), ([0.5, 0.9, 0.7], false)] {
            for (row, precision) in rising.iter_mut().zip(precisions) {
                row.val_mean_average_precision = Some(precision);
            }
            let found = caveats(&rising, Metric::MeanAveragePrecision);
            assert_eq!(found.len(), usize::from(is_last_best), "{precisions:?}");
            for caveat in found {
                let sentence = caveat.to_string();
                assert!(sentence.contains("the best by mean average precision, and"), "{sentence}");
            }
        }
        assert_eq!(caveats(&rising, Metric::Loss)[0].name(), "still improving");
        assert!(caveats(&rising, Metric::MacroF1).is_empty(), "which was not measured");
    }

    #[test]
    fn a_loss_that_rises_only_in_validation_has_a_caveat() {
        let good = metrics([[50, 0], [0, 50]]);
        let overfitted = history(&[(2.0, 2.0, 0.6), (1.0, 1.2, 0.7), (0.5, 1.3, 0.69), (0.1, 1.5, 0.68)]);
        assert_eq!(names(&good, &overfitted), ["overfitted"]);
        let sentence = Caveat::of(&good, &overfitted, Metric::Accuracy, 1000, false)[0].to_string();
        assert!(sentence.contains("1.200 in epoch 2 to 1.500"), "{sentence}");
        for fine in [
            // Both losses rise (the run diverges), and a tiny loss doubles.
            &[(1.0, 1.2, 0.7), (1.5, 1.9, 0.6)][..],
            &[(0.1, 0.001, 0.7), (0.05, 0.002, 0.7)],
            // A loss near the minimum that smoothed labels allow.
            &[(0.4, 0.03, 1.0), (0.2, 0.053, 1.0)],
            // A loss that hardly moves, and losses that are not numbers.
            &[(1.0, 1.2, 0.7), (0.9, 1.25, 0.7)],
            &[(1.0, f64::NAN, 0.7), (0.9, f64::NAN, 0.7)],
        ] {
            assert!(names(&good, &history(fine)).is_empty(), "{fine:?}");
        }
    }

    #[test]
    fn logits_that_are_not_finite_are_the_first_caveat() {
        let mut predictions = Predictions::new(2);
        predictions.push(&[0, 1], &[f32::NAN, 0.0, 0.0, f32::INFINITY]);
        let broken = Metrics::compute(&predictions, &["a".to_owned(), "b".to_owned()]);
        assert_eq!(names(&broken, &[])[0], "logits that are not finite");
    }
}
