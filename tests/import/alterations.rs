//! Weights and configurations with one tensor or key dropped, renamed, or changed.

use std::collections::{BTreeMap, BTreeSet};

use assert_cmd::Command;
use serde_json::{Value, json};
use vitrine::import::Imported;
use vitrine_models::ModelConfig;
use vitrine_models::weights::NamedTensor;

use super::{File, Folder, Stored, config, import_command, stored};

/// The folders in `tests/fixtures` with a model of each library and family.
const CASES: [&str; 35] = [
    "hf_clip",
    "hf_beit",
    "hf_dinov2",
    "hf_dinov2_classifier",
    "hf_dinov2_registers",
    "hf_dinov3",
    "hf_dinov3_plus",
    "hf_mae",
    "hf_siglip",
    "hf_siglip_classifier",
    "hf_swin",
    "hf_vit",
    "timm_beit",
    "timm_clip",
    "timm_deit_distilled",
    "timm_dinov3",
    "timm_dinov3_plus",
    "timm_eva02",
    "timm_eva02_base",
    "timm_eva02_scaled",
    "timm_flexi",
    "timm_siglip",
    "timm_siglip_gap",
    "timm_swiglu",
    "timm_swin",
    "timm_swin_padded",
    "timm_swinv2",
    "timm_swinv2_enlarged",
    "timm_vit",
    "timm_vit_avgpool_reg_layerscale",
    "timm_vit_map_qknorm",
    "timm_vit_rope",
    "timm_vit_rope_mixed",
    "torchvision_swin",
    "torchvision_vit",
];

/// Everything that determines the logits: the architecture and every value.
fn computed(imported: Imported) -> (ModelConfig, BTreeMap<String, NamedTensor>) {
    let tensors = imported.tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    (imported.card.model, tensors)
}

/// The tensor with its first two dimensions swapped; `None` if they are equal, because then no shape tells, and no
/// library notices.
fn transposed(tensor: &Stored) -> Option<Stored> {
    let [rows, columns, ref rest @ ..] = tensor.shape[..] else { return None };
    let item = tensor.bytes.len() / (rows * columns).max(1);
    let item = |row: usize, column: usize| &tensor.bytes[(row * columns + column) * item..][..item];
    let bytes = (0..columns).flat_map(|column| (0..rows).flat_map(move |row| item(row, column))).copied();
    (rows != columns).then(|| Stored {
        shape: [&[columns, rows], rest].concat(),
        bytes: bytes.collect(),
        ..tensor.clone()
    })
}

#[test]
fn weights_with_an_altered_tensor_are_refused_unless_it_was_not_needed() {
    for case in CASES {
        let (file, config) = (stored(case), config(case));
        let whole =
            Folder::new(&file, Some(&config)).load().unwrap_or_else(|error| panic!("{case}: {error}"));
        let has_head = whole.has_head;
        let whole = computed(whole);
        for (name, tensor) in &file {
            let mut without = file.clone();
            without.remove(name);
            let mut renamed = without.clone();
            renamed.insert(format!("{name}_"), tensor.clone());
            let transposed = transposed(tensor).map(|tensor| {
                let mut file = file.clone();
                file.insert(name.clone(), tensor);
                file
            });
            for (how, file) in
                [("dropped", Some(without)), ("renamed", Some(renamed)), ("transposed", transposed)]
            {
                let Some(Ok(imported)) = file.map(|file| Folder::new(&file, Some(&config)).load()) else {
                    continue;
                };
                // Without its head, a classifier becomes a backbone, which commands that need a classifier refuse.
                if has_head == imported.has_head {
                    assert!(computed(imported) == whole, "{case}: {name} {how}");
                }
            }
        }
    }
}

/// Keys that the weights cannot contradict: the library computes with any value of them, and so does the import.
const HONORED: [&str; 18] = [
    "layer_norm_eps",
    "num_heads",
    "num_attention_heads",
    "hidden_act",
    "window_size",
    "image_size",
    "img_size",
    "act_layer",
    "global_pool",
    "use_rot_pos_emb",
    "rope_theta",
    "rope_temperature",
    "rope_rotate_half",
    "rope_grid_indexing",
    "rope_type",
    "norm_eps",
    "ref_feat_shape",
    "pretrained_window_sizes",
];

/// Other values of the same kind.
fn other_values(value: &Value) -> Vec<Value> {
    match value {
        Value::Bool(value) => vec![json!(!value)],
        Value::Number(number) => match number.as_u64() {
            Some(number) => vec![json!(number + 1), json!(number * 2)],
            None => vec![json!(number.as_f64().unwrap() * 2.0)],
        },
        Value::String(_) => vec![json!("other")],
        Value::Array(values) => values.first().map(|_| json!(values[1..])).into_iter().collect(),
        Value::Object(values) => {
            let mut fewer = values.clone();
            fewer.retain(|key, _| key != "0" && key != "LABEL_0");
            vec![Value::Object(fewer)]
        }
        Value::Null => Vec::new(),
    }
}

#[test]
fn an_altered_key_of_a_configuration_is_honored_refused_or_without_effect() {
    let mut honored = BTreeSet::new();
    for case in CASES {
        let (file, config) = (stored(case), config(case));
        let whole = computed(Folder::new(&file, Some(&config)).load().unwrap());
        let keys: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
        for key in keys {
            let mut dropped = config.clone();
            dropped.as_object_mut().unwrap().remove(&key);
            let mut changed: Vec<(String, Value)> = vec![("dropped".to_owned(), dropped)];
            for value in other_values(&config[&key]) {
                let mut other = config.clone();
                other[&key] = value.clone();
                changed.push((value.to_string(), other));
            }
            for (how, config) in changed {
                let Ok(imported) = Folder::new(&file, Some(&config)).load() else { continue };
                if computed(imported) != whole {
                    assert!(HONORED.contains(&key.as_str()), "{case}: {key} {how}");
                    honored.insert(key.clone());
                }
            }
        }
        let mut more = config.clone();
        more["surprise"] = json!(1);
        let error = Folder::new(&file, Some(&more)).load().err().unwrap_or_else(|| panic!("{case}"));
        assert!(error.contains("surprise"), "{error}");
    }
    let ignored: Vec<&str> = HONORED.into_iter().filter(|&key| !honored.contains(key)).collect();
    assert_eq!(ignored, [""; 0], "no value of these keys changes a model");
}

#[test]
fn errors_name_the_key_that_contradicts_the_tensors() {
    let cases: [(&str, &str, Value, &str); 15] = [
        ("hf_vit", "num_hidden_layers", json!(3), "depth: 3 is stated, and the weights have 2"),
        ("hf_vit", "hidden_size", json!(96), "embed_dim"),
        ("hf_vit", "intermediate_size", json!(96), "width of the MLPs"),
        ("hf_vit", "patch_size", json!(16), "patch_size"),
        ("hf_vit", "image_size", json!(64), "image_size"),
        ("hf_vit", "qkv_bias", json!(false), "qkv_bias"),
        ("hf_vit", "num_labels", json!(7), "num_classes"),
        ("hf_vit", "model_type", json!("data2vec-vision"), "relative positions"),
        ("hf_vit", "model_type", json!("dinov3_vit"), "learned positions"),
        ("hf_vit", "architectures", json!(["ViTForMaskedImageModeling"]), "ViTForMaskedImageModeling"),
        ("hf_swin", "depths", json!([2, 2, 2]), "depth"),
        ("hf_swin", "layer_norm_eps", json!(1e-6), "norms of two kinds"),
        ("hf_swin", "window_size", json!(2), "window: 2 is stated, and the weights have 4"),
        ("timm_vit_avgpool_reg_layerscale", "reg_tokens", json!(0), "registers"),
        ("timm_vit", "model", json!("Hiera"), "Hiera is not supported"),
    ];
    for (case, key, value, part) in cases {
        let mut config = config(case);
        config[key] = value;
        let error =
            Folder::new(&stored(case), Some(&config)).load().err().unwrap_or_else(|| panic!("{case}: {key}"));
        assert!(error.contains(part), "{case}: {key}: {error}");
    }
}

#[test]
fn a_head_that_projects_to_texts_is_told_from_a_classifier() {
    let about_head =
        |file: &File, case: &str| Folder::new(file, Some(&config(case))).load().unwrap().card.about_head;
    let [of_timm, of_hugging_face] = ["timm_clip", "hf_clip"].map(stored);
    assert_eq!(about_head(&of_timm, "timm_clip"), None);
    assert!(about_head(&of_hugging_face, "hf_clip").unwrap().contains("CLIP's projection"));
    // timm stores the projection as a classifier with a bias of zeros.
    let mut without_bias = of_timm;
    without_bias.get_mut("head.bias").unwrap().bytes.fill(0);
    assert!(about_head(&without_bias, "timm_clip").unwrap().contains("CLIP's projection"));
}

#[test]
fn a_model_file_keeps_that_its_head_projects_to_texts() {
    for (case, is_projection) in [("hf_clip", true), ("hf_vit", false)] {
        let folder = Folder::new(&stored(case), Some(&config(case)));
        let [model, image] = ["made.safetensors", "image.png"].map(|name| folder.path().join(name));
        import_command(folder.path(), &model).assert().success();
        let file = std::fs::read(&model).unwrap();
        assert_eq!(String::from_utf8_lossy(&file).contains("about_head"), is_projection, "{case}");
        image::save_buffer(&image, &[90; 32 * 32 * 3], 32, 32, image::ColorType::Rgb8).unwrap();
        let mut classify = Command::cargo_bin("vitrine").unwrap();
        let output = classify.arg("classify").args([&model, &image]).assert().success().get_output().clone();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(told.contains("CLIP's projection"), is_projection, "{case}: {told}");
    }
}
