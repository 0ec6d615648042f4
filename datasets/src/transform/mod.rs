//! From a decoded image to what a model sees: the one evaluation path, and what training adds to it.

mod augment;
mod color;
mod geometry;
mod mix;
mod preprocess;
mod rand_augment;
mod resize;

pub use augment::{Augmentation, Crop, InvalidAugmentation};
pub use preprocess::{CropRounding, Interpolation, InvalidPreprocessing, Preprocessing, ResizeRule};
pub use rand_augment::RandAugment;
