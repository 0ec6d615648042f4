//! `vitrine classify`: the most probable classes of images.

mod print;

use anyhow::Result;
use clap::Args;

use self::print::{Format, PrintOptions, Printer};
use super::Status;
use super::inputs::{Input, InputArgs};
use super::model::{ForwardArgs, ModelArgs};
use super::views::ViewArgs;
use crate::bounds;
use crate::cli::aliases;
use crate::cli::within::within;
use crate::events::{Event, EventSink};
use crate::flags::explained;
use crate::predict::{Asked, Output, Views};
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
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    inputs: InputArgs,
    /// How many classes to name for each image, at most; by default 5, or all that reach the threshold if the model gives
    /// an image several labels.
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = within(bounds::TOP), aliases = aliases::TOP)]
    top: Option<usize>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Call an image unknown when the best class has a lower probability than this. If the model gives an image several
    /// labels: name the classes with at least this probability, by default 0.5.
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = within(bounds::SHARE))]
    threshold: Option<f64>,
    /// Add the logits of all classes (with --format jsonl).
    #[arg(long)]
    logits: bool,
    #[command(flatten)]
    views: ViewArgs,
    #[command(flatten)]
    forward: ForwardArgs,
}

impl Classify {
    pub(super) fn run(&self) -> Result<Status> {
        self.check()?;
        let (log, device) = self.forward.begin()?;
        let classifier = self.model.classifier(&device, &log)?;
        let views = self.views.stated().unwrap_or_else(|| Views::of(classifier.card()));
        if let Some(message) = views.check(classifier.card())? {
            log.emit(Event::notice(message));
        }
        let classifier = classifier.with_limits(self.forward.limits()).with_views(views)?;
        let options = PrintOptions { top: self.top, threshold: self.threshold, logits: self.logits };
        let mut printer = Printer::new(self.format, options, classifier.card());
        let mut status = Status::Done;
        let batches = self.inputs.batches(self.forward.batch_size)?;
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
        self.model.check()?;
        self.inputs.check()
    }
}

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

fn worse(a: Status, b: Status) -> Status {
    if a == Status::Partial { a } else { b }
}
