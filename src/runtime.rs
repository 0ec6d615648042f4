//! The means of a command: where it computes, with how many threads, and who hears of its events.

use crate::device::FoundDevice;
use crate::events::EventSink;

/// What long-running work is given by its caller.
#[derive(Clone, Copy)]
pub struct Runtime<'a> {
    /// The device of all tensors.
    pub device: &'a FoundDevice,
    /// Threads that decode images.
    pub threads: usize,
    /// Receives the events of the work.
    pub events: &'a dyn EventSink,
}
