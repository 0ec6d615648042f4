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
