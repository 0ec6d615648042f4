//! Maps of models whose answer is known, of class queries, and of every variant.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::weights::{NamedTensor, from_timm, to_timm};
use crate::{ImageSize, Mixer, ModelConfig, Position, preset};
use burn::tensor::{Distribution, TensorData};

/// Four by four patches, two classes.
fn config() -> ModelConfig {
    let plain = preset::find("vit_pico_patch4_32").unwrap().with_num_classes(2);
    ModelConfig { image_size: ImageSize::square(16), position: Position::None, depth: 3.into(), ..plain }
}

/// The model with some of its parameters changed.
fn changed(model: VisionTransformer, change: impl Fn(&mut NamedTensor)) -> VisionTransformer {
    let mut tensors = to_timm(&model);
    tensors.iter_mut().for_each(change);
    from_timm(model, tensors).unwrap()
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as::<f32>().unwrap()
}

#[test]
fn only_patches_with_content_count_and_each_for_its_own_class() {
    let device = Device::default().autodiff();
    // Blocks without effect, and two classes that are opposites of each other.
    let model = ModelConfig { layer_scale: Some(0.0), ..config() }.init(&device).unwrap();
    let model = changed(model, |tensor| {
        if tensor.name.ends_with("bias") {
            tensor.values.fill(0.0);
        } else if tensor.name == "patch_embed.proj.weight" {
            tensor.values = vitrine_kernels::testing::numbers(tensor.values.len(), 1);
        } else if tensor.name == "head.weight" {
            tensor.values = vitrine_kernels::testing::numbers(tensor.values.len(), 2);
            let (first, second) = tensor.values.split_at_mut(96);
            second.iter_mut().zip(first).for_each(|(b, a)| *b = -*a);
        }
    });
    let content = TensorData::new(vitrine_kernels::testing::numbers(96, 3), [1, 3, 4, 8]);
    let content = Tensor::<4>::from_data(content, &device);
    let images = Tensor::zeros([1, 3, 16, 16], &device).slice_assign([0..1, 0..3, 4..8, 8..16], content);
    let (inside, outside): (Vec<usize>, Vec<usize>) = (0..16).partition(|patch| [6, 7].contains(patch));

    let logits = numbers(model.patch_logits(images.clone()));
    for &patch in &outside {
        assert_eq!((logits[patch], logits[16 + patch]), (0.0, 0.0));
    }
    for &patch in &inside {
        assert!(logits[patch].abs() > 1e-3 && (logits[patch] + logits[16 + patch]).abs() < 1e-5);
    }
    let maps = [0, 1].map(|class| numbers(model.grad_cam(images.clone(), &[class])));
    for map in &maps {
        assert!(outside.iter().all(|&patch| map[patch] == 0.0), "{map:?}");
    }
    // Each patch counts for one class, and the other patch for the other.
    let for_first: Vec<bool> = inside.iter().map(|&patch| maps[0][patch] > maps[1][patch]).collect();
    assert!(for_first[0] != for_first[1], "{maps:?}");
    let by_attention = model.gradient_attention(images, &[0]).unwrap();
    assert_eq!(by_attention.abs().max().into_scalar::<f32>(), 0.0, "attention has no effect on the logits");
}

#[test]
fn rollout_of_uniform_attention_is_uniform_and_decays_with_the_class_token() {
    let device = Device::default();
    let images = Tensor::<4>::random([2, 3, 16, 16], Distribution::Default, &device);
    let with_token = ModelConfig { class_token: true, pool: Pool::ClassToken, ..config() };
    for (config, expected) in [(config(), 1.0 / 16.0), (with_token, (1.0 - 0.125) / 17.0)] {
        let model = changed(config.init(&device).unwrap(), |tensor| {
            if tensor.name.ends_with("attn.qkv.weight") {
                tensor.values.fill(0.0);
            }
        });
        let map = numbers(model.rollout(images.clone()).unwrap());
        assert!(map.iter().all(|value| (value - expected).abs() < 1e-6), "{map:?}");
        let attention = numbers(model.attention_map(images.clone(), 1).unwrap());
        let even = 1.0 / config.num_tokens() as f32;
        assert!(attention.iter().all(|value| (value - even).abs() < 1e-6), "{attention:?}");
    }
}

#[test]
fn class_queries_read_the_patches_of_the_class_that_is_asked_for() {
    let device = Device::default();
    let config = ModelConfig { pool: Pool::ClassQueries { depth: 1 }, ..config() };
    let model = config.init(&device).unwrap();
    let images = Tensor::<4>::random([2, 3, 16, 16], Distribution::Normal(0.0, 1.0), &device);
    let tokens = model.features(images.clone());
    let rows = model.pooling_weights(images.clone()).unwrap().mean_dim(1).squeeze_dim::<3>(1);
    let read = model.reader(&tokens, Some(&[1, 0]));
    for (image, class) in [(0, 1), (1, 0)] {
        let row = |x: &Tensor<3>, row: usize| numbers(x.clone().narrow(0, image, 1).narrow(1, row, 1));
        assert_eq!(row(&read, 0), row(&rows, class));
        assert_ne!(row(&read, 0), row(&rows, 1 - class));
    }
    let map = model.pooling_map(images, &[1, 0]).unwrap().mean_dim(1);
    assert_eq!(numbers(map), numbers(read));
}

#[test]
fn every_variant_has_maps_of_its_grid_or_says_why_not() {
    let device = Device::default().autodiff();
    for config in crate::testing::variants() {
        let model = config.deterministic().init(&device).unwrap();
        let ImageSize { height, width } = config.image_size;
        let images = Tensor::<4>::random([2, 2, height, width], Distribution::Default, &device);
        let [rows, columns] = config.stage_grid(config.num_stages() - 1);
        assert_eq!(model.patch_logits(images.clone()).dims(), [2, 5, rows, columns], "{config:?}");
        let map = model.grad_cam(images.clone(), &[0, 4]);
        assert!(map.min().into_scalar::<f32>() >= 0.0, "{config:?}");
        let is_global = config.num_stages() == 1
            && config.class_depth == 0
            && config
                .mixers
                .iter()
                .all(|mixer| !mixer.has_windows() && !matches!(mixer, Mixer::CrossCovariance));
        let [rows, columns] = config.grid();
        let maps = [model.rollout(images.clone()), model.gradient_attention(images.clone(), &[0, 4])];
        for map in maps {
            assert_eq!(map.map(|map| map.dims()).ok(), is_global.then_some([2, rows, columns]), "{config:?}");
        }
        assert_eq!(model.attention_map(images.clone(), 0).is_ok(), is_global, "{config:?}");
        let is_weighted = config.pool.attends() || config.pool == Pool::Sequence;
        let [rows, columns] = config.stage_grid(config.num_stages() - 1);
        let map = model.pooling_map(images, &[0, 4]).map(|map| [0, 2, 3].map(|side| map.dims()[side]));
        assert_eq!(map.ok(), is_weighted.then_some([2, rows, columns]), "{config:?}");
    }
}
