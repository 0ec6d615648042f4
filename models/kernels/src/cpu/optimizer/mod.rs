//! Fused updates of parameters: AdamW's, the passes over gradients before any update, and Muon's orthogonalization.

mod adamw;
mod orthogonalize;

pub(crate) use adamw::{Coefficients, adamw, scaled, sum_of_squares};
pub(crate) use orthogonalize::orthogonalize;
