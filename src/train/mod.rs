//! Training: the loop, its schedule and optimizer, and the checkpoints that make a run survive anything.

mod bad_files;
mod checkpoint;
mod ema;
mod file_names;
mod history;
pub mod interrupt;
mod layers;
mod learner;
mod leftovers;
mod lock;
pub mod optimizer;
mod place;
pub mod plan;
mod progress;
mod resume;
mod run_data;
mod run_folder;
pub mod schedule;
mod session;
mod start;
mod threads;
mod trainer;

pub use bad_files::BadFiles;
pub use checkpoint::{AskedLength, Progress};
pub use history::EpochRow;
pub use layers::Layers;
pub use learner::{BatchResult, Learner};
pub use place::data_path;
pub use plan::{Evidence, Overrides, Plan};
pub use progress::clock;
pub use resume::{Resumption, resume};
pub use run_data::RunData;
pub use run_folder::{RunConfig, RunFolder};
pub use start::Start;
pub use trainer::{Outcome, Trainer};
