//! How other programs spell options that mean exactly the same here. They are taken, and not shown in the help.

/// `--model`.
pub(crate) const MODEL: [&str; 2] = ["arch", "architecture"];
/// `--batch-size`.
pub(crate) const BATCH_SIZE: [&str; 2] = ["bs", "batch"];
/// `--image-size`.
pub(crate) const IMAGE_SIZE: [&str; 4] = ["imgsz", "img-size", "img-sz", "input-size"];
/// `--output`.
pub(crate) const OUTPUT: [&str; 3] = ["out", "output-dir", "out-dir"];
/// `--val-fraction`.
pub(crate) const VAL_FRACTION: [&str; 3] = ["val-split", "validation-split", "val-ratio"];
/// `--threads`.
pub(crate) const THREADS: [&str; 2] = ["num-threads", "jobs"];
/// `--top`.
pub(crate) const TOP: [&str; 3] = ["topk", "top-k", "k"];
