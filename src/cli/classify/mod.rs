//! `vitrine classify`: the most probable classes of images.

mod batches;
mod folder;
mod print;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clap::Args;
use vitrine_datasets::{ImageSource, shown};

use self::batches::Batches;
use self::print::{Format, PrintOptions, Printer};
use super::console::Log;
use super::file_size::FileSizeArgs;
use super::{DeviceArgs, Status, ThreadArgs};
use crate::bounds;
use crate::cli::aliases;
use crate::cli::within::within;
use crate::events::{Event, EventSink};
use crate::flags::explained;
use crate::predict::{Asked, Classifier, Output, Views};
use crate::usage::usage;

/// Classify images.
///
/// Results come in the order of the input, as soon as they are available; a partial batch is run when no more input
/// arrives. An image that cannot be read gives a message on standard error and status 1 at the end; it never stops the
/// others.
#[derive(Args)]
#[command(after_help = "Examples:\n  vitrine classify model.safetensors cat.jpg photos/ '*.png'\n  \
    find . -name '*.jpg' | vitrine classify model.safetensors - --format jsonl\n  \
    find . -name '*.jpg' -print0 | vitrine classify model.safetensors -0 -")]
pub(super) struct Classify {
    /// Model file or run folder.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Images, folders (searched recursively), glob patterns, or - for a list of paths on standard input.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// How many classes to name for each image.
    #[arg(long, value_name = "K", default_value_t = 5, allow_negative_numbers = true, value_parser = within(bounds::TOP), aliases = aliases::TOP)]
    top: usize,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Call an image unknown when the best class has a lower probability than this.
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = within(bounds::SHARE))]
    threshold: Option<f64>,
    /// Add the logits of all classes (with --format jsonl).
    #[arg(long)]
    logits: bool,
    /// Test-time augmentation: average the logits of each image and its mirror image, which takes twice the time.
    #[arg(long)]
    tta: bool,
    /// Paths on standard input are separated by zero bytes, as `find -print0` writes them.
    #[arg(short = '0', long)]
    null: bool,
    /// Images per forward pass.
    #[arg(long, value_name = "N", default_value_t = 16, allow_negative_numbers = true, value_parser = within(bounds::BATCH_SIZE), aliases = aliases::BATCH_SIZE)]
    batch_size: usize,
    #[command(flatten)]
    file_size: FileSizeArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

impl Classify {
    pub(super) fn run(&self) -> Result<Status> {
        self.check()?;
        self.threads.apply()?;
        let log = Log::text();
        let device = self.device.select(&log)?;
        let views = if self.tta { Views::Mirrored } else { Views::One };
        let classifier = Classifier::load_on(&self.model, &device)?;
        if let Some(message) = views.check(classifier.card())? {
            log.emit(Event::notice(message));
        }
        let classifier = classifier.with_limits(self.file_size.limits()).with_views(views)?;
        let options = PrintOptions { top: self.top, threshold: self.threshold, logits: self.logits };
        let mut printer = Printer::new(self.format, options, &classifier.card().classes);
        let mut status = Status::Done;
        let batches = batches(&self.paths, self.batch_size, self.null)?;
        classifier.predictor().ask_stream(Output::Logits, batches, &log, |batch| {
            status = worse(status, print(batch, &mut printer)?);
            printer.flush()
        })?;
        printer.flush()?;
        Ok(status)
    }

    /// Refuses options that have no effect.
    fn check(&self) -> Result<()> {
        if self.logits && self.format != Format::Jsonl {
            usage!("--logits only works with --format jsonl");
        }
        let lists = self.paths.iter().filter(|path| *path == Path::new("-")).count();
        if self.null && lists == 0 {
            usage!("-0 says how the list on standard input is separated: it only works with the path -");
        }
        if lists > 1 {
            usage!("- is standard input: give it only once");
        }
        Ok(())
    }
}

/// Batches of the images that the arguments stand for, which a thread of its own lists.
fn batches(
    paths: &[PathBuf],
    size: usize,
    null: bool,
) -> Result<impl Iterator<Item = Vec<Asked<Input, ImageSource>>> + Send + 'static> {
    let (paths, separator) = (paths.to_vec(), if null { 0 } else { b'\n' });
    let asked = |input| match input {
        Ok(path) => Asked { tag: shown(&path), value: Ok(ImageSource::File(path)) },
        Err(Unreadable { path, message }) => Asked { tag: path, value: Err(anyhow!(message)) },
    };
    let batches = Batches::of(size, move || inputs(paths, separator))?;
    Ok(batches.map(move |batch| batch.into_iter().map(asked).collect()))
}

/// The name of an input, as messages and results show it.
type Input = String;

/// Prints the results of a batch, in order.
fn print(batch: Vec<Asked<Input, Vec<f32>>>, printer: &mut Printer) -> Result<Status> {
    let mut status = Status::Done;
    for Asked { tag: path, value } in batch {
        match value {
            Ok(logits) => printer.result(&path, &logits)?,
            Err(error) => {
                printer.failure(&path, &explained(&error))?;
                status = Status::Partial;
            }
        }
    }
    Ok(status)
}

/// The images that the arguments stand for: files, the images of folders, the matches of patterns, and the paths of a
/// list on standard input.
fn inputs(paths: Vec<PathBuf>, separator: u8) -> impl Iterator<Item = Result<PathBuf, Unreadable>> {
    paths.into_iter().flat_map(move |path| -> Box<dyn Iterator<Item = _>> {
        if path == Path::new("-") {
            let listed = batches::listed(io::stdin().lock(), separator);
            Box::new(listed.map(|path| path.map_err(|error| Unreadable::new(Path::new("-"), error))))
        } else if path.is_dir() {
            Box::new(folder(&path))
        } else if path.exists() {
            Box::new(std::iter::once(Ok(path)))
        } else {
            pattern(&path)
        }
    })
}

/// An input that cannot be classified, with the reason.
struct Unreadable {
    path: String,
    message: String,
}

impl Unreadable {
    fn new(path: &Path, message: impl Into<String>) -> Self {
        Self { path: shown(path), message: message.into() }
    }
}

fn folder(root: &Path) -> impl Iterator<Item = Result<PathBuf, Unreadable>> + use<> {
    folder::Folder::new(root).map(|image| image.map_err(|(path, message)| Unreadable::new(&path, message)))
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
