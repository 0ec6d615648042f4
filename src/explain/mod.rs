//! What a model looked at: maps of an image that say how much each patch counts for an answer, drawn over the image.
//!
//! An [`Explainer`] computes the maps of a [`Method`], and [`OutputFolder`] writes them as images, arrays, and a page.

mod colormap;
mod explainer;
mod map;
mod method;
mod output_folder;
mod overlay;
mod page;

pub(crate) use colormap::color_scale;
pub use explainer::{Asked, Explainer, Explanation};
pub use map::Map;
pub use method::Method;
pub use output_folder::OutputFolder;
pub use overlay::image_png;

#[cfg(test)]
mod tests;
