//! From a decoded image to what a model sees: the one evaluation path, and what training adds to it.

mod augment;
mod auto_augment;
mod color;
mod geometry;
mod mix;
mod operation;
mod preprocess;
mod rand_augment;
mod resize;
mod trivial_augment;
mod validate;

pub use augment::{Augmentation, Crop, MixMode};
pub use auto_augment::AutoAugment;
pub use preprocess::{CropRounding, InvalidPreprocessing, Preprocessing, ResizeRule};
pub use rand_augment::RandAugment;
pub use resize::Interpolation;
pub use validate::InvalidAugmentation;
