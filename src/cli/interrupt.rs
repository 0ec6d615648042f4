//! The handler of Ctrl-C: the first press asks training to save and stop, the second one ends the program at once.

use anyhow::{Context, Result};

use super::output::note;
use crate::train::interrupt;

/// The exit status after a second Ctrl-C: 128 plus the number of the signal, as in shells.
const INTERRUPTED: i32 = 130;

/// Installs the handler for the interrupt and termination signals.
///
/// # Errors
/// If the system refuses a handler.
pub(super) fn listen() -> Result<()> {
    ctrlc::set_handler(|| {
        if interrupt::request() {
            std::process::exit(INTERRUPTED);
        }
        note!("stopping after this step; press Ctrl-C again to stop at once");
    })
    .context("cannot listen for Ctrl-C")
}
