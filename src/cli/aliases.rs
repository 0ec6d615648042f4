//! Aliases of options: other programs' names for options with exactly the same meaning. They are accepted, but `--help`
//! does not show them.

/// Aliases of `--model`.
pub(crate) const MODEL: [&str; 2] = ["arch", "architecture"];
/// Aliases of `--batch-size`.
pub(crate) const BATCH_SIZE: [&str; 2] = ["bs", "batch"];
/// Aliases of `--image-size`.
pub(crate) const IMAGE_SIZE: [&str; 4] = ["imgsz", "img-size", "img-sz", "input-size"];
/// Aliases of `--output`.
pub(crate) const OUTPUT: [&str; 3] = ["out", "output-dir", "out-dir"];
/// Aliases of `--val-fraction`.
pub(crate) const VAL_FRACTION: [&str; 3] = ["val-split", "validation-split", "val-ratio"];
/// Aliases of `--label-separator`: fastai's name.
pub(crate) const LABEL_SEPARATOR: [&str; 2] = ["label-delim", "label-delimiter"];
/// Aliases of `--threads`.
pub(crate) const THREADS: [&str; 2] = ["num-threads", "jobs"];
/// Aliases of `--top`.
pub(crate) const TOP: [&str; 3] = ["topk", "top-k", "k"];
