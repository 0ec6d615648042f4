//! Results as rows of a Parquet file.

use anyhow::Result;

use crate::parquet_file::{Column, Levels, ParquetFile, Values};
use crate::predict::Prediction;

/// About as many bytes are collected for a row group.
const ROW_GROUP: usize = 16 << 20;

/// Rows that are collected until they make a row group: the same fields as a line of JSON.
pub(super) struct Table {
    file: ParquetFile,
    has_logits: bool,
    paths: Vec<String>,
    errors: Vec<String>,
    has_error: Levels,
    labels: Vec<String>,
    indices: Vec<i32>,
    probabilities: Vec<f64>,
    predictions: Levels,
    logits: Vec<f32>,
    logits_of: Levels,
    bytes: usize,
}

/// The columns; lists as readers of Arrow know them.
const COLUMNS: &str = "
    required binary path (STRING);
    optional binary error (STRING);
    required group predictions (LIST) {
        repeated group list {
            required group element {
                required binary label (STRING);
                required int32 index;
                required double probability;
            }
        }
    }";
const LOGITS: &str = "
    required group logits (LIST) { repeated group list { required float element; } }";

impl Table {
    /// A table, with the logits of all classes if they are wanted.
    ///
    /// # Errors
    /// If the program was built without Parquet.
    pub(super) fn new(has_logits: bool) -> Result<Self> {
        let logits = if has_logits { LOGITS } else { "" };
        Ok(Self {
            file: ParquetFile::new(&format!("message results {{{COLUMNS}{logits}\n}}"))?,
            has_logits,
            paths: Vec::new(),
            errors: Vec::new(),
            has_error: Levels::default(),
            labels: Vec::new(),
            indices: Vec::new(),
            probabilities: Vec::new(),
            predictions: Levels::default(),
            logits: Vec::new(),
            logits_of: Levels::default(),
            bytes: 0,
        })
    }

    /// Adds the row of an image.
    ///
    /// # Errors
    /// If a row group is full and cannot be formatted.
    pub(super) fn result(&mut self, path: &str, predictions: Vec<Prediction>, logits: &[f32]) -> Result<()> {
        let logits = if self.has_logits { logits } else { &[] };
        self.predictions.add_list(predictions.len());
        for Prediction { label, index, probability } in predictions {
            self.bytes += label.len() + 40;
            self.labels.push(label);
            self.indices.push(i32::try_from(index).unwrap_or(i32::MAX));
            self.probabilities.push(probability);
        }
        self.logits.extend_from_slice(logits);
        self.row(path, None, logits.len())
    }

    /// Adds the row of an image that cannot be read.
    ///
    /// # Errors
    /// As [`Self::result`].
    pub(super) fn failure(&mut self, path: &str, error: &str) -> Result<()> {
        self.predictions.add_list(0);
        self.row(path, Some(error), 0)
    }

    fn row(&mut self, path: &str, error: Option<&str>, logits: usize) -> Result<()> {
        self.paths.push(path.to_owned());
        self.errors.extend(error.map(str::to_owned));
        self.has_error.add_optional(error.is_some());
        self.logits_of.add_list(logits);
        self.bytes += path.len() + error.map_or(0, str::len) + 80 + 6 * logits;
        if self.bytes >= ROW_GROUP { self.row_group() } else { Ok(()) }
    }

    /// Writes the rows so far.
    fn row_group(&mut self) -> Result<()> {
        if self.paths.is_empty() {
            return Ok(());
        }
        let column = |values, levels| Column { values, levels };
        let lists = Some(&self.predictions);
        let mut columns = vec![
            column(Values::Text(&self.paths), None),
            column(Values::Text(&self.errors), Some(&self.has_error)),
            column(Values::Text(&self.labels), lists),
            column(Values::Integers(&self.indices), lists),
            column(Values::Doubles(&self.probabilities), lists),
        ];
        if self.has_logits {
            columns.push(column(Values::Floats(&self.logits), Some(&self.logits_of)));
        }
        self.file.write(&columns)?;
        [&mut self.paths, &mut self.errors, &mut self.labels].into_iter().for_each(Vec::clear);
        [&mut self.has_error, &mut self.predictions, &mut self.logits_of].into_iter().for_each(Levels::clear);
        self.indices.clear();
        self.probabilities.clear();
        self.logits.clear();
        self.bytes = 0;
        Ok(())
    }

    /// The bytes of the file since the last call.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.file.take()
    }

    /// The last bytes of the file.
    ///
    /// # Errors
    /// If they cannot be formatted.
    pub(super) fn finish(mut self) -> Result<Vec<u8>> {
        self.row_group()?;
        self.file.finish()
    }
}
