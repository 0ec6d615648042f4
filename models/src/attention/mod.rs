//! How tokens exchange information.

mod multi_head;

pub use multi_head::{MultiHeadAttention, hide};
