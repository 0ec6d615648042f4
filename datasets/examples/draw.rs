//! Writes images of the synthetic data set `shapes` into a folder, with a folder per class inside it:
//! `cargo run --release -p vitrine-datasets --example draw -- drawn --count 2`.
//!
//! They are from the test split, and so new to a model that was trained on `shapes`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use image::RgbImage;
use vitrine_datasets::{DecodeLimits, OpenOptions};

#[derive(Parser)]
struct Arguments {
    /// Folder to write to.
    folder: PathBuf,
    /// Number of images of each class.
    #[arg(long, default_value_t = 1)]
    count: usize,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let dataset = vitrine_datasets::open("shapes", &OpenOptions::default())?;
    let classes = &dataset.info.classes;
    for (index, sample) in dataset.test.iter().take(arguments.count * classes.len()).enumerate() {
        let folder = arguments.folder.join(&classes[sample.label]);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let drawn = sample.source.decode(&DecodeLimits::default())?;
        let image = RgbImage::from_raw(drawn.width, drawn.height, drawn.pixels)
            .context("a drawn image has three channels")?;
        let path = folder.join(format!("{}.png", index / classes.len()));
        image.save(&path).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
