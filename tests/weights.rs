//! Import, export, and training with other libraries' weights, mostly through the command line.

#![allow(clippy::unwrap_used)]

#[path = "support/reference.rs"]
mod reference;

use std::path::Path;

use assert_cmd::Command;
use burn::tensor::Device;
use reference::fixture;
use vitrine::export::{Library, export};
use vitrine::import::{self, Options};
use vitrine::weights_file::Precision;
use vitrine_models::weights::{Layout, NamedTensor, from_timm, to_timm};

fn vitrine() -> Command {
    let mut command = Command::cargo_bin("vitrine").unwrap();
    command.env("NO_COLOR", "1").timeout(std::time::Duration::from_secs(300));
    command
}

fn load(path: &Path) -> import::Imported {
    import::load(path, &Options::default()).unwrap_or_else(|error| panic!("{error:#}"))
}

fn sorted(mut tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
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

#[test]
fn import_classify_and_export_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.safetensors");
    let names = folder.path().join("names.txt");
    let text: Vec<String> = (0..10).map(|class| format!("thing {class}")).collect();
    std::fs::write(&names, text.join("\n")).unwrap();
    let import = |dtype: &str| {
        vitrine()
            .arg("import")
            .arg(fixture("timm_vit").join("weights.pth"))
            .args(["--dtype", dtype, "--classes"])
            .arg(&names)
            .arg("--output")
            .arg(&model)
            .assert()
            .success()
    };
    let told = String::from_utf8(import("f32").get_output().stderr.clone()).unwrap();
    assert!(told.contains("layout: timm") && told.contains("tensors: 32 used, 0 not needed"), "{told}");
    let whole = std::fs::metadata(&model).unwrap().len();
    let image = folder.path().join("image.png");
    draw_image(&image);
    let logits = |model: &Path| -> Vec<f64> {
        let output = vitrine()
            .args(["classify", "--format", "jsonl", "--logits"])
            .arg(model)
            .arg(&image)
            .output()
            .unwrap();
        let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(line["predictions"][0]["label"].as_str().unwrap().starts_with("thing"));
        line["logits"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let expected = logits(&model);
    import("bf16");
    assert!(std::fs::metadata(&model).unwrap().len() < whole * 6 / 10);
    for (half, full) in logits(&model).iter().zip(&expected) {
        assert!((half - full).abs() < 0.1, "{half} for {full}");
    }
    let exported = folder.path().join("hf");
    export_command(&model, "hugging-face", &exported).success();
    for name in ["config.json", "preprocessor_config.json", "model.safetensors"] {
        assert!(exported.join(name).is_file(), "{name}");
    }
    // The folder is no longer empty.
    export_command(&model, "hugging-face", &exported)
        .failure()
        .stderr(predicates::str::contains("not empty"));
}

fn export_command(model: &Path, layout: &str, output: &Path) -> assert_cmd::assert::Assert {
    vitrine().arg("export").arg(model).args(["--layout", layout, "--output"]).arg(output).assert()
}

/// Writes an image of 40 by 30 pixels.
fn draw_image(path: &Path) {
    let pixels: Vec<u8> = (0..40 * 30 * 3).map(|value| (value * 7 % 256) as u8).collect();
    image::save_buffer(path, &pixels, 40, 30, image::ColorType::Rgb8).unwrap();
}

#[test]
fn errors_name_every_key_that_does_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let case = fixture("timm_vit");
    std::fs::copy(case.join("config.json"), folder.path().join("config.json")).unwrap();
    let write = |name: &str, change: &dyn Fn(&mut Vec<NamedTensor>)| {
        let mut tensors = load(&case.join("weights.safetensors")).tensors;
        change(&mut tensors);
        let path = folder.path().join(name);
        vitrine::weights_file::save(&path, &tensors, &[], Precision::F32, Default::default()).unwrap();
        path
    };
    type Case<'a> = (&'a str, &'a dyn Fn(&mut Vec<NamedTensor>), &'a [&'a str]);
    let cases: [Case; 5] = [
        ("missing", &|t| t.retain(|t| t.name != "blocks.1.norm1.bias"), &["missing", "blocks.1.norm1.bias"]),
        (
            "unexpected",
            &|t| t[0].name = "surplus".to_owned(),
            &["unexpected", "surplus", "missing", "blocks.0.attn.proj.bias"],
        ),
        (
            "shape",
            &|t| {
                let bias = t.iter_mut().find(|t| t.name == "blocks.0.mlp.fc1.bias").unwrap();
                bias.shape = vec![2, 96];
            },
            &["another shape", "blocks.0.mlp.fc1.bias", "[2, 96]", "[192]"],
        ),
        ("no model", &|t| t.retain(|t| t.name.starts_with("blocks")), &["no known layout", "--layout"]),
        ("no head", &|t| t.retain(|t| !t.name.starts_with("head")), &["no classifier", "--pretrained"]),
    ];
    for (name, change, parts) in cases {
        let path = write(&format!("{}.safetensors", name.replace(' ', "_")), change);
        let output = folder.path().join("out.safetensors");
        let result = vitrine().arg("import").arg(&path).arg("--output").arg(&output).assert().failure();
        let message = String::from_utf8(result.get_output().stderr.clone()).unwrap();
        for part in parts {
            assert!(message.contains(part), "{name}: {part} is not in: {message}");
        }
        assert!(!output.exists(), "{name}");
    }
}

/// The error message of `vitrine import` for a folder that it must refuse.
fn refusal(folder: &Path, more: &[&str]) -> String {
    let output = folder.join("out.safetensors");
    let result = vitrine().arg("import").arg(folder).arg("--output").arg(&output).args(more).assert().code(1);
    assert!(!output.exists());
    String::from_utf8(result.get_output().stderr.clone()).unwrap()
}

#[test]
fn configurations_that_contradict_the_weights_are_refused() {
    let case = fixture("timm_vit");
    let text = std::fs::read_to_string(case.join("config.json")).unwrap();
    let cases: [(&str, serde_json::Value, &str); 6] = [
        ("global_pool", "avg".into(), "pooling"),
        ("global_pool", "max".into(), "`global_pool`: pooling by \"max\""),
        ("act_layer", "relu".into(), "`act_layer`"),
        ("scale_attn_norm", true.into(), "`scale_attn_norm`"),
        ("num_heads", serde_json::json!([3, 6]), "heads for several stages"),
        ("img_size", u64::MAX.into(), "image_size"),
    ];
    for (key, value, part) in cases {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(case.join("weights.safetensors"), folder.path().join("model.safetensors")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config[key] = value;
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let message = refusal(folder.path(), &[]);
        assert!(message.contains(part), "{key}: {message}");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(case.join("weights.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let message = refusal(folder.path(), &["--config", "swin_tiny_patch4_window7_224"]);
    assert!(message.contains("--config swin_tiny_patch4_window7_224"), "{message}");
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    std::fs::write(folder.path().join("model.safetensors.index.json"), r#"{"weight_map": {}}"#).unwrap();
    assert!(refusal(folder.path(), &[]).contains("names none"));
}

#[test]
fn import_and_export_do_not_overwrite_their_input() {
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("model.safetensors");
    let case = fixture("hf_vit");
    std::fs::copy(case.join("weights.safetensors"), &weights).unwrap();
    std::fs::copy(case.join("config.json"), folder.path().join("config.json")).unwrap();
    let before = std::fs::read(&weights).unwrap();
    vitrine()
        .arg("import")
        .arg(folder.path())
        .arg("--output")
        .arg(&weights)
        .assert()
        .failure()
        .stderr(predicates::str::contains("the weights file"));
    assert_eq!(std::fs::read(&weights).unwrap(), before);
    let model = folder.path().join("ours.safetensors");
    vitrine().arg("import").arg(&weights).arg("--output").arg(&model).assert().success();
    export_command(&model, "timm", &model).failure().stderr(predicates::str::contains("the model itself"));
}

#[test]
fn errors_name_a_parameter_that_two_keys_stand_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = vitrine::weights_file::open(&fixture("torchvision_vit").join("weights.safetensors")).unwrap();
    let mut tensors: Vec<NamedTensor> = file.tensors.iter().map(|tensor| tensor.read().unwrap()).collect();
    let mut again =
        tensors.iter().find(|tensor| tensor.name.ends_with("layer_0.mlp.0.bias")).unwrap().clone();
    again.name = again.name.replace(".mlp.0.", ".mlp.linear_1.");
    tensors.push(again);
    let path = folder.path().join("model.safetensors");
    vitrine::weights_file::save(&path, &tensors, &[], Precision::F32, Default::default()).unwrap();
    std::fs::copy(fixture("torchvision_vit").join("config.json"), folder.path().join("config.json")).unwrap();
    assert!(refusal(folder.path(), &[]).contains("blocks.0.mlp.fc1.bias (twice)"));
}

#[test]
fn truncated_files_and_pickles_that_call_functions_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |path: &Path| -> String {
        let output = folder.path().join("out.safetensors");
        let result = vitrine().arg("import").arg(path).arg("--output").arg(&output).assert().code(1);
        assert!(!output.exists());
        let message = String::from_utf8(result.get_output().stderr.clone()).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(message.starts_with("error: ") && message.contains(name), "{message}");
        assert!(!message.contains("panicked"), "{message}");
        message
    };
    for (case, file) in [("timm_vit", "weights.safetensors"), ("timm_vit", "weights.pth")] {
        let whole = std::fs::read(fixture(case).join(file)).unwrap();
        for share in [0, 1, 10, 50, 90, 99] {
            let path = folder.path().join(format!("{share}-{file}"));
            std::fs::write(&path, &whole[..whole.len() * share / 100]).unwrap();
            refused(&path);
        }
    }
    let calls = folder.path().join("calls.pth");
    std::fs::write(&calls, b"\x80\x02}X\x01\x00\x00\x00acposix\nsystem\nX\x04\x00\x00\x00true\x85Rs.")
        .unwrap();
    let message = refused(&calls);
    assert!(message.contains("posix.system") && message.contains(".safetensors"), "{message}");
    let hidden = folder.path().join("hidden.pth");
    std::fs::write(&hidden, b"\x80\x02}X\x01\x00\x00\x00a]cbuiltins\neval\nX\x01\x00\x00\x001\x85Ras.")
        .unwrap();
    assert!(refused(&hidden).contains("eval"));
}

#[test]
fn training_resamples_a_backbone_to_the_size_of_its_preprocessing_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let case = fixture("hf_dinov2_registers");
    std::fs::copy(case.join("config.json"), folder.path().join("config.json")).unwrap();
    std::fs::copy(case.join("weights.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let preprocessor = r#"{"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 28},
        "crop_size": {"height": 24, "width": 24}, "resample": 3, "image_mean": 0.5, "image_std": 0.5}"#;
    std::fs::write(folder.path().join("preprocessor_config.json"), preprocessor).unwrap();
    for (more, grid, size) in [
        (&[][..], "positions resampled from [4, 4] to [3, 3]", "image 24x24"),
        (&["--image-size", "40"], "positions resampled from [4, 4] to [5, 5]", "image 40x40"),
        (&["--image-size", "32"], "", "image 32x32"),
    ] {
        let run = folder.path().join(format!("run{}", more.concat()));
        let output = vitrine()
            .args(["train", "--time", "1s", "--pretrained"])
            .arg(folder.path())
            .args(more)
            .arg("--output")
            .arg(&run)
            .output()
            .unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && told.contains(grid) && told.contains(size), "{told}");
        assert!(!told.contains("warning"), "{told}");
        assert_eq!(told.contains("--image-size chooses any"), more.is_empty(), "{told}");
        assert_eq!(told.contains("positions resampled"), !grid.is_empty(), "{told}");
    }
}

#[test]
fn weights_are_adapted_to_other_classes_and_sizes_and_can_be_frozen() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let train = |more: &[&str]| {
        let mut command = vitrine();
        command.args(["train", "--time", "2s", "--seed", "3", "--image-size", "40", "--pretrained"]);
        command.arg(fixture("timm_vit").join("weights.safetensors")).args(more).arg("--output").arg(&run);
        command
    };
    let result = train(&[]).assert().success();
    let told = String::from_utf8(result.get_output().stderr.clone()).unwrap();
    for part in
        ["positions resampled from [4, 4] to [5, 5]", "a new head for", "recipe fine-tune", "layout: timm"]
    {
        assert!(told.contains(part), "{part} is not in: {told}");
    }
    let config = std::fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(config.contains("layer_decay = 0.75") && config.contains("pretrained = "), "{config}");
    // A run folder is a source of weights, too, and training a frozen backbone changes only the head.
    let probe = folder.path().join("probe");
    let before = vitrine::model_file::read(&run.join("model.safetensors")).unwrap().1;
    vitrine()
        .args(["train", "--time", "2s", "--freeze", "backbone", "--pretrained"])
        .arg(&run)
        .arg("--output")
        .arg(&probe)
        .assert()
        .success()
        .stderr(predicates::str::contains("everything but the head is frozen"));
    let after = vitrine::model_file::read(&probe.join("model.safetensors")).unwrap().1;
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(old.name, new.name);
        assert_eq!(old.values == new.values, !old.name.starts_with("head."), "{}", old.name);
    }
    for (arguments, part) in [
        (&["--freeze", "backbone"][..], "--pretrained"),
        (&["--freeze", "9", "--pretrained", run.to_str().unwrap()], "2 blocks"),
        (
            &["--freeze", "backbone", "--gradient-checkpointing", "--pretrained", run.to_str().unwrap()],
            "--gradient-checkpointing",
        ),
        (&["--pretrained", "nowhere.safetensors"], "nowhere.safetensors"),
        (&["--pretrained", "hf:nobody"], "OWNER/NAME"),
    ] {
        let mut command = vitrine();
        command.arg("train").args(arguments).arg("--output").arg(folder.path().join("none"));
        let output = command.output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(part), "{arguments:?}: {message}");
        let is_usage = arguments.contains(&"--freeze");
        assert_eq!(output.status.code(), Some(if is_usage { 2 } else { 1 }), "{arguments:?}: {message}");
    }
}

#[test]
fn a_model_returns_the_tensors_that_it_was_built_from() {
    let imported = load(&fixture("hf_swin").join("weights.safetensors"));
    let tensors = imported.tensors.clone();
    let fresh = imported.card.model.init(&Device::default()).unwrap();
    assert_eq!(sorted(to_timm(&from_timm(fresh, tensors.clone()).unwrap())), sorted(tensors));
}

#[test]
fn backbones_give_the_features_of_their_library() {
    let device = Device::default();
    for case in ["hf_dinov2_registers", "hf_siglip"] {
        let io = reference::arrays(case, "io.safetensors");
        let imported = load(&fixture(case).join("weights.safetensors"));
        assert!(!imported.has_head, "{case}");
        let model = imported.model(&device).unwrap();
        let features = model.features(reference::tensor::<4>(&io["input"], &device));
        reference::assert_close(case, &reference::values(features), &io["features"].values, 1e-4);
    }
}
