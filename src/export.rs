//! Models in the files of other libraries, which load them with strict keys.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use vitrine_datasets::{Interpolation, ResizeRule};
use vitrine_models::weights::{
    self, IndexTable, Layout, NamedTensor, hugging_face, torchvision, windows_fill_grids,
};
use vitrine_models::{
    AttentionOptions, BlockStyle, Mixer, MlpKind, ModelConfig, Normaliser, Pool, Position, PositionPlace,
    RelativePosition, Score, Tokeniser, VisionTransformer, position,
};

use crate::files::write_atomically;
use crate::model_file::ModelCard;
use crate::weights_file::{self, Precision};

/// What was written, and how the library opens it.
pub struct Exported {
    /// Every file.
    pub files: Vec<PathBuf>,
    /// Python that opens it.
    pub usage: String,
}

/// The architectures that other libraries have too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Vit,
    Distilled,
    Cait,
    Swin,
    SwinV2,
}

/// Writes a model under another library's names: for timm and torchvision one `.safetensors` file (for timm a folder too), for
/// Hugging Face a folder with its configurations.
///
/// # Errors
/// When the library has no such architecture (the message names the parts), the output does not suit, or cannot be written.
pub fn export(
    card: &ModelCard,
    model: &VisionTransformer,
    layout: Layout,
    output: &Path,
    precision: Precision,
) -> Result<Exported> {
    let family = family(&card.model).and_then(|family| supports(layout, family, card).map(|()| family))?;
    let mut tensors = weights::to_timm(model);
    tensors.extend(fixed_positions(&card.model));
    let to_file = output.extension().is_some_and(|extension| extension == "safetensors");
    match layout {
        Layout::Timm => timm(card, family, &tensors, output, to_file, precision),
        Layout::HuggingFace => hugging_face_folder(card, family, tensors, output, to_file, precision),
        Layout::Torchvision => torchvision_file(card, family, tensors, output, to_file, precision),
        Layout::Microsoft => {
            bail!("--layout microsoft: nothing is written in that layout; timm reads and writes its own")
        }
    }
}

fn family(config: &ModelConfig) -> Result<Family> {
    let plain = AttentionOptions::default();
    let is_v2 = config.block == BlockStyle::ResidualPostNorm;
    let stages = config.num_stages() > 1;
    let common = AttentionOptions {
        qk_norm: false,
        talking_heads: false,
        score: Score::ScaledDot,
        relative_position: None,
        ..config.attention
    };
    let only_ours = [
        ("tokeniser", config.tokeniser != Tokeniser::Patch),
        ("position", config.position == Position::Rotary),
        ("position_place", config.position_place == PositionPlace::QueryKey),
        ("channel_attention", config.channel_attention.is_some()),
        ("mlp", config.mlp != MlpKind::Gelu),
        ("head_hidden", !config.head_hidden.is_empty()),
        ("pool", config.pool == Pool::Sequence),
        ("block", !(config.block == BlockStyle::PreNorm || is_v2 && stages)),
        ("attention", common != plain || config.attention.normaliser != Normaliser::Softmax),
        ("mixers", !mixers_are_known(config)),
        ("position", stages && config.position != Position::None),
        ("pool", stages && config.pool != Pool::Mean),
        ("layer_scale", stages && config.layer_scale.is_some()),
        ("embed_norm", stages != config.embed_norm),
        ("qkv_bias", stages && !config.qkv_bias),
        ("attention.score", (config.attention.score == Score::Cosine) != is_v2),
        (
            "attention.relative_position",
            config.attention.relative_position.is_some_and(|kind| kind != RelativePosition::Table) != is_v2,
        ),
        ("attention.qk_norm", config.attention.qk_norm && (stages || config.class_depth > 0)),
        ("attention.talking_heads", config.attention.talking_heads != (config.class_depth > 0)),
        ("layer_scale", config.class_depth > 0 && config.layer_scale.is_none()),
    ];
    let mut parts: Vec<&str> = only_ours.into_iter().filter_map(|(key, ours)| ours.then_some(key)).collect();
    parts.dedup();
    if !parts.is_empty() {
        bail!("no other library has this architecture: {} is vitrine's own choice", parts.join(", "));
    }
    Ok(match (stages, is_v2) {
        (true, true) => Family::SwinV2,
        (true, false) => Family::Swin,
        _ if config.class_depth > 0 => Family::Cait,
        _ if config.distillation_token => Family::Distilled,
        _ => Family::Vit,
    })
}

fn mixers_are_known(config: &ModelConfig) -> bool {
    match config.mixers[..] {
        [Mixer::Global] => config.num_stages() == 1,
        [Mixer::Window(a), Mixer::ShiftedWindow(b)] => config.num_stages() > 1 && a == b,
        _ => false,
    }
}

fn window(config: &ModelConfig) -> usize {
    match config.mixers[0] {
        Mixer::Window(side) => side,
        _ => 0,
    }
}

/// Whether the library computes what we compute, for all parts that [`family`] lets through.
fn supports(layout: Layout, family: Family, card: &ModelCard) -> Result<()> {
    let config = &card.model;
    let is_square = config.image_size.height == config.image_size.width;
    let plain = config.pool == Pool::ClassToken
        && config.registers == 0
        && config.position == Position::Learned
        && config.prefix_position
        && config.layer_scale.is_none()
        && !config.attention.qk_norm;
    let is_swin = matches!(family, Family::Swin | Family::SwinV2);
    let swin_of_theirs = is_swin && is_square && windows_fill_grids(config);
    let (fits, has) = match layout {
        Layout::Timm | Layout::Microsoft => (
            match family {
                Family::Vit => config.position != Position::None,
                Family::Distilled => plain,
                Family::Cait => config.position == Position::Learned,
                Family::Swin | Family::SwinV2 => true,
            } && config.norm_epsilon <= 1e-5,
            "ViT with positions, DeiT and CaiT with learned ones, Swin and Swin v2; all with a `norm_epsilon` of 1e-6 or 1e-5",
        ),
        Layout::HuggingFace => (
            match family {
                Family::Vit => plain,
                Family::Distilled => plain && config.qkv_bias,
                Family::Swin | Family::SwinV2 => swin_of_theirs,
                Family::Cait => false,
            },
            "ViT with a class token alone, learned positions and neither LayerScale nor registers; distilled DeiT; Swin and Swin v2 \
             of square images whose grids are whole numbers of windows",
        ),
        Layout::Torchvision => (
            config.channels == 3
                && match family {
                    Family::Vit => plain && config.qkv_bias && is_square,
                    Family::Swin | Family::SwinV2 => swin_of_theirs && config.norm_epsilon <= 1e-5,
                    Family::Distilled | Family::Cait => false,
                },
            "ViT with a class token alone, learned positions and neither LayerScale nor registers; Swin and Swin v2 whose grids are \
             whole numbers of windows; all of them for square colour images",
        ),
    };
    if !fits {
        bail!("--layout {}: it has {has}, and this model is another", layout.name());
    }
    Ok(())
}

/// Sines and cosines as the learned positions that they are for another library.
fn fixed_positions(config: &ModelConfig) -> Option<NamedTensor> {
    let [rows, columns] = config.grid();
    let values = match config.position {
        Position::Sinusoidal => position::sinusoidal(rows * columns, config.embed_dim),
        Position::Sinusoidal2d => position::sinusoidal_2d(rows, columns, config.embed_dim),
        Position::None | Position::Learned | Position::Rotary => return None,
    };
    Some(NamedTensor {
        name: "pos_embed".to_owned(),
        shape: vec![1, rows * columns, config.embed_dim],
        values,
    })
}

fn timm(
    card: &ModelCard,
    family: Family,
    tensors: &[NamedTensor],
    output: &Path,
    to_file: bool,
    precision: Precision,
) -> Result<Exported> {
    let (architecture, arguments) = timm_architecture(card, family);
    if to_file {
        weights_file::save(output, tensors, &[], precision, HashMap::new())?;
        let arguments = python_arguments(&arguments);
        let usage = format!(
            "timm.create_model(\"{architecture}\", {arguments}, checkpoint_path=\"{}\")",
            output.display()
        );
        return Ok(Exported { files: vec![output.to_owned()], usage });
    }
    let folder = Folder::new(output)?;
    let preprocessing = &card.preprocessing;
    let (crop, mode) = match preprocessing.resize {
        ResizeRule::Squash => (1.0, "squash"),
        ResizeRule::SquashCrop { crop } => (crop, "squash"),
        ResizeRule::ShorterSide { crop } => (crop, "center"),
    };
    let config = json!({
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
            "classifier": if matches!(family, Family::Swin | Family::SwinV2) { json!("head.fc") }
                else if family == Family::Distilled { json!(["head", "head_dist"]) } else { json!("head") },
        },
        "label_names": card.classes,
    });
    let files = vec![folder.weights(tensors, precision)?, folder.json("config.json", &config)?];
    Ok(Exported {
        files,
        usage: format!("timm.create_model(\"local-dir:{}\", pretrained=True)", output.display()),
    })
}

/// timm's function and its arguments.
fn timm_architecture(card: &ModelCard, family: Family) -> (&'static str, Value) {
    let config = &card.model;
    let mut arguments = json!({
        "img_size": [config.image_size.height, config.image_size.width],
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "num_classes": config.num_classes,
        "embed_dim": config.embed_dim,
        "mlp_ratio": config.mlp_ratio,
    });
    let mut add = |key: &str, value: Value| arguments[key] = value;
    if matches!(family, Family::Swin | Family::SwinV2) {
        add("depths", json!(config.depth.0));
        add("num_heads", json!(config.num_heads.0));
        add("window_size", json!(window(config)));
    } else {
        add("depth", json!(config.depth[0]));
        add("num_heads", json!(config.num_heads[0]));
        add("qkv_bias", json!(config.qkv_bias));
    }
    if matches!(family, Family::Vit) {
        add("class_token", json!(config.class_token));
        add("reg_tokens", json!(config.registers));
        add("no_embed_class", json!(!config.prefix_position || config.position != Position::Learned));
        add("init_values", json!(config.layer_scale));
        add("qk_norm", json!(config.attention.qk_norm));
        add(
            "global_pool",
            json!(match config.pool {
                Pool::ClassToken => "token",
                Pool::Mean => "avg",
                Pool::Attention | Pool::Sequence => "map",
            }),
        );
    }
    let architecture = match family {
        Family::Vit => "vit_base_patch16_224",
        Family::Distilled => "deit_base_distilled_patch16_224",
        Family::Cait => "cait_xxs24_224",
        Family::Swin => "swin_tiny_patch4_window7_224",
        Family::SwinV2 => "swinv2_tiny_window8_256",
    };
    if family == Family::Cait {
        add("depth_token_only", json!(config.class_depth));
        add("init_values", json!(config.layer_scale));
    }
    (architecture, arguments)
}

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

fn hugging_face_folder(
    card: &ModelCard,
    family: Family,
    tensors: Vec<NamedTensor>,
    output: &Path,
    to_file: bool,
    precision: Precision,
) -> Result<Exported> {
    if to_file {
        bail!("--output {}: for --layout hugging-face name a folder", output.display());
    }
    let (family, class, kind) = match family {
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
        folder.weights(&tensors, precision)?,
        folder.json("config.json", &hugging_face_config(card, class, kind))?,
        folder.json("preprocessor_config.json", &hugging_face_preprocessor(card))?,
    ];
    let usage = format!("transformers.{class}.from_pretrained(\"{}\")", output.display());
    Ok(Exported { files, usage })
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

fn torchvision_file(
    card: &ModelCard,
    family: Family,
    tensors: Vec<NamedTensor>,
    output: &Path,
    to_file: bool,
    precision: Precision,
) -> Result<Exported> {
    if !to_file {
        bail!("--output {}: for --layout torchvision name a .safetensors file", output.display());
    }
    let config = &card.model;
    let (tensors, tables, model): (_, Vec<IndexTable>, String) = match family {
        Family::Swin | Family::SwinV2 => {
            let side = window(config);
            let (tensors, tables) = torchvision::swin_from_timm_names(tensors, side);
            let v2 = if family == Family::SwinV2 {
                ", block=s.SwinTransformerBlockV2, downsample_layer=s.PatchMergingV2"
            } else {
                ""
            };
            let model = format!(
                "s.SwinTransformer([{0}, {0}], {1}, [{2}], [{3}], [{side}, {side}], mlp_ratio={4}, num_classes={5}{v2})",
                config.patch_size,
                config.embed_dim,
                config.depth,
                config.num_heads,
                config.mlp_ratio,
                config.num_classes
            );
            (tensors, tables, model)
        }
        Family::Vit | Family::Distilled | Family::Cait => {
            let model = format!(
                "torchvision.models.VisionTransformer({}, {}, {}, {}, {}, {}, num_classes={}, \
                 norm_layer=functools.partial(torch.nn.LayerNorm, eps={}))",
                config.image_size.height,
                config.patch_size,
                config.depth,
                config.num_heads,
                config.embed_dim,
                config.mlp_dim(0),
                config.num_classes,
                config.norm_epsilon
            );
            (torchvision::vit_from_timm_names(tensors), Vec::new(), model)
        }
    };
    weights_file::save(output, &tensors, &tables, precision, HashMap::new())?;
    let import = if matches!(family, Family::Swin | Family::SwinV2) {
        "import torchvision.models.swin_transformer as s; "
    } else {
        "import functools; "
    };
    let usage = format!(
        "{import}model = {model}; model.load_state_dict(safetensors.torch.load_file(\"{}\"))",
        output.display()
    );
    Ok(Exported { files: vec![output.to_owned()], usage })
}

/// A folder that is made for an export.
struct Folder<'a>(&'a Path);

impl<'a> Folder<'a> {
    fn new(path: &'a Path) -> Result<Self> {
        if path.is_file() {
            bail!("--output {}: a file is in the way of the folder", path.display());
        }
        if path.is_dir() && std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
            bail!("--output {}: the folder is not empty", path.display());
        }
        std::fs::create_dir_all(path)
            .map_err(|error| anyhow::anyhow!("--output {}: cannot be made: {error}", path.display()))?;
        Ok(Self(path))
    }

    fn weights(&self, tensors: &[NamedTensor], precision: Precision) -> Result<PathBuf> {
        let path = self.0.join("model.safetensors");
        weights_file::save(&path, tensors, &[], precision, HashMap::new())?;
        Ok(path)
    }

    fn json(&self, name: &str, value: &Value) -> Result<PathBuf> {
        let path = self.0.join(name);
        write_atomically(&path, serde_json::to_string_pretty(value)?.as_bytes())?;
        Ok(path)
    }
}
