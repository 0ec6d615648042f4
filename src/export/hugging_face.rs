//! Hugging Face: a folder with weights and both configurations.

use anyhow::{Result, bail};
use serde_json::{Value, json};
use vitrine_datasets::{CropRounding, Interpolation, ResizeRule};
use vitrine_models::weights::{NamedTensor, hugging_face};

use super::{Exported, Family, Folder, Job, window};
use crate::model_file::ModelCard;

/// Writes a folder that `from_pretrained` opens.
pub(super) fn write(job: &Job<'_>, tensors: Vec<NamedTensor>) -> Result<Exported> {
    let Job { card, family, output, .. } = *job;
    if job.names_a_file() {
        bail!("--output {}: --layout hugging-face needs a folder", output.display());
    }
    let preprocessing = &card.preprocessing;
    let [height, width] = preprocessing.image_size;
    if matches!(preprocessing.resize, ResizeRule::ShorterSide { .. }) && height != width {
        bail!(
            "--layout hugging-face: its processors cannot scale and crop images to {height}x{width} as this model's preprocessing does; \
             --layout timm can"
        );
    }
    let (family, class, kind) = match family {
        // The distillation token without a head is a register that no head sees.
        Family::Vit if card.model.registers == 1 => {
            (hugging_face::Family::Deit, "DeiTForImageClassification", "deit")
        }
        Family::Vit => (hugging_face::Family::Vit, "ViTForImageClassification", "vit"),
        Family::Distilled => {
            (hugging_face::Family::DeitDistilled, "DeiTForImageClassificationWithTeacher", "deit")
        }
        Family::Swin => (hugging_face::Family::Swin, "SwinForImageClassification", "swin"),
        Family::SwinV2 => (hugging_face::Family::SwinV2, "Swinv2ForImageClassification", "swinv2"),
        Family::Cait => bail!("--layout hugging-face: it has no CaiT"),
    };
    let folder = Folder::new(output)?;
    let tensors = hugging_face::from_timm_names(tensors, family);
    let files = vec![
        folder.weights(job, &tensors)?,
        folder.json("config.json", &hugging_face_config(card, class, kind))?,
        folder.json("preprocessor_config.json", &hugging_face_preprocessor(card))?,
    ];
    let usage = format!("transformers.{class}.from_pretrained(\"{}\")", output.display());
    Ok(Exported { files, usage, notes: crop_note(card).into_iter().collect() })
}

/// Where their processors cut out another center.
fn crop_note(card: &ModelCard) -> Option<String> {
    let preprocessing = &card.preprocessing;
    let crops = preprocessing.resize != ResizeRule::Squash;
    (crops && preprocessing.crop_rounding == CropRounding::HalfToEven).then(|| {
        "preprocessing: when an odd number of pixels is cut off, Hugging Face's processor may place the center crop one pixel further up \
         or left"
            .to_owned()
    })
}

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
        "id2label": by_number,
        "label2id": by_name,
    });
    let own = if config.num_stages() > 1 {
        json!({
            "embed_dim": config.embed_dim,
            "depths": config.depth.0,
            "num_heads": config.num_heads.0,
            "window_size": window(config),
            "mlp_ratio": config.mlp_ratio,
            "drop_path_rate": config.drop_path,
            "hidden_size": config.last_dim(),
        })
    } else {
        json!({
            "hidden_size": config.embed_dim,
            "num_hidden_layers": config.depth[0],
            "num_attention_heads": config.num_heads[0],
            "intermediate_size": config.mlp_dim(0),
        })
    };
    if let (Value::Object(value), Value::Object(own)) = (&mut value, own) {
        value.extend(own);
    }
    value
}

fn hugging_face_preprocessor(card: &ModelCard) -> Value {
    let preprocessing = &card.preprocessing;
    let [height, width] = preprocessing.image_size;
    let larger = |side: usize, crop: f64| (side as f64 / crop + 1e-6).floor() as usize;
    let square = |crop: f64| json!({ "height": larger(height, crop), "width": larger(width, crop) });
    let (size, crops) = match preprocessing.resize {
        ResizeRule::Squash => (square(1.0), false),
        ResizeRule::SquashCrop { crop } => (square(crop), true),
        ResizeRule::ShorterSide { crop } => {
            (json!({ "shortest_edge": larger(height.min(width), crop) }), true)
        }
    };
    json!({
        "image_processor_type": if crops { "DeiTImageProcessor" } else { "ViTImageProcessor" },
        "do_resize": true,
        "size": size,
        "do_center_crop": crops,
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
    })
}
