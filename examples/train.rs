//! Trains a classifier on a folder of images, one folder per class, and says how good it is:
//! `cargo run --release --example train -- photos/`.

#![allow(clippy::print_stdout)]

use anyhow::{Context, Result};
use vitrine::TrainOptions;
use vitrine::recipe::{LengthArgs, RecipeArgs};
use vitrine::train::{Outcome, Overrides};

fn main() -> Result<()> {
    vitrine::allocator::keep_pages();
    let data = std::env::args().nth(1).unwrap_or_else(|| "shapes".to_owned());

    // Everything that is not stated here is chosen from the images, and the reasons are printed.
    let options = TrainOptions {
        overrides: Overrides {
            length: LengthArgs { epochs: Some(3), time: None },
            options: RecipeArgs { weight_decay: Some(0.1), ..RecipeArgs::default() },
            ..Overrides::default()
        },
        seed: 7,
        ..TrainOptions::default()
    };
    let run = vitrine::train(&data, &options)?;
    if run.outcome == Outcome::Interrupted {
        println!("stopped; {} can be resumed", run.folder.path().display());
        return Ok(());
    }

    let report = run.report.context("a run that was not interrupted has a report")?;
    println!("{}", report.line);
    for caveat in &report.caveats {
        println!("{caveat}");
    }
    for epoch in &run.progress.history {
        println!(
            "epoch {}: training loss {:.3}, validation {:?}",
            epoch.epoch, epoch.train_loss, epoch.val_top1
        );
    }
    println!("model: {}, report: {}", run.folder.model().display(), run.folder.report().display());
    Ok(())
}
