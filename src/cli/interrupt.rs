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

/// Lets the interrupt and termination signals, and the end of the session, end the program without leaving a temporary file next to what
/// it writes. Those that whoever has started it lets it ignore, as `nohup` does, and a script for what it starts in the background, remain
/// ignored.
///
/// It must be called before other threads start.
///
/// # Errors
/// If the system refuses it.
#[cfg(unix)]
pub(super) fn leave_nothing_behind() -> Result<()> {
    let mut ends = vec![libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
    ends.retain(|signal| !signals::is_ignored(*signal));
    // A loop of a shell ends with a program that Ctrl-C ends, and goes on after any exit status.
    signals::end_after(&ends, files::remove_unfinished).context("cannot listen for signals")
}

/// Lets Ctrl-C end the program without leaving a temporary file next to what it writes.
///
/// # Errors
/// If the system refuses a handler.
#[cfg(not(unix))]
pub(super) fn leave_nothing_behind() -> Result<()> {
    handle(|| {
        files::remove_unfinished();
        std::process::exit(INTERRUPTED);
    })
}

/// Installs the handler of the interrupt and termination signals, and of the end of the session, unless `nohup` has started the
/// program to outlive it.
///
/// # Errors
/// If the system refuses it.
fn handle(handler: impl FnMut() + Send + 'static) -> Result<()> {
    #[cfg(unix)]
    let outlives_session = signals::is_ignored(libc::SIGHUP);
    ctrlc::set_handler(handler).context("cannot listen for Ctrl-C")?;
    // The handler is now that of this signal, too.
    #[cfg(unix)]
    if outlives_session {
        signals::ignore(libc::SIGHUP);
    }
    Ok(())
}
