//! Training: the loop, its schedule and optimiser, and the checkpoints that make a run survive anything.

mod checkpoint;
mod ema;
pub mod interrupt;
mod layers;
pub mod optimiser;
pub mod plan;
mod progress;
mod run_folder;
pub mod schedule;
mod start;
mod trainer;

pub use checkpoint::Progress;
pub use layers::{Freeze, Layers};
pub use plan::{Plan, Wishes};
pub use progress::clock;
pub use run_folder::{RunConfig, RunFolder};
pub use start::Start;
pub use trainer::{Outcome, Trainer};
