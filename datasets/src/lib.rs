//! Labelled pictures, wherever they are.
mod dataset;
mod error;
mod sample;
pub use dataset::{Dataset, DatasetInfo, SourceKind, Split, ValidationOrigin};
pub use error::DatasetError;
pub use sample::{Image, Picture, Sample};
