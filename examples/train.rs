//! Trains a classifier on a folder of images, one folder per class, and prints its metrics:
//! `cargo run --release --example train -- photos/`.

#![allow(clippy::print_stdout)]

use anyhow::{Context, Result};
use vitrine::TrainOptions;
use vitrine::events::{Event, EventSink};
use vitrine::plan::Overrides;
use vitrine::recipe::{AskedLength, RecipeOverrides};
use vitrine::train::Outcome;

/// Prints every event that has a line of its own. Without a sink, `vitrine::train` says nothing.
struct Printer;

impl EventSink for Printer {
    fn emit(&self, event: Event) {
        if !event.is_progress() {
            println!("{event}");
        }
    }
}

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: vitrine::allocator::MiMalloc = vitrine::allocator::MiMalloc;

fn main() -> Result<()> {
    vitrine::allocator::keep_pages();
    let data = std::env::args().nth(1).unwrap_or_else(|| "shapes".to_owned());

    // All other options are chosen from the images. The events tell what was chosen, and why.
    let options = TrainOptions {
        overrides: Overrides {
            length: AskedLength { epochs: Some(3), seconds: None },
            options: RecipeOverrides { weight_decay: Some(0.1), ..RecipeOverrides::default() },
            ..Overrides::default()
        },
        seed: 7,
        ..TrainOptions::default()
    };
    let run = vitrine::train_with_events(&data, &options, &Printer)?;
    if run.outcome == Outcome::Interrupted {
        println!("stopped; {} can be resumed", run.folder.path().display());
        return Ok(());
    }

    let report = run.report.context("a run that was not interrupted has a report")?;
    let metric = run.progress.best.context("a finished run has a best epoch")?;
    println!("{}; best validation loss {:.3}", report.line, metric.loss);
    println!("model: {}, report: {}", run.folder.model().display(), run.folder.report().display());
    Ok(())
}
