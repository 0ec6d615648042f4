//! Classifies images with a model file or the best model of a run:
//! `cargo run --release --example classify -- runs/shapes-vit_pico_patch4_32-1 a.png b.jpg`.

#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use vitrine::Classifier;
use vitrine_datasets::ImageSource;

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let model = arguments.next().context("name a model file or a run folder, then images")?;
    let images: Vec<PathBuf> = arguments.collect();
    let Some(first) = images.first() else { bail!("name at least one image") };

    let classifier = Classifier::load(&model)?;
    println!(
        "{} classes, images of {} pixels",
        classifier.card().classes.len(),
        classifier.card().model.image_size
    );

    // One image, best class first.
    let best = &classifier.predict(first)?[0];
    println!("{}: {} with {:.1}%", first.display(), best.label, 100.0 * best.probability);

    // Several images at once are decoded in parallel and share a forward pass. A file that cannot be read is an error
    // for itself alone.
    let sources: Vec<ImageSource> = images.iter().cloned().map(ImageSource::File).collect();
    for (path, logits) in images.iter().zip(classifier.classify(&sources)) {
        print(path, logits);
    }
    Ok(())
}

fn print(path: &Path, logits: Result<Vec<f32>>) {
    match logits {
        Ok(logits) => println!("{}: logits {logits:.2?}", path.display()),
        Err(error) => println!("{}: {error:#}", path.display()),
    }
}
