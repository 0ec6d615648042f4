//! The output of `vitrine classify` in each format.

use std::io::Write;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use serde::Serialize;

use super::table::Table;
use crate::cli::output::{csv_name, note};
use crate::evaluate::MULTI_LABEL_THRESHOLD;
use crate::model_file::ModelCard;
use crate::predict::{Prediction, rank};
use crate::text::printable;

/// Number of classes that are named for an image of one class, by default.
const DEFAULT_TOP: usize = 5;

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// `path: label 97.1%, other 1.8%`
    Text,
    /// One JSON object per line.
    Jsonl,
    /// path,rank,label,index,probability; of an image without a label, the path alone (`path,,,,`)
    Csv,
    /// A row for each image, with the fields of jsonl (cargo feature `bulk`; with --output)
    Parquet,
}

impl Format {
    /// The extension of files in this format.
    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::Text => "txt",
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
        }
    }
}

/// What is printed of a result, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrintOptions {
    /// Number of the most probable classes; `None` for 5, or for all if an image has several labels.
    pub(super) top: Option<usize>,
    /// Probability below which the best class is called unknown, or with several labels an image is left out.
    pub(super) threshold: Option<f64>,
    /// Whether the logits of all classes are added.
    pub(super) logits: bool,
    /// Whether a terminal shows the results.
    pub(super) on_terminal: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    path: &'a str,
    predictions: &'a [Prediction],
    #[serde(skip_serializing_if = "Option::is_none")]
    logits: Option<&'a [f32]>,
}

#[derive(Serialize)]
struct ErrorLine<'a> {
    path: &'a str,
    error: &'a str,
}

/// Formats results, and collects them until they are written to standard output.
pub(super) struct Printer<'a> {
    format: Format,
    options: PrintOptions,
    card: &'a ModelCard,
    /// Formatted results that are not written yet.
    out: Vec<u8>,
    /// The rows that are no lines of text.
    table: Option<Table>,
}

impl<'a> Printer<'a> {
    /// A printer of results for a model with this card.
    ///
    /// # Errors
    /// If the program was built without this format.
    pub(super) fn new(format: Format, options: PrintOptions, card: &'a ModelCard) -> Result<Self> {
        let header = if format == Format::Csv { "path,rank,label,index,probability\n" } else { "" };
        let table = (format == Format::Parquet).then(|| Table::new(options.logits)).transpose()?;
        Ok(Self { format, options, card, out: header.as_bytes().to_vec(), table })
    }

    /// Adds the result of one image. Names are exact in JSON and CSV. In text, and in CSV on a terminal, control
    /// characters, which a terminal would interpret, are escaped.
    ///
    /// # Errors
    /// If the result cannot be formatted.
    pub(super) fn result(&mut self, path: &str, logits: &[f32]) -> Result<()> {
        let predictions = self.predictions(logits);
        if let Some(table) = &mut self.table {
            return table.result(path, predictions, logits);
        }
        let out = &mut self.out;
        match self.format {
            Format::Parquet => {}
            Format::Text => {
                let named: Vec<String> = predictions
                    .iter()
                    .map(|p| format!("{} {:.1}%", printable(&p.label), 100.0 * p.probability))
                    .collect();
                let named = if named.is_empty() { "none".to_owned() } else { named.join(", ") };
                writeln!(out, "{}: {named}", printable(path))?;
            }
            Format::Jsonl => {
                let logits = self.options.logits.then_some(logits);
                let line = Line { path, predictions: &predictions, logits };
                writeln!(out, "{}", serde_json::to_string(&line)?)?;
            }
            Format::Csv => {
                let mut writer = csv::Writer::from_writer(Vec::new());
                let on_terminal = self.options.on_terminal;
                let path = csv_name(path, on_terminal);
                for (rank, p) in predictions.iter().enumerate() {
                    let label = csv_name(&p.label, on_terminal);
                    writer.serialize((&path, rank + 1, label, p.index, p.probability))?;
                }
                if predictions.is_empty() {
                    writer.write_record([&*path, "", "", "", ""])?;
                }
                out.write_all(&writer.into_inner().map_err(|error| anyhow!("{error}"))?)?;
            }
        }
        Ok(())
    }

    /// Reports an input that could not be processed: on standard error, and with JSON and Parquet among the results, too.
    ///
    /// # Errors
    /// If the line cannot be formatted.
    pub(super) fn failure(&mut self, path: &str, message: &str) -> Result<()> {
        let message = message.strip_prefix(&format!("{path}: ")).unwrap_or(message);
        if let Some(table) = &mut self.table {
            table.failure(path, message)?;
        }
        if self.format == Format::Jsonl {
            writeln!(self.out, "{}", serde_json::to_string(&ErrorLine { path, error: message })?)?;
        }
        note!("error: {}: {}", printable(path), printable(message));
        Ok(())
    }

    /// The results that were formatted since the last call.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.table.as_mut().map_or_else(|| std::mem::take(&mut self.out), Table::take)
    }

    /// The last formatted results.
    ///
    /// # Errors
    /// If they cannot be formatted.
    pub(super) fn finish(self) -> Result<Vec<u8>> {
        self.table.map_or(Ok(self.out), Table::finish)
    }

    /// The most probable classes. If the first is less probable than the threshold, its label is `unknown`. With several
    /// labels an image, only those that reach the threshold.
    fn predictions(&self, logits: &[f32]) -> Vec<Prediction> {
        let PrintOptions { top, threshold, .. } = self.options;
        if self.card.multi_label {
            let threshold = threshold.unwrap_or(f64::from(MULTI_LABEL_THRESHOLD));
            let mut ranked = rank(self.card, logits, top.unwrap_or(logits.len()));
            ranked.retain(|prediction| prediction.probability >= threshold);
            return ranked;
        }
        let mut ranked = rank(self.card, logits, top.unwrap_or(DEFAULT_TOP));
        // A comparison with NaN has no order, so that a probability that is NaN does not reach the threshold.
        let reaches = |p: f64, threshold| matches!(p.partial_cmp(&threshold), Some(order) if order.is_ge());
        if let (Some(first), Some(threshold)) = (ranked.first_mut(), threshold)
            && !reaches(first.probability, threshold)
        {
            first.label = "unknown".to_owned();
        }
        ranked
    }
}

#[cfg(test)]
mod tests {
    use vitrine_datasets::{CropRounding, Interpolation, Preprocessing, ResizeRule};

    use super::*;

    /// The output for one image with these logits, and two classes with control characters in their names.
    fn printed(format: Format, threshold: Option<f64>, logits: &[f32]) -> String {
        printed_by(&interpreted(), format, threshold, logits)
    }

    /// A model of two classes with control characters in their names.
    fn interpreted() -> ModelCard {
        let classes = vec!["\u{1b}[31mred".to_owned(), "two\nlines".to_owned()];
        let model = vitrine_models::preset::find("vit_pico_patch4_32").unwrap().with_num_classes(2);
        ModelCard::new(model, classes, preprocessing())
    }

    fn preprocessing() -> Preprocessing {
        Preprocessing {
            image_size: [32, 32],
            channels: 3,
            resize: ResizeRule::Squash,
            interpolation: Interpolation::Bicubic,
            mean: vec![0.5; 3],
            std: vec![0.5; 3],
            crop_rounding: CropRounding::default(),
        }
    }

    /// The output for one image of a model with this card.
    fn printed_by(card: &ModelCard, format: Format, threshold: Option<f64>, logits: &[f32]) -> String {
        printed_with(card, format, PrintOptions { threshold, ..OPTIONS }, logits)
    }

    const OPTIONS: PrintOptions =
        PrintOptions { top: Some(2), threshold: None, logits: false, on_terminal: false };

    fn printed_with(card: &ModelCard, format: Format, options: PrintOptions, logits: &[f32]) -> String {
        let mut printer = Printer::new(format, options, card).unwrap();
        printer.result("a\u{7}.png", logits).unwrap();
        String::from_utf8(printer.out).unwrap()
    }

    #[test]
    fn control_characters_are_escaped_in_text_and_exact_in_json_and_csv() {
        let logits = [2.0, 0.0];
        assert_eq!(
            printed(Format::Text, None, &logits),
            "a\\u0007.png: \\u001b[31mred 88.1%, two\\nlines 11.9%\n"
        );
        let csv = printed(Format::Csv, None, &logits);
        let rows: Vec<csv::StringRecord> =
            csv::Reader::from_reader(csv.as_bytes()).records().map(Result::unwrap).collect();
        let named: Vec<[&str; 3]> = rows.iter().map(|row| [&row[0], &row[1], &row[2]]).collect();
        assert_eq!(named, [["a\u{7}.png", "1", "\u{1b}[31mred"], ["a\u{7}.png", "2", "two\nlines"]]);
        let json: serde_json::Value = serde_json::from_str(&printed(Format::Jsonl, None, &logits)).unwrap();
        assert_eq!(json["predictions"][1]["label"], "two\nlines");
        assert_eq!(json["path"], "a\u{7}.png");
    }

    #[test]
    fn csv_on_a_terminal_has_no_control_characters() {
        let options = PrintOptions { on_terminal: true, ..OPTIONS };
        let csv = printed_with(&interpreted(), Format::Csv, options, &[2.0, 0.0]);
        assert!(csv.contains("a\\u0007.png,1,\\u001b[31mred,0,0.88"), "{csv}");
        assert_eq!(csv.lines().count(), 3);
    }

    #[test]
    fn with_several_labels_those_that_reach_the_threshold_are_named() {
        let model = vitrine_models::preset::find("vit_pico_patch4_32").unwrap().with_num_classes(3);
        let classes = ["a", "b", "c"].map(str::to_owned).to_vec();
        let card = ModelCard::new(model, classes, preprocessing()).with_multi_label(true);
        let text = |threshold, logits: &[f32]| printed_by(&card, Format::Text, threshold, logits);
        assert_eq!(text(None, &[2.0, -1.0, 3.0]), "a\\u0007.png: c 95.3%, a 88.1%\n");
        assert_eq!(text(Some(0.9), &[2.0, -1.0, 3.0]), "a\\u0007.png: c 95.3%\n");
        assert_eq!(text(None, &[-2.0, -1.0, -3.0]), "a\\u0007.png: none\n");
        assert_eq!(text(Some(0.1), &[2.0, 1.0, 3.0]), "a\\u0007.png: c 95.3%, a 88.1%\n", "--top 2");
        let json = printed_by(&card, Format::Jsonl, None, &[-2.0, -1.0, -3.0]);
        assert!(json.ends_with("\"predictions\":[]}\n"), "{json}");
        let csv = printed_by(&card, Format::Csv, None, &[-2.0, -1.0, -3.0]);
        assert_eq!(csv.lines().nth(1), Some("a\u{7}.png,,,,"), "{csv}");
    }

    #[test]
    fn below_the_threshold_the_class_is_unknown() {
        let text = |threshold, logits: &[f32]| printed(Format::Text, Some(threshold), logits);
        assert!(text(0.5, &[0.0, 0.0]).contains(": \\u001b[31mred 50.0%"), "the threshold itself suffices");
        assert!(text(0.51, &[0.0, 0.0]).contains(": unknown 50.0%"));
        assert!(text(0.5, &[f32::NAN, 0.0]).contains(": unknown NaN%"), "NaN does not reach the threshold");
    }
}
