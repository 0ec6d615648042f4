//! Training that begins with the weights of another library or of an earlier run.

use super::reference::fixture;
use super::vitrine;

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
fn a_backbone_is_a_model_that_is_described_and_trained_and_has_no_classes() {
    let folder = tempfile::tempdir().unwrap();
    let case = fixture("hf_dinov2");
    std::fs::copy(case.join("config.json"), folder.path().join("config.json")).unwrap();
    std::fs::copy(case.join("weights.safetensors"), folder.path().join("model.safetensors")).unwrap();
    // Positions for 32 pixels, and preprocessing for 48, as Hugging Face's DINOv2 has for 518 and for 224.
    let preprocessor = r#"{"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 56},
        "crop_size": {"height": 48, "width": 48}, "resample": 3, "image_mean": 0.5, "image_std": 0.5}"#;
    std::fs::write(folder.path().join("preprocessor_config.json"), preprocessor).unwrap();
    let model = folder.path().join("backbone.safetensors");
    for more in [&[][..], &["--image-size", "48"]] {
        let result =
            vitrine().arg("import").arg(folder.path()).arg("-o").arg(&model).args(more).assert().success();
        let told = String::from_utf8(result.get_output().stderr.clone()).unwrap();
        assert!(told.contains("positions resampled from [4, 4] to [6, 6]"), "{told}");
        assert!(told.contains("no classifier: train one with `vitrine train DATA --pretrained"), "{told}");
        assert!(!told.contains("warning"), "{told}");
        // transformers' own features at 48 pixels.
        let io = super::reference::arrays("hf_dinov2", "io.safetensors");
        let device = burn::tensor::Device::default();
        let (card, backbone) = vitrine::model_file::load(&model, &device).unwrap();
        assert!(!card.has_classifier());
        let images = || super::reference::tensor::<4>(&io["input_48"], &device);
        let features = super::reference::values(backbone.features(images()));
        super::reference::assert_close("features at 48", &features, &io["features_48"].values, 1e-4);
        let pooled = super::reference::values(backbone.embedding(images()));
        super::reference::assert_close("the class token", &pooled, &io["pooled_48"].values, 1e-4);
    }
    vitrine()
        .arg("inspect")
        .arg(&model)
        .assert()
        .success()
        .stdout(predicates::str::contains("no classifier"));
    let maps = folder.path().join("maps").display().to_string();
    for (command, more) in [
        ("classify", &["."][..]),
        ("evaluate", &["shapes"]),
        ("explain", &[".", "--output", &maps]),
        ("export", &["--layout", "timm", "--output", &maps]),
    ] {
        let refused = vitrine().arg(command).arg(&model).args(more).assert().failure();
        refused.stderr(predicates::str::contains("no classifier; train one"));
    }
    vitrine()
        .args(["train", "--time", "1s", "--freeze", "backbone", "--pretrained"])
        .arg(&model)
        .arg("--output")
        .arg(folder.path().join("run"))
        .assert()
        .success()
        .stderr(predicates::str::contains("image 48x48"));
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
        .args(["train", "--time", "2s", "--epochs", "9", "--freeze", "backbone", "--pretrained"])
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
        let is_usage = arguments.contains(&"--freeze") || arguments.contains(&"hf:nobody");
        assert_eq!(output.status.code(), Some(if is_usage { 2 } else { 1 }), "{arguments:?}: {message}");
    }
}
