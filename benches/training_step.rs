//! A whole training step (forward, loss, backward, clipping, AdamW) by preset: `cargo bench --bench training_step`.

use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, Tensor};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use vitrine::recipe::Recipe;
use vitrine::train::optimiser;
use vitrine_models::{ops, preset};

const BATCH: usize = 32;

fn by_preset(c: &mut Criterion) {
    vitrine::allocator::keep_pages();
    let device = Device::default().autodiff();
    let mut group = c.benchmark_group("training_step");
    group.sample_size(10).throughput(Throughput::Elements(BATCH as u64));
    for name in ["vit_pico_patch4_32", "vit_nano_patch4_32", "vit_lite_7_4", "swin_pico_patch2_window4_32"] {
        let Some(config) = preset::find(name) else { panic!("{name} is not listed") };
        let Ok(mut model) = config.init(&device) else { panic!("{name} is not valid") };
        let recipe = Recipe::default();
        let mut optimiser = optimiser::adamw(&recipe);
        let side = config.image_size.height;
        let images = Tensor::<4>::random([BATCH, 3, side, side], Distribution::Normal(0.0, 1.0), &device);
        let targets =
            Tensor::<2>::full([BATCH, config.num_classes], 1.0 / config.num_classes as f64, &device);
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                let loss = ops::cross_entropy(model.forward(images.clone()), targets.clone());
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                let grads = optimiser::clip_global_norm(&model, grads, recipe.clip_norm);
                model = optimiser.step(recipe.learning_rate, model.clone(), grads);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, by_preset);
criterion_main!(benches);
