//! Tests of the choices for different data sets, overrides, and time limits.

#![allow(clippy::unwrap_used)]

mod settings;
mod size_and_time;

use super::*;
use crate::recipe::{NamedRecipe, Precision, RecipeOverrides};
use crate::usage::UsageError;
use vitrine_datasets::{
    AspectRatios, Extent, ImageSource, ResizeRule, Sample, SizeRange, SourceKind, ValidationOrigin,
};
use vitrine_models::{ImageSize, Tokenizer, preset};

struct Case {
    info: DatasetInfo,
    survey: Survey,
    train: usize,
    class_sizes: ClassSizes,
}

/// The sizes of three classes.
fn class_sizes(sizes: [usize; 3]) -> ClassSizes {
    let sample =
        |label: usize| Sample { labels: label.into(), source: ImageSource::Drawn { class: 0, seed: 0 } };
    let samples: Vec<Sample> = (0..3).flat_map(|label| vec![sample(label); sizes[label]]).collect();
    ClassSizes::of(&samples, 3)
}

fn case(source: SourceKind, side: [u32; 2], gray: bool, train: usize) -> Case {
    let extent = |side| Extent { min: side, median: side, max: side };
    let longer = f64::from(side[0].max(side[1])) / f64::from(side[0].min(side[1]));
    Case {
        info: DatasetInfo {
            name: "data".to_owned(),
            classes: ["a", "b", "c"].map(str::to_owned).to_vec(),
            multi_label: false,
            source,
            validation: ValidationOrigin::Given,
            flip_safe: !gray,
        },
        survey: Survey {
            sizes: SizeRange { width: extent(side[0]), height: extent(side[1]) },
            aspect_ratios: AspectRatios { median: longer, max: longer },
            gray,
            decoded: 1,
            failed: 0,
        },
        train,
        class_sizes: class_sizes([100, 90, 80]),
    }
}

fn plan(case: &Case, overrides: &Overrides) -> Result<Plan> {
    Plan::new(overrides, &evidence(case))
}

fn evidence(case: &Case) -> Evidence<'_> {
    Evidence {
        info: &case.info,
        survey: &case.survey,
        train: case.train,
        class_sizes: &case.class_sizes,
        pretrained: None,
        budget: None,
        multiplies_bfloat16: false,
    }
}

#[test]
fn digits_color_images_and_photos_get_suitable_plans() {
    let digits = plan(&case(SourceKind::Idx, [28, 28], true, 48_000), &Overrides::default()).unwrap();
    assert_eq!((digits.model.channels, digits.model.image_size), (1, ImageSize::square(32)));
    assert_eq!(digits.recipe.augmentation.horizontal_flip, 0.0, "a mirrored digit is another one");
    let small = plan(&case(SourceKind::Cifar, [32, 32], false, 40_000), &Overrides::default()).unwrap();
    assert_eq!((small.model.channels, small.model.patch_size), (3, 8));
    assert_eq!(small.recipe.augmentation.horizontal_flip, 0.5);
    let photos = plan(&case(SourceKind::Folder, [640, 480], false, 300), &Overrides::default()).unwrap();
    assert_eq!(photos.preprocessing.resize, ResizeRule::SquashCrop { crop: 0.89 });
    assert!(photos.recipe.epochs > small.recipe.epochs, "few images want many epochs");
    assert!(photos.recipe.augmentation.cutmix > 0.0 && small.recipe.augmentation.cutmix == 0.0);
    for plan in [digits, small, photos] {
        assert_eq!(plan.model.num_classes, 3);
        assert!(plan.reasons.len() >= 4, "{:?}", plan.reasons);
    }
}

#[test]
fn whitening_is_for_fresh_residual_tokenizers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recipe.toml");
    std::fs::write(&file, "epochs = 9\nwhitened_stem = true").unwrap();
    let recipe = |model: &str, recipe: String| Overrides {
        model: Some(model.to_owned()),
        recipe: Some(recipe),
        ..Overrides::default()
    };
    let images = case(SourceKind::Cifar, [32, 32], false, 3_000);
    let whitened = |overrides: &Overrides| plan(&images, overrides).map(|plan| plan.recipe.whitened_stem);
    let of_file = file.display().to_string();
    assert!(whitened(&recipe("hybrid_micro_patch8_32", of_file.clone())).unwrap());
    assert!(!whitened(&recipe("vit_pico_patch4_32", "short".to_owned())).unwrap());
    let error = whitened(&recipe("vit_pico_patch4_32", of_file)).unwrap_err().to_string();
    assert!(error.contains("`whitened_stem`"), "{error}");
}

#[test]
fn wide_hybrids_learn_many_images_in_larger_batches() {
    let planned = |model: &str, images| {
        let overrides = Overrides { model: Some(model.to_owned()), ..Overrides::default() };
        let recipe = plan(&case(SourceKind::Cifar, [32, 32], false, images), &overrides).unwrap().recipe;
        (recipe.batch_size, (recipe.learning_rate * 1e4).round())
    };
    assert_eq!(planned("hybrid_small_patch8_32", 50_000), (128, 40.0));
    assert_eq!(planned("hybrid_small_patch8_32", 3_000), (32, 30.0));
    assert_eq!(planned("hybrid_micro_patch8_32", 50_000), (64, 30.0));
}

#[test]
fn models_of_short_runs_may_be_asked_about_shifts() {
    let wants = |overrides: &Overrides| {
        let recipe = plan(&case(SourceKind::Cifar, [32, 32], false, 3_000), overrides).unwrap().recipe;
        [recipe.mirror_views, recipe.shifted_views]
    };
    let named = |recipe: &str| Overrides { recipe: Some(recipe.to_owned()), ..Overrides::default() };
    let one_view = |one_view, flips| Overrides {
        options: RecipeOverrides { one_view, flips, ..RecipeOverrides::default() },
        ..named("short")
    };
    assert_eq!([wants(&named("short")), wants(&named("long"))], [[true, true], [true, false]]);
    assert_eq!(wants(&one_view(false, Some(false))), [false, true]);
    assert_eq!(wants(&one_view(true, None)), [false, false]);
    assert_eq!(wants(&one_view(true, Some(false))), [false, false]);
}

#[test]
fn pretrained_weights_get_a_probe_and_a_learning_rate_that_keeps_their_features() {
    let case = case(SourceKind::Folder, [300, 300], false, 400);
    let planned = |embed_dim, classes: &[&str], overrides: &Overrides| {
        let model =
            ModelConfig { embed_dim, num_heads: 4.into(), ..preset::find("vit_tiny_patch16_224").unwrap() };
        let preprocessing = crate::run_folder::testing::config(classes).preprocessing;
        let classes: Vec<String> = classes.iter().map(|&class| class.to_owned()).collect();
        let model = model.with_num_classes(classes.len().max(1));
        let card = ModelCard::new(model, classes, preprocessing);
        Plan::new(overrides, &Evidence { pretrained: Some(("weights", &card)), ..evidence(&case) }).unwrap()
    };
    let minute = AskedLength { epochs: None, seconds: Some(60.0) };
    let timed = planned(384, &["x", "y"], &Overrides { length: minute, ..Overrides::default() });
    assert_eq!(timed.recipe.epochs, None);
    assert!(
        timed.reasons.contains(&"recipe fine-tune for the time there is".to_owned()),
        "{:?}",
        timed.reasons
    );
    let planned =
        |embed_dim, classes: &[&str], overrides: &Overrides| planned(embed_dim, classes, overrides).recipe;
    let usual = |dim| planned(dim, &["x", "y"], &Overrides::default());
    let rates = [64, 192, 384, 768].map(|dim| usual(dim).learning_rate);
    assert_eq!(rates, [1e-3, 1e-4, 5e-5, 2.5e-5]);
    assert!(usual(384).probe_first && usual(384).layer_decay < 1.0);
    assert!(
        !planned(64, &["a", "b", "c"], &Overrides::default()).probe_first,
        "the head knows these classes"
    );
    let named = Overrides { recipe: Some("fine-tune".to_owned()), ..Overrides::default() };
    assert!(!planned(64, &["x", "y"], &named).probe_first);
    let options = RecipeOverrides { freeze: Some(Freeze::Backbone), ..RecipeOverrides::default() };
    let frozen = planned(64, &["x", "y"], &Overrides { options, ..Overrides::default() });
    assert!(frozen.fit_head && !frozen.probe_first);
}

#[test]
fn colors_that_pretrained_weights_do_not_read_are_named() {
    let planned = |name: &str, channels, gray| {
        let case = case(SourceKind::Folder, [64, 64], gray, 400);
        let model = ModelConfig { channels, ..preset::find(name).unwrap() };
        let plain = plan(&case, &Overrides::default()).unwrap().preprocessing;
        let preprocessing = import::preprocessing_for(&plain, &model);
        let card = ModelCard::new(model, vec!["x".to_owned()], preprocessing);
        let evidence = Evidence { pretrained: Some(("weights", &card)), ..evidence(&case) };
        let plan = Plan::new(&Overrides::default(), &evidence).unwrap();
        (plan.model.channels, plan.reasons.iter().any(|reason| reason.contains("turned to gray")))
    };
    assert_eq!(planned("hybrid_micro_patch8_32", 1, false), (1, true));
    assert_eq!(planned("hybrid_micro_patch8_32", 1, true), (1, false));
    assert_eq!(planned("hybrid_micro_patch8_32", 3, false), (3, false));
    assert_eq!(planned("vit_pico_patch4_32", 1, false), (3, false), "its filters are repeated for colors");
}

#[test]
fn pretrained_weights_are_suggested_for_few_color_images_alone() {
    let is_suggested = |source, gray, train, overrides: &Overrides| {
        let plan = plan(&case(source, [300, 300], gray, train), overrides).unwrap();
        plan.reasons.iter().any(|reason| reason.contains("--pretrained dinov2-small"))
    };
    let usual = Overrides::default();
    assert!(is_suggested(SourceKind::Folder, false, 300, &usual));
    assert!(!is_suggested(SourceKind::Folder, false, 3000, &usual));
    assert!(!is_suggested(SourceKind::Folder, true, 300, &usual));
    assert!(!is_suggested(SourceKind::Cifar, false, 300, &usual));
    let model = Some("vit_pico_patch4_32".to_owned());
    assert!(!is_suggested(SourceKind::Folder, false, 300, &Overrides { model, ..usual }));
}

#[test]
fn progressive_learning_is_used_as_far_as_the_model_allows() {
    let photos = case(SourceKind::Folder, [64, 64], false, 300);
    let chosen = |model: Option<&str>, recipe: &str, epochs| {
        let overrides = Overrides {
            model: model.map(str::to_owned),
            recipe: Some(recipe.to_owned()),
            length: AskedLength { epochs: Some(epochs), seconds: None },
            ..Overrides::default()
        };
        let plan = plan(&photos, &overrides).unwrap();
        let said = plan.reasons.iter().any(|reason| reason.contains("of the run: images"));
        assert_eq!(said, plan.recipe.progressive_learning.is_some(), "{:?}", plan.reasons);
        plan.recipe.progressive_learning.map(|progressive| progressive.size(&plan.model).width)
    };
    assert_eq!(chosen(None, "short", 10), Some(48));
    assert_eq!(chosen(None, "long", 60), Some(48));
    assert_eq!(chosen(None, "short", 1), Some(48), "a phase need not be a whole number of epochs");
    // Windowed attention is bound to one image size, so only augmentation is lighter at first; `short` has no strong
    // augmentation to leave out.
    assert_eq!(chosen(Some("swin_pico_patch2_window4_32"), "long", 60), Some(32));
    assert_eq!(chosen(Some("swin_pico_patch2_window4_32"), "short", 60), None);
}

#[test]
fn at_most_half_of_the_updates_are_on_small_images() {
    let images = case(SourceKind::Folder, [32, 32], false, 45_000);
    for seconds in [2.0, 60.0, 600.0, 6000.0] {
        let overrides = Overrides {
            length: AskedLength { epochs: None, seconds: Some(seconds) },
            ..Overrides::default()
        };
        let budget = Some(Budget { seconds, multiply_adds_per_second: 5e10 });
        let plan = Plan::new(&overrides, &Evidence { budget, ..evidence(&images) }).unwrap();
        let first = plan.recipe.progressive_learning.unwrap();
        // The time limit ends the first phase, and the cost of an image is proportional to its pixels.
        let [small, large] = [first.until / first.cost(&plan.model), 1.0 - first.until];
        assert!(small <= large, "{seconds} s: {small} {large}");
    }
}

#[test]
fn flips_of_unknown_images_are_judged_unless_the_user_decides() {
    let plan_of = |source, is_gray, flips| {
        let options = RecipeOverrides { flips, ..RecipeOverrides::default() };
        plan(&case(source, [32, 32], is_gray, 4000), &Overrides { options, ..Overrides::default() })
    };
    let planned = |source, is_gray, flips| {
        let plan = plan_of(source, is_gray, flips).unwrap();
        let said = plan.reasons.iter().filter(|reason| reason.contains("flips")).count();
        (plan.recipe.augmentation.horizontal_flip > 0.0, plan.recipe.judge_flips, said)
    };
    assert_eq!(planned(SourceKind::Folder, false, None), (true, true, 1));
    assert_eq!(planned(SourceKind::Cifar, false, None), (true, false, 1));
    assert_eq!(planned(SourceKind::Idx, true, None), (false, false, 1), "digits");
    for source in [SourceKind::Folder, SourceKind::Cifar, SourceKind::Idx] {
        assert_eq!(planned(source, source == SourceKind::Idx, Some(true)), (true, false, 0));
        if source != SourceKind::Idx {
            assert_eq!(planned(source, false, Some(false)), (false, false, 0));
        }
    }
    let refused = plan_of(SourceKind::Idx, true, Some(false)).err().unwrap().to_string();
    assert!(refused.contains("--no-flips has no effect"), "{refused}");
}

#[test]
fn a_time_limit_buys_bfloat16_products_where_they_are_faster() {
    let data = case(SourceKind::Folder, [32, 32], false, 300);
    let precision = |faster, overrides: Overrides| {
        let evidence = Evidence { multiplies_bfloat16: faster, ..evidence(&data) };
        let plan = Plan::new(&overrides, &evidence).unwrap();
        assert_eq!(plan.reasons.iter().any(|reason| reason.contains("--precision f32")), {
            plan.recipe.precision == Precision::Bf16 && overrides.options.precision.is_none()
        });
        let measured = recipe::to_measure(&overrides, &evidence, &plan.model).unwrap().precision;
        assert_eq!(measured, plan.recipe.precision);
        measured
    };
    let minute = AskedLength { epochs: None, seconds: Some(60.0) };
    let time = Overrides { length: minute, ..Overrides::default() };
    assert_eq!(precision(true, time.clone()), Precision::Bf16);
    assert_eq!(precision(false, time.clone()), Precision::F32);
    assert_eq!(
        precision(true, Overrides::default()),
        Precision::F32,
        "its results are those of other processors"
    );
    let both = AskedLength { epochs: Some(5), ..minute };
    assert_eq!(precision(true, Overrides { length: both, ..Overrides::default() }), Precision::F32);
    for stated in [Precision::F32, Precision::Bf16] {
        let options = RecipeOverrides { precision: Some(stated), ..RecipeOverrides::default() };
        for length in [minute, AskedLength::default()] {
            assert_eq!(
                precision(true, Overrides { options: options.clone(), length, ..Overrides::default() }),
                stated
            );
        }
    }
}

#[test]
fn a_time_budget_takes_the_place_of_epochs() {
    let data = case(SourceKind::Folder, [32, 32], false, 300);
    let minute = AskedLength { epochs: None, seconds: Some(60.0) };
    let time = Overrides { length: minute, ..Overrides::default() };
    assert_eq!(plan(&data, &time).unwrap().recipe.epochs, None);
    let both = Overrides { length: AskedLength { epochs: Some(5), ..minute }, ..time };
    let recipe = plan(&data, &both).unwrap().recipe;
    assert_eq!((recipe.epochs, recipe.time_seconds), (Some(5), Some(60.0)));
}

#[test]
fn accuracy_can_be_expected_of_runs_of_which_the_length_alone_is_stated() {
    let of = |source, overrides: &Overrides| {
        plan(&case(source, [64, 64], false, 300), overrides).unwrap().usual_epochs
    };
    let own = Overrides::default();
    assert_eq!(of(SourceKind::Folder, &own), Some(60.0));
    let length = AskedLength { epochs: Some(7), seconds: None };
    assert_eq!(of(SourceKind::Folder, &Overrides { length, ..own.clone() }), Some(7.0));
    assert_eq!(of(SourceKind::Shapes, &own), None, "they are drawn");
    let stated = [
        Overrides { model: Some("vit_pico_patch4_32".to_owned()), ..own.clone() },
        Overrides { recipe: Some("long".to_owned()), ..own.clone() },
        Overrides { image_size: Some(32), ..own.clone() },
        Overrides {
            options: RecipeOverrides { patience: Some(3), ..RecipeOverrides::default() },
            ..own.clone()
        },
    ];
    for overrides in stated {
        assert_eq!(of(SourceKind::Folder, &overrides), None, "{overrides:?}");
    }
    let mut several = case(SourceKind::Manifest, [64, 64], false, 300);
    several.info.multi_label = true;
    assert_eq!(plan(&several, &own).unwrap().usual_epochs, None);
}

#[test]
fn edges_are_cut_off_only_on_request_or_with_a_remark() {
    let chosen = |side, asked, own: Option<ResizeRule>| {
        let case = case(SourceKind::Folder, side, false, 300);
        let model = vitrine_models::preset::find("vit_tiny_patch16_224").unwrap();
        let card = own.map(|resize| {
            let plain = plan(&case, &Overrides::default()).unwrap().preprocessing;
            let preprocessing = import::preprocessing_for(&Preprocessing { resize, ..plain }, &model);
            ModelCard::new(model.clone(), vec!["x".to_owned()], preprocessing)
        });
        let evidence =
            Evidence { pretrained: card.as_ref().map(|card| ("weights", card)), ..evidence(&case) };
        let plan = Plan::new(&Overrides { resize: asked, ..Overrides::default() }, &evidence).unwrap();
        let reason = plan.reasons.into_iter().find(|reason| reason.contains("--resize"));
        (plan.preprocessing.resize, reason.unwrap_or_default())
    };
    let shorter = |crop| ResizeRule::ShorterSide { crop };
    let (squash, letterbox) = (ResizeRule::Squash, ResizeRule::Letterbox);
    // What the random crops of training show of a side, on average.
    let middle = ResizeRule::SquashCrop { crop: 0.89 };
    for (side, asked, own, rule, said) in [
        ([64, 64], None, None, squash, ""),
        ([300, 300], None, None, middle, "the middle 89% of each side"),
        ([300, 300], Some(Resize::Squash), None, squash, ""),
        ([640, 480], None, None, middle, "1.33 times its"),
        ([480, 960], None, None, middle, "2.00 times"),
        ([1000, 100], None, None, letterbox, "10.00 times"),
        ([640, 480], Some(Resize::Letterbox), None, letterbox, ""),
        ([1000, 100], Some(Resize::Squash), None, squash, ""),
        ([1000, 100], Some(Resize::Crop), None, shorter(1.0), ""),
        // The rule of pretrained weights is kept, and a loss of edges is reported.
        ([640, 480], None, Some(shorter(1.0)), shorter(1.0), "lose their edges"),
        ([64, 64], None, Some(shorter(1.0)), shorter(1.0), ""),
        ([64, 64], None, Some(shorter(0.9)), shorter(0.9), "lose their edges"),
        (
            [64, 64],
            None,
            Some(ResizeRule::SquashCrop { crop: 0.9 }),
            ResizeRule::SquashCrop { crop: 0.9 },
            "edges",
        ),
        ([1000, 100], None, Some(squash), squash, ""),
        ([640, 480], Some(Resize::Squash), Some(shorter(0.9)), squash, ""),
        ([640, 480], Some(Resize::Crop), Some(shorter(0.9)), shorter(0.9), ""),
        ([640, 480], Some(Resize::Crop), Some(squash), shorter(1.0), ""),
    ] {
        let (chosen, reason) = chosen(side, asked, own);
        assert_eq!(chosen, rule, "{side:?} {asked:?} {own:?}");
        assert!(
            reason.contains(said) && reason.is_empty() == said.is_empty(),
            "{side:?} {asked:?}: {reason}"
        );
    }
}

#[test]
fn uneven_classes_are_reported_and_balancing_even_ones_is_refused() {
    let of_sizes =
        |sizes| Case { class_sizes: class_sizes(sizes), ..case(SourceKind::Folder, [32, 32], false, 300) };
    let weights = RecipeOverrides { class_weights: true, ..RecipeOverrides::default() };
    let sampling = RecipeOverrides { balanced_sampling: true, ..RecipeOverrides::default() };
    let planned = |sizes, options: &RecipeOverrides| {
        plan(&of_sizes(sizes), &Overrides { options: options.clone(), ..Overrides::default() })
    };
    let said = |sizes, options: &RecipeOverrides| {
        let reasons = planned(sizes, options).unwrap().reasons;
        reasons.into_iter().find(|reason| reason.contains("--class-weights"))
    };
    let message = said([40, 251, 50], &RecipeOverrides::default()).unwrap();
    for part in ["'b' has 251", "'a' only 40", "--balanced-sampling"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(
        said([50, 250, 60], &RecipeOverrides::default()),
        None,
        "five times is not more than five times"
    );
    for (options, name) in [(&weights, "--class-weights"), (&sampling, "--balanced-sampling")] {
        assert_eq!(said([40, 251, 50], options), None);
        let recipe = planned([40, 41, 40], options).unwrap().recipe;
        assert_eq!(
            (recipe.class_weights, recipe.balanced_sampling),
            (options.class_weights, options.balanced_sampling)
        );
        let error = planned([40, 40, 40], options).unwrap_err();
        assert!(UsageError::is_cause_of(&error));
        assert!(
            error.to_string().contains(name) && error.to_string().contains("40 training images"),
            "{error}"
        );
    }
    let both = RecipeOverrides { balanced_sampling: true, ..weights };
    let error = planned([40, 41, 40], &both).unwrap_err().to_string();
    assert!(error.contains("--class-weights") && error.contains("--balanced-sampling"), "{error}");
}
