//! What was measured in each epoch.

use serde::{Deserialize, Serialize};

/// One row of a run's `metrics.csv`.
///
/// Accuracies are fractions; what was not measured is `None` (an empty field), what is no number is NaN.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochRow {
    /// Number of the epoch.
    pub epoch: usize,
    /// Optimizer steps taken by its end.
    pub step: usize,
    /// Seconds of training by its end.
    pub seconds: f64,
    /// Learning rate at its end.
    pub learning_rate: f64,
    /// Mean training loss of the epoch.
    pub train_loss: f64,
    /// Mean training accuracy of the epoch; absent where mixed labels leave none.
    pub train_top1: Option<f64>,
    /// Validation loss at its end.
    pub val_loss: Option<f64>,
    /// Validation accuracy at its end.
    pub val_top1: Option<f64>,
    /// Training images per second in this epoch, without validation.
    pub images_per_second: f64,
    /// Mean F1 of the classes on the validation images.
    pub val_macro_f1: Option<f64>,
    /// Mean recall of the classes on the validation images.
    pub val_balanced_accuracy: Option<f64>,
    /// Whether its model was kept as the best one: that of the last such row is in the run's model file.
    #[serde(default)]
    pub kept: bool,
}
