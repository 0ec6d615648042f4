//! The program's output: results on standard output, and messages on standard error.
//!
//! `print!` and `eprintln!` panic if a stream is closed or its disk is full. Here, a result that cannot be written is
//! an error, and a message that cannot be written is dropped.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::events::Event;
use crate::text::{printable, printable_lines};

/// Standard output could not be written.
#[derive(Debug, thiserror::Error)]
#[error("standard output cannot be written")]
pub struct OutputError(#[from] io::Error);

impl OutputError {
    /// Whether the reader closed the pipe, as `head` does.
    fn is_closed(&self) -> bool {
        self.0.kind() == ErrorKind::BrokenPipe
    }
}

/// Whether the cause is that the reader of standard output closed the pipe. A program that does nothing but print then ends without an
/// error.
pub fn is_closed(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(OutputError::is_closed)
}

/// What was written by [`write`] where there is more to do than to print, as by [`print`].
///
/// # Errors
/// If it failed for another reason than a closed pipe.
pub fn unless_closed(written: anyhow::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if is_closed(&error) => Ok(()),
        written => written,
    }
}

/// Writes to standard output, and flushes it. Nothing is written to a pipe that its reader has closed, and that is no error: the command
/// still writes its files, and its exit status says what failed.
///
/// # Errors
/// If the disk behind the stream is full.
pub fn print(bytes: &[u8]) -> Result<(), OutputError> {
    match write(bytes) {
        Err(error) if error.is_closed() => Ok(()),
        written => written,
    }
}

/// [`print`] for commands that end if nobody reads what they print.
///
/// # Errors
/// If the stream is closed, or its disk is full.
pub fn write(bytes: &[u8]) -> Result<(), OutputError> {
    let mut stream = io::stdout().lock();
    stream.write_all(bytes)?;
    Ok(stream.flush()?)
}

/// Whether standard output is a terminal.
pub(super) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// A name in a field of CSV: exact for programs, and escaped on a terminal, which would interpret control characters.
pub(super) fn csv_name(name: &str, on_terminal: bool) -> Cow<'_, str> {
    if on_terminal { printable(name) } else { Cow::Borrowed(name) }
}

/// Whether messages on standard error are JSON objects.
static JSON_MESSAGES: AtomicBool = AtomicBool::new(false);

/// From now on, every message on standard error is a JSON object on a line of its own.
pub(super) fn write_json_messages() {
    JSON_MESSAGES.store(true, Ordering::Relaxed);
}

/// Writes a message to standard error. A message that cannot be written is dropped, and the work goes on.
///
/// Messages may have names of files and classes from untrusted data sets. Characters that a terminal would interpret
/// are therefore escaped, except for line breaks.
pub(super) fn message(line: fmt::Arguments<'_>) {
    if JSON_MESSAGES.load(Ordering::Relaxed) {
        event(&Event::notice(line.to_string()));
    } else {
        write_message(&format!("{}\n", printable_lines(&line.to_string())));
    }
}

/// Writes an error to standard error.
pub(super) fn error(error: &str) {
    if JSON_MESSAGES.load(Ordering::Relaxed) {
        write_message(&format!("{}\n", json!({ "event": "error", "message": error })));
    } else {
        message(format_args!("error: {error}"));
    }
}

/// Writes an event to standard error as a JSON object.
pub(super) fn event(event: &Event) {
    if let Ok(object) = serde_json::to_string(event) {
        write_message(&format!("{object}\n"));
    }
}

/// Writes to standard error with one call, so that the lines of several threads or programs do not mix.
fn write_message(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Writes formatted text to standard output: [`print`], with the arguments of `print!`.
macro_rules! out {
    ($($text:tt)*) => { $crate::cli::output::print(format!($($text)*).as_bytes()) };
}

/// Writes a line to standard output: [`print`], with the arguments of `println!`.
macro_rules! outln {
    () => { $crate::cli::output::print(b"\n") };
    ($($text:tt)*) => { $crate::cli::output::print(format!("{}\n", format_args!($($text)*)).as_bytes()) };
}

/// Writes a line to standard error, or drops it if that fails: [`message`], with the arguments of `eprintln!`.
macro_rules! note {
    ($($text:tt)*) => { $crate::cli::output::message(format_args!($($text)*)) };
}

pub(crate) use {note, out, outln};
