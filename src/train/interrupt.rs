//! Ctrl-C: the first one asks the loop to save and stop, the second one ends the program at once.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

use crate::output::note;

static STOP: AtomicBool = AtomicBool::new(false);

/// Starts to listen for the interrupt and termination signals.
///
/// # Errors
/// When the system refuses a handler.
pub fn listen() -> Result<()> {
    ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        note!("\nstopping after this step; press Ctrl-C again to stop at once");
    })
    .context("cannot listen for Ctrl-C")
}

/// Whether the user asked to stop.
pub fn requested() -> bool {
    STOP.load(Ordering::SeqCst)
}
