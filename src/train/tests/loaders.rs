//! The images of a phase and of validation.

use std::sync::Arc;

use vitrine_datasets::{Augmentation, ClassSizes, Crop, Labels, LoaderConfig, MixMode, Sample};

use super::cpu;
use crate::predict::Views;
use crate::recipe::{ProgressiveLearning, Recipe};
use crate::run_folder::RunConfig;
use crate::run_folder::testing::{config, drawn};
use crate::train::measuring::part;
use crate::train::phase::{Ingredients, Phase, PhaseKind};
use crate::train::validation::ValidationSplit;

/// A recipe with something of everything.
fn strong() -> Recipe {
    Recipe {
        label_smoothing: 0.1,
        class_weights: true,
        progressive_learning: Some(ProgressiveLearning { until: 0.5, scale: 0.5 }),
        augmentation: Augmentation {
            crop: Crop::Pad { pixels: 4, reflect: true },
            horizontal_flip: 0.5,
            rotation: 10.0,
            mixup: 0.8,
            mix_mode: MixMode::default(),
            ..Augmentation::none()
        },
        ..config(&["circle", "ring"]).recipe
    }
}

#[test]
fn a_phase_decides_the_size_and_the_augmentation_of_its_batches() {
    let config = RunConfig { recipe: strong(), ..config(&["circle", "ring"]) };
    let images: Arc<[Sample]> = drawn([20, 0, 0]).train[..19].into();
    let class_sizes = ClassSizes::of(&images, 2);
    let ingredients = Ingredients { config: &config, class_sizes: &class_sizes, threads: 1 };
    let mut phase = Phase::first(ingredients, config.recipe.clone(), images.clone()).unwrap();
    let loading = phase.batches.config().clone();
    assert_eq!(loading.augmentation, Some(strong().augmentation), "a session begins with everything");
    assert_eq!(
        (loading.preprocessing.image_size, loading.batch_size, loading.label_smoothing),
        ([16, 16], 8, 0.1)
    );
    let weights = loading.class_weights.clone().unwrap();
    assert!(weights[0] < 1.0 && weights[1] > 1.0, "ten circles and nine rings: {weights:?}");

    let mut at = |is_easy, flips, hash_pixels| -> LoaderConfig {
        phase.change(ingredients, PhaseKind { is_easy, flips, mixes: true }, hash_pixels).unwrap();
        assert_eq!((phase.kind.is_easy, phase.kind.flips), (is_easy, flips));
        assert_eq!(phase.preprocessing, phase.batches.config().preprocessing);
        let [height, width] = phase.preprocessing.image_size;
        let batch = phase.batches.epoch(0, 0).next().unwrap().unwrap();
        assert_eq!(batch.images.len(), 8 * 3 * height * width);
        assert_eq!(batch.pixel_keys.len(), if hash_pixels { 8 } else { 0 });
        assert_eq!(phase.batches.len(), 19);
        phase.batches.config().clone()
    };
    let easy = at(true, true, true);
    assert_eq!(easy.preprocessing.image_size, [8, 8]);
    let light = easy.augmentation.unwrap();
    assert_eq!((light.rotation, light.mixup, light.horizontal_flip), (0.0, 0.0, 0.5));
    assert_eq!(light.crop, Crop::Pad { pixels: 2, reflect: true }, "half the side, half the shift");
    assert_eq!(at(true, false, true).augmentation.unwrap().horizontal_flip, 0.0);
    let whole = at(false, false, false);
    assert_eq!(whole.preprocessing.image_size, [16, 16]);
    assert_eq!(whole.augmentation, Some(strong().augmentation.without_flips()));
    assert_eq!((whole.seed, whole.class_weights), (loading.seed, loading.class_weights), "the rest stays");
}

#[test]
fn validation_measures_the_same_images_in_the_same_order_until_it_is_restricted() {
    let config = config(&["circle", "ring"]);
    let images: Arc<[Sample]> = drawn([0, 40, 0]).val.into();
    let device = cpu();
    let model = config.model.init(&device.device).unwrap();
    model.initialize();
    let mut split = ValidationSplit::new(&config, images.clone(), None, (&device, 1)).unwrap();
    let whole = split.predict(&model, Views::One).unwrap();
    assert_eq!((split.len(), split.loader.len()), (40, 40));
    assert_eq!(whole.indices, (0..40).collect::<Vec<_>>());
    let labels: Vec<Labels> = images.iter().map(|sample| sample.labels.clone()).collect();
    assert_eq!(whole.predictions.labels(), labels);
    assert_eq!(
        whole.predictions,
        split.predict(&model, Views::One).unwrap().predictions,
        "from the cache, too"
    );
    let keys: std::collections::BTreeSet<u64> = whole.pixel_keys.iter().copied().collect();
    assert_eq!(keys.len(), 40, "no two images have the same pixels");
    split.stop_hashing().unwrap();
    assert!(split.predict(&model, Views::One).unwrap().pixel_keys.is_empty());

    split.restrict(&config, 10).unwrap();
    assert_eq!((split.len(), split.loader.len()), (40, 10), "the split itself stays");
    let expected = part(&images, Some(10), config.seed);
    let names = |samples: &[Sample]| samples.iter().map(|sample| sample.source.name()).collect::<Vec<_>>();
    assert_eq!(names(split.loader.samples()), names(&expected));
    let resumed = ValidationSplit::new(&config, images.clone(), Some(10), (&device, 1)).unwrap();
    assert_eq!(names(resumed.loader.samples()), names(&expected), "a resumed run measures the same part");
    let answers: Vec<Option<usize>> = whole.predictions.answers().collect();
    let restricted = split.predict(&model, Views::One).unwrap();
    for (sample, answer) in expected.iter().zip(restricted.predictions.answers()) {
        let index = images.iter().position(|image| image.source.name() == sample.source.name()).unwrap();
        assert_eq!(answer, answers[index], "{}", sample.source.name());
    }
}
