//! Tests of the image size and the architecture, and of the time on which they depend.

use super::*;

#[test]
fn more_time_means_stronger_augmentation_and_larger_images() {
    let chosen = |side, train, seconds| {
        let case = case(SourceKind::Folder, [side; 2], false, train);
        let budget = Some(Budget { seconds, multiply_adds_per_second: 3e10 });
        let plan = Plan::new(&Overrides::default(), &Evidence { budget, ..evidence(&case) }).unwrap();
        (plan.model.image_size.width, plan.recipe.augmentation.trivial_augment)
    };
    assert_eq!(chosen(32, 45_000, 600.0), (32, false));
    assert_eq!(chosen(32, 45_000, 1_800.0), (32, false));
    assert_eq!(chosen(32, 45_000, 4_000.0), (32, false), "a wider model, for fewer epochs");
    assert_eq!(chosen(32, 45_000, 8_000.0), (32, true));
    assert_eq!(chosen(50, 1_600, 10.0), (32, false));
    assert_eq!(chosen(50, 1_600, 130.0), (48, true));
    assert_eq!(chosen(100, 1_600, 10.0), (96, false), "patches of 3 by 3 pixels");
    assert_eq!(chosen(100, 1_600, 130.0), (64, true));
    assert_eq!(chosen(100, 1_600, 300.0), (96, true));
    assert_eq!(chosen(300, 1_600, 10.0), (96, false), "patches of 3 by 3 pixels");
    let of_two_by_two = [130.0, 300.0, 400.0, 600.0].map(|seconds| chosen(300, 1_600, seconds).0);
    assert_eq!(of_two_by_two, [128, 192, 192, 256], "the largest wants more epochs than the others");
}

#[test]
fn the_time_decides_in_which_patches_images_of_a_stated_size_are_read() {
    let patches = |seconds: Option<f64>| {
        let case = case(SourceKind::Folder, [300; 2], false, 1_600);
        let budget = seconds.map(|seconds| Budget { seconds, multiply_adds_per_second: 3e10 });
        let stated = Overrides { image_size: Some(128), ..Overrides::default() };
        let plan = Plan::new(&stated, &Evidence { budget, ..evidence(&case) }).unwrap();
        assert_eq!(plan.model.image_size, ImageSize::square(128));
        match plan.model.tokenizer {
            Tokenizer::Residual { stride, .. } => stride,
            tokenizer => panic!("{tokenizer:?}"),
        }
    };
    assert_eq!([10.0, 130.0, 1_000.0].map(|seconds| patches(Some(seconds))), [4, 2, 1]);
    assert_eq!(patches(None), 2, "a map of up to 64 pixels");
}

#[test]
fn more_time_for_many_small_images_means_a_wider_model() {
    let dim = |train, seconds| {
        let case = case(SourceKind::Cifar, [32; 2], false, train);
        let budget = Some(Budget { seconds, multiply_adds_per_second: 3e10 });
        let plan = Plan::new(&Overrides::default(), &Evidence { budget, ..evidence(&case) }).unwrap();
        assert!(plan.recipe.whitened_stem);
        (plan.model.embed_dim, plan.recipe.batch_size, plan.recipe.learning_rate)
    };
    let wider = [(192, 64, 3e-3), (256, 128, 4e-3), (384, 128, 4e-3)];
    assert_eq!([600.0, 1_800.0, 4_000.0].map(|seconds| dim(45_000, seconds)), wider);
    assert_eq!(dim(2_000, 4_000.0), (192, 32, 3e-3), "wider models were measured on many images");
}

#[test]
fn an_image_size_gets_a_patch_that_divides_it_or_an_error() {
    let sized = |side| {
        let overrides = Overrides { image_size: Some(side), ..Overrides::default() };
        plan(&case(SourceKind::Folder, [640, 480], false, 300), &overrides)
    };
    for side in 1..600_usize {
        match sized(side) {
            Ok(plan) => {
                assert!(side.is_multiple_of(plan.model.patch_size));
                assert!(plan.model.num_tokens() <= 24 * 24, "{side}: {}", plan.model.num_tokens());
            }
            Err(error) => {
                let error = format!("{error:#}");
                assert!(error.contains(&format!("--image-size {side}")), "{error}");
                let (_, named) = error.split_once("that it can is ").unwrap();
                let named = named.split(';').next().unwrap().parse().unwrap();
                assert!(named > side && sized(named).is_ok(), "{error}");
            }
        }
    }
    assert!([32, 64, 96, 128, 224, 384, 512].into_iter().all(|side| sized(side).is_ok()));
}

#[test]
fn speed_is_measured_with_the_model_and_recipe_of_the_run() {
    let images = case(SourceKind::Folder, [32, 32], false, 4000);
    let options =
        RecipeOverrides { batch_size: Some(2), gradient_checkpointing: true, ..RecipeOverrides::default() };
    let overrides = Overrides { model: Some("vit_lite_7_4".to_owned()), options, ..Overrides::default() };
    let evidence = evidence(&images);
    let model = architecture::to_measure(&overrides, &evidence).unwrap();
    assert_eq!((model.num_classes, model.depth.sum()), (3, 7));
    let recipe = recipe::to_measure(&overrides, &evidence, &model).unwrap();
    assert_eq!((recipe.batch_size, recipe.gradient_checkpointing), (2, true));
    assert_eq!(recipe.optimizer, Optimizer::Muon, "the optimizer of the recipe that the plan chooses");
}

#[test]
fn the_time_counts_where_a_file_or_the_user_states_it_and_choices_are_open() {
    let folder = tempfile::tempdir().unwrap();
    let images = case(SourceKind::Folder, [300, 300], false, 4000);
    // Extensions in any case, as those of architectures.
    let file = folder.path().join("recipe.TOML");
    std::fs::write(&file, "time_seconds = 60.0\nlearning_rate = 1e-3").unwrap();
    let by_file = Overrides { recipe: Some(file.display().to_string()), ..Overrides::default() };
    let time = |overrides: &Overrides| budget::time_for_choices(overrides, &evidence(&images)).unwrap();
    assert_eq!(time(&by_file), Some(60.0));
    let sized = Overrides { image_size: Some(128), ..by_file.clone() };
    assert_eq!(time(&sized), Some(60.0), "the stride is open");
    let length = AskedLength { epochs: None, seconds: Some(20.0) };
    assert_eq!(time(&Overrides { length, ..by_file.clone() }), Some(20.0));
    let model = Some("vit_pico_patch4_32".to_owned());
    assert_eq!(time(&Overrides { model: model.clone(), length, ..by_file }), None);
    assert_eq!(time(&Overrides { model, length, ..Overrides::default() }), Some(20.0), "the recipe is open");
    assert_eq!(time(&Overrides::default()), None);
}
