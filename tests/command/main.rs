//! The command line as a user sees it: results, messages, exit statuses, and files.

#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod archives;
mod cache;
mod completions;
mod embed;
mod explain;
mod folders;
mod image_files;
mod inspect;
mod limits;
mod log_format;
mod model_files;
mod multi_label;
mod onnx;
mod options;
mod published;
mod quantize;
mod refused;
mod replaced;
#[cfg(all(unix, feature = "serve"))]
mod serve;
mod shards;
mod similar;
#[cfg(unix)]
mod streams;
mod tta;
mod walkthrough;
mod wrong_inputs;
