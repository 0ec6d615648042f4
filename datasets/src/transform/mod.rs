//! From a decoded image to a model's input: the preprocessing that training and evaluation share, and the random
//! augmentation of training.

mod augment;
mod color;
mod geometry;
mod policy;
mod preprocess;
mod resize;

pub use augment::{Augmentation, Crop, InvalidAugmentation, MixMode};
pub use policy::{AutoAugment, RandAugment};
pub use preprocess::{CropRounding, InvalidPreprocessing, Preprocessing, ResizeRule};
pub use resize::Interpolation;
