//! Training: the loop, its schedule and optimiser, and the checkpoints that make a run survive anything.

mod checkpoint;
mod ema;
pub mod interrupt;
pub mod optimiser;
pub mod plan;
mod progress;
mod run_folder;
pub mod schedule;
mod trainer;

pub use checkpoint::Progress;
pub use plan::{Plan, Wishes};
pub use progress::clock;
pub use run_folder::{RunConfig, RunFolder};
pub use trainer::{Outcome, Start, Trainer};
