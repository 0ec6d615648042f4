//! `vitrine classify`: the most probable classes of images.

mod destination;
mod print;
mod table;

use std::fmt;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use self::destination::{Destination, DestinationArgs, Job, Target};
use self::print::{Format, PrintOptions, Printer};
use self::table::Table;
use super::Status;
use super::inputs::{Incomplete, Input, InputArgs, Shard};
use super::model::{ForwardArgs, ModelArgs};
use super::views::{ViewArgs, option};
use crate::bounds;
use crate::cli::aliases;
use crate::cli::output::{self, note};
use crate::cli::within::within;
use crate::events::{Event, EventSink};
use crate::flags::explained;
use crate::model_file;
use crate::predict::{Asked, Output, Views};
use crate::store::Unavailable;
use crate::text::count;
use crate::usage::usage;

/// Classify images.
///
/// Results come in the order of the input, as soon as they are available; a partial batch is run when no more input
/// arrives. An image that cannot be read gives a message on standard error and status 1 at the end; it never stops the
/// others.
///
/// Many images are classified by several machines or processes, each with a --shard of them and the same folder as --output. A part is
/// written whole or not at all, and left alone if it is there, so that a job that failed is simply run again.
#[derive(Args)]
#[command(after_help = "Examples:\n  vitrine classify model.safetensors cat.jpg photos/ '*.png'\n  \
    find . -name '*.jpg' | vitrine classify model.safetensors - --format jsonl\n  \
    find . -name '*.jpg' -print0 | vitrine classify model.safetensors -0 -\n  \
    vitrine classify model.safetensors photos/ --format jsonl --shard 3/16 --output results/\n  \
    vitrine classify model.safetensors s3://bucket/photos/ --format parquet --shard auto --output s3://bucket/results/")]
pub(super) struct Classify {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    inputs: InputArgs,
    /// How many classes to name for each image, at most; by default 5, or all that reach the threshold if the model gives
    /// an image several labels.
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = within(bounds::TOP), aliases = aliases::TOP)]
    top: Option<usize>,
    /// Output format; by default the one that the name of --output says, or text.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Call an image unknown when the best class has a lower probability than this. If the model gives an image several
    /// labels: name the classes with at least this probability, by default 0.5.
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = within(bounds::SHARE))]
    threshold: Option<f64>,
    /// Add the logits of all classes (with --format jsonl or parquet).
    #[arg(long)]
    logits: bool,
    #[command(flatten)]
    destination: DestinationArgs,
    #[command(flatten)]
    views: ViewArgs,
    #[command(flatten)]
    forward: ForwardArgs,
}

impl Classify {
    pub(super) fn run(&self) -> Result<Status> {
        let format = self.checked_format()?;
        let shard = self.destination.shard()?;
        let (log, device) = self.forward.begin()?;
        let (classifier, files) = self.model.classifier(&device, &log)?;
        let views = self.views.stated().unwrap_or_else(|| Views::of(classifier.card()));
        if let Some(message) = views.check(classifier.card())? {
            log.emit(Event::notice(message));
        }
        if let Some(shard) = shard {
            self.destination.join(&self.job((&files, format), shard, views)?)?;
        }
        let target = self.destination.target(shard, format)?;
        if shard.is_some() && target.exists()? {
            note!("{target}: this part is finished");
            return Ok(Status::Done);
        }
        let classifier = classifier.with_limits(self.forward.limits()).with_views(views)?;
        let on_terminal = matches!(target, Target::StandardOutput) && output::is_terminal();
        let (top, threshold, logits) = (self.top, self.threshold, self.logits);
        let options = PrintOptions { top, threshold, logits, on_terminal };
        let mut printer = Printer::new(format, options, classifier.card())?;
        let mut destination = Destination::open(&target)?;
        let (mut counts, mut unavailable) = (Counts::default(), InARow::default());
        let batches = self.inputs.batches(shard, self.forward.batch_size, self.forward.limits())?;
        let asked = classifier.predictor().ask_stream(Output::Logits, batches, &log, |batch| {
            batch.iter().try_for_each(|image| unavailable.check(image))?;
            counts.add(print(batch, &mut printer)?);
            destination.write(&printer.take())
        });
        match asked {
            Err(error) if output::is_closed(&error) => return Ok(counts.status()),
            asked => asked?,
        }
        if !matches!(target, Target::StandardOutput) {
            unavailable.check_all(counts)?;
        }
        // A part of several may have nothing but bad images; a single file may hold the results of an earlier command.
        if counts.is_nothing() && shard.is_none() && target.exists()? {
            bail!(NOTHING);
        }
        destination.write(&printer.finish()?)?;
        destination.finish()?;
        if !matches!(target, Target::StandardOutput) {
            note!("results: {target} ({counts})");
        }
        Ok(counts.status())
    }

    /// What all parts of the same job have in common.
    fn job(&self, (files, format): (&[PathBuf], Format), shard: Shard, views: Views) -> Result<Job> {
        let top = self.top.map(|top| format!("--top {top}"));
        let threshold = self.threshold.map(|threshold| format!("--threshold {threshold}"));
        let logits = self.logits.then(|| "--logits".to_owned());
        let views = option(views).map(str::to_owned);
        let format = Some(format!("--format {}", format.extension()));
        let size = self.forward.max_file_size().map(|bytes| format!("--max-file-size {bytes}"));
        Ok(Job {
            model: model_file::checksum(files)?,
            shards: shard.count,
            inputs: self.inputs.stated().to_vec(),
            options: [format, top, threshold, logits, views, size].into_iter().flatten().collect(),
        })
    }

    /// The format of the output.
    ///
    /// # Errors
    /// If an option has no effect, or the output cannot be written in this format.
    fn checked_format(&self) -> Result<Format> {
        let format = self.destination.format(self.format)?;
        if self.logits && !matches!(format, Format::Jsonl | Format::Parquet) {
            usage!("--logits only works with --format jsonl or parquet");
        }
        if format == Format::Parquet {
            Table::new(self.logits)?;
        }
        self.model.check()?;
        self.inputs.check()?;
        self.destination.check(format, &self.model.model, &self.inputs)?;
        Ok(format)
    }
}

/// The number of images, and of those that could not be read.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    images: usize,
    bad: usize,
}

impl Counts {
    /// Whether no image could be read, or none was named.
    fn is_nothing(self) -> bool {
        self.bad == self.images
    }

    fn status(self) -> Status {
        if self.bad == 0 { Status::Done } else { Status::Partial }
    }

    fn add(&mut self, other: Self) {
        self.images += other.images;
        self.bad += other.bad;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { images, bad } = self;
        f.write_str(&count(*images, "image"))?;
        if *bad > 0 { write!(f, ", {bad} of them with an error") } else { Ok(()) }
    }
}

/// The error if there is nothing to write.
const NOTHING: &str = "no image could be read, and no results are kept";

/// The number of images one after the other that a store did not give. One such image is named among the results; if there are many,
/// or no others, the results are not worth keeping, because another run will have more.
#[derive(Default)]
struct InARow(usize);

impl InARow {
    /// The largest number that is taken for failures of single images.
    const MOST: usize = 20;

    /// Counts an image.
    ///
    /// # Errors
    /// If images are missing of which not even the names are known, or too many in a row.
    fn check(&mut self, image: &Asked<Input, Vec<f32>>) -> Result<()> {
        let Asked { tag, value } = image;
        let Some(error) = value.as_ref().err() else {
            self.0 = 0;
            return Ok(());
        };
        if let Some(incomplete) = error.downcast_ref::<Incomplete>() {
            bail!("{tag}: {incomplete}");
        }
        match error.downcast_ref::<Unavailable>() {
            Some(unavailable) if self.0 == Self::MOST => {
                bail!("{} images in a row cannot be read, the last of them {tag}: {unavailable}", self.0 + 1)
            }
            Some(_) => self.0 += 1,
            None => {}
        }
        Ok(())
    }

    /// # Errors
    /// If a store gave none of the images.
    fn check_all(&self, counts: Counts) -> Result<()> {
        if self.0 > 0 && self.0 == counts.images {
            bail!(NOTHING);
        }
        Ok(())
    }
}

/// Prints the results of a batch, in order.
fn print(batch: Vec<Asked<Input, Vec<f32>>>, printer: &mut Printer) -> Result<Counts> {
    let mut counts = Counts { images: batch.len(), bad: 0 };
    for Asked { tag: path, value } in batch {
        match value {
            Ok(logits) => printer.result(&path, &logits)?,
            Err(error) => {
                printer.failure(&path, &explained(&error))?;
                counts.bad += 1;
            }
        }
    }
    Ok(counts)
}
