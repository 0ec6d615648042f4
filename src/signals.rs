//! Signals of Unix that the command-line program ignores.

/// Ignores a signal, such as `libc::SIGXFSZ`. Returns whether it was ignored before.
pub fn ignore(signal: libc::c_int) -> bool {
    // SAFETY: `SIG_IGN` installs no handler that could interrupt other code.
    unsafe { libc::signal(signal, libc::SIG_IGN) == libc::SIG_IGN }
}
