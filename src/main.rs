//! The command line program.

use std::process::ExitCode;

fn main() -> ExitCode {
    vitrine::allocator::keep_pages();
    end_quietly_with_the_reader();
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

/// `print!` panics when whoever reads the output has gone (`vitrine presets | head`): that is no fault.
fn end_quietly_with_the_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload_as_str().unwrap_or_default();
        if message.starts_with("failed printing to stdout") && message.contains("Broken pipe") {
            std::process::exit(0);
        }
        usual(panic);
    }));
}
