//! The command line program.

use std::process::ExitCode;

fn main() -> ExitCode {
    vitrine::allocator::keep_pages();
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
