//! Signals of Unix, for the command-line program.

use std::io;
use std::thread;
use std::time::Duration;

/// How long another signal waits for what is to be done after the first one: `timeout` sends its signal twice in a row.
const GRACE: Duration = Duration::from_secs(1);

/// Ignores a signal, such as `libc::SIGXFSZ`.
pub fn ignore(signal: libc::c_int) {
    // SAFETY: `SIG_IGN` installs no handler that could interrupt other code.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Whether a signal is ignored, as whoever has started the program may have chosen.
pub fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: Zeros are a value of each field: numbers, sets of bits, and a function that need not be there.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: Without a new action, the system only writes the present one to `action`, which outlives the call.
    let status = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    status == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// When one of these signals comes, calls `last`, and ends the program by this signal, so that whoever has started it can tell why it
/// has ended. If `last` takes longer than a second, another one of them ends the program at once.
///
/// Nothing else may handle these signals. It must be called before other threads start, which would be ended without `last`.
///
/// # Errors
/// If the system refuses it, or a thread cannot be started.
pub fn end_after(signals: &[libc::c_int], last: impl FnOnce() + Send + 'static) -> io::Result<()> {
    if signals.is_empty() {
        return Ok(());
    }
    let set = set_of(signals);
    // All threads that start from now on inherit this, so that the signals come to the one that waits for them.
    mask(libc::SIG_BLOCK, &set)?;
    start(move || {
        let mut signal = 0;
        // SAFETY: The system reads `set` and writes `signal`, which both outlive the call.
        let status = unsafe { libc::sigwait(&raw const set, &raw mut signal) };
        if status != 0 {
            return;
        }
        let let_others_through = move || {
            thread::sleep(GRACE);
            // It is refused only for sets of signals that `end_after` refuses.
            let _ = mask(libc::SIG_UNBLOCK, &set);
        };
        if start(let_others_through).is_err() {
            let _ = mask(libc::SIG_UNBLOCK, &set);
        }
        last();
        let _ = mask(libc::SIG_UNBLOCK, &set);
        // SAFETY: The signal calls no handler that could interrupt other code, and the system ends the program as a whole.
        unsafe { libc::raise(signal) };
        // The first process of a container is not ended by a signal that it does not handle.
        std::process::exit(128 + signal);
    })
}

/// Starts a thread, which nobody waits for.
fn start(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("signals".to_owned()).spawn(work).map(drop)
}

/// A set of signals.
fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: A set has bits only, so that zeros are a value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: The system writes to `set`, which outlives the call.
    unsafe { libc::sigemptyset(&raw mut set) };
    for signal in signals {
        // SAFETY: As above.
        unsafe { libc::sigaddset(&raw mut set, *signal) };
    }
    set
}

/// Changes which signals the calling thread, and the threads that it starts, leave to other threads.
fn mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: The system reads `set`, which outlives the call, and writes nothing.
    let status = unsafe { libc::pthread_sigmask(how, set, std::ptr::null_mut()) };
    if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(status)) }
}
