//! What the program says: results on standard output, which must arrive, and everything else on standard error, which may be lost.
//!
//! `print!` and `eprintln!` panic where a stream is closed or its disk is full; here the one gives an error and the other goes on.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use crate::text::printable_lines;

/// Standard output could not be written.
#[derive(Debug, thiserror::Error)]
#[error("standard output cannot be written: {0}")]
pub struct OutputError(#[from] io::Error);

impl OutputError {
    /// Whether the reader went away, as `head` does: that is no fault.
    pub fn is_closed(&self) -> bool {
        self.0.kind() == ErrorKind::BrokenPipe
    }
}

/// Writes to standard output and waits until it has arrived.
///
/// # Errors
/// When the stream is closed, or its disk is full.
pub fn write(bytes: &[u8]) -> Result<(), OutputError> {
    let mut stream = io::stdout().lock();
    stream.write_all(bytes)?;
    Ok(stream.flush()?)
}

/// Writes a line to standard error. Nothing is made of it when nobody listens: the work goes on.
///
/// Names of files and classes may come from anywhere: what a terminal would obey is shown as its escape, line breaks apart.
pub fn remark(line: fmt::Arguments<'_>) {
    // In one piece, so that lines of several threads or programs do not mix.
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

/// Writes a line to standard error, if anybody listens: [`remark`], with the arguments of `eprintln!`.
macro_rules! note {
    ($($text:tt)*) => { $crate::output::remark(format_args!($($text)*)) };
}

pub(crate) use {note, out, outln};
