//! The results of `vitrine embed` so far: lines of text, and rows of an array.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, anyhow};
use serde::Serialize;

use super::Format;
use crate::cli::output::{self, csv_name, note};
use crate::embed::{Embeddings, HeaderPaths};
use crate::files::AtomicFile;
use crate::flags::explained;
use crate::parquet_file::{Column, Levels, ParquetFile, Values};
use crate::text::printable;

/// The embeddings so far.
pub(super) struct Results {
    /// Lines that are printed or written as they come.
    pub(super) lines: Option<Lines>,
    /// The rows, if they are needed at the end.
    pub(super) rows: Option<Embeddings>,
    /// Their paths, if a safetensors file is to be written.
    pub(super) header: Option<HeaderPaths>,
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
    pub(super) fn new(
        lines: Option<Lines>,
        rows: Option<Embeddings>,
        header: Option<HeaderPaths>,
        dim: usize,
    ) -> Self {
        Self { lines, rows, header, places: Vec::new(), dim, count: 0, unreadable: 0 }
    }

    /// Adds the embedding of an image, or reports why there is none: on standard error, and in JSON lines, too.
    ///
    /// # Errors
    /// If a line cannot be formatted, or the paths are too long for the file.
    pub(super) fn add(&mut self, path: &str, embedding: Result<Vec<f32>>) -> Result<()> {
        match embedding {
            Ok(embedding) => {
                let place = self.count + self.unreadable;
                self.count += 1;
                if let Some(lines) = &mut self.lines {
                    lines.embedding(path, &embedding)?;
                }
                if let Some(header) = &mut self.header {
                    header.add(path)?;
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

    /// Prints or writes the lines so far. If nobody reads them, the rows may still be needed.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(super) fn flush(&mut self) -> Result<()> {
        let flushed = self.lines.as_mut().map_or(Ok(()), Lines::flush);
        if self.rows.is_some() { output::unless_closed(flushed) } else { flushed }
    }
}

/// Lines of JSON or CSV, for standard output or a file, or rows of a Parquet file.
pub(super) struct Lines {
    form: Form,
    /// Formatted lines that are not written yet.
    out: Vec<u8>,
    /// The file; `None` for standard output.
    file: Option<AtomicFile>,
}

enum Form {
    Json,
    Csv {
        /// Whether a terminal shows the lines.
        on_terminal: bool,
    },
    Parquet(Box<Rows>),
}

/// Rows that are collected until they make a row group.
struct Rows {
    file: ParquetFile,
    paths: Vec<String>,
    values: Vec<f32>,
    embeddings: Levels,
}

/// The columns of a Parquet file.
const COLUMNS: &str = "message embeddings {
    required binary path (STRING);
    required group embedding (LIST) { repeated group list { required float element; } }
}";
/// The numbers of a row group.
const ROW_GROUP: usize = 4 << 20;

impl Rows {
    fn new() -> Result<Self> {
        let (paths, values, embeddings) = (Vec::new(), Vec::new(), Levels::default());
        Ok(Self { file: ParquetFile::new(COLUMNS)?, paths, values, embeddings })
    }

    fn add(&mut self, path: &str, embedding: &[f32]) -> Result<()> {
        self.paths.push(path.to_owned());
        self.values.extend_from_slice(embedding);
        self.embeddings.add_list(embedding.len());
        if self.values.len() >= ROW_GROUP { self.write() } else { Ok(()) }
    }

    /// Writes the rows so far.
    fn write(&mut self) -> Result<()> {
        if self.paths.is_empty() {
            return Ok(());
        }
        let paths = Column { values: Values::Text(&self.paths), levels: None };
        let embeddings = Column { values: Values::Floats(&self.values), levels: Some(&self.embeddings) };
        self.file.write(&[paths, embeddings])?;
        self.paths.clear();
        self.values.clear();
        self.embeddings.clear();
        Ok(())
    }
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
    /// Lines for `output`, or else for standard output, in one of the formats that are written as embeddings come. CSV begins with a
    /// header of `dim` columns after the path.
    ///
    /// # Errors
    /// If the file cannot be created, or the program was built without the format.
    pub(super) fn new(format: Format, dim: usize, output: Option<&Path>) -> Result<Self> {
        let columns = (0..dim).map(|place| format!(",e{place}"));
        let (form, header) = match format {
            Format::Csv => {
                let on_terminal = output.is_none() && output::is_terminal();
                (Form::Csv { on_terminal }, format!("path{}\n", columns.collect::<String>()))
            }
            Format::Parquet => (Form::Parquet(Box::new(Rows::new()?)), String::new()),
            Format::Jsonl | Format::Npy | Format::Safetensors => (Form::Json, String::new()),
        };
        let file = output.map(AtomicFile::create).transpose()?;
        Ok(Self { form, out: header.into_bytes(), file })
    }

    fn embedding(&mut self, path: &str, embedding: &[f32]) -> Result<()> {
        match &mut self.form {
            Form::Json => {
                serde_json::to_writer(&mut self.out, &Line { path, embedding })?;
                self.out.push(b'\n');
            }
            Form::Csv { on_terminal } => {
                let mut writer = csv::Writer::from_writer(Vec::new());
                writer.serialize((csv_name(path, *on_terminal), embedding))?;
                self.out.write_all(&writer.into_inner().map_err(|error| anyhow!("{error}"))?)?;
            }
            Form::Parquet(rows) => rows.add(path, embedding)?,
        }
        Ok(())
    }

    /// The line of an image that cannot be read. Only JSON has one.
    fn failure(&mut self, path: &str, error: &str) -> Result<()> {
        if matches!(self.form, Form::Json) {
            serde_json::to_writer(&mut self.out, &ErrorLine { path, error })?;
            self.out.push(b'\n');
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if let Form::Parquet(rows) = &mut self.form {
            self.out.append(&mut rows.file.take());
        }
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
        if let Form::Parquet(rows) = &mut self.form {
            rows.write()?;
        }
        self.flush()?;
        let Self { form, mut file, .. } = self;
        if let (Form::Parquet(rows), Some(file)) = (form, &mut file) {
            file.write(&rows.file.finish()?)?;
        }
        file.map_or(Ok(()), AtomicFile::finish)
    }
}
