//! The handlers of Ctrl-C: the first press asks training to save and stop, and the second one ends it at once, as the first one ends other
//! commands.

use anyhow::{Context, Result};

use super::output::note;
use crate::files;
#[cfg(unix)]
use crate::signals;
use crate::train::interrupt;

/// The exit status after a second Ctrl-C: 128 plus the number of the signal, as in shells.
const INTERRUPTED: i32 = 130;

/// Lets training save and stop at the first signal.
///
/// # Errors
/// If the system refuses a handler.
pub(super) fn listen() -> Result<()> {
    handle(|| {
        if interrupt::request() {
            files::remove_unfinished();
            std::process::exit(INTERRUPTED);
        }
        note!("stopping after this step; press Ctrl-C again to stop at once");
    })
}

/// Lets a signal end the program without leaving a temporary file next to what it writes.
///
/// # Errors
/// If the system refuses a handler.
pub(super) fn leave_nothing_behind() -> Result<()> {
    // As a script leaves it for what it has started in the background.
    #[cfg(unix)]
    let is_ignored = signals::ignore(libc::SIGINT);
    handle(|| {
        files::remove_unfinished();
        // A loop of a shell ends with a program that this signal ends, and goes on after any exit status.
        #[cfg(unix)]
        signals::end_by(libc::SIGINT);
        std::process::exit(INTERRUPTED);
    })?;
    #[cfg(unix)]
    if is_ignored {
        signals::ignore(libc::SIGINT);
    }
    Ok(())
}

/// Installs the handler of the interrupt and termination signals, and of the end of the session, unless `nohup` has started the
/// program to outlive it.
///
/// # Errors
/// If the system refuses it.
fn handle(handler: impl FnMut() + Send + 'static) -> Result<()> {
    #[cfg(unix)]
    let outlives_session = signals::ignore(libc::SIGHUP);
    ctrlc::set_handler(handler).context("cannot listen for Ctrl-C")?;
    // The handler is now that of this signal, too.
    #[cfg(unix)]
    if outlives_session {
        signals::ignore(libc::SIGHUP);
    }
    Ok(())
}
