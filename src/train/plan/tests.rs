//! What is chosen for which data.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use super::*;
use crate::recipe::NamedRecipe;
use vitrine_datasets::{Extent, SizeRange, SourceKind, ValidationOrigin};
use vitrine_models::ImageSize;

struct Case {
    info: DatasetInfo,
    survey: Survey,
    train: usize,
}

fn case(source: SourceKind, side: [u32; 2], gray: bool, train: usize) -> Case {
    let extent = |side| Extent { min: side, median: side, max: side };
    Case {
        info: DatasetInfo {
            name: "data".to_owned(),
            classes: ["a", "b", "c"].map(str::to_owned).to_vec(),
            source,
            validation: ValidationOrigin::Given,
            flip_safe: !gray,
        },
        survey: Survey {
            sizes: SizeRange { width: extent(side[0]), height: extent(side[1]) },
            gray,
            decoded: 1,
            failed: 0,
        },
        train,
    }
}

fn plan(case: &Case, overrides: &Overrides) -> Result<Plan> {
    let evidence = Evidence { info: &case.info, survey: &case.survey, train: case.train, pretrained: None };
    Plan::new(overrides, &evidence)
}

#[test]
fn digits_color_images_and_photos_get_what_suits_them() {
    let digits = plan(&case(SourceKind::Idx, [28, 28], true, 48_000), &Overrides::default()).unwrap();
    assert_eq!((digits.model.channels, digits.model.image_size), (1, ImageSize::square(28)));
    assert_eq!(digits.recipe.augmentation.horizontal_flip, 0.0, "a mirrored digit is another one");
    let small = plan(&case(SourceKind::Cifar, [32, 32], false, 40_000), &Overrides::default()).unwrap();
    assert_eq!((small.model.channels, small.model.patch_size), (3, 4));
    assert_eq!(small.recipe.augmentation.horizontal_flip, 0.5);
    let many = plan(&case(SourceKind::Folder, [32, 32], false, 200_000), &Overrides::default()).unwrap();
    assert!(many.model.embed_dim > small.model.embed_dim);
    let photos = plan(&case(SourceKind::Folder, [640, 480], false, 300), &Overrides::default()).unwrap();
    assert_eq!(photos.preprocessing.resize, ResizeRule::ShorterSide { crop: 1.0 });
    assert!(photos.recipe.epochs > small.recipe.epochs, "few images want many epochs");
    assert!(photos.recipe.ema_decay > 0.0);
    for plan in [digits, small, photos] {
        assert_eq!(plan.model.num_classes, 3);
        assert!(plan.reasons.len() >= 4, "{:?}", plan.reasons);
    }
}

#[test]
fn overrides_come_before_choices() {
    let overrides = Overrides {
        model: Some("vit_tiny_patch16_224".to_owned()),
        recipe: Some("plain".to_owned()),
        image_size: Some(64),
        length: LengthArgs { epochs: Some(4), time: None },
        options: RecipeArgs {
            batch_size: Some(7),
            learning_rate: Some(0.5),
            weight_decay: Some(0.25),
            patience: Some(3),
            ..RecipeArgs::default()
        },
    };
    let plan = plan(&case(SourceKind::Folder, [640, 480], true, 300), &overrides).unwrap();
    assert_eq!(plan.model_name, "vit_tiny_patch16_224");
    assert_eq!((plan.model.image_size, plan.model.channels), (ImageSize::square(64), 1));
    assert_eq!(plan.preprocessing.image_size, [64, 64]);
    let recipe = plan.recipe;
    assert_eq!((recipe.epochs, recipe.batch_size, recipe.patience), (Some(4), 7, 3));
    assert_eq!((recipe.learning_rate, recipe.weight_decay), (0.5, 0.25));
}

#[test]
fn what_has_no_effect_is_refused_and_never_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = |text: &str| {
        let path = folder.path().join("recipe.toml");
        std::fs::write(&path, text).unwrap();
        Some(path.display().to_string())
    };
    let gray = case(SourceKind::Folder, [32, 32], true, 300);
    let color = case(SourceKind::Folder, [32, 32], false, 300);
    for text in ["[augmentation]\nhue = 0.1", "[augmentation]\nsaturation = 0.3"] {
        let overrides = Overrides { recipe: recipe(text), ..Overrides::default() };
        let error = plan(&gray, &overrides).unwrap_err().to_string();
        assert!(error.contains("no effect on gray images"), "{error}");
        plan(&color, &overrides).unwrap();
    }
    let gray_model = folder.path().join("gray.toml");
    std::fs::write(
        &gray_model,
        "image_size = 32\npatch_size = 8\nchannels = 1\nembed_dim = 16\ndepth = 1\nnum_heads = 2\n",
    )
    .unwrap();
    for NamedRecipe { name, .. } in NamedRecipe::all() {
        let overrides = Overrides { recipe: Some(name.to_owned()), ..Overrides::default() };
        plan(&gray, &overrides).unwrap();
        let model = Some(gray_model.display().to_string());
        plan(&color, &Overrides { model, ..overrides }).unwrap();
    }
    let patient = |patience| Overrides {
        options: RecipeArgs { patience: Some(patience), ..RecipeArgs::default() },
        length: LengthArgs { epochs: Some(3), time: None },
        ..Overrides::default()
    };
    assert!(plan(&color, &patient(3)).unwrap_err().to_string().contains("--patience 3"));
    plan(&color, &patient(2)).unwrap();
}

#[test]
fn a_time_budget_takes_the_place_of_epochs() {
    let data = case(SourceKind::Folder, [32, 32], false, 300);
    let minute = LengthArgs { epochs: None, time: Some(Duration::from_secs(60)) };
    let time = Overrides { length: minute, ..Overrides::default() };
    assert_eq!(plan(&data, &time).unwrap().recipe.epochs, None);
    let both = Overrides { length: LengthArgs { epochs: Some(5), ..minute }, ..time };
    let recipe = plan(&data, &both).unwrap().recipe;
    assert_eq!((recipe.epochs, recipe.time_seconds), (Some(5), Some(60.0)));
}

#[test]
fn an_image_size_gets_a_patch_that_divides_it_or_an_error() {
    let sized = |side| {
        let overrides = Overrides { image_size: Some(side), ..Overrides::default() };
        plan(&case(SourceKind::Folder, [640, 480], false, 300), &overrides)
    };
    for side in (16..300_usize).step_by(4) {
        assert!(side.is_multiple_of(sized(side).unwrap().model.patch_size));
    }
    let error = format!("{:#}", sized(101).unwrap_err());
    assert!(error.contains("--image-size") && error.contains("101"), "{error}");
}
