//! Tests that drawings are the same on every machine, that shapes are visible, and that a linear classifier on pixels
//! cannot recognize most of them.

use super::*;
use crate::source::shapes::samples;
use crate::{ImageSource, Sample, Split};

fn seed_of(source: &ImageSource) -> u64 {
    match source {
        ImageSource::Drawn { seed, .. } => *seed,
        _ => panic!("not drawn"),
    }
}

const PIXELS: usize = SIDE * SIDE * 3;

#[test]
fn a_seed_gives_one_image_and_another_seed_another() {
    for class in 0..CLASSES.len() {
        let image = draw(class, 7);
        assert_eq!((image.width, image.height, image.channels), (32, 32, 3));
        assert_eq!(image.pixels.len(), PIXELS);
        assert_eq!(image, draw(class, 7));
        assert_ne!(image, draw(class, 8));
        assert_ne!(image, draw((class + 1) % CLASSES.len(), 7));
    }
}

/// An FNV-1a hash of a few images of every class, which must not differ between machines or releases.
#[test]
fn images_never_change() {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for seed in 0..20 {
        for class in 0..CLASSES.len() {
            for byte in draw(class, seed).pixels {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
    }
    assert_eq!(hash, 0x3192_af60_5adf_96f0, "{hash:#x}");
}

#[test]
fn shape_and_background_differ_in_brightness() {
    for seed in 0..2000 {
        let scene = Scene::new(&mut ChaCha8Rng::seed_from_u64(seed));
        for background in scene.background {
            assert!((luma(scene.foreground) - luma(background)).abs() > 0.25, "seed {seed}");
        }
    }
}

#[test]
fn every_shape_is_large_and_mostly_visible() {
    for seed in 0..500 {
        let scene = Scene::new(&mut ChaCha8Rng::seed_from_u64(seed));
        for (class, name) in CLASSES.iter().enumerate() {
            let shape = coverage(|point| scene.pose.distance(class, point));
            let visible: f32 = shape.iter().sum();
            let radius = scene.pose.radius;
            assert!(visible > 0.6 * radius * radius, "{name} seed {seed}");
            if let Some(occluder) = &scene.occluder {
                let covered = occluder.coverage(&shape);
                let hidden: f32 = shape.iter().zip(&covered).map(|(shape, covered)| shape * covered).sum();
                assert!(hidden < 0.15 * visible, "{name} seed {seed}");
            }
        }
    }
}

/// The first images of a split and their labels, with pixels from -1 to 1.
fn drawn(split: Split, len: usize) -> Vec<(Vec<f32>, usize)> {
    let draw = |sample: Sample| {
        let image = draw(sample.labels[0], seed_of(&sample.source));
        let pixels = image.pixels.iter().map(|byte| f32::from(*byte) / 127.5 - 1.0).collect();
        (pixels, sample.labels[0])
    };
    samples(split).into_iter().take(len).map(draw).collect()
}

/// The scores of all classes. Each class has a row of weights, of which the last is the bias.
fn scores(weights: &[Vec<f32>], pixels: &[f32]) -> Vec<f32> {
    let score = |row: &Vec<f32>| {
        row[PIXELS] + pixels.iter().zip(row).map(|(pixel, weight)| pixel * weight).sum::<f32>()
    };
    weights.iter().map(score).collect()
}

fn accuracy(weights: &[Vec<f32>], images: &[(Vec<f32>, usize)]) -> f64 {
    let hit = |(pixels, label): &&(Vec<f32>, usize)| {
        let scores = scores(weights, pixels);
        scores.iter().all(|score| *score <= scores[*label])
    };
    images.iter().filter(hit).count() as f64 / images.len() as f64
}

/// Softmax regression by stochastic gradient descent, one image per step.
#[test]
fn a_linear_classifier_is_right_less_than_half_of_the_time() {
    let (train, held_out) = (drawn(Split::Train, 3000), drawn(Split::Test, 1000));
    let mut weights = vec![vec![0.0_f32; PIXELS + 1]; CLASSES.len()];
    for epoch in 0..12 {
        let rate = 1e-3 / (1.0 + epoch as f32);
        for (pixels, label) in &train {
            let scores = scores(&weights, pixels);
            let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let odds: Vec<f32> = scores.iter().map(|score| (score - top).exp()).collect();
            let sum: f32 = odds.iter().sum();
            for (class, row) in weights.iter_mut().enumerate() {
                let step = rate * (f32::from(u8::from(class == *label)) - odds[class] / sum);
                row.iter_mut().zip(pixels).for_each(|(weight, pixel)| *weight += step * pixel);
                row[PIXELS] += step;
            }
        }
    }
    let (fitted, held_out) = (accuracy(&weights, &train), accuracy(&weights, &held_out));
    println!(
        "linear classifier: accuracy {fitted:.3} on its training images, {held_out:.3} on held-out images"
    );
    assert!(fitted > 0.2, "the classifier must fit its training images to some extent: {fitted}");
    assert!(held_out < 0.5, "single pixels must not be enough to recognize the class: {held_out}");
}

#[test]
fn the_visible_shape_is_where_the_drawing_is_bright() {
    let mut bright = [0.0, 0.0];
    let mut areas = [0.0, 0.0];
    for seed in 0..50 {
        let class = seed as usize % CLASSES.len();
        let (image, shape) = (draw(class, seed), visible_shape(class, seed));
        for (pixel, inside) in image.pixels.chunks_exact(3).zip(&shape.pixels) {
            let side = usize::from(*inside > 127);
            bright[side] += luma(std::array::from_fn(|channel| f32::from(pixel[channel]) / 255.0));
            areas[side] += 1.0;
        }
    }
    let [outside, inside] = [0, 1].map(|side| bright[side] / areas[side]);
    assert!(inside > 0.65 && outside < 0.35, "shapes are light on dark: {inside} {outside}");
}
