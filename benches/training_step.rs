//! Benchmark of a whole training step (forward, loss, backward, clipping, AdamW) by preset, and of its matrix products
//! alone: `cargo bench --bench training_step`.

use burn::tensor::{Device, Distribution, Tensor};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rayon::prelude::*;
use vitrine::learner::Learner;
use vitrine::recipe::{Precision, Recipe};
use vitrine_models::{ModelConfig, preset};

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: vitrine::allocator::MiMalloc = vitrine::allocator::MiMalloc;

/// A closure that runs one training step of a new model on random images.
fn training_step(config: &ModelConfig, batch: usize, precision: Precision) -> impl FnMut() {
    vitrine::allocator::keep_pages();
    let device = Device::default().autodiff();
    let Ok(model) = config.init(&device) else { panic!("{config:?} is not valid") };
    let recipe = Recipe { precision, ..Recipe::default() };
    let mut learner = Learner::new(model, &recipe);
    let side = config.image_size.height;
    let images = Tensor::<4>::random([batch, 3, side, side], Distribution::Normal(0.0, 1.0), &device);
    let targets = Tensor::<2>::full([batch, config.num_classes], 1.0 / config.num_classes as f64, &device);
    let mut updates = 0;
    move || {
        updates += 1;
        learner.backward(&recipe, images.clone(), targets.clone(), 0);
        learner.update(&recipe, recipe.learning_rate, updates);
    }
}

fn by_preset(c: &mut Criterion) {
    const BATCH: usize = 32;
    let mut group = c.benchmark_group("training_step");
    group.sample_size(10).throughput(Throughput::Elements(BATCH as u64));
    for name in ["vit_pico_patch4_32", "vit_nano_patch4_32", "vit_lite_7_4", "swin_pico_patch2_window4_32"] {
        let Some(config) = preset::find(name) else { panic!("{name} is not listed") };
        let mut step = training_step(&config, BATCH, Precision::F32);
        group.bench_function(BenchmarkId::from_parameter(name), |b| b.iter(&mut step));
    }
    group.finish();
}

/// A step in float32 and in bfloat16, where the CPU multiplies these faster.
fn by_precision(c: &mut Criterion) {
    let can_round = vitrine_kernels::multiplies_bfloat16(&Device::default());
    for (name, batch) in [("hybrid_micro_patch8_32", 64), ("vit_tiny_patch16_224", 16)] {
        let Some(config) = preset::find(name) else { panic!("{name} is not listed") };
        let mut group = c.benchmark_group(format!("precision/{name}"));
        group.sample_size(10).throughput(Throughput::Elements(batch as u64));
        for (kind, precision) in
            [("f32", Precision::F32), ("bf16", Precision::Bf16)].into_iter().take(1 + usize::from(can_round))
        {
            let mut step = training_step(&config, batch, precision);
            group.bench_function(kind, |b| b.iter(&mut step));
        }
        group.finish();
    }
}

/// `count` matrix products `[rows, inner] * [inner, columns]`.
struct Products {
    count: usize,
    /// `rows`, `inner`, and `columns`.
    sizes: [usize; 3],
    /// Whether the left and the right factor are stored transposed.
    transposed: [bool; 2],
}

impl Products {
    /// Computes the products with the gemm crate: a single product on all threads, several products in parallel with
    /// one thread each.
    fn run(&self, left: &[f32], right: &[f32], out: &mut [f32]) {
        let [rows, inner, columns] = self.sizes;
        let strides = |transposed, rows, columns| if transposed { (rows, 1) } else { (1, columns) };
        let (left_columns, left_rows) = strides(self.transposed[0], rows, inner);
        let (right_columns, right_rows) = strides(self.transposed[1], inner, columns);
        let all = |size: usize| size * self.count;
        let (left, right) = (&left[..all(rows * inner)], &right[..all(inner * columns)]);
        let one = |((out, left), right): ((&mut [f32], &[f32]), &[f32]), parallelism| {
            // SAFETY: each slice holds at least one matrix of its size, because `run` cuts them from buffers of at
            // least `count` matrices, and the strides stay within a matrix.
            unsafe {
                gemm::gemm(
                    rows,
                    columns,
                    inner,
                    out.as_mut_ptr(),
                    1,
                    columns as isize,
                    false,
                    left.as_ptr(),
                    left_columns as isize,
                    left_rows as isize,
                    right.as_ptr(),
                    right_columns as isize,
                    right_rows as isize,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    parallelism,
                );
            }
        };
        if self.count == 1 {
            one(((out, left), right), gemm::Parallelism::Rayon(0));
        } else {
            out[..all(rows * columns)]
                .par_chunks_mut(rows * columns)
                .zip(left.par_chunks(rows * inner))
                .zip(right.par_chunks(inner * columns))
                .for_each(|product| one(product, gemm::Parallelism::None));
        }
    }
}

/// The matrix products of a training step: those of the patch embedding and, for each block, of its linear layers and
/// its attention.
fn products_of_a_step(config: &ModelConfig, batch: usize) -> Vec<Products> {
    let (dim, mlp_dim, heads, tokens) =
        (config.embed_dim, config.mlp_dim(0), config.num_heads[0], config.num_tokens());
    let head_dim = dim / heads;
    let patches = batch * (tokens - config.num_prefix_tokens());
    let patch = config.channels * config.patch_size * config.patch_size;
    let neither = [false, false];
    let mut products = vec![
        Products { count: 1, sizes: [patches, patch, dim], transposed: neither },
        Products { count: 1, sizes: [patch, patches, dim], transposed: [true, false] },
    ];
    for _ in 0..config.depth[0] {
        for [inputs, outputs] in [[dim, 3 * dim], [dim, dim], [dim, mlp_dim], [mlp_dim, dim]] {
            let rows = batch * tokens;
            products.extend([
                Products { count: 1, sizes: [rows, inputs, outputs], transposed: neither },
                Products { count: 1, sizes: [rows, outputs, inputs], transposed: [false, true] },
                Products { count: 1, sizes: [inputs, rows, outputs], transposed: [true, false] },
            ]);
        }
        // In pairs: scores and the gradient of the probabilities; the attention's output and the gradient of queries;
        // the gradients of keys and of values.
        for (sizes, transposed) in [
            ([tokens, head_dim, tokens], [false, true]),
            ([tokens, tokens, head_dim], neither),
            ([tokens, tokens, head_dim], [true, false]),
        ] {
            products.extend([sizes; 2].map(|sizes| Products { count: batch * heads, sizes, transposed }));
        }
    }
    products
}

/// Compares a training step with the time that the gemm crate needs for its matrix products alone, which bounds any
/// implementation. The model is the one with which `benches/peers` compares libraries.
fn matrix_product_bound(c: &mut Criterion) {
    const BATCH: usize = 64;
    let text = include_str!("peers/vit_192_6_3.toml");
    let Ok(config) = toml::from_str::<ModelConfig>(text) else { panic!("the peers' model is not valid") };
    let products = products_of_a_step(&config, BATCH);
    let largest = BATCH * config.num_tokens() * config.mlp_dim(0);
    let (factor, mut out) = (vec![0.5f32; largest], vec![0.0f32; largest]);
    let mut group = c.benchmark_group("matrix_product_bound");
    group.sample_size(20);
    group.bench_function("products alone, gemm crate", |b| {
        b.iter(|| products.iter().for_each(|products| products.run(&factor, &factor, &mut out)));
    });
    let mut step = training_step(&config, BATCH, Precision::F32);
    group.bench_function("training step", |b| b.iter(&mut step));
    group.finish();
}

criterion_group!(benches, by_preset, by_precision, matrix_product_bound);
criterion_main!(benches);
