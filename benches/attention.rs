//! Benchmark of the token mixers by number of tokens, for inference and for a forward and backward pass:
//! `cargo bench --bench attention`. The plot over all mixers is `target/criterion/mixer_forward/report/lines.svg`.

use std::hint::black_box;

use burn::tensor::{Device, Distribution, Tensor};
use criterion::{
    AxisScale, BenchmarkId, Criterion, PlotConfiguration, Throughput, criterion_group, criterion_main,
};
use vitrine_models::attention::{Context, TokenMixer};
use vitrine_models::{ImageSize, Mixer, ModelConfig, preset};

/// Width of a token.
const DIM: usize = 96;
/// Sides of the square grids of tokens, which have 64 to 3136 tokens.
const SIDES: [usize; 4] = [8, 16, 28, 56];
const MIXERS: [(&str, Mixer); 7] = [
    ("global", Mixer::Global),
    ("window 4", Mixer::Window(4)),
    ("shifted window 4", Mixer::ShiftedWindow(4)),
    ("window 7", Mixer::Window(7)),
    ("neighborhood 3", Mixer::Neighborhood(3)),
    ("full neighborhood 3", Mixer::FullNeighborhood(3)),
    ("cross-covariance", Mixer::CrossCovariance),
];

/// A token mixer, and random tokens of one image for it.
fn mixer(mixer: Mixer, side: usize, device: &Device) -> (TokenMixer, Tensor<3>) {
    let Some(base) = preset::find("vit_pico_patch4_32") else { panic!("the preset is not listed") };
    let image_size = ImageSize::square(side);
    let config = ModelConfig { image_size, patch_size: 1, embed_dim: DIM, mixers: vec![mixer], ..base };
    let tokens = Tensor::random([1, side * side, DIM], Distribution::Normal(0.0, 1.0), device);
    (TokenMixer::new(&config, 0, 0, device), tokens)
}

fn by_tokens(c: &mut Criterion) {
    let device = Device::default();
    let mut group = c.benchmark_group("mixer_forward");
    group.plot_config(PlotConfiguration::default().summary_scale(AxisScale::Logarithmic)).sample_size(10);
    for (name, kind) in MIXERS {
        for side in SIDES {
            let (mixer, tokens) = mixer(kind, side, &device);
            group.throughput(Throughput::Elements((side * side) as u64));
            group.bench_with_input(BenchmarkId::new(name, side * side), &tokens, |b, tokens| {
                b.iter(|| black_box(mixer.forward(tokens.clone(), &Context::default()).into_data()));
            });
        }
    }
    group.finish();
    let device = device.autodiff();
    let mut group = c.benchmark_group("mixer_forward_backward");
    group.plot_config(PlotConfiguration::default().summary_scale(AxisScale::Logarithmic)).sample_size(10);
    for (name, kind) in MIXERS {
        for side in SIDES {
            let (mixer, tokens) = mixer(kind, side, &device);
            group.bench_with_input(BenchmarkId::new(name, side * side), &tokens, |b, tokens| {
                b.iter(|| {
                    let tokens = tokens.clone().require_grad();
                    let grads = mixer.forward(tokens.clone(), &Context::default()).sum().backward();
                    black_box(tokens.grad(&grads))
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, by_tokens);
criterion_main!(benches);
