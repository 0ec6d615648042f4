//! Explanations of a small model: what its maps are, that inference does not change, and which methods suit which models.

#![allow(clippy::unwrap_used)]

use vitrine_datasets::{CropRounding, ImageSource, Interpolation, Preprocessing, ResizeRule};
use vitrine_models::{Mixer, ModelConfig, Normalizer, Pool, preset};

use super::*;
use crate::device;
use crate::model_file::ModelCard;
use crate::predict::Classifier;
use crate::weights_file::Precision;

const SIDE: usize = 16;

fn plain() -> ModelConfig {
    ModelConfig {
        image_size: vitrine_models::ImageSize::square(SIDE),
        embed_dim: 24,
        num_heads: 3.into(),
        depth: 2.into(),
        ..preset::find("vit_pico_patch4_32").unwrap().with_num_classes(3)
    }
}

fn card(model: &ModelConfig) -> ModelCard {
    let preprocessing = Preprocessing {
        image_size: [SIDE, SIDE],
        channels: 3,
        resize: ResizeRule::Squash,
        interpolation: Interpolation::Bicubic,
        mean: vec![0.5; 3],
        std: vec![0.25; 3],
        crop_rounding: CropRounding::default(),
    };
    ModelCard::new(model.clone(), ["a", "b", "c"].map(str::to_owned).to_vec(), preprocessing)
}

/// The explainer of a saved model with random parameters, and its classifier.
fn saved(config: &ModelConfig) -> (Explainer, Classifier) {
    saved_with(card(config))
}

fn saved_with(card: ModelCard) -> (Explainer, Classifier) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    let device = device::select(Some("cpu")).unwrap().0;
    let model = card.model.init(&device.device).unwrap();
    crate::model_file::save(&path, &card, &model, Precision::F32).unwrap();
    (Explainer::load(&path, &device).unwrap(), Classifier::load_on(&path, &device).unwrap())
}

fn asked(methods: &[Method], class: Option<usize>, heads: bool) -> Asked {
    Asked { methods: methods.to_vec(), class, block: 1, heads }
}

fn drawn(count: usize) -> Vec<ImageSource> {
    (0..count).map(|class| ImageSource::Drawn { class, seed: class as u64 }).collect()
}

#[test]
fn the_prediction_is_that_of_inference_whatever_acts_at_random_in_training() {
    let mut config = ModelConfig { dropout: 0.5, attention_dropout: 0.5, drop_path: 0.5, ..plain() };
    config.attention.normalizer = Normalizer::HardSampled;
    for mirror_views in [false, true] {
        let (explainer, classifier) = saved_with(ModelCard { mirror_views, ..card(&config) });
        let explained = explainer.explain(&drawn(4), &asked(&[Method::GradCam], None, false));
        for (explanation, logits) in explained.into_iter().zip(classifier.classify(&drawn(4))) {
            let expected = &crate::predict::rank(classifier.card(), &logits.unwrap(), 1)[0];
            let found = explanation.unwrap();
            assert_eq!(found.predicted.index, expected.index);
            assert_eq!(found.class, found.predicted);
            assert!((found.predicted.probability - expected.probability).abs() < 1e-5, "{mirror_views}");
        }
    }
}

#[test]
fn every_method_maps_all_patches_alone_and_in_a_batch_and_a_broken_image_fails_alone() {
    let pool = Pool::ClassQueries { depth: 1 };
    let (explainer, _) = saved(&ModelConfig { pool, ..plain() });
    let asked = asked(&Method::ALL, Some(2), true);
    let mut images = drawn(3);
    images
        .insert(1, ImageSource::Encoded { name: "broken".to_owned(), bytes: b"no image".as_slice().into() });
    let all = explainer.explain(&images, &asked);
    assert!(all[1].as_ref().unwrap_err().to_string().contains("broken"));
    for (image, explanation) in images.iter().zip(&all) {
        let Ok(explanation) = explanation else { continue };
        let alone = explainer.explain(std::slice::from_ref(image), &asked).remove(0).unwrap();
        assert_eq!(explanation.class.index, 2);
        for (method, (map, alone)) in Method::ALL.into_iter().zip(explanation.maps.iter().zip(&alone.maps)) {
            let heads = if method.has_heads() { 3 } else { 1 };
            assert_eq!((map.method, map.layers().len()), (method, heads));
            assert_eq!((map.rows, map.columns), (4, 4));
            assert_eq!(map.classes.len(), if method == Method::PatchLogits { 16 } else { 0 });
            let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
            assert!(map.values.iter().zip(&alone.values).all(close), "{method:?}");
            // Without a class token, the shares of all patches sum to 1.
            let sum: f32 = map.layers().next().unwrap().iter().sum();
            let is_shares = matches!(method, Method::Attention | Method::Rollout | Method::Pooling);
            assert!(!is_shares || (sum - 1.0).abs() < 1e-4, "{method:?}: {sum}");
        }
    }
}

#[test]
fn the_map_of_the_pooling_is_about_the_class_if_there_is_a_query_per_class() {
    let method = [Method::Pooling];
    for (pool, is_about_class) in [(Pool::ClassQueries { depth: 2 }, true), (Pool::Queries(2), false)] {
        let (explainer, _) = saved(&ModelConfig { pool, ..plain() });
        let map = |class: usize| {
            let explained = explainer.explain(&drawn(1), &asked(&method, Some(class), false)).remove(0);
            explained.unwrap().maps.remove(0)
        };
        let maps = [0, 1].map(map);
        assert_eq!(maps[0].is_about_class, is_about_class);
        assert_eq!(maps[0].values != maps[1].values, is_about_class, "{maps:?}");
    }
}

#[test]
fn every_method_suits_the_models_that_have_what_it_reads() {
    use Method::{Attention, GradCam, GradientAttention, PatchLogits, Pooling, Rollout};
    let among_patches = [Attention, Rollout, GradientAttention, GradCam, PatchLogits];
    let windows = ModelConfig { mixers: vec![Mixer::Window(2)], ..plain() };
    let queries = ModelConfig { pool: Pool::Attention, ..windows.clone() };
    for (config, suitable) in [
        (plain(), &among_patches[..]),
        (windows, &[GradCam, PatchLogits]),
        (queries, &[Pooling, GradCam, PatchLogits]),
    ] {
        let (explainer, _) = saved(&config);
        assert_eq!(Method::suitable(explainer.model()), suitable);
        for method in Method::ALL {
            let checked = method.check(explainer.model());
            assert_eq!(checked.is_ok(), suitable.contains(&method));
            let Err(error) = checked else { continue };
            let message = error.to_string();
            assert!(
                message.contains(method.name()) && message.contains("grad-cam, patch-logits"),
                "{message}"
            );
        }
        let by_default = Method::by_default(explainer.model());
        assert!(
            by_default.contains(&Method::GradCam)
                && by_default.iter().all(|method| suitable.contains(method))
        );
    }
}
