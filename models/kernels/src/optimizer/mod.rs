//! What optimizers do to parameters and gradients. Autodiff follows none of it.

mod adamw;
mod orthogonalize;

pub use adamw::{AdamW, adamw, adamw_composed, scaled, sum_of_squares};
pub use orthogonalize::{orthogonalize, orthogonalize_composed};
