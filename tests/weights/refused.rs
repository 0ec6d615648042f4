//! Files that `vitrine import` and `vitrine export` refuse, with errors that name the cause.

use std::path::Path;

use vitrine::weights_file::Precision;
use vitrine_models::weights::NamedTensor;

use super::reference::fixture;
use super::{export_command, load, vitrine};

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
    let cases: [Case; 4] = [
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
        .stderr(predicates::str::contains("was not written by such a command"));
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
