//! Benchmark of each fused operation against its definition in burn's operations, at the sizes of a ViT of width 192
//! and a batch of 64 images of 32 pixels: `cargo bench --bench operations`. `forward` is inference, `training` is the
//! forward and backward pass.
//!
//! With `VITRINE_AMX=off`, the operations do not use AMX.

use std::hint::black_box;

use burn::tensor::{Device, Distribution, Tensor};
use criterion::{Criterion, criterion_group, criterion_main};
use vitrine_kernels::{self as kernels, DotProduct};

const BATCH: usize = 64;
/// Side of the grid of patches.
const SIDE: usize = 8;
const TOKENS: usize = SIDE * SIDE + 1;
const DIM: usize = 192;
const HEADS: usize = 3;
const CLASSES: usize = 1000;

/// An operation on one-dimensional inputs, which it reshapes as it needs them.
type Operation = fn(&[Tensor<1>]) -> Tensor<1>;

/// An operation in both forms, and the lengths of its inputs.
struct Case {
    name: &'static str,
    lengths: Vec<usize>,
    fused: Operation,
    composed: Operation,
}

/// A [`Case`] from its name, the lengths of its inputs, the names of the fused and the composed function, and one call
/// that serves for both.
macro_rules! case {
    ($name:literal, [$($length:expr),*], $operation:ident / $composed:ident, |$leaves:ident, $run:ident| $body:expr) => {
        Case {
            name: $name,
            lengths: vec![$($length),*],
            fused: |$leaves| {
                let $run = kernels::$operation;
                flat($body)
            },
            composed: |$leaves| {
                let $run = kernels::$composed;
                flat($body)
            },
        }
    };
}

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: vitrine::allocator::MiMalloc = vitrine::allocator::MiMalloc;

fn flat<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    tensor.flatten(0, D - 1)
}

fn tokens(leaf: &Tensor<1>, dim: usize) -> Tensor<3> {
    leaf.clone().reshape([BATCH, TOKENS, dim])
}

fn rows(leaf: &Tensor<1>, rows: usize) -> Tensor<2> {
    leaf.clone().reshape([rows as i64, -1])
}

/// Number of values in the tokens of a batch.
const ALL: usize = BATCH * TOKENS * DIM;

fn cases() -> Vec<Case> {
    [linear(), attention(), norms_and_activations(), images(), loss()].into_iter().flatten().collect()
}

fn linear() -> Vec<Case> {
    vec![
        case!("linear", [ALL, DIM * 3 * DIM, 3 * DIM], linear / linear_composed, |leaves, run| run(
            tokens(&leaves[0], DIM),
            rows(&leaves[1], DIM),
            Some(leaves[2].clone())
        )),
        case!(
            "linear_gelu",
            [ALL, DIM * 4 * DIM, 4 * DIM],
            linear_gelu / linear_gelu_composed,
            |leaves, run| run(tokens(&leaves[0], DIM), rows(&leaves[1], DIM), Some(leaves[2].clone()))
        ),
    ]
}

fn attention() -> Vec<Case> {
    vec![
        case!("self_attention", [3 * ALL], self_attention / self_attention_composed, |leaves, run| run(
            tokens(&leaves[0], 3 * DIM),
            HEADS,
            DotProduct::scaled(0.125),
            None
        )),
        case!(
            "self_attention, rotary",
            [3 * ALL, TOKENS * DIM / HEADS],
            self_attention / self_attention_composed,
            |leaves, run| run(
                tokens(&leaves[0], 3 * DIM),
                HEADS,
                DotProduct {
                    rotation: Some(leaves[1].clone().reshape([2, TOKENS, DIM / HEADS / 2]).detach()),
                    ..DotProduct::scaled(0.125)
                },
                None
            )
        ),
        case!(
            "self_attention, cosine",
            [3 * ALL, HEADS],
            self_attention / self_attention_composed,
            |leaves, run| run(
                tokens(&leaves[0], 3 * DIM),
                HEADS,
                DotProduct { factors: Some(leaves[1].clone()), normalize: true, ..DotProduct::scaled(1.0) },
                None
            )
        ),
        case!("sequence_pool", [ALL, DIM, 1], sequence_pool / sequence_pool_composed, |leaves, run| run(
            tokens(&leaves[0], DIM),
            rows(&leaves[1], DIM),
            Some(leaves[2].clone())
        )),
    ]
}

fn norms_and_activations() -> Vec<Case> {
    vec![
        case!("layer_norm", [ALL, DIM, DIM], layer_norm / layer_norm_composed, |leaves, run| run(
            tokens(&leaves[0], DIM),
            leaves[1].clone(),
            leaves[2].clone(),
            1e-6
        )),
        case!("gelu", [4 * ALL], gelu / gelu_composed, |leaves, run| run(tokens(&leaves[0], 4 * DIM))),
        case!("residual", [ALL, ALL, DIM], residual / residual_composed, |leaves, run| run(
            tokens(&leaves[0], DIM),
            tokens(&leaves[1], DIM),
            Some(leaves[2].clone()),
            None
        )),
    ]
}

fn images() -> Vec<Case> {
    vec![
        case!(
            "depthwise_convolution",
            [BATCH * SIDE * SIDE * 4 * DIM, 9 * 4 * DIM, 4 * DIM],
            depthwise_convolution / depthwise_convolution_composed,
            |leaves, run| run(
                leaves[0].clone().reshape([BATCH, SIDE, SIDE, 4 * DIM]),
                rows(&leaves[1], 9),
                Some(leaves[2].clone())
            )
        ),
        // The sizes in the second stage of the default model.
        case!(
            "convolution",
            [BATCH * 16 * 16 * 64, 9 * 64 * 128],
            convolution / convolution_composed,
            |leaves, run| run(
                leaves[0].clone().reshape([BATCH, 16, 16, 64]),
                leaves[1].clone().reshape([128, 64, 3, 3]),
                kernels::Convolution::same(3)
            )
        ),
        // The sizes at the beginning of the first stage of the default model.
        case!(
            "convolution_max_pool",
            [BATCH * 32 * 32 * 24, 9 * 24 * 48],
            convolution_max_pool / convolution_max_pool_composed,
            |leaves, run| run(
                leaves[0].clone().reshape([BATCH, 32, 32, 24]),
                leaves[1].clone().reshape([48, 24, 3, 3]),
                kernels::Convolution::same(3),
                kernels::MaxPool::HALVING
            )
        ),
        // The sizes after the first layer of a convolutional tokenizer.
        case!("max_pool", [BATCH * 32 * 32 * 64], max_pool / max_pool_composed, |leaves, run| run(
            leaves[0].clone().reshape([BATCH, 32, 32, 64]),
            kernels::MaxPool { kernel_size: 3, stride: 2, padding: 1 }
        )),
    ]
}

fn loss() -> Vec<Case> {
    vec![case!(
        "cross_entropy",
        [BATCH * CLASSES, BATCH * CLASSES],
        cross_entropy / cross_entropy_composed,
        |leaves, run| run(rows(&leaves[0], BATCH), rows(&leaves[1], BATCH))
    )]
}

fn by_operation(c: &mut Criterion) {
    vitrine::allocator::keep_pages();
    let device = Device::default();
    for case in cases() {
        let leaves: Vec<Tensor<1>> = (case.lengths.iter())
            .map(|&length| Tensor::random([length], Distribution::Normal(0.0, 1.0), &device))
            .collect();
        let mut group = c.benchmark_group(case.name);
        group.sample_size(20);
        for (kind, operation) in [("fused", case.fused), ("composed", case.composed)] {
            group.bench_function(format!("forward/{kind}"), |b| b.iter(|| black_box(operation(&leaves))));
            let tracked: Vec<Tensor<1>> =
                leaves.iter().map(|leaf| leaf.clone().autodiff().require_grad()).collect();
            group.bench_function(format!("training/{kind}"), |b| {
                b.iter(|| black_box(operation(&tracked).sum().backward()));
            });
        }
        group.finish();
    }
}

/// A step of AdamW on the parameters of a block's MLP.
fn optimizer(c: &mut Criterion) {
    let device = Device::default();
    let update = kernels::AdamW {
        learning_rate: 1e-3,
        betas: [0.9, 0.999],
        epsilon: 1e-8,
        weight_decay: 0.05,
        time: 10,
    };
    let random = || Tensor::<1>::random([8 * DIM * DIM], Distribution::Normal(0.0, 1.0), &device);
    let (parameter, gradient, averages) = (random(), random(), [random(), random().square()]);
    let mut group = c.benchmark_group("adamw");
    for (kind, step) in
        [("fused", kernels::adamw as fn(_, _, _, _) -> _), ("composed", kernels::adamw_composed)]
    {
        group.bench_function(kind, |b| {
            let mut state: Option<(Tensor<1>, [Tensor<1>; 2])> = Some((parameter.clone(), averages.clone()));
            b.iter(|| {
                let Some((parameter, averages)) = state.take() else {
                    unreachable!("each iteration stores the state again")
                };
                state = Some(step(update, parameter, gradient.clone(), averages));
            });
        });
    }
    group.finish();
}

/// Muon's step on the kernel of a convolution between 128 channels, and on the stacked projections of a block.
fn orthogonalize(c: &mut Criterion) {
    let device = Device::default();
    for shape in [[1, 128, 9 * 128], [4, 128, 128]] {
        let x = Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), &device);
        let [count, rows, columns] = shape;
        let mut group = c.benchmark_group(format!("orthogonalize/{count}x{rows}x{columns}"));
        for (kind, operation) in
            [("fused", kernels::orthogonalize as fn(_) -> _), ("composed", kernels::orthogonalize_composed)]
        {
            group.bench_function(kind, |b| b.iter(|| black_box(operation(x.clone()))));
        }
        group.finish();
    }
}

criterion_group!(benches, by_operation, optimizer, orthogonalize);
criterion_main!(benches);
