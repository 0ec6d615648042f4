//! Export to timm: a file of weights, or a folder as timm's hub has them.

use anyhow::Result;
use serde_json::{Value, json};
use vitrine_datasets::{CropRounding, Interpolation, ResizeRule};
use vitrine_models::weights::NamedTensor;
use vitrine_models::{ModelConfig, Pool, Position};

use super::folder::ExportFolder;
use super::{Exported, Family, Job, card, is_epsilon, python_string, window_side};
use crate::model_file::ModelCard;
use crate::usage::usage;
use crate::weights_file;

/// Writes a file of weights, or a folder that `timm.create_model("local-dir:...")` opens.
pub(super) fn write(job: &Job<'_>, tensors: &[NamedTensor]) -> Result<Exported> {
    if job.output_is_file() { write_file(job, tensors) } else { write_folder(job, tensors) }
}

/// The epsilon that timm's norms have by default.
fn default_epsilon(family: Family) -> f64 {
    match family {
        Family::Swin | Family::SwinV2 => 1e-5,
        Family::Vit | Family::Distilled | Family::Cait => 1e-6,
    }
}

fn write_file(job: &Job<'_>, tensors: &[NamedTensor]) -> Result<Exported> {
    let Job { card, family, output, precision, .. } = *job;
    weights_file::save(output, tensors, &[], precision, card::metadata(job)?)?;
    let (architecture, arguments) = timm_architecture(card, family);
    let mut arguments = python_arguments(&arguments);
    let mut import = "";
    if !is_epsilon(&card.model, default_epsilon(family)) {
        import = "import functools, timm, torch; ";
        let epsilon = card.model.norm_epsilon;
        arguments += &format!(", norm_layer=functools.partial(torch.nn.LayerNorm, eps={epsilon:e})");
    }
    let usage = format!(
        "{import}timm.create_model(\"{architecture}\", {arguments}, checkpoint_path={})",
        python_string(output.display())
    );
    Ok(Exported { files: vec![output.to_owned()], usage, notes: Vec::new() })
}

fn write_folder(job: &Job<'_>, tensors: &[NamedTensor]) -> Result<Exported> {
    let Job { card, family, output, .. } = *job;
    let (epsilon, default) = (card.model.norm_epsilon, default_epsilon(family));
    if !is_epsilon(&card.model, default) {
        usage!(
            "--layout timm: `norm_epsilon` is {epsilon:e}, but timm's is {default:e}, and its config.json cannot state another: name \
             a .safetensors file with --output, and the line of Python that opens it will state it"
        );
    }
    let folder = ExportFolder::create(output)?;
    let files = vec![folder.weights(job, tensors)?, folder.json("config.json", &timm_config(card, family))?];
    Ok(Exported {
        files,
        usage: format!(
            "timm.create_model({}, pretrained=True)",
            python_string(format_args!("local-dir:{}", output.display()))
        ),
        notes: crop_note(job).into_iter().collect(),
    })
}

/// The content of `config.json`.
fn timm_config(card: &ModelCard, family: Family) -> Value {
    let (architecture, arguments) = timm_architecture(card, family);
    let preprocessing = &card.preprocessing;
    let (crop, mode) = match preprocessing.resize {
        ResizeRule::Squash => (1.0, "squash"),
        ResizeRule::SquashCrop { crop } => (crop, "squash"),
        ResizeRule::ShorterSide { crop } => (crop, "center"),
        ResizeRule::Letterbox => (1.0, "border"),
    };
    json!({
        "architecture": architecture,
        "num_classes": card.classes.len(),
        "num_features": card.model.last_dim(),
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [preprocessing.channels, preprocessing.image_size[0], preprocessing.image_size[1]],
            "interpolation": interpolation(preprocessing.interpolation),
            "crop_pct": crop,
            "crop_mode": mode,
            "mean": preprocessing.mean,
            "std": preprocessing.std,
            "num_classes": card.classes.len(),
            "first_conv": "patch_embed.proj",
            "classifier": match family {
                Family::Swin | Family::SwinV2 => json!("head.fc"),
                Family::Distilled => json!(["head", "head_dist"]),
                Family::Vit | Family::Cait => json!("head"),
            },
        },
        "label_names": card.classes,
    })
}

/// A note for models whose center crop timm's transform may place elsewhere.
fn crop_note(job: &Job<'_>) -> Option<String> {
    let preprocessing = &job.card.preprocessing;
    (preprocessing.resize.crops() && preprocessing.crop_rounding == CropRounding::Down).then(|| {
        "preprocessing: when an odd number of pixels is cut off, timm's transform may place the center crop one pixel further down or right"
            .to_owned()
    })
}

/// timm's name for an architecture of the family, and the constructor arguments that turn it into this model.
fn timm_architecture(card: &ModelCard, family: Family) -> (&'static str, Value) {
    let config = &card.model;
    let mut arguments = json!({
        "img_size": [config.image_size.height, config.image_size.width],
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "num_classes": config.num_classes,
        "embed_dim": config.embed_dim,
        "mlp_ratio": config.mlp_ratio,
        "qkv_bias": config.qkv_bias,
    });
    let (architecture, own) = match family {
        Family::Vit => ("vit_base_patch16_224", vit_arguments(config)),
        Family::Distilled => ("deit_base_distilled_patch16_224", plain_arguments(config)),
        Family::Cait => {
            let mut own = plain_arguments(config);
            own["depth_token_only"] = json!(config.class_depth);
            own["init_values"] = json!(config.layer_scale.map(init_value));
            ("cait_xxs24_224", own)
        }
        Family::Swin => ("swin_tiny_patch4_window7_224", swin_arguments(config)),
        Family::SwinV2 => {
            let mut own = swin_arguments(config);
            if let Some(sides) = &config.pretrained_windows {
                own["pretrained_window_sizes"] = json!(sides.0);
            }
            ("swinv2_tiny_window8_256", own)
        }
    };
    for (key, value) in own.as_object().into_iter().flatten() {
        arguments[key] = value.clone();
    }
    (architecture, arguments)
}

fn plain_arguments(config: &ModelConfig) -> Value {
    json!({ "depth": config.depth[0], "num_heads": config.num_heads[0] })
}

fn swin_arguments(config: &ModelConfig) -> Value {
    json!({ "depths": config.depth.0, "num_heads": config.num_heads.0, "window_size": window_side(config) })
}

fn vit_arguments(config: &ModelConfig) -> Value {
    json!({
        "depth": config.depth[0],
        "num_heads": config.num_heads[0],
        "class_token": config.class_token,
        "reg_tokens": config.registers,
        "no_embed_class": !config.prefix_position || config.position != Position::Learned,
        "init_values": config.layer_scale.map(init_value),
        "qk_norm": config.attention.qk_norm,
        "global_pool": match config.pool {
            Pool::ClassToken => "token",
            Pool::Mean => "avg",
            // Only attention pooling is exported: the others are refused before.
            Pool::Attention
            | Pool::NormalizedMean
            | Pool::ClassTokenMean
            | Pool::TwoDepths { .. }
            | Pool::Sequence
            | Pool::Queries(_)
            | Pool::Recurrent { .. }
            | Pool::ClassQueries { .. } => "map",
        },
    })
}

/// Keyword arguments in Python's syntax.
fn python_arguments(arguments: &Value) -> String {
    let arguments = arguments.as_object().into_iter().flatten();
    let texts = arguments.map(|(key, value)| {
        let text = match value {
            Value::Null => "None".to_owned(),
            Value::Bool(true) => "True".to_owned(),
            Value::Bool(false) => "False".to_owned(),
            other => other.to_string(),
        };
        format!("{key}={text}")
    });
    texts.collect::<Vec<_>>().join(", ")
}

fn interpolation(kind: Interpolation) -> &'static str {
    match kind {
        Interpolation::Bilinear => "bilinear",
        Interpolation::Bicubic => "bicubic",
        Interpolation::Lanczos => "lanczos",
    }
}

/// timm's argument for LayerScale. Any number but 0, which timm takes for no LayerScale, will do: the weights replace
/// it.
fn init_value(layer_scale: f64) -> f64 {
    if layer_scale == 0.0 { 1e-5 } else { layer_scale }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use vitrine_models::preset;

    use super::*;
    use crate::export::Library;
    use crate::export::testing::{cait, card, job, swin, swin_v2, vit};

    /// timm's name for a model, and its arguments.
    fn architecture_of(model: ModelConfig) -> (&'static str, Value) {
        let card = card(model);
        timm_architecture(&card, Family::of(&card.model, Library::Timm).unwrap())
    }

    #[test]
    fn every_family_has_a_name_of_timms_and_its_arguments() {
        let pico = preset::find("vit_pico_patch4_32").unwrap();
        let (vit_name, deit, swin_name) =
            ("vit_base_patch16_224", "deit_base_distilled_patch16_224", "swin_tiny_patch4_window7_224");
        let map = ModelConfig { pool: Pool::Attention, ..vit() };
        let bare = ModelConfig { prefix_position: false, registers: 2, layer_scale: Some(0.5), ..vit() };
        let distilled = ModelConfig { distillation_token: true, ..vit() };
        for (model, name, arguments) in [
            (
                vit(),
                vit_name,
                json!({ "class_token": true, "no_embed_class": false, "global_pool": "token" }),
            ),
            // Sinusoidal positions are exported as learned positions of the patches only.
            (pico, vit_name, json!({ "class_token": false, "no_embed_class": true, "global_pool": "avg" })),
            (map, vit_name, json!({ "global_pool": "map", "reg_tokens": 0, "init_values": null })),
            (bare, vit_name, json!({ "no_embed_class": true, "reg_tokens": 2, "init_values": 0.5 })),
            (distilled, deit, json!({ "embed_dim": 96, "depth": 4, "num_heads": 3, "num_classes": 10 })),
            (cait(), "cait_xxs24_224", json!({ "depth": 4, "depth_token_only": 1, "init_values": 0.1 })),
            (swin(), swin_name, json!({ "depths": [2, 2, 2], "num_heads": [1, 2, 4], "window_size": 4 })),
            (
                swin_v2(),
                "swinv2_tiny_window8_256",
                json!({ "img_size": [32, 32], "patch_size": 2, "in_chans": 3 }),
            ),
        ] {
            let (found, all) = architecture_of(model);
            assert_eq!(found, name);
            for (key, value) in arguments.as_object().unwrap() {
                assert_eq!(all.get(key), Some(value), "{name}: {key}");
            }
        }
        // Arguments that the constructor does not have.
        for (model, key) in [(cait(), "class_token"), (swin(), "depth"), (vit(), "depth_token_only")] {
            assert_eq!(architecture_of(model).1.get(key), None, "{key}");
        }
    }

    #[test]
    fn arguments_are_written_in_pythons_syntax() {
        let arguments = json!({ "a": true, "b": false, "c": null, "d": [2, 2], "e": "token", "f": 0.5 });
        assert_eq!(python_arguments(&arguments), r#"a=True, b=False, c=None, d=[2,2], e="token", f=0.5"#);
    }

    #[test]
    fn the_configuration_states_the_preprocessing_and_the_heads_key() {
        let distilled = ModelConfig { distillation_token: true, ..vit() };
        for (model, resize, mode, crop, classifier) in [
            (vit(), ResizeRule::Letterbox, "border", 1.0, json!("head")),
            (vit(), ResizeRule::ShorterSide { crop: 0.8 }, "center", 0.8, json!("head")),
            (swin(), ResizeRule::SquashCrop { crop: 0.8 }, "squash", 0.8, json!("head.fc")),
            (distilled, ResizeRule::Squash, "squash", 1.0, json!(["head", "head_dist"])),
        ] {
            let mut card = card(model);
            card.preprocessing.resize = resize;
            let folder = tempfile::tempdir().unwrap();
            let output = folder.path().join("model");
            let tensor = NamedTensor { name: "norm.bias".to_owned(), shape: vec![1], values: vec![0.5] };
            let exported = write(&job(&card, Library::Timm, &output), &[tensor]).unwrap();
            assert_eq!(exported.files, ["model.safetensors", "config.json"].map(|name| output.join(name)));
            let config: Value = serde_json::from_slice(&std::fs::read(&exported.files[1]).unwrap()).unwrap();
            let pipeline = &config["pretrained_cfg"];
            assert_eq!((&pipeline["crop_mode"], &pipeline["crop_pct"]), (&json!(mode), &json!(crop)));
            assert_eq!(pipeline["interpolation"], "bicubic");
            assert_eq!(pipeline["input_size"], json!([3, 32, 32]));
            assert_eq!(pipeline["classifier"], classifier);
            assert_eq!(config["label_names"][9], "kind 9");
        }
    }

    #[test]
    fn a_crop_with_other_rounding_is_noted() {
        for (resize, rounding, is_noted) in [
            (ResizeRule::ShorterSide { crop: 0.8 }, CropRounding::Down, true),
            (ResizeRule::Squash, CropRounding::Down, false),
            (ResizeRule::Letterbox, CropRounding::Down, false),
            (ResizeRule::ShorterSide { crop: 0.8 }, CropRounding::HalfToEven, false),
        ] {
            let mut card = card(vit());
            (card.preprocessing.resize, card.preprocessing.crop_rounding) = (resize, rounding);
            let noted = crop_note(&job(&card, Library::Timm, Path::new("model"))).is_some();
            assert_eq!(noted, is_noted, "{resize:?} {rounding:?}");
        }
    }
}
