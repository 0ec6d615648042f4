//! The names of the files in a run folder.

/// The configuration of the run.
pub(crate) const CONFIG: &str = "config.toml";
/// The list of all images with their splits.
pub(crate) const IMAGES: &str = "images.csv";
/// The images that the model is trained on, in the form that the model file stores.
pub(super) const TRAINED_ON: &str = "trained_on.json";
/// The metrics of each epoch, one row per epoch.
pub(super) const METRICS: &str = "metrics.csv";
/// The metrics of the best model on each split.
pub(super) const RESULTS: &str = "metrics.json";
/// The report of the run.
pub(super) const REPORT: &str = "report.html";
