//! What the files of a run folder are called.

/// The configuration.
pub(crate) const CONFIG: &str = "config.toml";
/// Every image with its split.
pub(crate) const IMAGES: &str = "images.csv";
/// Which images the models learn from.
pub(super) const TRAINED_ON: &str = "trained_on.json";
/// A row per epoch.
pub(super) const METRICS: &str = "metrics.csv";
/// The result per split.
pub(super) const RESULTS: &str = "metrics.json";
/// The report.
pub(super) const REPORT: &str = "report.html";
