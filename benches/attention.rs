//! Self-attention by number of tokens, forward alone and with its backward pass: `cargo bench --bench attention`.

use std::hint::black_box;

use burn::tensor::{Device, Distribution, Tensor};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use vitrine_models::ops;

const DIM: usize = 192;
const HEADS: usize = 3;

fn by_tokens(c: &mut Criterion) {
    let device = Device::default();
    let mut group = c.benchmark_group("self_attention");
    group.sample_size(10);
    for tokens in [64, 196, 784] {
        let qkv = Tensor::<3>::random([8, tokens, 3 * DIM], Distribution::Normal(0.0, 1.0), &device);
        let scale = ((DIM / HEADS) as f64).powf(-0.5);
        group.throughput(Throughput::Elements(8 * tokens as u64));
        group.bench_with_input(BenchmarkId::new("forward", tokens), &qkv, |b, qkv| {
            b.iter(|| black_box(ops::self_attention(qkv.clone(), HEADS, scale, None).into_data()));
        });
        let tracked = Tensor::<3>::from_data(qkv.into_data(), &device.clone().autodiff());
        group.bench_with_input(BenchmarkId::new("forward_backward", tokens), &tracked, |b, qkv| {
            b.iter(|| {
                let qkv = qkv.clone().require_grad();
                let grads = ops::self_attention(qkv.clone(), HEADS, scale, None).sum().backward();
                black_box(qkv.grad(&grads))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, by_tokens);
criterion_main!(benches);
