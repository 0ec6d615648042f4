//! The choice of the best epoch, whose model the run keeps.

use super::state::Progress;
use crate::evaluate::Metrics;
use crate::events::EpochRow;
use crate::model_file::Validation;
use crate::recipe::Metric;

/// The validation of an epoch compared with those of earlier epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Whether its metric is the highest so far.
    pub(super) is_highest: bool,
    /// Whether the epoch's model is kept: its metric is the highest, or below the highest by less than the standard
    /// error of an accuracy that was measured on all validation images.
    ///
    /// Validation cannot tell such epochs apart, and the last of them has learned for longest, at the lowest learning
    /// rate: the one-standard-error rule (Breiman et al. 1984, section 3.4.3). A loss and a mean average precision have no
    /// known standard error here, so only the best one is kept. An epoch below the probe with which the run began is not
    /// kept.
    pub(super) is_kept: bool,
}

/// Judges the validation of the epoch that has just ended. Updates the highest score and the number of epochs since
/// it was reached.
pub(super) fn judge_next(progress: &mut Progress, metric: Metric, validation: &Validation) -> Verdict {
    let before = progress.best.as_ref().filter(|kept| kept.epoch > 0).map(|kept| score(metric, kept));
    progress.highest = progress.highest.filter(|highest| !highest.is_nan()).or(before);
    let mut verdict = judge(metric, validation, progress.highest);
    let probe = progress.probe.as_ref().map(|probe| score(metric, probe));
    verdict.is_kept &= probe.is_none_or(|probe| score(metric, validation) >= probe);
    if verdict.is_highest {
        (progress.stale_epochs, progress.highest) = (0, Some(score(metric, validation)));
    } else {
        progress.stale_epochs += 1;
    }
    verdict
}

/// Compares a validation with the highest score of earlier epochs.
fn judge(metric: Metric, new: &Validation, highest: Option<f64>) -> Verdict {
    let score = score(metric, new);
    let Some(highest) = highest else { return Verdict { is_highest: true, is_kept: true } };
    let error = standard_error(metric, highest, new.samples);
    let is_highest = score > highest;
    let is_unknown = highest == f64::NEG_INFINITY;
    let is_kept = is_highest || is_unknown || (metric != Metric::Loss && score >= highest - error);
    Verdict { is_highest, is_kept }
}

/// The standard error of a score that was measured on `samples` images, as if it were an accuracy; 0 for metrics that are not
/// shares of images.
pub(crate) fn standard_error(metric: Metric, score: f64, samples: usize) -> f64 {
    match metric {
        Metric::Accuracy | Metric::MacroF1 | Metric::BalancedAccuracy => {
            let share = score.clamp(0.0, 1.0);
            (share * (1.0 - share) / samples.max(1) as f64).sqrt()
        }
        Metric::MeanAveragePrecision | Metric::Loss => 0.0,
    }
}

/// The score of the metrics on validation images; higher is better.
pub(crate) fn score_of(metric: Metric, metrics: &Metrics) -> f64 {
    score(metric, &validation(0, metrics))
}

/// The metrics that model files and checkpoints store.
pub(super) fn validation(epoch: usize, metrics: &Metrics) -> Validation {
    Validation {
        epoch,
        samples: metrics.samples,
        loss: metrics.loss,
        top1: metrics.top1,
        macro_f1: Some(metrics.macro_f1),
        balanced_accuracy: Some(metrics.balanced_accuracy()),
        mean_average_precision: metrics.multi_label.as_ref().map(|of| of.mean_average_precision),
    }
}

/// The columns of the metrics file that follow from the validation.
pub(super) fn row(validation: &Validation) -> EpochRow {
    EpochRow {
        epoch: validation.epoch,
        val_loss: Some(validation.loss),
        val_top1: Some(validation.top1),
        val_macro_f1: validation.macro_f1,
        val_balanced_accuracy: validation.balanced_accuracy,
        val_mean_average_precision: validation.mean_average_precision,
        ..EpochRow::default()
    }
}

/// The score of a validation; higher is better. Checkpoints of earlier versions lack some metrics, which count as the
/// lowest, and so does what cannot be measured, because no image has a class.
fn score(metric: Metric, validation: &Validation) -> f64 {
    let score = match metric {
        Metric::Accuracy => validation.top1,
        Metric::MacroF1 => validation.macro_f1.unwrap_or(f64::NEG_INFINITY),
        Metric::BalancedAccuracy => validation.balanced_accuracy.unwrap_or(f64::NEG_INFINITY),
        Metric::MeanAveragePrecision => validation.mean_average_precision.unwrap_or(f64::NEG_INFINITY),
        Metric::Loss => -validation.loss,
    };
    if score.is_nan() { f64::NEG_INFINITY } else { score }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validation([top1, macro_f1, balanced, loss]: [f64; 4]) -> Validation {
        let (macro_f1, balanced_accuracy) = (Some(macro_f1), Some(balanced));
        Validation {
            epoch: 1,
            samples: 100,
            loss,
            top1,
            macro_f1,
            balanced_accuracy,
            mean_average_precision: None,
        }
    }

    #[test]
    fn each_metric_chooses_by_its_own_score() {
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
    fn epochs_that_cannot_be_judged_are_kept_until_one_can() {
        let mut progress = Progress { highest: Some(f64::NAN), ..Progress::default() };
        let mut is_kept =
            |top1| judge_next(&mut progress, Metric::Accuracy, &validation([top1, 0.0, 0.0, 1.0])).is_kept;
        assert_eq!(
            [f64::NAN, f64::NAN, 0.5, f64::NAN, 0.6].map(&mut is_kept),
            [true, true, true, false, true]
        );
        let unknown = judge(Metric::Loss, &validation([0.5, 0.0, 0.0, f64::NAN]), Some(f64::NEG_INFINITY));
        assert!(unknown.is_kept);
    }

    #[test]
    fn an_epoch_below_the_probe_is_not_kept() {
        let probe = validation([0.5, 0.0, 0.0, 1.0]);
        let mut progress = Progress { best: Some(probe.clone()), probe: Some(probe), ..Progress::default() };
        let mut is_kept =
            |top1| judge_next(&mut progress, Metric::Accuracy, &validation([top1, 0.0, 0.0, 1.0])).is_kept;
        assert_eq!([0.48, 0.5, 0.6, 0.57, 0.49].map(&mut is_kept), [false, true, true, true, false]);
    }

    #[test]
    fn within_one_standard_error_the_last_epoch_is_kept() {
        // The standard error of an accuracy of 0.5 on 100 images is 0.05.
        let kept = |top1, samples| {
            let new = Validation { samples, ..validation([top1, 0.0, 0.0, 1.0]) };
            judge(Metric::Accuracy, &new, Some(0.5)).is_kept
        };
        assert_eq!([0.51, 0.5, 0.46, 0.44].map(|top1| kept(top1, 100)), [true, true, true, false]);
        let right = validation([1.0, 0.0, 0.0, 1.0]);
        assert!(judge(Metric::Accuracy, &right, Some(1.0)).is_kept, "the standard error is 0 here");
        assert_eq!([0.5, 0.496, 0.494].map(|top1| kept(top1, 10_000)), [true, true, false]);
        let verdict = judge(Metric::Loss, &validation([0.5, 0.5, 0.5, 1.0]), Some(-1.0));
        assert_eq!(verdict, Verdict { is_highest: false, is_kept: false });
    }
}
