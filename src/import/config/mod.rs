//! Configuration files of other libraries: `config.json` of Hugging Face and timm, the arguments of a constructor as
//! JSON, and Hugging Face's `preprocessor_config.json`.

mod constructor;
mod eva;
mod hugging_face;
mod metadata;
mod processor;
mod timm;
mod timm_names;
mod timm_pipeline;
mod values;

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use vitrine_models::weights::{Facts, Layout};

use crate::files::read_text;
pub(super) use metadata::{CLIP, HALF, IMAGENET, ModelMetadata, squash};
pub(super) use timm::facts_of_name as facts_of_timm_name;
pub(super) use timm_names::{TimmArchitecture, has_enlarged_windows, unsupported_feature};

/// Reads a model's configuration file.
///
/// # Errors
/// If the file holds no JSON object, or a key has a value that is not supported. The message names the file and the
/// key.
pub(super) fn read(path: &Path) -> Result<ModelMetadata> {
    let value = parse(path)?;
    let Some(file) = value.as_object() else {
        bail!("{}: not a configuration: a JSON object is needed", path.display());
    };
    let mut metadata = architecture(file).with_context(|| path.display().to_string())?;
    metadata.classes = class_names(&value);
    metadata.multi_label = file.get("problem_type").is_some_and(|kind| kind == "multi_label_classification");
    if let Some(pipeline) = timm_pipeline::of(&value) {
        timm_pipeline::add(pipeline, &mut metadata).with_context(|| path.display().to_string())?;
    }
    Ok(metadata)
}

/// Adds the preprocessing of a `preprocessor_config.json`.
///
/// # Errors
/// If it is no JSON object, or a step is not supported. The message names the file and the key.
pub(super) fn read_preprocessor(path: &Path, metadata: &mut ModelMetadata) -> Result<()> {
    processor::read(path, &parse(path)?, metadata)
}

fn parse(path: &Path) -> Result<Value> {
    let text = read_text(path).with_context(|| path.display().to_string())?;
    let without_byte_order_mark = text.strip_prefix('\u{feff}').unwrap_or(&text);
    serde_json::from_str(without_byte_order_mark).with_context(|| format!("{}: not JSON", path.display()))
}

/// The architecture in a configuration of any of the three kinds, which are told apart by their keys.
fn architecture(file: &Map<String, Value>) -> Result<ModelMetadata> {
    if hugging_face::is_configuration(file) {
        let facts = hugging_face::read(file)?;
        return Ok(ModelMetadata { facts, layout: Some(Layout::HuggingFace), ..ModelMetadata::default() });
    }
    let timms_keys = ["architecture", "pretrained_cfg", "model_args"];
    if timms_keys.iter().any(|key| file.contains_key(*key)) {
        let facts = timm::read(file)?;
        let name = file.get("architecture").and_then(Value::as_str).map(str::to_owned);
        return Ok(ModelMetadata { facts, name, ..ModelMetadata::default() });
    }
    let mut facts = match file.get("model").and_then(Value::as_str) {
        Some(class) => constructor::facts_of_class(class).context("`model`")?,
        None => Facts::default(),
    };
    constructor::add(file, &mut facts)?;
    Ok(ModelMetadata { facts, ..ModelMetadata::default() })
}

/// Class names from timm's `label_names`, or `labels` in its early files, or from Hugging Face's `id2label`. The placeholders `LABEL_0`, `LABEL_1`, ... that
/// Hugging Face writes for unnamed classes are no names.
fn class_names(value: &Value) -> Option<Vec<String>> {
    let is_timms = value.get("architecture").is_some();
    let lists = [
        value.get("label_names"),
        value.get("pretrained_cfg").and_then(|pipeline| pipeline.get("label_names")),
        value.get("labels").filter(|_| is_timms),
    ];
    if let Some(names) = lists.into_iter().flatten().find_map(Value::as_array) {
        return names.iter().map(|name| name.as_str().map(str::to_owned)).collect();
    }
    let by_number = value.get("id2label")?.as_object()?;
    let names: Option<Vec<String>> = (0..by_number.len())
        .map(|number| by_number.get(&number.to_string())?.as_str().map(str::to_owned))
        .collect();
    names.filter(|names| !names.iter().enumerate().all(|(number, name)| *name == format!("LABEL_{number}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn the_preprocessing_of_early_files_of_timm_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let pipeline = json!({ "input_size": [3, 224, 224], "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "crop_pct": 1.0 });
        let mut early = pipeline.clone();
        early["architecture"] = "vit_tiny_patch16_224".into();
        early["labels"] = json!(["cat", "dog"]);
        let later = json!({ "architecture": "vit_tiny_patch16_224", "pretrained_cfg": pipeline });
        let read = |file: &Value| {
            std::fs::write(&path, file.to_string()).unwrap();
            read(&path).unwrap()
        };
        let (early, later) = (read(&early), read(&later));
        assert_eq!(early.mean, Some(vec![0.1, 0.2, 0.3]));
        assert_eq!((&early.mean, &early.std, &early.resize), (&later.mean, &later.std, &later.resize));
        assert_eq!(early.classes.unwrap(), ["cat", "dog"]);
    }

    #[test]
    fn class_names_of_both_libraries_are_read_except_for_placeholders() {
        let names = |names: [&str; 2]| Some(names.map(str::to_owned).to_vec());
        for (file, expected) in [
            (json!({ "label_names": ["cat", "dog"] }), names(["cat", "dog"])),
            (json!({ "pretrained_cfg": { "label_names": ["cat", "dog"] } }), names(["cat", "dog"])),
            (json!({ "architecture": "a", "labels": ["cat", "dog"] }), names(["cat", "dog"])),
            (json!({ "labels": ["cat", "dog"] }), None),
            (json!({ "id2label": { "1": "dog", "0": "cat" } }), names(["cat", "dog"])),
            (json!({ "id2label": { "0": "LABEL_0", "1": "dog" } }), names(["LABEL_0", "dog"])),
            (json!({ "id2label": { "0": "LABEL_0", "1": "LABEL_1" } }), None),
            (json!({ "id2label": { "1": "cat", "2": "dog" } }), None),
            (json!({ "label_names": ["cat", 2] }), None),
            (json!({ "num_classes": 2 }), None),
        ] {
            assert_eq!(class_names(&file), expected, "{file}");
        }
    }

    #[test]
    fn the_kind_of_a_configuration_follows_from_its_keys() {
        for (file, layout, name, dim) in [
            (json!({ "model_type": "vit" }), Some(Layout::HuggingFace), None, Some(768)),
            (
                json!({ "architecture": "vit_tiny_patch16_224" }),
                None,
                Some("vit_tiny_patch16_224"),
                Some(192),
            ),
            (json!({ "model": "VisionTransformer", "embed_dim": 96 }), None, None, Some(96)),
            (json!({ "embed_dim": 96 }), None, None, Some(96)),
        ] {
            let metadata = architecture(file.as_object().unwrap()).unwrap();
            assert_eq!(metadata.layout, layout, "{file}");
            assert_eq!(metadata.name.as_deref(), name, "{file}");
            assert_eq!(metadata.facts.embed_dim, dim, "{file}");
        }
        let unknown = json!({ "model": "Mlp" });
        let error = format!("{:#}", architecture(unknown.as_object().unwrap()).unwrap_err());
        assert!(error.contains("`model`") && error.contains("Mlp"), "{error}");
    }

    #[test]
    fn a_byte_order_mark_is_skipped_and_errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let read_text = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read(&path)
        };
        let text = "\u{feff}{\"architecture\": \"vit_tiny_patch16_224\", \"label_names\": [\"cat\", \"dog\"],
            \"pretrained_cfg\": {\"input_size\": [3, 32, 32]}}";
        let metadata = read_text(text).unwrap();
        assert_eq!(
            (metadata.classes.map(|names| names.len()), metadata.image_size),
            (Some(2), Some([32, 32]))
        );
        for text in ["[1, 2]", "no JSON", "", "{\"surprise\": 1}"] {
            let error = format!("{:#}", read_text(text).unwrap_err());
            assert!(error.contains("config.json"), "{text}: {error}");
        }
    }
}
