//! Signals of Unix, for the command-line program.

/// Ignores a signal, such as `libc::SIGXFSZ`. Returns whether it was ignored before.
pub fn ignore(signal: libc::c_int) -> bool {
    // SAFETY: `SIG_IGN` installs no handler that could interrupt other code.
    unsafe { libc::signal(signal, libc::SIG_IGN) == libc::SIG_IGN }
}

/// Ends the program by a signal, such as `libc::SIGINT`, so that whoever has started it can tell why it has ended.
pub fn end_by(signal: libc::c_int) {
    // SAFETY: `SIG_DFL` installs no handler that could interrupt other code, and the system ends the program as a whole.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}
