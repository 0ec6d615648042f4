//! Normalizations: of tokens, and of the channels of maps.

mod batch_norm;
mod layer_norm;

pub use batch_norm::{BatchNorm, Moments, batch_norm, batch_norm_composed, moments, moments_composed};
pub use layer_norm::{layer_norm, layer_norm_composed};
