//! The metrics of an epoch: a row of `metrics.csv`, and the event that reports it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::recipe::Metric;

/// One row of a run's `metrics.csv`.
///
/// Accuracies are from 0 to 1. A metric that was not measured is `None` (an empty field).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochRow {
    /// Number of the epoch, from 1.
    pub epoch: usize,
    /// Number of optimizer updates of the run by the end of the epoch.
    pub step: usize,
    /// Seconds of training by the end of the epoch, over all sessions of the run.
    pub seconds: f64,
    /// Learning rate of the last update.
    pub learning_rate: f64,
    /// Mean training loss of the epoch.
    pub train_loss: f64,
    /// Training accuracy of the epoch: the share of images whose largest logit is that of the class with the largest
    /// target (mixup and CutMix give an image several classes).
    pub train_top1: Option<f64>,
    /// Mean loss on the validation images.
    pub val_loss: Option<f64>,
    /// Accuracy on the validation images.
    pub val_top1: Option<f64>,
    /// Training images per second in this epoch, without validation.
    pub images_per_second: f64,
    /// Macro F1 on the validation images: the unweighted mean of the F1 scores of the classes.
    pub val_macro_f1: Option<f64>,
    /// Balanced accuracy on the validation images: the unweighted mean of the recalls of the classes.
    pub val_balanced_accuracy: Option<f64>,
    /// Whether the model of this epoch replaced the one in the run's model file. The file holds the model of the last
    /// such row.
    #[serde(default)]
    pub kept: bool,
    /// Mean average precision on the validation images, with several labels an image.
    #[serde(default)]
    pub val_mean_average_precision: Option<f64>,
}

impl EpochRow {
    /// The score of the epoch by this metric on the validation images, if it was measured; higher is better.
    pub(crate) fn score(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::Accuracy => self.val_top1,
            Metric::MacroF1 => self.val_macro_f1,
            Metric::BalancedAccuracy => self.val_balanced_accuracy,
            Metric::MeanAveragePrecision => self.val_mean_average_precision,
            Metric::Loss => self.val_loss.map(|loss| -loss),
        }
    }
}

/// The metrics at the end of an epoch, with the context that a printed line needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EpochEnd {
    /// The metrics.
    #[serde(flatten)]
    pub row: EpochRow,
    /// Number of epochs of the run; `None` if a time limit ends it.
    pub epochs: Option<usize>,
    /// Number of images in an epoch.
    pub images: usize,
    /// Number of images of this epoch that were trained on: fewer than `images` if the time was up within it.
    pub seen: usize,
    /// The metric that chooses the best epoch.
    pub metric: Metric,
    /// Whether `metric` is better than after every earlier epoch.
    pub best: bool,
}

impl fmt::Display for EpochEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, .. } = self;
        let mark = match (self.best, row.kept) {
            (true, _) => " (best)",
            (false, true) => " (kept)",
            (false, false) => "",
        };
        write!(
            f,
            "epoch {}{}  train loss {:.4}  top-1 {:.2}%  |  val loss {:.4}  top-1 {:.2}%{}{mark}  |  {:.0} images/s  {}",
            of_all(row.epoch, self.epochs),
            self.part(),
            row.train_loss,
            100.0 * row.train_top1.unwrap_or(f64::NAN),
            row.val_loss.unwrap_or(f64::NAN),
            100.0 * row.val_top1.unwrap_or(f64::NAN),
            self.score(),
            row.images_per_second,
            clock(row.seconds),
        )
    }
}

impl EpochEnd {
    /// How many of the images a partial epoch has seen, as text; empty for a whole epoch.
    fn part(&self) -> String {
        let Self { images, seen, .. } = *self;
        if seen < images { format!(" ({seen} of {images} images)") } else { String::new() }
    }

    /// The metric that chooses the best epoch, as text; empty if the line shows it already.
    fn score(&self) -> String {
        let value = match self.metric {
            Metric::Accuracy | Metric::Loss => return String::new(),
            Metric::MacroF1 | Metric::BalancedAccuracy | Metric::MeanAveragePrecision => {
                self.row.score(self.metric)
            }
        };
        format!("  {} {:.2}%", self.metric, 100.0 * value.unwrap_or(f64::NAN))
    }
}

/// The number of an epoch with the total, as in `3/7`, or without it if the total is unknown.
pub(crate) fn of_all(epoch: usize, epochs: Option<usize>) -> String {
    epochs.map_or_else(|| epoch.to_string(), |epochs| format!("{epoch}/{epochs}"))
}

/// Seconds as `1:02:03`, `2:03`, or `3 s`.
pub fn clock(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    let (hours, minutes, rest) = (whole / 3600, whole / 60 % 60, whole % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{rest:02}")
    } else if minutes > 0 {
        format!("{minutes}:{rest:02}")
    } else {
        format!("{rest} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_an_epoch_shows_its_part_the_selection_metric_and_whether_the_model_is_kept() {
        let row = EpochRow {
            epoch: 3,
            val_top1: Some(0.5),
            val_macro_f1: Some(0.25),
            kept: true,
            ..EpochRow::default()
        };
        let end =
            EpochEnd { row, epochs: Some(7), images: 80, seen: 80, metric: Metric::MacroF1, best: false };
        let line = end.to_string();
        assert!(line.starts_with("epoch 3/7  ") && line.contains("macro F1 25.00% (kept)"), "{line}");
        let partial = EpochEnd { seen: 16, ..end.clone() }.to_string();
        assert!(partial.starts_with("epoch 3/7 (16 of 80 images)  train loss"), "{partial}");
        let best = EpochEnd { epochs: None, metric: Metric::Accuracy, best: true, ..end }.to_string();
        assert!(best.starts_with("epoch 3  ") && best.contains("top-1 50.00% (best)"), "{best}");
    }

    #[test]
    fn times_omit_leading_units_that_are_zero() {
        assert_eq!([3.4, 123.0, 3723.0].map(clock), ["3 s", "2:03", "1:02:03"]);
    }
}
