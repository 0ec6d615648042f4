//! Reading a manifest: a table of image files with their labels and splits, as CSV, TSV, or JSON Lines.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;

use super::{LabeledImage, MAX_IMAGES, SourceData, align};
use crate::{DatasetError, ImageSource, LeftOut, SourceKind, Split, UnknownSplit, open_regular, shown};

/// Largest size of a manifest, in bytes.
const MAX_MANIFEST_BYTES: u64 = 512 << 20;

/// The file format of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManifestFormat {
    Csv,
    Tsv,
    JsonLines,
}

impl ManifestFormat {
    /// The format by the extension of a file name in lower case.
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name.rsplit_once('.')?.1 {
            "csv" => Some(Self::Csv),
            "tsv" => Some(Self::Tsv),
            "jsonl" => Some(Self::JsonLines),
            _ => None,
        }
    }
}

/// A row of a manifest.
struct Row {
    line: u64,
    path: String,
    label: LabelCell,
    split: Option<String>,
}

/// What a row has in place of a label.
enum LabelCell {
    /// A text, which is one label, or several with a separator between them.
    Text(String),
    /// An array of labels.
    Array(Vec<String>),
}

/// Reads a manifest. Paths are relative to its folder. Without a `split` column, every row is a training sample.
///
/// Images have several labels each if `separator` is stated, which separates labels in a text, or if a row has an array
/// of labels. An image then need not have any.
///
/// # Errors
///
/// If a separator has no effect, a column is missing, a row has no label, or a word is not a split; the message names the
/// line. A missing image file is no error but an unreadable sample, unless all are missing.
pub(crate) fn read(
    manifest: &Path,
    format: ManifestFormat,
    separator: Option<char>,
) -> Result<SourceData, DatasetError> {
    let rows = match format {
        ManifestFormat::Csv => read_table(manifest, b',')?,
        ManifestFormat::Tsv => read_table(manifest, b'\t')?,
        ManifestFormat::JsonLines => read_json_lines(manifest)?,
    };
    if rows.is_empty() {
        return Err(DatasetError::layout(
            manifest,
            "has no rows: write one per image, with 'path' and 'label'",
        ));
    }
    if separator.is_some() && rows.iter().all(|row| matches!(row.label, LabelCell::Array(_))) {
        let reason = "all its labels are in arrays, which need none";
        return Err(DatasetError::LabelSeparator { data: shown(manifest), reason });
    }
    let folder = manifest.parent().unwrap_or(Path::new(""));
    let multi_label = separator.is_some() || rows.iter().any(|row| matches!(row.label, LabelCell::Array(_)));
    let separator = SeparatedLabels { multi_label, separator };
    let images: Result<Vec<LabeledImage>, DatasetError> =
        rows.into_iter().map(|row| labeled(manifest, folder, row, separator)).collect();
    let images = images?;
    check_paths(manifest, &images)?;
    Ok(SourceData { multi_label, ..align(SourceKind::Manifest, images, LeftOut::default()) })
}

/// How many labels an image has, and how they are separated in a text.
#[derive(Clone, Copy)]
struct SeparatedLabels {
    multi_label: bool,
    separator: Option<char>,
}

impl SeparatedLabels {
    /// The labels in the cell of a row whose image is `path`.
    fn labels(self, cell: LabelCell, path: &str) -> Result<Vec<String>, String> {
        let labels = match (cell, self.separator) {
            (LabelCell::Array(labels), _) => labels,
            (LabelCell::Text(text), _) if self.multi_label && text.is_empty() => Vec::new(),
            (LabelCell::Text(text), Some(separator)) => {
                let labels = text.split(separator).map(|label| label.trim().to_owned());
                labels.filter(|label| !(label.is_empty() && separator.is_whitespace())).collect()
            }
            (LabelCell::Text(text), None) => vec![text],
        };
        match labels.iter().any(String::is_empty) {
            true if self.multi_label => Err(format!("one of the labels of '{path}' is empty")),
            true => Err(format!("'{path}' has no label")),
            false => Ok(labels),
        }
    }
}

/// Checks that at least one of the files exists. If none does, the paths are probably relative to another folder.
fn check_paths(manifest: &Path, images: &[LabeledImage]) -> Result<(), DatasetError> {
    let files = || images.iter().filter_map(|labeled| labeled.source.path());
    match files().next() {
        Some(first) if !files().any(Path::exists) => {
            let problem = format!(
                "none of its files exists, the first one being {}: paths are relative to the manifest",
                shown(first)
            );
            Err(DatasetError::layout(manifest, problem))
        }
        _ => Ok(()),
    }
}

/// The image of a row with its classes and split.
fn labeled(
    manifest: &Path,
    folder: &Path,
    row: Row,
    separated: SeparatedLabels,
) -> Result<LabeledImage, DatasetError> {
    let problem = |problem| row_error(manifest, row.line, problem);
    let classes = separated.labels(row.label, &row.path).map_err(problem)?;
    let split = match &row.split {
        None => Split::Train,
        Some(word) => word.parse().map_err(|error: UnknownSplit| problem(error.to_string()))?,
    };
    if row.path.is_empty() {
        return Err(problem("has no path".to_owned()));
    }
    Ok(LabeledImage { split, classes, source: ImageSource::File(folder.join(row.path)) })
}

fn row_error(manifest: &Path, line: u64, problem: String) -> DatasetError {
    DatasetError::Manifest { path: manifest.to_owned(), line, problem }
}

/// Opens the manifest, which must be a regular file.
fn open(manifest: &Path) -> Result<File, DatasetError> {
    let opened = open_regular(manifest, MAX_MANIFEST_BYTES);
    Ok(opened.map_err(|fault| DatasetError::layout(manifest, fault.to_string()))?.0)
}

/// Adds a row, up to the largest number of images.
fn add(manifest: &Path, rows: &mut Vec<Row>, row: Row) -> Result<(), DatasetError> {
    if rows.len() >= MAX_IMAGES {
        return Err(row_error(manifest, row.line, format!("a data set has at most {MAX_IMAGES} images")));
    }
    rows.push(row);
    Ok(())
}

/// Reads the rows of a CSV or TSV file.
fn read_table(manifest: &Path, delimiter: u8) -> Result<Vec<Row>, DatasetError> {
    let file = open(manifest)?;
    let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).trim(csv::Trim::All).from_reader(file);
    let broken = |error: csv::Error| {
        let line = error.position().map_or(1, csv::Position::line);
        let problem = match error.kind() {
            csv::ErrorKind::Utf8 { .. } => "is not UTF-8: save the file as UTF-8".to_owned(),
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                format!("has {len} cells, but the first line has {expected_len} columns")
            }
            _ => error.to_string(),
        };
        row_error(manifest, line, problem)
    };
    let headers = reader.headers().map_err(broken)?.clone();
    let column = |name: &str| column(&headers, name).map_err(|problem| row_error(manifest, 1, problem));
    let required = |name: &str| {
        column(name)?.ok_or_else(|| row_error(manifest, 1, without_column(name, &headers, delimiter)))
    };
    let (path, label, split) = (required("path")?, required("label")?, column("split")?);
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(broken)?;
        let cell = |column: usize| record.get(column).unwrap_or_default().to_owned();
        let line = record.position().map_or(1, csv::Position::line);
        let label = LabelCell::Text(cell(label));
        add(manifest, &mut rows, Row { line, path: cell(path), label, split: split.map(cell) })?;
    }
    Ok(rows)
}

/// The index of the column of this name, if there is one.
fn column(headers: &csv::StringRecord, name: &str) -> Result<Option<usize>, String> {
    let mut places = (0..headers.len()).filter(|&place| headers[place].eq_ignore_ascii_case(name));
    match (places.next(), places.next()) {
        (_, Some(_)) => Err(format!("has two columns '{name}': remove one of them")),
        (place, None) => Ok(place),
    }
}

/// The error message for a table without the column `name`.
fn without_column(name: &str, headers: &csv::StringRecord, delimiter: u8) -> String {
    if headers.is_empty() {
        return "is empty: it needs a first line with the columns path and label".to_owned();
    }
    let other = [(';', "semicolons"), ('\t', "tabs"), (',', "commas")].into_iter().find(|(other, _)| {
        headers.len() == 1 && *other != char::from(delimiter) && headers[0].contains(*other)
    });
    if let Some((_, others)) = other {
        let (wanted, ending) =
            if delimiter == b',' { ("commas", ".tsv with tabs") } else { ("tabs", ".csv with commas") };
        return format!("its columns are separated by {others}: use {wanted}, or save it as {ending}");
    }
    let found: Vec<&str> = headers.iter().collect();
    format!("has no column '{name}', only {}: name the columns path, label and split", found.join(", "))
}

/// A line of a JSON Lines manifest. Other keys are ignored.
#[derive(Deserialize)]
struct JsonRow {
    path: String,
    #[serde(alias = "labels")]
    label: JsonLabels,
    split: Option<String>,
}

/// A label, or any number of them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "the label must be a string, a whole number, or an array of these")]
enum JsonLabels {
    One(JsonLabel),
    Array(Vec<JsonLabel>),
}

/// A label, as a name or a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum JsonLabel {
    Name(String),
    Number(i64),
}

impl JsonLabel {
    /// The name of the class.
    fn name(self) -> String {
        match self {
            Self::Name(name) => name.trim().to_owned(),
            Self::Number(number) => number.to_string(),
        }
    }
}

/// Reads the rows of a JSON Lines file.
fn read_json_lines(manifest: &Path) -> Result<Vec<Row>, DatasetError> {
    let file = BufReader::new(open(manifest)?);
    let mut rows = Vec::new();
    for (line, text) in (1..).zip(file.lines()) {
        let text = text.map_err(|error| row_error(manifest, line, error.to_string()))?;
        let text = text.trim_start_matches('\u{feff}').trim();
        if text.is_empty() {
            continue;
        }
        let row: JsonRow = serde_json::from_str(text).map_err(|error| {
            row_error(manifest, line, format!("{error}; write {{\"path\": \"a.png\", \"label\": \"cat\"}}"))
        })?;
        let label = match row.label {
            JsonLabels::One(label) => LabelCell::Text(label.name()),
            JsonLabels::Array(labels) => LabelCell::Array(labels.into_iter().map(JsonLabel::name).collect()),
        };
        add(manifest, &mut rows, Row { line, path: row.path, label, split: row.split })?;
    }
    Ok(rows)
}

#[cfg(test)]
mod tests;
