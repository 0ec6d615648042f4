//! Classifies images with a model file, the best model of a run, or another library's weights:
//! `cargo run --release --example classify -- runs/shapes-vit_pico_patch4_32-1 a.png b.jpg`.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use vitrine::LoadOptions;
use vitrine::events::{Event, EventSink};
use vitrine_datasets::{Image, ImageSource};

/// Shows what was assumed of another library's weights.
struct Warnings;

impl EventSink for Warnings {
    fn emit(&self, event: Event) {
        if let Event::Warning { message } | Event::Notice { message } = event {
            eprintln!("{message}");
        }
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let model = arguments.next().context("name a model, then images")?;
    let paths: Vec<PathBuf> = arguments.collect();
    ensure!(!paths.is_empty(), "name at least one image");

    vitrine::threads::set(None)?; // one for each physical core
    let classifier =
        vitrine::load_with_events(&model, &LoadOptions::default(), &Warnings)?.with_batch_size(32);
    println!(
        "{} classes, images of {} pixels",
        classifier.card().classes.len(),
        classifier.card().model.image_size
    );

    // Files, the first one once more from memory, and pixels that the program has made itself.
    let mut images: Vec<ImageSource> = paths.iter().cloned().map(ImageSource::File).collect();
    let bytes = std::fs::read(&paths[0])?;
    images.push(ImageSource::Encoded { name: "the first one, from memory".to_owned(), bytes: bytes.into() });
    let gray = Image { width: 64, height: 48, channels: 1, pixels: vec![128; 64 * 48] };
    images.push(ImageSource::Pixels { name: "a gray rectangle".to_owned(), image: Arc::new(gray) });

    // They are decoded in parallel and share forward passes. An image that cannot be read is an error of its own.
    for (image, predictions) in images.iter().zip(classifier.predict_all(&images, 3)) {
        match predictions {
            Ok(best) => {
                println!("{}: {} with {:.1}%", image.name(), best[0].label, 100.0 * best[0].probability)
            }
            Err(error) => println!("{error:#}"),
        }
    }

    // What the head classifies, for a search or a classifier of one's own.
    let embedding = classifier.embed(&images[..1]).remove(0)?;
    println!("the first embedding has {} numbers", embedding.len());
    Ok(())
}
