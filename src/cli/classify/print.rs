//! The output of `vitrine classify` in each format.

use std::io::Write;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use serde::Serialize;

use crate::cli::output::{self, note};
use crate::predict::{Prediction, rank};
use crate::text::printable;

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// `path: label 97.1%, other 1.8%`
    Text,
    /// One JSON object per line.
    Jsonl,
    /// path,rank,label,index,probability
    Csv,
}

/// The parts of a result that are printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrintOptions {
    /// Number of the most probable classes.
    pub(super) top: usize,
    /// Probability below which the best class is called unknown.
    pub(super) threshold: Option<f64>,
    /// Whether the logits of all classes are added.
    pub(super) logits: bool,
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
    classes: &'a [String],
    /// Formatted results that are not written yet.
    out: Vec<u8>,
}

impl<'a> Printer<'a> {
    /// A printer of results for a model with these class names, in the order of its logits.
    pub(super) fn new(format: Format, options: PrintOptions, classes: &'a [String]) -> Self {
        let header = if format == Format::Csv { "path,rank,label,index,probability\n" } else { "" };
        Self { format, options, classes, out: header.as_bytes().to_vec() }
    }

    /// Adds the result of one image. Names are exact in JSON. In text and CSV, control characters, which a terminal
    /// would interpret, are escaped.
    ///
    /// # Errors
    /// If the result cannot be formatted.
    pub(super) fn result(&mut self, path: &str, logits: &[f32]) -> Result<()> {
        let predictions = self.predictions(logits);
        let out = &mut self.out;
        match self.format {
            Format::Text => {
                let named: Vec<String> = predictions
                    .iter()
                    .map(|p| format!("{} {:.1}%", printable(&p.label), 100.0 * p.probability))
                    .collect();
                writeln!(out, "{}: {}", printable(path), named.join(", "))?;
            }
            Format::Jsonl => {
                let logits = self.options.logits.then_some(logits);
                let line = Line { path, predictions: &predictions, logits };
                writeln!(out, "{}", serde_json::to_string(&line)?)?;
            }
            Format::Csv => {
                let mut writer = csv::Writer::from_writer(Vec::new());
                for (rank, p) in predictions.iter().enumerate() {
                    writer.serialize((
                        printable(path),
                        rank + 1,
                        printable(&p.label),
                        p.index,
                        p.probability,
                    ))?;
                }
                out.write_all(&writer.into_inner().map_err(|error| anyhow!("{error}"))?)?;
            }
        }
        Ok(())
    }

    /// Reports an input that could not be processed: on standard error, and with JSON among the results, too.
    ///
    /// # Errors
    /// If the line cannot be formatted.
    pub(super) fn failure(&mut self, path: &str, message: &str) -> Result<()> {
        let message = message.strip_prefix(&format!("{path}: ")).unwrap_or(message);
        if self.format == Format::Jsonl {
            writeln!(self.out, "{}", serde_json::to_string(&ErrorLine { path, error: message })?)?;
        }
        note!("error: {}: {}", printable(path), printable(message));
        Ok(())
    }

    /// Writes the collected results.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub(super) fn flush(&mut self) -> Result<()> {
        Ok(output::write(&std::mem::take(&mut self.out))?)
    }

    /// The most probable classes. If the first is less probable than the threshold, its label is `unknown`.
    fn predictions(&self, logits: &[f32]) -> Vec<Prediction> {
        let mut ranked = rank(self.classes, logits, self.options.top);
        // A comparison with NaN has no order, so that a probability that is NaN does not reach the threshold.
        let reaches = |p: f64, threshold| matches!(p.partial_cmp(&threshold), Some(order) if order.is_ge());
        if let (Some(first), Some(threshold)) = (ranked.first_mut(), self.options.threshold)
            && !reaches(first.probability, threshold)
        {
            first.label = "unknown".to_owned();
        }
        ranked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output for one image with these logits, and two classes with control characters in their names.
    fn printed(format: Format, threshold: Option<f64>, logits: &[f32]) -> String {
        let classes = ["\u{1b}[31mred".to_owned(), "two\nlines".to_owned()];
        let options = PrintOptions { top: 2, threshold, logits: false };
        let mut printer = Printer::new(format, options, &classes);
        printer.result("a\u{7}.png", logits).unwrap();
        String::from_utf8(printer.out).unwrap()
    }

    #[test]
    fn control_characters_are_escaped_in_text_and_csv_and_exact_in_json() {
        let logits = [2.0, 0.0];
        assert_eq!(
            printed(Format::Text, None, &logits),
            "a\\u0007.png: \\u001b[31mred 88.1%, two\\nlines 11.9%\n"
        );
        let csv = printed(Format::Csv, None, &logits);
        assert!(csv.contains("a\\u0007.png,1,\\u001b[31mred,0,0.88"), "{csv}");
        assert_eq!(csv.lines().count(), 3);
        let json: serde_json::Value = serde_json::from_str(&printed(Format::Jsonl, None, &logits)).unwrap();
        assert_eq!(json["predictions"][1]["label"], "two\nlines");
        assert_eq!(json["path"], "a\u{7}.png");
    }

    #[test]
    fn below_the_threshold_the_class_is_unknown() {
        let text = |threshold, logits: &[f32]| printed(Format::Text, Some(threshold), logits);
        assert!(text(0.5, &[0.0, 0.0]).contains(": \\u001b[31mred 50.0%"), "the threshold itself suffices");
        assert!(text(0.51, &[0.0, 0.0]).contains(": unknown 50.0%"));
        assert!(text(0.5, &[f32::NAN, 0.0]).contains(": unknown NaN%"), "NaN does not reach the threshold");
    }
}
