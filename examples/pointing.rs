//! The pointing game (Zhang et al. 2018, 'Top-down Neural Attention by Excitation Backprop', section 4.2) on drawn shapes,
//! whose places are known: how often the largest value of a map lies on the shape.
//! `cargo run --release --example pointing -- runs/shapes-vit_pico_patch4_32-1`.
//!
//! The images are the first 200 of the test split, and the maps are about the true class. The largest value is inside the
//! shape if the visible shape covers at least half of its patch, and touches it if it covers at least a sixteenth: one pixel
//! of a patch of 4 by 4. Chance is the share of such patches, which a map without any meaning would hit.

#![allow(clippy::print_stdout)]

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use vitrine::explain::{Asked, Explainer, Map, Method};
use vitrine_datasets::{Image, OpenOptions, Sample};

/// How many images are explained.
const IMAGES: usize = 200;

/// The shares of a patch that the shape must cover: for being inside it, and for touching it.
const COVERED: [f64; 2] = [1.0 / 2.0, 1.0 / 16.0];

/// Hits of a method, and the chance of a hit, by the shares of [`COVERED`] and summed over images.
struct Score {
    method: Method,
    hits: [f64; 2],
    chance: [f64; 2],
}

fn main() -> Result<()> {
    let model = std::env::args_os().nth(1).map(PathBuf::from).context("name a model file or a run folder")?;
    let (device, _) = vitrine::device::select(None)?;
    let explainer = Explainer::load(&model, &device)?;
    let dataset = vitrine_datasets::open("shapes", &OpenOptions::default())?;
    ensure!(explainer.card().classes == dataset.info.classes, "the model was not trained on shapes");
    let samples = &dataset.test[..IMAGES];

    let mut right = 0;
    let mut scores: Vec<Score> = Method::suitable(explainer.model())
        .into_iter()
        .map(|method| Score { method, hits: [0.0; 2], chance: [0.0; 2] })
        .collect();
    let methods: Vec<Method> = scores.iter().map(|score| score.method).collect();
    let block = explainer.model().config().depth.sum() - 1;
    for Sample { labels, source } in samples {
        let label = labels.only().context("shapes have one label each")?;
        let asked = Asked { methods: methods.clone(), class: Some(label), block, heads: false };
        let explanation = explainer.explain(std::slice::from_ref(source), &asked).remove(0)?;
        right += usize::from(explanation.predicted.index == label);
        let mask = source.shape_mask().context("shapes are drawn")?;
        scores.iter_mut().zip(&explanation.maps).for_each(|(score, map)| score.add(map, &mask));
    }
    println!("{right} of {IMAGES} images are classified right");
    println!("{:<20} {:>8} {:>8} {:>10} {:>8}", "method", "inside", "chance", "touching", "chance");
    for Score { method, hits, chance } in scores {
        let [inside, touching] = hits.map(|sum| 100.0 * sum / IMAGES as f64);
        let [by_chance, touching_by_chance] = chance.map(|sum| 100.0 * sum / IMAGES as f64);
        println!(
            "{:<20} {inside:>7.1}% {by_chance:>7.1}% {touching:>9.1}% {touching_by_chance:>7.1}%",
            method.name()
        );
    }
    Ok(())
}

impl Score {
    fn add(&mut self, map: &Map, mask: &Image) {
        let covered = coverage(mask, [map.rows, map.columns]);
        let [row, column] = map.peak();
        for (index, least) in COVERED.into_iter().enumerate() {
            let hits = |share: f64| f64::from(u8::from(share >= least));
            self.hits[index] += hits(covered[row * map.columns + column]);
            self.chance[index] +=
                covered.iter().map(|&share| hits(share)).sum::<f64>() / covered.len() as f64;
        }
    }
}

/// The share of each patch that the visible shape covers: `[rows, columns]`.
fn coverage(mask: &Image, [rows, columns]: [usize; 2]) -> Vec<f64> {
    let (height, width) = (mask.height as usize, mask.width as usize);
    let mut patches = vec![(0.0, 0.0); rows * columns];
    for (index, &pixel) in mask.pixels.iter().enumerate() {
        let (row, column) = (index / width * rows / height, index % width * columns / width);
        let (sum, pixels) = &mut patches[row * columns + column];
        *sum += f64::from(pixel) / 255.0;
        *pixels += 1.0;
    }
    patches.into_iter().map(|(sum, pixels): (f64, f64)| sum / pixels.max(1.0)).collect()
}
