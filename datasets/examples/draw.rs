//! Writes images of the synthetic data set `shapes` into a folder:
//! `cargo run --release -p vitrine-datasets --example draw -- drawn --count 2`.
//!
//! By default, there is a folder for each class, with images of the test split, which are new to a model that was
//! trained on `shapes`. With `--scenes N`, there are N images of one to four shapes each and `manifest.csv`, which lists
//! their labels with `|` between them and their splits.

use std::path::Path;

use anyhow::{Context, Result};
use clap::Parser;
use image::{Rgb, RgbImage};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use vitrine_datasets::{Dataset, DecodeLimits, OpenOptions, Sample};

#[derive(Parser)]
struct Arguments {
    /// Folder to write to.
    folder: std::path::PathBuf,
    /// Number of images of each class.
    #[arg(long, default_value_t = 1, conflicts_with = "scenes")]
    count: usize,
    /// Number of images of one to four shapes each, of which a fifth is the test split.
    #[arg(long)]
    scenes: Option<usize>,
}

/// Places of the shapes in a scene.
const PLACES: [[i64; 2]; 4] = [[0, 0], [32, 0], [0, 32], [32, 32]];

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let dataset = vitrine_datasets::open("shapes", &OpenOptions::default())?;
    std::fs::create_dir_all(&arguments.folder).with_context(|| arguments.folder.display().to_string())?;
    match arguments.scenes {
        Some(scenes) => draw_scenes(&dataset, scenes, &arguments.folder),
        None => draw_classes(&dataset, arguments.count, &arguments.folder),
    }
}

/// Draws `count` images of each class into a folder for each class.
fn draw_classes(dataset: &Dataset, count: usize, folder: &Path) -> Result<()> {
    let classes = &dataset.info.classes;
    for (index, sample) in dataset.test.iter().take(count * classes.len()).enumerate() {
        let folder = folder.join(sample.labels.names(classes));
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        save(&drawn(sample)?, &folder.join(format!("{}.png", index / classes.len())))?;
    }
    Ok(())
}

/// Draws scenes of one to four shapes, and lists their labels in a manifest.
fn draw_scenes(dataset: &Dataset, scenes: usize, folder: &Path) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(0);
    let mut manifest = "path,label,split\n".to_owned();
    for scene in 0..scenes {
        let (split, samples) =
            if scene % 5 == 4 { ("test", &dataset.test) } else { ("train", &dataset.train) };
        let mut image = RgbImage::new(64, 64);
        let shapes = rng.random_range(1..=4);
        let first = rng.random_range(0..4);
        let mut labels = Vec::new();
        for place in 0..4 {
            let sample = &samples[rng.random_range(0..samples.len())];
            let mut tile = drawn(sample)?;
            if place < shapes {
                labels.extend(sample.labels.iter().copied());
            } else {
                let background = *tile.get_pixel(0, 0);
                tile.pixels_mut().for_each(|pixel| *pixel = speckled(background, &mut rng));
            }
            let [x, y] = PLACES[(first + place) % 4];
            image::imageops::replace(&mut image, &tile, x, y);
        }
        labels.sort_unstable();
        labels.dedup();
        let names: Vec<&str> = labels.iter().map(|&label| dataset.info.classes[label].as_str()).collect();
        manifest += &format!("{scene}.png,{},{split}\n", names.join("|"));
        save(&image, &folder.join(format!("{scene}.png")))?;
    }
    let path = folder.join("manifest.csv");
    std::fs::write(&path, manifest).with_context(|| path.display().to_string())
}

/// A color with a little noise.
fn speckled(Rgb(color): Rgb<u8>, rng: &mut StdRng) -> Rgb<u8> {
    Rgb(color.map(|value| value.saturating_add(rng.random_range(0..12))))
}

/// The drawing of a sample.
fn drawn(sample: &Sample) -> Result<RgbImage> {
    let drawn = sample.source.decode(&DecodeLimits::default())?;
    RgbImage::from_raw(drawn.width, drawn.height, drawn.pixels).context("a drawn image has three channels")
}

fn save(image: &RgbImage, path: &Path) -> Result<()> {
    image.save(path).with_context(|| path.display().to_string())
}
