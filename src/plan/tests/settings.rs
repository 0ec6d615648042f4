//! Tests of what the user states: options, recipe files, and settings without effect.

use super::*;

#[test]
fn overrides_take_precedence() {
    let overrides = Overrides {
        model: Some("vit_tiny_patch16_224".to_owned()),
        recipe: Some("plain".to_owned()),
        image_size: Some(64),
        pool: None,
        resize: Some(Resize::Crop),
        length: AskedLength { epochs: Some(4), seconds: None },
        options: RecipeOverrides {
            batch_size: Some(7),
            learning_rate: Some(0.5),
            weight_decay: Some(0.25),
            patience: Some(3),
            ..RecipeOverrides::default()
        },
    };
    let plan = plan(&case(SourceKind::Folder, [640, 480], true, 300), &overrides).unwrap();
    assert_eq!(plan.model_name, "vit_tiny_patch16_224");
    assert_eq!((plan.model.image_size, plan.model.channels), (ImageSize::square(64), 1));
    assert_eq!(plan.preprocessing.image_size, [64, 64]);
    assert_eq!(plan.preprocessing.resize, ResizeRule::ShorterSide { crop: 1.0 });
    let recipe = plan.recipe;
    assert_eq!((recipe.epochs, recipe.batch_size, recipe.patience), (Some(4), 7, 3));
    assert_eq!((recipe.learning_rate, recipe.weight_decay), (0.5, 0.25));
}

#[test]
fn a_published_recipe_is_adapted_only_in_its_flips() {
    let published = Recipe { metric: Some(Metric::Accuracy), ..NamedRecipe::find("sl-vit").unwrap().recipe };
    let overrides = Overrides { recipe: Some("sl-vit".to_owned()), ..Overrides::default() };
    let color = plan(&case(SourceKind::Cifar, [32, 32], false, 300), &overrides).unwrap();
    assert_eq!(color.recipe, published);
    assert!(color.reasons.iter().any(|reason| reason.contains("sl-vit as published: Lee")));
    let mut digits = plan(&case(SourceKind::Idx, [28, 28], true, 300), &overrides).unwrap();
    assert!(digits.reasons.iter().any(|reason| reason.contains("without flips")));
    assert_eq!(digits.recipe.augmentation.horizontal_flip, 0.0);
    digits.recipe.augmentation.horizontal_flip = published.augmentation.horizontal_flip;
    assert_eq!(digits.recipe, published);
    let stated = Overrides {
        length: AskedLength { epochs: Some(3), seconds: None },
        options: RecipeOverrides {
            batch_size: Some(16),
            learning_rate: Some(1e-2),
            ..RecipeOverrides::default()
        },
        ..overrides
    };
    let recipe = plan(&case(SourceKind::Cifar, [32, 32], false, 300), &stated).unwrap().recipe;
    assert_eq!((recipe.epochs, recipe.batch_size, recipe.learning_rate), (Some(3), 16, 1e-2));
    let adapted = Overrides { recipe: Some("short".to_owned()), ..Overrides::default() };
    let recipe = plan(&case(SourceKind::Cifar, [32, 32], false, 300), &adapted).unwrap().recipe;
    assert_eq!((recipe.epochs, recipe.batch_size), (Some(60), 32));
}

#[test]
fn settings_without_effect_are_refused_and_never_chosen() {
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
    for (text, part) in [
        ("epochs = 9\npatience = 9", "`patience` 9"),
        ("[augmentation]\ncrop = { pad = { pixels = 32 } }", "`augmentation.crop.pad.pixels` is 32"),
        (
            "progressive_learning = { until = 0.5, scale = 0.5 }\n[augmentation]\nmixup = 0.2\nmix_until = 0.5",
            "`augmentation.mix_until` is 0.5",
        ),
    ] {
        let overrides = Overrides { recipe: recipe(text), ..Overrides::default() };
        let error = format!("{:#}", plan(&color, &overrides).unwrap_err());
        assert!(error.contains(part), "{error}");
    }
    let patient = recipe("patience = 9");
    let stated = AskedLength { epochs: Some(3), ..AskedLength::default() };
    plan(&color, &Overrides { recipe: patient, length: stated, ..Overrides::default() }).unwrap();
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
        options: RecipeOverrides { patience: Some(patience), ..RecipeOverrides::default() },
        length: AskedLength { epochs: Some(3), seconds: None },
        ..Overrides::default()
    };
    let mixing = recipe("batch_size = 1\n[augmentation]\nmixup = 0.5");
    let error = plan(&color, &Overrides { recipe: mixing, ..Overrides::default() }).unwrap_err().to_string();
    assert!(error.contains("`augmentation.mixup`") && error.contains("--batch-size"), "{error}");
    assert!(plan(&color, &patient(3)).unwrap_err().to_string().contains("--patience 3"));
    plan(&color, &patient(2)).unwrap();
}

#[test]
fn more_batches_for_an_update_than_an_epoch_has_are_refused() {
    let case = case(SourceKind::Folder, [32, 32], false, 300);
    let planned = |accumulate, batch_size| {
        let options = RecipeOverrides {
            accumulate: Some(accumulate),
            batch_size: Some(batch_size),
            ..RecipeOverrides::default()
        };
        plan(&case, &Overrides { options, ..Overrides::default() })
    };
    assert_eq!(planned(10, 32).unwrap().recipe.accumulate, 10);
    for (accumulate, batch_size, parts) in [
        (11, 32, ["only 10 batches of 32 images", "at most 10"]),
        (2, 300, ["only 1 batch of 300", "leave it out"]),
    ] {
        let error = planned(accumulate, batch_size).unwrap_err();
        let message = error.to_string();
        assert!(UsageError::is_cause_of(&error) && message.contains("--accumulate"), "{message}");
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}

#[test]
fn stated_flips_count_where_the_memory_suffices_for_a_probe_alone() {
    let case = case(SourceKind::Folder, [224, 224], false, 1 << 20);
    let card = {
        let model = preset::find("vit_base_patch16_224").unwrap().with_num_classes(2);
        let preprocessing = crate::run_folder::testing::config(&["x", "y"]).preprocessing;
        ModelCard::new(model, vec!["x".to_owned(), "y".to_owned()], preprocessing)
    };
    let device = crate::device::select(Some("cpu")).unwrap().0;
    let planned = |flips, one_view| {
        // So large a batch takes terabytes.
        let options =
            RecipeOverrides { batch_size: Some(1 << 16), flips, one_view, ..RecipeOverrides::default() };
        let evidence = Evidence { pretrained: Some(("weights", &card)), ..evidence(&case) };
        let overrides = Overrides { options, ..Overrides::default() };
        let plan = Plan::for_device(&overrides, &evidence, &device).unwrap();
        assert!(plan.recipe.fit_head, "{:?}", plan.reasons);
        (plan.recipe.fits_mirror_images(), plan.recipe.mirror_views)
    };
    assert_eq!(planned(None, false), (false, false));
    assert_eq!(planned(Some(false), false), (false, false));
    assert_eq!(planned(None, true), (false, false));
    assert_eq!(planned(Some(true), false), (true, true));
    assert_eq!(planned(Some(true), true), (true, false));
}

#[test]
fn batches_of_copies_of_an_image_are_not_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recipe.toml");
    let case = case(SourceKind::Folder, [32, 32], false, 300);
    let planned = |batch_size: usize, rest: &str| {
        std::fs::write(&file, format!("batch_size = {batch_size}\n[augmentation]\n{rest}")).unwrap();
        plan(&case, &Overrides { recipe: Some(file.display().to_string()), ..Overrides::default() })
    };
    for (key, batch_size) in [("mixup", 4), ("cutmix", 3)] {
        let error = planned(batch_size, &format!("repeats = 4\n{key} = 0.5")).unwrap_err().to_string();
        let mixing = format!("`augmentation.{key}`");
        for part in
            ["`augmentation.repeats` is 4", "`batch_size` (--batch-size)", mixing.as_str(), "at least 8"]
        {
            assert!(error.contains(part), "{error}");
        }
    }
    planned(8, "repeats = 4\nmixup = 0.5").unwrap();
    planned(4, "repeats = 4").unwrap();
}

#[test]
fn a_stated_metric_is_kept_for_images_of_several_labels() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recipe.toml");
    let mut case = case(SourceKind::Manifest, [32, 32], false, 300);
    case.info.multi_label = true;
    for (text, expected) in [
        ("epochs = 9", Metric::MeanAveragePrecision),
        ("epochs = 9\nmetric = \"accuracy\"", Metric::Accuracy),
        ("epochs = 9\nmetric = \"loss\"", Metric::Loss),
    ] {
        std::fs::write(&file, text).unwrap();
        let overrides = Overrides { recipe: Some(file.display().to_string()), ..Overrides::default() };
        assert_eq!(plan(&case, &overrides).unwrap().recipe.metric, Some(expected), "{text}");
    }
    assert_eq!(plan(&case, &Overrides::default()).unwrap().recipe.metric, Some(Metric::MeanAveragePrecision));
}

#[test]
fn a_recipe_file_that_the_model_cannot_follow_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recipe.toml");
    std::fs::write(&file, "epochs = 9\nprogressive_learning = { until = 0.5, scale = 0.5 }").unwrap();
    let overrides = |model: &str| Overrides {
        model: Some(model.to_owned()),
        recipe: Some(file.display().to_string()),
        ..Overrides::default()
    };
    let photos = case(SourceKind::Folder, [64, 64], false, 300);
    let progressive = plan(&photos, &overrides("hybrid_nano_patch8_64")).unwrap().recipe.progressive_learning;
    assert_eq!(progressive, Some(crate::recipe::ProgressiveLearning { until: 0.5, scale: 0.5 }));
    let error = plan(&photos, &overrides("vit_lite_7_4")).unwrap_err().to_string();
    assert!(error.contains("`progressive_learning.scale`") && error.contains("--model"), "{error}");
}

#[test]
fn a_recipe_file_that_does_not_suit_the_weights_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recipe.toml");
    let photos = case(SourceKind::Folder, [300, 300], false, 400);
    let model = preset::find("vit_tiny_patch16_224").unwrap();
    let plain = plan(&photos, &Overrides::default()).unwrap().preprocessing;
    let card = ModelCard::new(model.clone(), vec!["x".to_owned()], import::preprocessing_for(&plain, &model));
    let refused = |text: &str, freeze, pretrained| {
        std::fs::write(&file, text).unwrap();
        let overrides = Overrides {
            recipe: Some(file.display().to_string()),
            options: RecipeOverrides { freeze, ..RecipeOverrides::default() },
            ..Overrides::default()
        };
        let error = Plan::new(&overrides, &Evidence { pretrained, ..evidence(&photos) }).unwrap_err();
        let message = format!("{error:#}");
        let names_file = message.starts_with(&format!("--recipe {}: ", file.display()));
        assert_ne!(names_file, UsageError::is_cause_of(&error), "{message}");
        (names_file, message)
    };
    for (text, part) in [
        ("freeze = \"backbone\"", "`freeze` needs --pretrained"),
        ("probe_first = true", "`probe_first` needs --pretrained"),
    ] {
        let (names_file, message) = refused(text, None, None);
        assert!(names_file && message.contains(part), "{message}");
    }
    let weights = Some(("weights", &card));
    for (text, part) in [
        ("freeze = { blocks = 13 }", "`freeze` (--freeze) is 13, and the model has only 12 blocks"),
        ("gradient_checkpointing = true\nfreeze = { blocks = 12 }", "`gradient_checkpointing`"),
        ("optimizer = \"muon\"\nfreeze = { blocks = 12 }", "`optimizer = \"muon\"`"),
    ] {
        let (names_file, message) = refused(text, None, weights);
        assert!(names_file && message.contains(part), "{message}");
    }
    let (names_file, message) = refused("epochs = 9", Some(Freeze::Blocks(13)), weights);
    assert!(!names_file && message.contains("12 blocks"), "{message}");
}
