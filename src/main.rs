//! The command-line program.

use std::process::ExitCode;

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: vitrine::allocator::MiMalloc = vitrine::allocator::MiMalloc;

fn main() -> ExitCode {
    vitrine::allocator::keep_pages();
    ignore_file_size_signal();
    vitrine::cli::main()
}

/// Ignores the signal that would end the program when a file grows past the system's limit (`ulimit -f`). The write
/// then fails instead, and the program reports the error.
fn ignore_file_size_signal() {
    // SAFETY: `SIG_IGN` installs no handler that could interrupt other code, and no other thread runs yet.
    #[cfg(unix)]
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
