//! Features: the embedding of each image, computed once and kept on disk, so that a second run, another fold, or a data
//! set that has grown computes only what is new.
//!
//! Features are found by the [content](vitrine_datasets::ContentKey) of an image, and by everything that they depend on
//! besides: see [`identity`].

mod cache;
mod extract;
mod files;
mod folder;
mod segment;
mod store;

pub use cache::FeatureCache;
pub use extract::{Extractor, Features};
pub use folder::{default_folder, identity};
pub use store::{FeatureStore, KeptFeatures};
