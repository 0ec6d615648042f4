//! Several processes that compute the micro-batches of one run: the trainer keeps the model, the optimizer, and the data, and each
//! micro-batch is computed by whichever process is free. Neither their number nor their failures change a bit of the result, because
//! contributions are added in the order of the micro-batches, whoever computed them.

mod addresses;
mod computer;
pub mod message;
mod pool;
#[cfg(feature = "remote")]
pub mod remote;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

pub use addresses::Address;
pub use computer::Computer;
pub use pool::{Deadlines, Pool};

use crate::learner::micro_batch::{Contribution, MicroBatch, ReplicaConfig};

/// The model's numbers at one update.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Numbers that differ have other values.
    pub version: u64,
    /// See [`parameters`](crate::learner::micro_batch::parameters).
    pub values: Vec<f32>,
    /// How many of them each tensor has.
    pub sizes: Vec<usize>,
}

/// A micro-batch with everything that is needed to compute what it contributes.
#[derive(Clone, Debug)]
pub struct Task {
    /// The model.
    pub config: Arc<ReplicaConfig>,
    /// Its numbers.
    pub weights: Arc<Weights>,
    /// The images.
    pub batch: MicroBatch,
}

/// Computes tasks in another process.
pub trait Worker: Send {
    /// The name in messages.
    fn name(&self) -> String;

    /// Opens a connection. Called first, and again after a task failed. Returns remarks for the user.
    ///
    /// # Errors
    /// If the worker cannot be reached, or refuses.
    fn connect(&mut self) -> Result<Vec<String>, Failure>;

    /// Sends a task, which the worker computes after those before it.
    ///
    /// # Errors
    /// If the connection is broken.
    fn send(&mut self, task: &Task) -> Result<Answer, Failure>;
}

/// What a worker contributes, once it comes, or why it gives no answer: the connection has broken, or it refuses the task.
pub type Answer = Pin<Box<dyn Future<Output = Result<Contribution, Failure>> + Send>>;

/// The reason why a worker gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It may answer later: it is not running, or the network is interrupted.
    Lost(String),
    /// It will not answer: the token is wrong, its key is another one, it runs another version, or it lacks memory.
    Refused(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Lost(reason) | Self::Refused(reason)) = self;
        f.write_str(reason)
    }
}
