//! What a result is worth, in words: whether it is more than chance, and whether the training was long enough.

use std::fmt;

use crate::evaluate::{Metrics, percent, wilson_interval};
use crate::events::EpochRow;

/// What a reader of a result should know before believing it or stopping there.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The accuracy's interval reaches down to what answers that know nothing of the images would get.
    AtChance {
        /// The accuracy of such answers, from 0 to 1.
        chance: f64,
        /// The accuracy that was measured, and on how many images.
        measured: (f64, usize),
    },
    /// The last epoch was the best one, and validation was still rising.
    StillImproving {
        /// An earlier epoch.
        epoch: usize,
        /// Its validation accuracy and the last one.
        accuracies: [f64; 2],
    },
    /// Validation loss rose while training loss fell.
    Overfitted {
        /// The epoch with the least validation loss.
        epoch: usize,
        /// That loss and the last one.
        losses: [f64; 2],
    },
    /// Some logits were NaN or infinite.
    NotFinite {
        /// The number of images with such logits.
        images: usize,
    },
}

/// A result is more than chance if it is above by so many standard errors (97.5% of one side),
const ERRORS: f64 = 1.96;
/// or by so many where its images have chosen the best epoch.
const CHOSEN_ERRORS: f64 = 3.0;

/// A validation loss below this is that of a model which is right and as sure as smoothed labels allow (0.105 with a tenth of them).
const SMALL_LOSS: f64 = 0.15;

impl Verdict {
    /// Judges a result and the training that led to it; nothing where there is nothing to warn of.
    ///
    /// `validation_images` is how many images the validation accuracies of `history` were measured on, and `is_chosen_by` whether the
    /// result was measured on them too.
    pub fn of(
        metrics: &Metrics,
        history: &[EpochRow],
        validation_images: usize,
        is_chosen_by: bool,
    ) -> Vec<Self> {
        let improving = still_improving(history, validation_images);
        let overfitted = if improving.is_some() { None } else { overfitted(history) };
        let not_finite = (metrics.invalid > 0).then_some(Self::NotFinite { images: metrics.invalid });
        [not_finite, at_chance(metrics, is_chosen_by), improving, overfitted].into_iter().flatten().collect()
    }

    /// The verdict in two or three words.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AtChance { .. } => "at chance",
            Self::StillImproving { .. } => "still improving",
            Self::Overfitted { .. } => "overfitted",
            Self::NotFinite { .. } => "logits that are not finite",
        }
    }
}

impl fmt::Display for Verdict {
    /// One sentence: what was seen, and what to do about it.
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
            Self::StillImproving { epoch, accuracies: [before, after] } => write!(
                f,
                "the last epoch was the best, and validation accuracy rose from {} after epoch {epoch} to {}; \
                 a longer run (--resume with --epochs or --time) is likely to help",
                percent(*before),
                percent(*after)
            ),
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

/// Whether the answers agree with the classes by no more than chance (Cohen's kappa, with the standard error that it has then), which
/// also sees what a model knows of rare classes. Images of one class alone say nothing about it.
///
/// Where the epoch was chosen by the same images, the best of several lucky ones must not pass.
fn at_chance(metrics: &Metrics, is_chosen_by: bool) -> Option<Verdict> {
    let classes_seen = metrics.per_class.iter().filter(|class| class.support > 0).count();
    let asked = if is_chosen_by { CHOSEN_ERRORS } else { ERRORS };
    (classes_seen > 1 && metrics.errors_above_chance() <= asked)
        .then(|| Verdict::AtChance { chance: metrics.chance(), measured: (metrics.top1, metrics.samples) })
}

/// Whether the best epoch is the last, and better than a quarter of the run ago by more than the number of images
/// leaves open.
fn still_improving(history: &[EpochRow], images: usize) -> Option<Verdict> {
    let (last, earlier) = history.split_last()?;
    let after = last.val_top1?;
    let compared = earlier.get(earlier.len().checked_sub((history.len() / 4).max(1))?)?;
    let before = compared.val_top1?;
    let is_best = earlier.iter().all(|row| row.val_top1.is_none_or(|accuracy| accuracy < after));
    let [lower, _] = wilson_interval((after * images as f64).round() as usize, images);
    let accuracies = [before, after];
    (is_best && before < lower).then_some(Verdict::StillImproving { epoch: compared.epoch, accuracies })
}

/// Whether validation loss ended a tenth above its least while training loss fell.
fn overfitted(history: &[EpochRow]) -> Option<Verdict> {
    let last = history.last()?;
    let least = history
        .iter()
        .filter(|row| row.val_loss.is_some_and(f64::is_finite))
        .min_by(|a, b| a.val_loss.unwrap_or(f64::NAN).total_cmp(&b.val_loss.unwrap_or(f64::NAN)))?;
    let losses @ [lowest, highest] = [least.val_loss?, last.val_loss?];
    // A loss close to zero doubles without meaning anything, and with smoothed labels it ends above zero.
    let rose = highest > SMALL_LOSS && highest - lowest > (0.1 * lowest).max(0.02);
    (rose && last.train_loss < least.train_loss).then_some(Verdict::Overfitted { epoch: least.epoch, losses })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::Predictions;

    /// Epochs with these training losses, validation losses and validation accuracies.
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
            kept: false,
        };
        rows.iter().enumerate().map(row).collect()
    }

    /// Metrics of two classes: how many images of each class (row) were given each class (column).
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
        Verdict::of(metrics, history, 1000, false).iter().map(Verdict::name).collect()
    }

    #[test]
    fn a_result_at_chance_is_called_so() {
        for at_chance in [
            [[50, 0], [50, 0]],
            [[25, 25], [25, 25]],
            [[30, 20], [22, 28]],
            [[95, 0], [5, 0]],
            [[2, 0], [0, 1]],
        ] {
            assert_eq!(names(&metrics(at_chance), &[]), ["at chance"], "{at_chance:?}");
        }
        // Rare classes found are more than chance, whatever the accuracy of always naming the frequent one.
        for better in [[[40, 10], [10, 40]], [[880, 20], [40, 60]], [[5, 0], [0, 5]], [[0, 9], [0, 0]]] {
            assert!(names(&metrics(better), &[]).is_empty(), "{better:?}");
        }
        let sentence = Verdict::of(&metrics([[95, 0], [5, 0]]), &[], 0, false)[0].to_string();
        assert!(sentence.starts_with("at chance: chance alone") && sentence.contains("95.0%"), "{sentence}");
        // A minority of 1 in 325 that is found, and one that is not.
        assert!(names(&metrics([[1300, 0], [0, 4]]), &[]).is_empty());
        assert_eq!(names(&metrics([[1300, 0], [4, 0]]), &[]), ["at chance"]);
        // 2.4 standard errors: enough, unless the images have chosen the best of several epochs.
        let lucky = metrics([[31, 19], [19, 31]]);
        assert!(Verdict::of(&lucky, &[], 0, false).is_empty());
        assert_eq!(Verdict::of(&lucky, &[], 0, true)[0].name(), "at chance");
        // All right, but too few to say so.
        let sentence = Verdict::of(&metrics([[2, 0], [0, 1]]), &[], 0, false)[0].to_string();
        assert!(sentence.starts_with("at chance: 100.0% on 3 images is not"), "{sentence}");
    }

    #[test]
    fn a_curve_that_still_rises_is_called_so() {
        let good = metrics([[50, 0], [0, 50]]);
        let rising = history(&[(2.0, 2.0, 0.2), (1.5, 1.5, 0.4), (1.2, 1.3, 0.6), (1.0, 1.1, 0.7)]);
        assert_eq!(names(&good, &rising), ["still improving"]);
        let sentence = Verdict::of(&good, &rising, 1000, false)[0].to_string();
        assert!(sentence.contains("from 60.0% after epoch 3 to 70.0%"), "{sentence}");
        // With ten images, a tenth more is no rise; neither is a plateau, nor a best epoch before the last.
        assert!(Verdict::of(&good, &rising, 10, false).is_empty());
        for over in [
            &[(2.0, 2.0, 0.2), (1.5, 1.5, 0.6), (1.2, 1.3, 0.7), (1.0, 1.3, 0.705)][..],
            &[(2.0, 2.0, 0.2), (1.5, 1.5, 0.8), (1.2, 1.3, 0.6), (1.0, 1.3, 0.7)],
            &[(2.0, 2.0, 0.2)],
        ] {
            assert!(names(&good, &history(over)).is_empty(), "{over:?}");
        }
    }

    #[test]
    fn a_loss_that_rises_in_validation_alone_is_called_so() {
        let good = metrics([[50, 0], [0, 50]]);
        let overfitted = history(&[(2.0, 2.0, 0.6), (1.0, 1.2, 0.7), (0.5, 1.3, 0.69), (0.1, 1.5, 0.68)]);
        assert_eq!(names(&good, &overfitted), ["overfitted"]);
        let sentence = Verdict::of(&good, &overfitted, 1000, false)[0].to_string();
        assert!(sentence.contains("1.200 in epoch 2 to 1.500"), "{sentence}");
        for fine in [
            // Both rise: that is divergence; a tiny loss doubles; and a loss that hardly moves.
            &[(1.0, 1.2, 0.7), (1.5, 1.9, 0.6)][..],
            &[(0.1, 0.001, 0.7), (0.05, 0.002, 0.7)],
            // All right, and less sure as the labels are smoothed.
            &[(0.4, 0.03, 1.0), (0.2, 0.053, 1.0)],
            &[(1.0, 1.2, 0.7), (0.9, 1.25, 0.7)],
            &[(1.0, f64::NAN, 0.7), (0.9, f64::NAN, 0.7)],
        ] {
            assert!(names(&good, &history(fine)).is_empty(), "{fine:?}");
        }
    }

    #[test]
    fn logits_that_are_not_finite_are_said_first() {
        let mut predictions = Predictions::new(2);
        predictions.push(&[0, 1], &[f32::NAN, 0.0, 0.0, f32::INFINITY]);
        let broken = Metrics::compute(&predictions, &["a".to_owned(), "b".to_owned()]);
        assert_eq!(names(&broken, &[])[0], "logits that are not finite");
    }
}
