//! Ctrl-C: the first one asks training to save and stop, the second one ends the program at once.

use anyhow::{Context, Result};

use super::output::note;
use crate::train::interrupt;

/// The exit status after a second Ctrl-C: 128 and the number of the signal, as shells have it.
const INTERRUPTED: i32 = 130;

/// Starts to listen for the interrupt and termination signals.
///
/// # Errors
/// When the system refuses a handler.
pub(super) fn listen() -> Result<()> {
    ctrlc::set_handler(|| {
        if interrupt::request() {
            std::process::exit(INTERRUPTED);
        }
        note!("\nstopping after this step; press Ctrl-C again to stop at once");
    })
    .context("cannot listen for Ctrl-C")
}
