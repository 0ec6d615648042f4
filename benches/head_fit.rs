//! The fit of a head to features: logistic regression, whose strength is chosen by cross-validation.
//!
//! Run: `cargo bench --bench head_fit`

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use vitrine::evaluate::Predictions;
use vitrine::probe::{Judgment, Stops, fit};
use vitrine_models::linear_probe::Samples;

/// Features around a center for each class, with noise that depends on all of them.
fn features(images: usize, width: usize, classes: usize) -> (Vec<f32>, Vec<usize>) {
    let mut state = 1u64;
    let mut noise = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    let centers: Vec<f32> = (0..classes * width).map(|_| 0.25 * noise()).collect();
    let labels: Vec<usize> = (0..images).map(|image| image % classes).collect();
    let mut features = Vec::with_capacity(images * width);
    for label in &labels {
        let shared = noise();
        features.extend((0..width).map(|place| centers[label * width + place] + noise() + shared));
    }
    (features, labels)
}

fn judge(predictions: &Predictions) -> Judgment {
    let right = predictions.answers().zip(predictions.labels()).filter(|(a, b)| *a == b.only()).count();
    let top1 = right as f64 / predictions.len() as f64;
    Judgment { score: top1, error: 0.0, loss: 1.0 - top1, top1 }
}

fn head_fit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("head_fit");
    group.sample_size(10);
    for [images, width, classes] in [[2_000, 384, 10], [2_000, 1_152, 10], [10_000, 1_152, 100]] {
        let (features, labels) = features(images, width, classes);
        let samples = Samples::new(&features, &labels, classes);
        let (originals, weights): (Vec<usize>, Vec<f64>) = ((0..images).collect(), vec![1.0; classes]);
        group.bench_function(format!("{images} images, {width} features, {classes} classes"), |bencher| {
            bencher.iter(|| fit(black_box(&samples), &originals, &weights, &judge, Stops::NEVER));
        });
    }
    group.finish();
}

criterion_group!(benches, head_fit);
criterion_main!(benches);
