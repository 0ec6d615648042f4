//! The device, the threads, and the event sink of long-running work, which functions pass on together.

use crate::device::FoundDevice;
use crate::events::EventSink;
use crate::features::FeatureStore;
use crate::workers::Pool;

/// The device, the threads, and the event sink that a caller chooses for training or evaluation.
#[derive(Clone, Copy)]
pub struct Runtime<'a> {
    /// The device of all tensors.
    pub device: &'a FoundDevice,
    /// Threads that decode images.
    pub threads: usize,
    /// Receives the events of the work, such as progress and warnings.
    pub events: &'a dyn EventSink,
    /// Where features of images are kept; `None` to keep none.
    pub cache: Option<&'a FeatureStore>,
    /// Other processes that compute micro-batches of training; `None` to compute all of them here.
    pub workers: Option<&'a Pool>,
}
