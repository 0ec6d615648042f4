//! The command line program.

use std::process::ExitCode;

fn main() -> ExitCode {
    vitrine::allocator::keep_pages();
    outlive_file_limits();
    vitrine::cli::main()
}

/// A file that grows past what the system allows (`ulimit -f`) ends a program by a signal: without it, the write fails and is told.
fn outlive_file_limits() {
    // SAFETY: to ignore a signal installs no code of ours, and no other thread runs yet.
    #[cfg(unix)]
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
