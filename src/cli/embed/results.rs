//! The results of `vitrine embed` so far: lines of text, and rows of an array.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, anyhow};
use serde::Serialize;

use crate::cli::output::{self, note};
use crate::embed::Embeddings;
use crate::files::AtomicFile;
use crate::flags::explained;
use crate::text::printable;

/// The embeddings so far.
pub(super) struct Results {
    /// Lines that are printed or written as they come.
    pub(super) lines: Option<Lines>,
    /// The rows, if they are needed at the end.
    pub(super) rows: Option<Embeddings>,
    /// The place of the image of each row in the order of the input, which has unreadable images, too.
    pub(super) places: Vec<usize>,
    /// The width of an embedding.
    pub(super) dim: usize,
    /// Number of images with an embedding.
    pub(super) count: usize,
    /// Number of images without one.
    pub(super) unreadable: usize,
}

impl Results {
    pub(super) fn new(lines: Option<Lines>, rows: Option<Embeddings>, dim: usize) -> Self {
        Self { lines, rows, places: Vec::new(), dim, count: 0, unreadable: 0 }
    }

    /// Adds the embedding of an image, or reports why there is none: on standard error, and in JSON lines, too.
    ///
    /// # Errors
    /// If a line cannot be formatted.
    pub(super) fn add(&mut self, path: &str, embedding: Result<Vec<f32>>) -> Result<()> {
        match embedding {
            Ok(embedding) => {
                let place = self.count + self.unreadable;
                self.count += 1;
                if let Some(lines) = &mut self.lines {
                    lines.embedding(path, &embedding)?;
                }
                if let Some(rows) = &mut self.rows {
                    rows.push(path.to_owned(), &embedding);
                    self.places.push(place);
                }
            }
            Err(error) => {
                self.unreadable += 1;
                let message = explained(&error);
                let message = message.strip_prefix(&format!("{path}: ")).unwrap_or(&message);
                if let Some(lines) = &mut self.lines {
                    lines.failure(path, message)?;
                }
                note!("error: {}: {}", printable(path), printable(message));
            }
        }
        Ok(())
    }

    /// Prints or writes the lines so far.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.lines.as_mut().map_or(Ok(()), Lines::flush)
    }
}

/// Lines of JSON or CSV, for standard output or a file.
pub(super) struct Lines {
    is_json: bool,
    /// Formatted lines that are not written yet.
    out: Vec<u8>,
    /// The file; `None` for standard output.
    file: Option<AtomicFile>,
}

#[derive(Serialize)]
struct Line<'a> {
    path: &'a str,
    embedding: &'a [f32],
}

#[derive(Serialize)]
struct ErrorLine<'a> {
    path: &'a str,
    error: &'a str,
}

impl Lines {
    /// Lines for `output`, or else for standard output. CSV begins with a header of `dim` columns after the path.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub(super) fn new(is_json: bool, dim: usize, output: Option<&Path>) -> Result<Self> {
        let file = output.map(AtomicFile::create).transpose()?;
        let columns = (0..dim).map(|place| format!(",e{place}"));
        let header = if is_json { String::new() } else { format!("path{}\n", columns.collect::<String>()) };
        Ok(Self { is_json, out: header.into_bytes(), file })
    }

    fn embedding(&mut self, path: &str, embedding: &[f32]) -> Result<()> {
        if self.is_json {
            serde_json::to_writer(&mut self.out, &Line { path, embedding })?;
            self.out.push(b'\n');
        } else {
            let mut writer = csv::Writer::from_writer(Vec::new());
            writer.serialize((printable(path), embedding))?;
            self.out.write_all(&writer.into_inner().map_err(|error| anyhow!("{error}"))?)?;
        }
        Ok(())
    }

    /// The line of an image that cannot be read. CSV has none.
    fn failure(&mut self, path: &str, error: &str) -> Result<()> {
        if self.is_json {
            serde_json::to_writer(&mut self.out, &ErrorLine { path, error })?;
            self.out.push(b'\n');
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let lines = std::mem::take(&mut self.out);
        match &mut self.file {
            Some(file) => file.write(&lines),
            None => Ok(output::write(&lines)?),
        }
    }

    /// Writes the last lines, and gives a file its name.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(super) fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.file.map_or(Ok(()), AtomicFile::finish)
    }
}
