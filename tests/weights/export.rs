//! Export to other libraries: the written model gives the same logits when it is imported again, and unsupported models
//! are refused.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, Distribution, Tensor, Tolerance};
use vitrine::export::{Exported, Library, export};
use vitrine::import::{self, Options};
use vitrine::model_file::{ModelCard, TrainedOn};
use vitrine::weights_file::{self, Precision};
use vitrine_datasets::{
    ContentKey, CropRounding, DecodeLimits, ImageSource, Interpolation, Preprocessing, ResizeRule,
};
use vitrine_models::weights::Layout;
use vitrine_models::{AttentionOptions, ImageSize, Mixer, ModelConfig, RelativePosition, Score, preset};

use super::reference::fixture;
use super::{load, sorted};

fn plain() -> ModelConfig {
    ModelConfig {
        image_size: ImageSize::square(32),
        patch_size: 8,
        embed_dim: 64,
        num_heads: 2.into(),
        depth: 1.into(),
        num_classes: 3,
        ..preset::find("vit_tiny_patch16_224").unwrap()
    }
}

fn staged(name: &str) -> ModelConfig {
    ModelConfig {
        image_size: ImageSize::square(32),
        patch_size: 4,
        embed_dim: 16,
        num_heads: [2, 4].into(),
        depth: [2, 2].into(),
        mixers: vec![Mixer::Window(4), Mixer::ShiftedWindow(4)],
        num_classes: 3,
        ..preset::find(name).unwrap()
    }
}

fn swin() -> ModelConfig {
    staged("swin_tiny_patch4_window7_224")
}

fn card(model: &ModelConfig) -> ModelCard {
    let preprocessing = Preprocessing {
        image_size: [model.image_size.height, model.image_size.width],
        channels: 3,
        resize: ResizeRule::ShorterSide { crop: 0.9 },
        interpolation: Interpolation::Lanczos,
        mean: vec![0.25, 0.5, 0.75],
        std: vec![0.3; 3],
        crop_rounding: CropRounding::HalfToEven,
    };
    let classes = ["ash", "birch", "cedar"].map(str::to_owned).into();
    ModelCard::new(model.clone(), classes, preprocessing)
}

fn write(card: &ModelCard, library: Library, output: &Path) -> anyhow::Result<Exported> {
    let model = card.model.init(&Device::default()).unwrap();
    export(card, &model, library, output, Precision::F32)
}

/// Writes the file again without the model card in its header.
fn without_header(path: &Path) {
    let file = weights_file::open(path).unwrap();
    let tensors: Vec<_> = file.tensors.iter().map(|tensor| tensor.read().unwrap()).collect();
    drop(file);
    weights_file::save(path, &tensors, &[], Precision::F32, Default::default()).unwrap();
}

fn logits(imported: import::Imported, images: &Tensor<4>) -> burn::tensor::TensorData {
    imported.model(&Device::default()).unwrap().forward(images.clone()).into_data()
}

#[test]
fn exported_models_are_imported_with_the_same_classes_preprocessing_and_logits() {
    let device = Device::default();
    let epsilon = ModelConfig { norm_epsilon: 1e-3, ..plain() };
    let no_bias = |config: ModelConfig| ModelConfig { qkv_bias: false, ..config };
    let all = [Library::Timm, Library::HuggingFace, Library::Torchvision];
    let cases: [(&str, ModelConfig, &[Library]); 5] = [
        ("epsilon", epsilon, &all),
        (
            "DeiT without a teacher",
            ModelConfig { registers: 1, ..plain() },
            &[Library::Timm, Library::HuggingFace],
        ),
        ("ViT without bias", no_bias(plain()), &all),
        ("Swin without bias", no_bias(swin()), &all),
        ("Swin v2", staged("swinv2_tiny_window8_256"), &all),
    ];
    for (case, config, layouts) in cases {
        let card = card(&config);
        let model = config.init(&device).unwrap();
        let images = Tensor::<4>::random([2, 3, 32, 32], Distribution::Default, &device);
        let expected = model.forward(images.clone()).into_data();
        for &library in layouts {
            let folder = tempfile::tempdir().unwrap();
            let is_file = library != Library::HuggingFace;
            let output = folder.path().join(if is_file { "model.safetensors" } else { "model" });
            export(&card, &model, library, &output, Precision::F32).unwrap();
            let back = import::load(&output, &Options::default()).unwrap_or_else(|e| panic!("{case}: {e:#}"));
            assert_eq!(back.card.classes, card.classes, "{case} {library:?}");
            assert_eq!(back.card.preprocessing, card.preprocessing, "{case} {library:?}");
            assert_eq!(back.card.model.norm_epsilon, config.norm_epsilon, "{case} {library:?}");
            logits(back, &images).assert_approx_eq::<f32>(&expected, Tolerance::absolute(1e-5));
            if library == Library::HuggingFace {
                // Without the model card, the library's configuration files describe the model.
                without_header(&output.join("model.safetensors"));
                let back =
                    import::load(&output, &Options::default()).unwrap_or_else(|e| panic!("{case}: {e:#}"));
                assert_eq!((&back.card.classes, &back.card.model), (&card.classes, &config), "{case}");
                logits(back, &images).assert_approx_eq::<f32>(&expected, Tolerance::absolute(1e-5));
            }
        }
    }
}

#[test]
fn models_that_a_library_would_compute_differently_are_refused() {
    // Three stages, of which the last has a grid smaller than a window.
    let small = |name| ModelConfig { num_heads: [2, 4, 8].into(), depth: [2, 2, 2].into(), ..staged(name) };
    let (swin_v1, swin_v2) = (small("swin_tiny_patch4_window7_224"), small("swinv2_tiny_window8_256"));
    let wide = ModelConfig { image_size: ImageSize { height: 32, width: 48 }, ..plain() };
    let epsilon = |config: ModelConfig| ModelConfig { norm_epsilon: 1e-3, ..config };
    let dot = AttentionOptions { score: Score::Dot, ..AttentionOptions::default() };
    let v2 = staged("swinv2_tiny_window8_256");
    let nowhere = AttentionOptions { relative_position: Some(RelativePosition::None), ..v2.attention };
    let cases = [
        (ModelConfig { attention: dot, ..plain() }, Library::Timm, "attention.score"),
        (ModelConfig { attention: dot, ..swin() }, Library::HuggingFace, "attention.score"),
        (ModelConfig { attention: dot, ..plain() }, Library::Torchvision, "attention.score"),
        (ModelConfig { attention: nowhere, ..v2 }, Library::Timm, "attention.relative_position"),
        (swin_v1.clone(), Library::Torchvision, "smaller than one"),
        (swin_v1, Library::HuggingFace, "smaller than a window"),
        (swin_v2, Library::Torchvision, "smaller than one"),
        (wide, Library::HuggingFace, "32x48"),
        (epsilon(plain()), Library::Timm, "`norm_epsilon` is 1e-3"),
        (epsilon(swin()), Library::HuggingFace, "`norm_epsilon` of 1e-5"),
    ];
    for (config, library, part) in cases {
        let folder = tempfile::tempdir().unwrap();
        let name = if library == Library::Torchvision { "model.safetensors" } else { "model" };
        let output = folder.path().join(name);
        let error = write(&card(&config), library, &output).err().unwrap().to_string();
        assert!(error.contains(part), "{part} is not in: {error}");
        assert!(!output.exists(), "{part}");
    }
}

#[test]
fn the_line_of_python_states_an_epsilon_other_than_the_librarys() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.safetensors");
    let config = ModelConfig { norm_epsilon: 1e-3, ..swin() };
    for (library, import) in [
        (Library::Timm, "import functools, timm, torch; timm."),
        (Library::Torchvision, "import functools, safetensors.torch, torch, torchvision"),
    ] {
        let exported = write(&card(&config), library, &output).unwrap();
        assert!(exported.usage.contains("eps=1e-3"), "{}", exported.usage);
        assert!(exported.usage.starts_with(import), "{}", exported.usage);
    }
    let exported = write(&card(&swin()), Library::Timm, &output).unwrap();
    assert!(!exported.usage.contains("norm_layer"), "{}", exported.usage);
    // A path is a string of Python, whatever its name.
    let output = folder.path().join("a \"model\".safetensors");
    let exported = write(&card(&swin()), Library::Timm, &output).unwrap();
    assert!(exported.usage.contains("a \\\"model\\\".safetensors\""), "{}", exported.usage);
}

#[test]
fn an_exported_model_is_imported_unchanged() {
    let cases: [(&str, &[Library]); 6] = [
        ("timm_vit", &[Library::Timm, Library::HuggingFace, Library::Torchvision]),
        ("timm_vit_avgpool_reg_layerscale", &[Library::Timm]),
        ("timm_vit_map_qknorm", &[Library::Timm]),
        ("timm_deit_distilled", &[Library::Timm, Library::HuggingFace]),
        ("timm_swin", &[Library::Timm, Library::HuggingFace, Library::Torchvision]),
        ("timm_swinv2", &[Library::Timm, Library::HuggingFace, Library::Torchvision]),
    ];
    for (case, layouts) in cases {
        for &library in layouts {
            let first = load(&fixture(case).join("weights.safetensors"));
            let (card, tensors) = (first.card.clone(), first.tensors.clone());
            let model = first.model(&Device::default()).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let output = match library {
                Library::Torchvision => folder.path().join("model.safetensors"),
                _ => folder.path().join("model"),
            };
            export(&card, &model, library, &output, Precision::F32).unwrap();
            let options = Options {
                // The names and shapes of torchvision's files do not tell everything.
                config: (library == Library::Torchvision)
                    .then(|| fixture(case).join("config.json").display().to_string()),
                ..Options::default()
            };
            let second = import::load(&output, &options).unwrap_or_else(|error| panic!("{case}: {error:#}"));
            assert_eq!(second.account.layout, Layout::from(library), "{case}");
            assert_eq!(second.card.model, card.model, "{case} {library:?}");
            assert_eq!(sorted(second.tensors), sorted(tensors), "{case} {library:?}");
            // The header of an exported file describes the model without any option.
            let again = load(&output).card;
            assert_eq!(again.model, card.model, "{case} {library:?}");
            assert_eq!(again.preprocessing, card.preprocessing, "{case} {library:?}");
            assert_eq!(again.classes, card.classes, "{case} {library:?}");
        }
    }
}

#[test]
fn what_the_user_states_leaves_the_rest_of_an_exported_model_as_its_header_says() {
    let image = ImageSource::Drawn { class: 0, seed: 7 };
    let keys = [ContentKey::of(&image, &DecodeLimits::default())].into_iter().collect();
    let trained_on = Some(TrainedOn::new(BTreeMap::new(), &keys, None));
    let card = ModelCard { trained_on, mirror_views: true, ..card(&plain()) };
    let folder = tempfile::tempdir().unwrap();
    for (library, name) in [
        (Library::Timm, "timm.safetensors"),
        (Library::Timm, "timm"),
        (Library::HuggingFace, "hugging-face"),
        (Library::Torchvision, "torchvision.safetensors"),
    ] {
        let output = folder.path().join(name);
        write(&card, library, &output).unwrap();
        let larger = Options { image_size: Some([64; 2]), ..Options::default() };
        let back = import::load(&output, &larger).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let model = ModelConfig { image_size: ImageSize::square(64), ..card.model.clone() };
        let preprocessing = Preprocessing { image_size: [64; 2], ..card.preprocessing.clone() };
        assert_eq!(back.card, ModelCard { model, preprocessing, ..card.clone() }, "{name}");
        let heads = Options { heads: Some(vec![4]), ..Options::default() };
        let error = format!("{:#}", import::load(&output, &heads).err().unwrap());
        assert!(error.contains("--heads 4: the file's header states 2"), "{name}: {error}");
    }
    // A configuration describes the model instead, but does not know its images.
    let config = Some(folder.path().join("timm/config.json").display().to_string());
    let options = Options { config, ..Options::default() };
    let back = import::load(&folder.path().join("timm"), &options).unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(back.card.trained_on, card.trained_on);
}

#[test]
fn a_model_with_sinusoidal_positions_is_exported_to_timm() {
    let device = Device::default();
    let config = vitrine_models::preset::find("vit_pico_patch4_32").unwrap();
    let model = config.init(&device).unwrap();
    let classes = (0..config.num_classes).map(|class| format!("kind {class}")).collect();
    let preprocessing = vitrine_datasets::Preprocessing {
        image_size: [32, 32],
        channels: 3,
        resize: vitrine_datasets::ResizeRule::Squash,
        interpolation: vitrine_datasets::Interpolation::Bicubic,
        mean: vec![0.5; 3],
        std: vec![0.25; 3],
        crop_rounding: Default::default(),
    };
    let card = vitrine::model_file::ModelCard::new(config.clone(), classes, preprocessing);
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("timm");
    export(&card, &model, Library::Timm, &output, Precision::F32).unwrap();
    let back = load(&output);
    assert_eq!((&back.card.classes, &back.card.preprocessing), (&card.classes, &card.preprocessing));
    let images =
        burn::tensor::Tensor::<4>::random([2, 3, 32, 32], burn::tensor::Distribution::Default, &device);
    let expected = model.forward(images.clone()).into_data();
    let logits = back.model(&device).unwrap().forward(images).into_data();
    logits.assert_approx_eq::<f32>(&expected, burn::tensor::Tolerance::absolute(1e-5));
    let gated = vitrine_models::ModelConfig {
        channel_attention: Some(vitrine_models::ChannelAttention {
            kind: vitrine_models::ChannelGate::SqueezeExcitation,
            reduction: None,
            place: vitrine_models::GatePlace::Mixer,
        }),
        ..config
    };
    let model = gated.init(&device).unwrap();
    let card = vitrine::model_file::ModelCard { model: gated, ..card };
    let error =
        export(&card, &model, Library::Timm, &folder.path().join("no"), Precision::F32).err().unwrap();
    assert!(error.to_string().contains("channel_attention"), "{error}");
}
