//! The handler of Ctrl-C: the first press asks training to save and stop, the second one ends the program at once.

use anyhow::{Context, Result};

use super::output::note;
#[cfg(unix)]
use crate::signals;
use crate::train::interrupt;

/// The exit status after a second Ctrl-C: 128 plus the number of the signal, as in shells.
const INTERRUPTED: i32 = 130;

/// Installs the handler for the interrupt and termination signals, and for the end of the session, unless `nohup` has started the
/// program to outlive it.
///
/// # Errors
/// If the system refuses a handler.
pub(super) fn listen() -> Result<()> {
    #[cfg(unix)]
    let outlives_session = signals::ignore(libc::SIGHUP);
    let listening = ctrlc::set_handler(|| {
        if interrupt::request() {
            std::process::exit(INTERRUPTED);
        }
        note!("stopping after this step; press Ctrl-C again to stop at once");
    });
    // The handler is now that of this signal, too.
    #[cfg(unix)]
    if outlives_session {
        signals::ignore(libc::SIGHUP);
    }
    listening.context("cannot listen for Ctrl-C")
}
