//! Export to Hugging Face: a folder with weights, `config.json`, and `preprocessor_config.json`.

use anyhow::Result;
use serde_json::{Value, json};
use vitrine_datasets::{CropRounding, Interpolation, ResizeRule};
use vitrine_models::ModelConfig;
use vitrine_models::weights::{NamedTensor, hugging_face};

use super::folder::ExportFolder;
use super::{Exported, Family, Job, python_string, window_side};
use crate::model_file::ModelCard;
use crate::usage::usage;

/// Writes a folder that `from_pretrained` opens.
pub(super) fn write(job: &Job<'_>, tensors: Vec<NamedTensor>) -> Result<Exported> {
    let Job { card, family, output, .. } = *job;
    let processor = hugging_face_preprocessor(card)?;
    let (family, class, kind) = match family {
        // In DeiT without a teacher, no head reads the distillation token, which makes it a register.
        Family::Vit if card.model.registers == 1 => {
            (hugging_face::Family::Deit, "DeiTForImageClassification", "deit")
        }
        Family::Vit => (hugging_face::Family::Vit, "ViTForImageClassification", "vit"),
        Family::Distilled => {
            (hugging_face::Family::DeitDistilled, "DeiTForImageClassificationWithTeacher", "deit")
        }
        Family::Swin => (hugging_face::Family::Swin, "SwinForImageClassification", "swin"),
        Family::SwinV2 => (hugging_face::Family::SwinV2, "Swinv2ForImageClassification", "swinv2"),
        Family::Cait => usage!("--layout hugging-face: it has no CaiT"),
    };
    let folder = ExportFolder::create(output)?;
    let tensors = hugging_face::from_timm_names(tensors, family);
    let files = vec![
        folder.weights(job, &tensors)?,
        folder.json("config.json", &hugging_face_config(card, class, kind))?,
        folder.json("preprocessor_config.json", &processor)?,
    ];
    let usage = format!("transformers.{class}.from_pretrained({})", python_string(output.display()));
    Ok(Exported { files, usage, notes: crop_note(card).into_iter().collect() })
}

/// A note for models whose center crop Hugging Face's processors may place elsewhere.
fn crop_note(card: &ModelCard) -> Option<String> {
    let preprocessing = &card.preprocessing;
    (preprocessing.resize.crops() && preprocessing.crop_rounding == CropRounding::HalfToEven).then(|| {
        "preprocessing: when an odd number of pixels is cut off, Hugging Face's processor may place the center crop one pixel further up \
         or left"
            .to_owned()
    })
}

/// The content of `config.json`. `class` is the Python class, `kind` the `model_type`.
fn hugging_face_config(card: &ModelCard, class: &str, kind: &str) -> Value {
    let config = &card.model;
    let by_number: serde_json::Map<String, Value> =
        card.classes.iter().enumerate().map(|(number, name)| (number.to_string(), json!(name))).collect();
    let by_name: serde_json::Map<String, Value> =
        card.classes.iter().enumerate().map(|(number, name)| (name.clone(), json!(number))).collect();
    let mut value = json!({
        "architectures": [class],
        "model_type": kind,
        "image_size": if config.image_size.height == config.image_size.width { json!(config.image_size.height) }
            else { json!([config.image_size.height, config.image_size.width]) },
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "layer_norm_eps": config.norm_epsilon,
        "qkv_bias": config.qkv_bias,
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "problem_type": if card.multi_label { "multi_label_classification" } else { "single_label_classification" },
        "id2label": by_number,
        "label2id": by_name,
    });
    if let (Value::Object(value), Value::Object(own)) = (&mut value, own_keys(config)) {
        value.extend(own);
    }
    value
}

/// The keys that only plain models have, or only models with stages.
fn own_keys(config: &ModelConfig) -> Value {
    if config.num_stages() > 1 {
        let mut own = json!({
            "embed_dim": config.embed_dim,
            "depths": config.depth.0,
            "num_heads": config.num_heads.0,
            "window_size": window_side(config),
            "mlp_ratio": config.mlp_ratio,
            "drop_path_rate": config.drop_path,
            "hidden_size": config.last_dim(),
        });
        if let Some(sides) = &config.pretrained_windows {
            own["pretrained_window_sizes"] = json!(sides.0);
        }
        own
    } else {
        json!({
            "hidden_size": config.embed_dim,
            "num_hidden_layers": config.depth[0],
            "num_attention_heads": config.num_heads[0],
            "intermediate_size": config.mlp_dim(0),
        })
    }
}

/// The content of `preprocessor_config.json`.
fn hugging_face_preprocessor(card: &ModelCard) -> Result<Value> {
    let preprocessing = &card.preprocessing;
    let [height, width] = preprocessing.image_size;
    let before_crop = |side: usize, crop: f64| (side as f64 / crop + 1e-6).floor() as usize;
    let both_sides =
        |crop: f64| json!({ "height": before_crop(height, crop), "width": before_crop(width, crop) });
    let (kind, size) = match preprocessing.resize {
        ResizeRule::Squash => ("ViTImageProcessor", both_sides(1.0)),
        ResizeRule::SquashCrop { crop } => ("DeiTImageProcessor", both_sides(crop)),
        ResizeRule::ShorterSide { .. } if height != width => usage!(
            "--layout hugging-face: its processors cannot scale and crop images to {height}x{width} as this model's preprocessing does; \
             --layout timm can"
        ),
        // Before version 5 of transformers, the two others refuse a shorter side when they see an image.
        ResizeRule::ShorterSide { crop } => {
            ("BitImageProcessor", json!({ "shortest_edge": before_crop(height.min(width), crop) }))
        }
        ResizeRule::Letterbox => usage!(
            "--layout hugging-face: its processors cannot pad images with the mean color as this model's preprocessing does \
             (`resize` is letterbox); --layout timm can"
        ),
    };
    let mut processor = json!({
        "image_processor_type": kind,
        "do_resize": true,
        "size": size,
        "do_center_crop": preprocessing.resize.crops(),
        "crop_size": { "height": height, "width": width },
        "resample": match preprocessing.interpolation {
            Interpolation::Lanczos => 1,
            Interpolation::Bilinear => 2,
            Interpolation::Bicubic => 3,
        },
        "do_rescale": true,
        "rescale_factor": 1.0 / 255.0,
        "do_normalize": true,
        "image_mean": preprocessing.mean,
        "image_std": preprocessing.std,
    });
    if kind == "BitImageProcessor" {
        // By default, this one makes color images of gray ones.
        processor["do_convert_rgb"] = json!(preprocessing.channels == 3);
    }
    Ok(processor)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use burn::tensor::Device;
    use vitrine_models::ImageSize;
    use vitrine_models::weights::to_timm;

    use super::*;
    use crate::export::Library;
    use crate::export::testing::{card, job, swin, swin_v2, vit};

    #[test]
    fn the_configuration_has_the_keys_of_plain_and_staged_models() {
        let plain = hugging_face_config(&card(vit()), "ViTForImageClassification", "vit");
        for (key, value) in [
            ("architectures", json!(["ViTForImageClassification"])),
            ("model_type", json!("vit")),
            ("image_size", json!(32)),
            ("patch_size", json!(4)),
            ("hidden_size", json!(96)),
            ("num_hidden_layers", json!(4)),
            ("num_attention_heads", json!(3)),
            ("intermediate_size", json!(384)),
            ("layer_norm_eps", json!(1e-6)),
            ("qkv_bias", json!(true)),
        ] {
            assert_eq!(plain[key], value, "{key}");
        }
        assert_eq!((&plain["id2label"]["9"], &plain["label2id"]["kind 9"]), (&json!("kind 9"), &json!(9)));
        let wide = ModelConfig { image_size: ImageSize { height: 32, width: 48 }, ..vit() };
        assert_eq!(hugging_face_config(&card(wide), "", "")["image_size"], json!([32, 48]));
        let staged = hugging_face_config(&card(swin()), "SwinForImageClassification", "swin");
        for (key, value) in [
            ("embed_dim", json!(32)),
            ("depths", json!([2, 2, 2])),
            ("num_heads", json!([1, 2, 4])),
            ("window_size", json!(4)),
            ("mlp_ratio", json!(4.0)),
            ("hidden_size", json!(128)),
            ("intermediate_size", Value::Null),
        ] {
            assert_eq!(staged[key], value, "{key}");
        }
    }

    #[test]
    fn the_processor_has_the_models_size_crop_and_filter() {
        for (resize, interpolation, size, crops, kind, filter) in [
            (
                ResizeRule::Squash,
                Interpolation::Bilinear,
                json!({ "height": 32, "width": 32 }),
                false,
                "ViTImageProcessor",
                2,
            ),
            (
                ResizeRule::SquashCrop { crop: 0.8 },
                Interpolation::Bicubic,
                json!({ "height": 40, "width": 40 }),
                true,
                "DeiTImageProcessor",
                3,
            ),
            (
                ResizeRule::ShorterSide { crop: 0.8 },
                Interpolation::Lanczos,
                json!({ "shortest_edge": 40 }),
                true,
                "BitImageProcessor",
                1,
            ),
        ] {
            let mut card = card(vit());
            (card.preprocessing.resize, card.preprocessing.interpolation) = (resize, interpolation);
            let value = hugging_face_preprocessor(&card).unwrap();
            assert_eq!((&value["size"], &value["resample"]), (&size, &json!(filter)), "{resize:?}");
            assert_eq!(
                (&value["do_center_crop"], &value["image_processor_type"]),
                (&json!(crops), &json!(kind))
            );
            assert_eq!(value["crop_size"], json!({ "height": 32, "width": 32 }));
            assert_eq!(
                (&value["image_mean"], &value["image_std"]),
                (&json!([0.5, 0.5, 0.5]), &json!([0.25, 0.25, 0.25]))
            );
        }
    }

    #[test]
    fn images_of_a_gray_model_stay_gray() {
        for (channels, is_color) in [(3, true), (1, false)] {
            let mut card = card(ModelConfig { channels, ..vit() });
            card.preprocessing.resize = ResizeRule::ShorterSide { crop: 0.8 };
            card.preprocessing.channels = channels;
            let processor = hugging_face_preprocessor(&card).unwrap();
            assert_eq!(processor["do_convert_rgb"], json!(is_color), "{channels}");
        }
    }

    #[test]
    fn the_folder_names_the_class_that_opens_it() {
        for (model, class) in [
            (vit(), "ViTForImageClassification"),
            (ModelConfig { registers: 1, ..vit() }, "DeiTForImageClassification"),
            (ModelConfig { distillation_token: true, ..vit() }, "DeiTForImageClassificationWithTeacher"),
            (swin(), "SwinForImageClassification"),
            (swin_v2(), "Swinv2ForImageClassification"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let output = folder.path().join("model");
            let tensors = to_timm(&model.init(&Device::default()).unwrap());
            let exported = write(&job(&card(model), Library::HuggingFace, &output), tensors).unwrap();
            assert!(exported.usage.contains(&format!("transformers.{class}.")), "{}", exported.usage);
            let config = std::fs::read(output.join("config.json")).unwrap();
            let config: Value = serde_json::from_slice(&config).unwrap();
            assert_eq!(config["architectures"], json!([class]));
            assert_eq!(exported.files.len(), 3);
        }
    }

    #[test]
    fn unsupported_preprocessing_is_refused() {
        let wide = card(ModelConfig { image_size: ImageSize { height: 32, width: 48 }, ..vit() });
        let written = write(&job(&wide, Library::HuggingFace, Path::new("model")), Vec::new());
        let error = written.err().unwrap().to_string();
        assert!(error.contains("32x48"), "{error}");
        let mut padded = card(vit());
        padded.preprocessing.resize = ResizeRule::Letterbox;
        let error = hugging_face_preprocessor(&padded).unwrap_err().to_string();
        assert!(error.contains("letterbox") && error.contains("--layout timm"), "{error}");
    }

    #[test]
    fn a_crop_with_other_rounding_is_noted() {
        let half_to_even = CropRounding::HalfToEven;
        for (resize, rounding, is_noted) in [
            (ResizeRule::ShorterSide { crop: 0.8 }, half_to_even, true),
            (ResizeRule::SquashCrop { crop: 0.8 }, half_to_even, true),
            (ResizeRule::Squash, half_to_even, false),
            (ResizeRule::ShorterSide { crop: 0.8 }, CropRounding::Down, false),
        ] {
            let mut card = card(vit());
            (card.preprocessing.resize, card.preprocessing.crop_rounding) = (resize, rounding);
            assert_eq!(crop_note(&card).is_some(), is_noted, "{resize:?} {rounding:?}");
        }
    }
}
