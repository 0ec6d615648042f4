//! Training: the loop, its schedule and optimiser, and the checkpoints that make a run survive anything.

mod bad_files;
mod checkpoint;
mod ema;
pub mod interrupt;
mod layers;
mod leftovers;
mod lock;
pub mod optimiser;
mod place;
pub mod plan;
mod progress;
mod resume;
mod run_data;
mod run_folder;
pub mod schedule;
mod start;
mod threads;
mod trainer;

pub use bad_files::BadFiles;
pub use checkpoint::{AskedLength, Progress};
pub use layers::{Freeze, Layers};
pub use place::data_path;
pub use plan::{Plan, Wishes};
pub use progress::clock;
pub use resume::{Resumption, resume};
pub use run_data::RunData;
pub use run_folder::{RunConfig, RunFolder};
pub use start::Start;
pub use trainer::{Outcome, Trainer};
