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
    label: String,
    split: Option<String>,
}

/// Reads a manifest. Paths are relative to its folder. Without a `split` column, every row is a training sample.
///
/// # Errors
///
/// If a column is missing, a row has no label, or a word is not a split; the message names the line. A missing image
/// file is no error but an unreadable sample, unless all are missing.
pub(crate) fn read(manifest: &Path, format: ManifestFormat) -> Result<SourceData, DatasetError> {
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
    let folder = manifest.parent().unwrap_or(Path::new(""));
    let images: Result<Vec<LabeledImage>, DatasetError> =
        rows.into_iter().map(|row| labeled(manifest, folder, row)).collect();
    let images = images?;
    check_paths(manifest, &images)?;
    Ok(align(SourceKind::Manifest, images, LeftOut::default()))
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

/// The image of a row with its class and split.
fn labeled(manifest: &Path, folder: &Path, row: Row) -> Result<LabeledImage, DatasetError> {
    let problem = |problem| row_error(manifest, row.line, problem);
    if row.label.is_empty() {
        return Err(problem(format!("'{}' has no label", row.path)));
    }
    let split = match &row.split {
        None => Split::Train,
        Some(word) => word.parse().map_err(|error: UnknownSplit| problem(error.to_string()))?,
    };
    if row.path.is_empty() {
        return Err(problem("has no path".to_owned()));
    }
    Ok(LabeledImage { split, class: row.label, source: ImageSource::File(folder.join(row.path)) })
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
        row_error(manifest, line, error.to_string())
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
        add(manifest, &mut rows, Row { line, path: cell(path), label: cell(label), split: split.map(cell) })?;
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
    label: JsonLabel,
    split: Option<String>,
}

/// A label, as a name or a number.
#[derive(Deserialize)]
#[serde(untagged, expecting = "the label must be a string or a whole number")]
enum JsonLabel {
    Name(String),
    Number(i64),
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
            JsonLabel::Name(name) => name.trim().to_owned(),
            JsonLabel::Number(number) => number.to_string(),
        };
        add(manifest, &mut rows, Row { line, path: row.path, label, split: row.split })?;
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;
    use crate::source;

    /// A folder with four image files in `images/` and a manifest of the given name and content.
    fn folder(manifest: &str, content: &str) -> (TempDir, PathBuf) {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("images")).unwrap();
        for name in ["a", "b", "c", "d"] {
            fs::write(folder.path().join(format!("images/{name}.png")), name).unwrap();
        }
        let path = folder.path().join(manifest);
        fs::write(&path, content).unwrap();
        (folder, path)
    }

    #[test]
    fn the_three_formats_give_the_same_data_set() {
        let csv = "\u{feff}path, label,split\nimages/a.png,\"cat, tabby\",train\nimages/b.png,dog,train\n\
                   images/c.png,\"cat, tabby\",valid\nimages/d.png,dog,val\n";
        let tsv = "label\tpath\tsource\tsplit\ncat, tabby\timages/a.png\tx\ttrain\ndog\timages/b.png\t\ttrain\n\
                   cat, tabby\timages/c.png\ty\tval\ndog\timages/d.png\t\tvalidation\n";
        let jsonl = r#"{"path": "images/a.png", "label": "cat, tabby", "split": "train"}
            {"path": "images/b.png", "label": "dog", "split": "train", "other": 1}

            {"path": "images/c.png", "label": "cat, tabby", "split": "val"}
            {"path": "images/d.png", "label": "dog", "split": "Val"}"#;
        for (name, content) in [("list.csv", csv), ("list.TSV", tsv), ("list.jsonl", jsonl)] {
            let (folder, manifest) = folder(name, content);
            let found = source::read(&manifest).unwrap();
            assert_eq!(found.classes, ["cat, tabby", "dog"], "{name}");
            let labels =
                |samples: &[crate::Sample]| samples.iter().map(|sample| sample.label).collect::<Vec<_>>();
            assert_eq!((labels(&found.train), labels(&found.val)), (vec![0, 1], vec![0, 1]), "{name}");
            let ImageSource::File(path) = &found.val[1].source else { panic!("a manifest lists files") };
            assert_eq!(path, &folder.path().join("images/d.png"));
        }
    }

    #[test]
    fn labels_may_be_numbers_and_splits_may_be_absent() {
        let (_folder, manifest) = folder(
            "list.jsonl",
            "{\"path\":\"images/a.png\",\"label\":1}\n{\"path\":\"images/b.png\",\"label\":0}\n",
        );
        let found = source::read(&manifest).unwrap();
        assert_eq!(
            (found.classes, found.train.len(), found.val.len()),
            (vec!["0".to_owned(), "1".to_owned()], 2, 0)
        );
    }

    #[test]
    fn the_error_for_a_missing_column_explains_the_cause() {
        for (name, content, expected) in [
            ("list.csv", "path;label\nimages/a.png;cat\n", "separated by semicolons"),
            ("list.csv", "path\tlabel\nimages/a.png\tcat\n", "separated by tabs"),
            ("list.tsv", "path,label\nimages/a.png,cat\n", "separated by commas"),
            ("list.csv", "", "is empty"),
            ("list.csv", "file,label\nimages/a.png,cat\n", "no column 'path', only file, label"),
            ("list.csv", "path,label,Label\nimages/a.png,cat,dog\n", "two columns 'label'"),
        ] {
            let (_folder, manifest) = folder(name, content);
            let message = source::read(&manifest).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains(name), "{message}");
        }
    }

    #[test]
    fn a_missing_file_is_an_unreadable_sample() {
        let (_folder, manifest) = folder("list.csv", "path,label\nimages/a.png,cat\nimages/x.png,dog\n");
        let found = source::read(&manifest).unwrap();
        let limits = crate::DecodeLimits::default();
        let message = found.train[1].source.decode(&limits).unwrap_err().to_string();
        assert!(message.contains("x.png"), "{message}");
    }

    #[cfg(unix)]
    #[test]
    fn a_manifest_that_is_a_device_is_refused() {
        let folder = TempDir::new().unwrap();
        for name in ["list.csv", "list.jsonl"] {
            let manifest = folder.path().join(name);
            std::os::unix::fs::symlink("/dev/zero", &manifest).unwrap();
            let message = source::read(&manifest).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains("a device"), "{message}");
        }
    }

    #[test]
    fn a_manifest_may_have_only_a_test_split() {
        let (_folder, manifest) = folder("list.csv", "path,label,split\nimages/a.png,cat,test\n");
        let found = source::read(&manifest).unwrap();
        assert_eq!((found.classes, found.train.len(), found.test.len()), (vec!["cat".to_owned()], 0, 1));
    }

    /// Checks that each manifest (file name, content) gives an error with all the given parts.
    fn assert_errors(cases: &[(&str, &str, &[&str])]) {
        for (name, content, parts) in cases {
            let (_folder, manifest) = folder(name, content);
            let message = source::read(&manifest).unwrap_err().to_string();
            for part in *parts {
                assert!(message.contains(part), "{message} lacks {part}");
            }
        }
    }

    #[test]
    fn errors_name_the_line_and_the_problem() {
        assert_errors(&[
            (
                "list.csv",
                "file,label\nimages/a.png,cat\n",
                &["list.csv, line 1", "no column 'path'", "file, label"],
            ),
            ("list.csv", "path,class\nimages/a.png,cat\n", &["no column 'label'", "path, class"]),
            (
                "list.csv",
                "path,label\nimages/x.png,cat\nimages/y.png,dog\n",
                &["list.csv", "images/x.png", "relative to the manifest"],
            ),
            ("list.csv", "path,label\n,cat\n", &["line 2", "no path"]),
            ("list.csv", "path,label\nimages/a.png\n", &["list.csv, line 2"]),
            ("list.csv", "path,label\nimages/a.png,\n", &["line 2", "images/a.png", "no label"]),
            (
                "list.tsv",
                "path\tlabel\tsplit\nimages/a.png\tcat\tholdout\n",
                &["list.tsv, line 2", "'holdout'", "train, val or test"],
            ),
            ("list.csv", "path,label,split\nimages/a.png,cat,\n", &["line 2", "''", "train, val or test"]),
            ("list.csv", "path,label\n", &["list.csv", "no rows"]),
            ("list.csv", "", &["list.csv", "is empty"]),
        ]);
    }

    #[test]
    fn errors_in_json_lines_name_the_line_and_the_problem() {
        assert_errors(&[
            (
                "list.jsonl",
                "{\"path\":\"images/a.png\",\"label\":\"cat\"}\n\n{\"path\":1}\n",
                &["list.jsonl, line 3"],
            ),
            ("list.jsonl", "{\"path\":\"images/a.png\"}\n", &["line 1", "missing field `label`"]),
            (
                "list.jsonl",
                "{\"path\":\"images/a.png\",\"label\":1.5}\n",
                &["line 1", "string or a whole number"],
            ),
        ]);
    }
}
