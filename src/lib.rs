//! vitrine trains a Vision Transformer on a folder of images, evaluates it on images that it was not trained on, and
//! classifies images.
//!
//! The command-line program is built on this library. [`train`](train()) makes a model file from a data set,
//! [`evaluate`](evaluate()) measures a model, [`Classifier`] classifies images with it, [`embed`]
//! finds similar ones, and [`import`] reads the weights of other libraries. Architectures are in `vitrine_models` and data sets in `vitrine_datasets`; this crate
//! uses both.
//!
//! ```no_run
//! use vitrine::{Classifier, TrainOptions};
//!
//! let run = vitrine::train("photos/", &TrainOptions::default())?; // one folder per class
//! println!("{}", run.report.expect("the run was not interrupted").line);
//!
//! let evaluation = vitrine::evaluate(run.folder.path(), "photos/", None)?;
//! println!("macro F1 {:.3}", evaluation.metrics.macro_f1);
//!
//! let classifier = Classifier::load(run.folder.path())?;
//! for prediction in classifier.predict("cat.jpg".as_ref())?.iter().take(3) {
//!     println!("{}: {:.1}%", prediction.label, 100.0 * prediction.probability);
//! }
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! `examples/train.rs`, `examples/classify.rs`, and `examples/import.rs` are complete programs.

pub mod allocator;
pub mod bounds;
pub mod cli;
pub mod device;
mod eigenvectors;
pub mod embed;
pub mod evaluate;
pub mod events;
pub mod explain;
pub mod export;
pub mod features;
mod files;
mod flags;
pub mod hub;
pub mod import;
pub mod learner;
mod library;
pub mod memory;
pub mod model_file;
pub mod named_model;
mod npy;
mod page;
mod parquet_file;
pub mod plan;
pub mod predict;
pub mod pretrained;
pub mod probe;
pub mod recipe;
pub mod report;
pub mod run;
pub mod run_folder;
pub mod runtime;
pub mod seed;
mod serialized;
#[cfg(feature = "serve")]
pub mod serve;
#[cfg(unix)]
pub mod signals;
mod store;
mod text;
pub mod threads;
pub mod token;
mod toml_text;
pub mod train;
pub mod usage;
pub mod weights_file;
pub mod workers;

pub use library::{LoadOptions, TrainOptions, evaluate, load, load_with_events, train, train_with_events};
pub use predict::{Classifier, Prediction};
