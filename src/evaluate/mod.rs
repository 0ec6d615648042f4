//! Evaluation of a classifier: accuracy with its uncertainty, per-class scores, confusion matrix, and calibration.
//!
//! Logits go into [`Predictions`] batch by batch; [`Metrics::compute`] turns them into the object that
//! `vitrine evaluate --json` prints, and [`table`] into the text for a terminal.

mod agreement;
mod calibration;
mod confusion;
mod counts;
mod evaluation;
mod metrics;
mod multi_label;
mod predict;
mod predictions;
mod selection;
mod table;

pub use calibration::{RELIABILITY_BINS, ReliabilityBin, expected_calibration_error, reliability};
pub use confusion::{Confusion, ConfusionCell, WHOLE_MATRIX_CLASSES};
pub use evaluation::{Evaluation, EvaluationSettings};
pub use metrics::{ClassMetrics, Metrics};
pub use multi_label::{MultiLabelMetrics, average_precision};
pub use predict::{Predicted, predict};
pub use predictions::{ConfidentMistake, MULTI_LABEL_THRESHOLD, Predictions};
pub use selection::{Part, Selection};
pub use table::table;

pub(crate) use agreement::Agreement;
pub(crate) use counts::wilson_interval;
pub(crate) use table::{interval, percent};
