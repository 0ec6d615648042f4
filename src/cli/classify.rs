//! `vitrine classify`: what is in these pictures.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use vitrine_datasets::{Picture, is_image_name};
use walkdir::WalkDir;

use super::{DeviceArgs, Status, ThreadArgs};
use crate::Classifier;
use crate::output::{self, note};

/// Classify pictures.
///
/// Results come in the order of the input, as soon as they are there. A picture that cannot be read gives a message
/// on standard error and status 1 at the end; it never stops the others.
#[derive(Args)]
#[command(after_help = "Examples:\n  vitrine classify model.safetensors cat.jpg photos/ '*.png'\n  \
    find . -name '*.jpg' | vitrine classify model.safetensors - --format jsonl")]
pub(super) struct Classify {
    /// Model file or run folder.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Pictures, folders (searched with all below), glob patterns, or - for a list of paths on standard input.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// How many classes to name for each picture.
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    top: u32,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Call a picture unknown when the best class has a lower probability than this.
    #[arg(long, value_name = "P", value_parser = probability)]
    threshold: Option<f64>,
    /// Add the logits of all classes (with --format jsonl).
    #[arg(long)]
    logits: bool,
    /// Pictures a forward pass.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// `path: label 97.1%, other 1.8%`
    Text,
    /// One JSON object a line.
    Jsonl,
    /// path,rank,label,index,probability
    Csv,
}

#[derive(Serialize)]
struct Prediction<'a> {
    label: &'a str,
    index: usize,
    probability: f64,
}

#[derive(Serialize)]
struct Line<'a> {
    path: &'a str,
    predictions: &'a [Prediction<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    logits: Option<&'a [f32]>,
}

#[derive(Serialize)]
struct ErrorLine<'a> {
    path: &'a str,
    error: &'a str,
}

impl Classify {
    pub(super) fn run(&self) -> Result<Status> {
        if self.logits && self.format != Format::Jsonl {
            bail!("--logits has an effect with --format jsonl alone");
        }
        self.threads.apply()?;
        let device = self.device.select()?;
        let classifier = Classifier::load(&self.model, &device.device)?;
        let mut output = Output::new(self, &classifier)?;
        let mut batch = Vec::with_capacity(self.batch_size as usize);
        let mut status = Status::Done;
        for input in self.inputs() {
            match input {
                Ok(path) => batch.push(path),
                Err(error) => {
                    // What waits comes first: results keep the order of the input.
                    status = worse(status, output.classify(&mut batch)?);
                    output.fail(&error.path, &error.message)?;
                    status = worse(status, Status::Partial);
                }
            }
            if batch.len() == self.batch_size as usize {
                status = worse(status, output.classify(&mut batch)?);
            }
        }
        status = worse(status, output.classify(&mut batch)?);
        output.flush()?;
        Ok(status)
    }

    /// Every picture that the arguments mean, found while earlier ones are classified.
    fn inputs(&self) -> impl Iterator<Item = Result<PathBuf, Unreadable>> {
        self.paths.iter().flat_map(|path| -> Box<dyn Iterator<Item = _>> {
            if path == Path::new("-") {
                Box::new(
                    io::stdin()
                        .lock()
                        .lines()
                        .filter(|line| line.as_ref().is_ok_and(|l| !l.is_empty()) || line.is_err())
                        .map(|line| {
                            line.map(PathBuf::from)
                                .map_err(|error| Unreadable::new(Path::new("-"), error.to_string()))
                        }),
                )
            } else if path.is_dir() {
                Box::new(folder(path))
            } else if path.exists() {
                Box::new(std::iter::once(Ok(path.clone())))
            } else {
                Box::new(pattern(path))
            }
        })
    }
}

/// An input that is no picture, and why.
struct Unreadable {
    path: String,
    message: String,
}

impl Unreadable {
    fn new(path: &Path, message: impl Into<String>) -> Self {
        Self { path: path.display().to_string(), message: message.into() }
    }
}

fn folder(root: &Path) -> impl Iterator<Item = Result<PathBuf, Unreadable>> + use<> {
    let named = root.to_owned();
    let mut files = WalkDir::new(root)
        .sort_by_file_name()
        .into_iter()
        .filter_map(move |entry| match entry {
            Ok(entry) if entry.file_type().is_file() && is_image(entry.path()) => Some(Ok(entry.into_path())),
            Ok(_) => None,
            Err(error) => {
                let path = error.path().unwrap_or(&named).to_owned();
                Some(Err(Unreadable::new(&path, error.to_string())))
            }
        })
        .peekable();
    let empty = files.peek().is_none().then(|| Err(Unreadable::new(root, "the folder holds no pictures")));
    files.chain(empty)
}

fn is_image(path: &Path) -> bool {
    path.file_name().is_some_and(|name| is_image_name(&name.to_string_lossy()))
}

fn pattern(path: &Path) -> Box<dyn Iterator<Item = Result<PathBuf, Unreadable>>> {
    let missing = |message: &str| -> Box<dyn Iterator<Item = _>> {
        Box::new(std::iter::once(Err(Unreadable::new(path, message))))
    };
    let Some(text) = path.to_str().filter(|text| text.contains(['*', '?', '['])) else {
        return missing("no such file or folder");
    };
    match glob::glob(text) {
        Err(error) => missing(&format!("not a valid pattern: {error}")),
        Ok(matches) => {
            let mut matches = matches
                .filter(|path| path.as_ref().map_or(true, |path| path.is_file()))
                .map(|path| path.map_err(|error| Unreadable::new(error.path(), error.error().to_string())))
                .peekable();
            if matches.peek().is_none() { missing("no file matches the pattern") } else { Box::new(matches) }
        }
    }
}

fn worse(a: Status, b: Status) -> Status {
    if a == Status::Partial { a } else { b }
}

/// Where results go, in which form.
struct Output<'a> {
    options: &'a Classify,
    classifier: &'a Classifier,
    /// What waits to be written.
    out: Vec<u8>,
}

impl<'a> Output<'a> {
    fn new(options: &'a Classify, classifier: &'a Classifier) -> Result<Self> {
        let mut out = Vec::new();
        if options.format == Format::Csv {
            writeln!(out, "path,rank,label,index,probability")?;
        }
        Ok(Self { options, classifier, out })
    }

    /// Classifies what waits and prints it.
    fn classify(&mut self, paths: &mut Vec<PathBuf>) -> Result<Status> {
        if paths.is_empty() {
            return Ok(Status::Done);
        }
        let pictures: Vec<Picture> = paths.iter().cloned().map(Picture::File).collect();
        let mut status = Status::Done;
        for (path, result) in paths.drain(..).zip(self.classifier.classify(&pictures)) {
            let path = path.display().to_string();
            match result {
                Ok(logits) => self.print(&path, &logits)?,
                Err(error) => {
                    self.fail(&path, &error.to_string())?;
                    status = Status::Partial;
                }
            }
        }
        self.flush()?;
        Ok(status)
    }

    fn print(&mut self, path: &str, logits: &[f32]) -> Result<()> {
        let predictions = self.predictions(logits);
        let out = &mut self.out;
        match self.options.format {
            Format::Text => {
                let named: Vec<String> = predictions
                    .iter()
                    .map(|p| format!("{} {:.1}%", p.label, 100.0 * p.probability))
                    .collect();
                writeln!(out, "{path}: {}", named.join(", "))?;
            }
            Format::Jsonl => {
                let line =
                    Line { path, predictions: &predictions, logits: self.options.logits.then_some(logits) };
                writeln!(out, "{}", serde_json::to_string(&line)?)?;
            }
            Format::Csv => {
                let mut writer = csv::Writer::from_writer(Vec::new());
                for (rank, p) in predictions.iter().enumerate() {
                    writer.serialize((path, rank + 1, p.label, p.index, p.probability))?;
                }
                out.write_all(&writer.into_inner().map_err(|error| anyhow!("{error}"))?)?;
            }
        }
        Ok(())
    }

    /// The best classes; below the threshold the first one is called unknown.
    fn predictions(&self, logits: &[f32]) -> Vec<Prediction<'a>> {
        let probabilities = softmax(logits);
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
        let classes = &self.classifier.card().classes;
        let unsure = |p: f64| self.options.threshold.is_some_and(|threshold| p < threshold);
        order
            .into_iter()
            .take(self.options.top as usize)
            .enumerate()
            .map(|(rank, index)| Prediction {
                label: if rank == 0 && unsure(probabilities[index]) { "unknown" } else { &classes[index] },
                index,
                probability: probabilities[index],
            })
            .collect()
    }

    fn fail(&mut self, path: &str, message: &str) -> Result<()> {
        let message = message.strip_prefix(&format!("{path}: ")).unwrap_or(message);
        if self.options.format == Format::Jsonl {
            writeln!(self.out, "{}", serde_json::to_string(&ErrorLine { path, error: message })?)?;
        }
        note!("error: {path}: {message}");
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(output::write(&std::mem::take(&mut self.out))?)
    }
}

/// Probabilities of logits, computed so that large ones do not overflow.
fn softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|&logit| f64::from(logit - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

fn probability(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("a number from 0 to 1 is needed".to_owned()),
    }
}
