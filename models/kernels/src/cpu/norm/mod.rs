//! Fused normalizations.

mod batch_norm;
mod layer_norm;

pub(crate) use batch_norm::{BatchNormalization, moments};
pub(crate) use layer_norm::LayerNormalization;
