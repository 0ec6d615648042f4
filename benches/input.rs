//! Benchmark of data loading: images to augmented batches, by strength of augmentation and number of threads:
//! `cargo bench --bench input`.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use vitrine_datasets::{
    Augmentation, Crop, Interpolation, Loader, LoaderConfig, OpenOptions, Preprocessing, ResizeRule, open,
};

/// Images per epoch.
const IMAGES: usize = 2048;

fn by_threads(c: &mut Criterion) {
    let Ok(dataset) = open("shapes", &OpenOptions::default()) else {
        panic!("`shapes` cannot be opened, although the program draws it itself")
    };
    let preprocessing = Preprocessing {
        image_size: [32, 32],
        channels: 3,
        resize: ResizeRule::Squash,
        interpolation: Interpolation::Bicubic,
        mean: vec![0.5; 3],
        std: vec![0.25; 3],
        crop_rounding: Default::default(),
    };
    let light = Augmentation {
        crop: Crop::Pad { pixels: 4, reflect: false },
        horizontal_flip: 0.5,
        ..Augmentation::none()
    };
    let mut group = c.benchmark_group("input");
    group.sample_size(10).throughput(Throughput::Elements(IMAGES as u64));
    for (name, augmentation) in [("light", light.clone()), ("strong", light.with_jitter(0.2).strong())] {
        for threads in [1, 2] {
            let config = LoaderConfig {
                threads,
                augmentation: Some(augmentation.clone()),
                cache_bytes: 1 << 30,
                ..LoaderConfig::evaluation(&preprocessing, dataset.info.classes.len())
            };
            let Ok(loader) = Loader::new(dataset.train[..IMAGES].into(), config) else {
                panic!("the threads cannot be started")
            };
            group.bench_function(BenchmarkId::new(name, threads), |b| {
                b.iter(|| loader.epoch(0, 0).map(|batch| batch.map_or(0, |batch| batch.size)).sum::<usize>());
            });
        }
    }
    group.finish();
}

criterion_group!(benches, by_threads);
criterion_main!(benches);
