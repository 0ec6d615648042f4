//! The command line program.

use std::process::ExitCode;

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// mimalloc's `purge_delay`, which the binding has no name for.
#[cfg(not(target_env = "msvc"))]
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

fn main() -> ExitCode {
    // Every training step frees and takes the same memory: pages that go back to the system in between would be
    // zeroed again each time.
    #[cfg(not(target_env = "msvc"))]
    // SAFETY: the option exists in mimalloc 2 and 3, and no other thread runs yet.
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, -1);
    }
    end_quietly_with_the_reader();
    vitrine::cli::main()
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
