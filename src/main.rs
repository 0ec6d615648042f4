//! The command-line program.

use std::process::ExitCode;

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: vitrine::allocator::MiMalloc = vitrine::allocator::MiMalloc;

fn main() -> ExitCode {
    vitrine::allocator::keep_pages();
    // It would end the program when a file grows past the system's limit (`ulimit -f`). The write then fails instead, and the program
    // reports the error.
    #[cfg(unix)]
    vitrine::signals::ignore(libc::SIGXFSZ);
    vitrine::cli::main()
}
