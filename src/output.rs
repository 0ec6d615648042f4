//! Writing to standard output, where failures are errors, and to standard error, where they are ignored.
//!
//! `print!` and `eprintln!` would panic if a stream is closed or the disk behind it is full. Results on standard output
//! must arrive, so their failure is an error. Messages on standard error may be lost, so that a long training goes on.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use crate::text::printable_lines;

/// Standard output could not be written.
#[derive(Debug, thiserror::Error)]
#[error("standard output cannot be written: {0}")]
pub struct OutputError(#[from] io::Error);

impl OutputError {
    /// Whether the reader closed the pipe, as `head` does after a few lines. The program then ends without an error.
    pub fn is_closed(&self) -> bool {
        self.0.kind() == ErrorKind::BrokenPipe
    }
}

/// Writes to standard output and flushes it.
///
/// # Errors
/// When the stream is closed, or the disk behind it is full.
pub fn write(bytes: &[u8]) -> Result<(), OutputError> {
    let mut stream = io::stdout().lock();
    stream.write_all(bytes)?;
    Ok(stream.flush()?)
}

/// Writes a line to standard error. A failure is ignored, so that the work goes on.
///
/// Messages contain names of files and classes, so characters that a terminal would obey are escaped, except for line
/// breaks.
pub fn remark(line: fmt::Arguments<'_>) {
    // One write, so that lines of several threads or programs do not mix.
    let _ = io::stderr().lock().write_all(printable_lines(&format!("{line}\n")).as_bytes());
}

/// Writes formatted text to standard output: [`write`], with the arguments of `print!`.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::write(format!($($text)*).as_bytes()) };
}

/// Writes a line to standard output: [`write`], with the arguments of `println!`.
macro_rules! outln {
    () => { $crate::output::write(b"\n") };
    ($($text:tt)*) => { $crate::output::write(format!("{}\n", format_args!($($text)*)).as_bytes()) };
}

/// Writes a line to standard error and ignores failures: [`remark`], with the arguments of `eprintln!`.
macro_rules! note {
    ($($text:tt)*) => { $crate::output::remark(format_args!($($text)*)) };
}

pub(crate) use {note, out, outln};
