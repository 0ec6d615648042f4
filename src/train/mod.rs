//! Training: the loop over epochs and phases, its schedule, and the checkpoints from which it resumes.

mod at_chance;
mod best_epoch;
mod card;
mod expectation;
mod flips;
mod head_fit;
mod initial_state;
pub mod interrupt;
mod loaders;
mod measuring;
mod phase;
mod pixel_copies;
mod probing;
mod restarts;
pub mod schedule;
mod session;
mod state;
mod trainer;
mod trial;
mod validation;
mod whitening;

pub use at_chance::AtChance;
pub use head_fit::HeadFit;
pub use initial_state::Start;
pub use restarts::GivenUp;
pub use state::{Progress, progress};
pub use trainer::{Beginning, Outcome, Trained, Trainer};
pub use trial::{Trial, affordable_images};

pub(crate) use best_epoch::{score_of, standard_error};
pub(crate) use measuring::part;
pub(crate) use pixel_copies::pixel_remarks;
pub(crate) use state::add_undecodable;

#[cfg(test)]
mod tests;
