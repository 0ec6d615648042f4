//! Images identified by a hash of their content: which are copies of each other, which a model has seen, and which are
//! held out for validation.

mod folds;
mod held_out;
mod inventory;
mod key;
mod key_set;
mod strata;

pub use inventory::{Fingerprint, Inventory, ListedImage};
pub use key::ContentKey;
pub use key_set::KeySet;
