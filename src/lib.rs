//! vitrine trains a Vision Transformer on a folder of images, measures it honestly and classifies images.
//!
//! The library behind the command line program: [`train`] makes a model file from a data set, [`evaluate`] measures
//! one, [`Classifier`] uses one. Models live in `vitrine_models`, images in `vitrine_datasets`; this crate joins
//! the two.

mod aliases;
pub mod allocator;
pub mod bounds;
mod class_names;
mod classifier;
pub mod cli;
pub mod device;
pub mod evaluate;
pub mod export;
mod files;
pub mod hub;
pub mod import;
pub mod memory;
pub mod model_file;
mod names;
mod output;
pub mod pretrained;
pub mod recipe;
pub mod report;
pub mod seed;
mod text;
mod threads;
pub mod train;
pub mod trained_on;
pub mod usage;
pub mod weights_file;

pub use classifier::Classifier;
