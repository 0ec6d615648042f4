//! The process-wide request to stop, upon which training saves its state after the current update and ends.

use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Asks all training in this process to save and stop. Returns whether this was already requested.
pub fn request() -> bool {
    REQUESTED.swap(true, Ordering::SeqCst)
}

/// Whether training was asked to stop.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}
