//! The choice of the best epoch, whose model is kept.

use super::state::Progress;
use crate::model_file::Validation;
use crate::recipe::Metric;

/// A validation compared with those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Whether its metric is the highest so far.
    pub(super) is_highest: bool,
    /// Whether its model is kept: the metric is the highest, or below it by less than the standard error of a share of so many images.
    ///
    /// Of epochs that validation cannot tell apart, the last one has learned for longest, at the lowest learning rate (the rule of one standard
    /// error, Breiman et al. 1984, section 3.4.3). A loss has no such error here: the lowest is kept.
    pub(super) is_kept: bool,
}

/// Judges the validation of the epoch that has just ended, and records the highest score and for how many epochs it has stood.
pub(super) fn judge_next(progress: &mut Progress, metric: Metric, validation: &Validation) -> Verdict {
    let before = progress.best.as_ref().map(|kept| score(metric, kept));
    progress.highest = progress.highest.or(before);
    let verdict = judge(metric, validation, progress.highest);
    if verdict.is_highest {
        (progress.stale_epochs, progress.highest) = (0, Some(score(metric, validation)));
    } else {
        progress.stale_epochs += 1;
    }
    verdict
}

/// Judges a validation by the highest score of those before it.
fn judge(metric: Metric, new: &Validation, highest: Option<f64>) -> Verdict {
    let score = score(metric, new);
    let Some(highest) = highest else { return Verdict { is_highest: true, is_kept: true } };
    let error = match metric {
        Metric::Accuracy | Metric::MacroF1 | Metric::BalancedAccuracy => {
            let share = highest.clamp(0.0, 1.0);
            (share * (1.0 - share) / new.samples.max(1) as f64).sqrt()
        }
        Metric::Loss => 0.0,
    };
    let is_highest = score > highest;
    let is_kept = is_highest || (metric != Metric::Loss && score >= highest - error);
    Verdict { is_highest, is_kept }
}

/// The score of a validation; higher is better. A metric that an earlier version of the program did not measure counts as the lowest.
fn score(metric: Metric, validation: &Validation) -> f64 {
    match metric {
        Metric::Accuracy => validation.top1,
        Metric::MacroF1 => validation.macro_f1.unwrap_or(f64::NEG_INFINITY),
        Metric::BalancedAccuracy => validation.balanced_accuracy.unwrap_or(f64::NEG_INFINITY),
        Metric::Loss => -validation.loss,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validation([top1, macro_f1, balanced, loss]: [f64; 4]) -> Validation {
        let (macro_f1, balanced_accuracy) = (Some(macro_f1), Some(balanced));
        Validation { epoch: 1, samples: 100, loss, top1, macro_f1, balanced_accuracy }
    }

    #[test]
    fn each_metric_has_its_own_highest() {
        let all = [Metric::Accuracy, Metric::MacroF1, Metric::BalancedAccuracy, Metric::Loss];
        let usual = validation([0.5, 0.5, 0.5, 1.0]);
        for (changed, better) in [
            ([0.6, 0.4, 0.4, 1.1], Metric::Accuracy),
            ([0.4, 0.6, 0.4, 1.1], Metric::MacroF1),
            ([0.4, 0.4, 0.6, 1.1], Metric::BalancedAccuracy),
            ([0.4, 0.4, 0.4, 0.9], Metric::Loss),
        ] {
            for metric in all {
                let verdict = judge(metric, &validation(changed), Some(score(metric, &usual)));
                let is_better = metric == better;
                assert_eq!(verdict, Verdict { is_highest: is_better, is_kept: is_better }, "{metric}");
            }
        }
        let older = Validation { macro_f1: None, balanced_accuracy: None, ..usual.clone() };
        assert!(judge(Metric::MacroF1, &usual, Some(score(Metric::MacroF1, &older))).is_highest);
    }

    #[test]
    fn epochs_without_a_higher_score_are_counted_even_if_their_model_is_kept() {
        let mut progress = Progress::default();
        let mut next = |top1| {
            let verdict = judge_next(&mut progress, Metric::Accuracy, &validation([top1, 0.0, 0.0, 1.0]));
            (verdict.is_highest, verdict.is_kept, progress.stale_epochs)
        };
        assert_eq!(next(0.5), (true, true, 0));
        assert_eq!(next(0.48), (false, true, 1));
        assert_eq!(next(0.3), (false, false, 2));
        assert_eq!(next(0.6), (true, true, 0));
    }

    #[test]
    fn of_epochs_that_validation_cannot_tell_apart_the_last_is_kept() {
        // Of 100 images, a share of 0.5 is known to within 0.05.
        let kept = |top1, samples| {
            let new = Validation { samples, ..validation([top1, 0.0, 0.0, 1.0]) };
            judge(Metric::Accuracy, &new, Some(0.5)).is_kept
        };
        assert_eq!([0.51, 0.5, 0.46, 0.44].map(|top1| kept(top1, 100)), [true, true, true, false]);
        let right = validation([1.0, 0.0, 0.0, 1.0]);
        assert!(judge(Metric::Accuracy, &right, Some(1.0)).is_kept, "without an error, too");
        assert_eq!([0.5, 0.496, 0.494].map(|top1| kept(top1, 10_000)), [true, true, false]);
        let verdict = judge(Metric::Loss, &validation([0.5, 0.5, 0.5, 1.0]), Some(-1.0));
        assert_eq!(verdict, Verdict { is_highest: false, is_kept: false });
    }
}
