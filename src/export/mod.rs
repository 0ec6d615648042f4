//! Models in the files of other libraries, which load them with strict keys.

mod card;
mod hugging_face;
mod timm;
mod torchvision;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::Value;
use vitrine_models::weights::{self, Layout, NamedTensor, windows_fill_grids, windows_shrink};
use vitrine_models::{
    AttentionOptions, BlockStyle, Mixer, MlpKind, ModelConfig, Normalizer, Pool, Position, PositionPlace,
    RelativePosition, Score, Tokenizer, VisionTransformer, position,
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
    /// Where the library's preprocessing differs from ours, a line each.
    pub notes: Vec<String>,
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
    let job = Job { card, family, layout, output, precision };
    match layout {
        Layout::Timm => timm::write(&job, &tensors),
        Layout::HuggingFace => hugging_face::write(&job, tensors),
        Layout::Torchvision => torchvision::write(&job, tensors),
        Layout::Microsoft => {
            bail!("--layout microsoft: nothing is written in that layout; timm reads and writes its own")
        }
    }
}

/// What is to be written where.
#[derive(Clone, Copy)]
struct Job<'a> {
    card: &'a ModelCard,
    family: Family,
    layout: Layout,
    output: &'a Path,
    precision: Precision,
}

impl Job<'_> {
    /// Whether the output is a file of weights rather than a folder.
    fn names_a_file(&self) -> bool {
        self.output.extension().is_some_and(|extension| extension == "safetensors")
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
        ("tokenizer", config.tokenizer != Tokenizer::Patch),
        ("position", config.position == Position::Rotary),
        ("position_place", config.position_place == PositionPlace::QueryKey),
        ("channel_attention", config.channel_attention.is_some()),
        ("mlp", config.mlp != MlpKind::Gelu),
        ("head_hidden", !config.head_hidden.is_empty()),
        ("pool", config.pool == Pool::Sequence),
        ("block", !(config.block == BlockStyle::PreNorm || is_v2 && stages)),
        ("attention", common != plain || config.attention.normalizer != Normalizer::Softmax),
        ("mixers", !mixers_are_known(config)),
        ("position", stages && config.position != Position::None),
        ("pool", stages && config.pool != Pool::Mean),
        ("layer_scale", stages && config.layer_scale.is_some()),
        ("embed_norm", stages != config.embed_norm),
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

/// Whether the norm's epsilon is a library's own.
fn is_epsilon(config: &ModelConfig, usual: f64) -> bool {
    (config.norm_epsilon / usual - 1.0).abs() < 1e-6
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
                Family::Distilled => plain && config.registers == 0,
                Family::Cait => config.position == Position::Learned,
                Family::Swin | Family::SwinV2 => true,
            },
            "ViT with positions, DeiT and CaiT with learned ones, Swin and Swin v2",
        ),
        Layout::HuggingFace => (
            match family {
                // One register that no head sees is DeiT's distillation token.
                Family::Vit => plain && config.registers <= 1,
                Family::Distilled => plain && config.registers == 0,
                Family::Swin => swin_of_theirs && is_epsilon(config, 1e-5) && !windows_shrink(config),
                Family::SwinV2 => swin_of_theirs && is_epsilon(config, 1e-5),
                Family::Cait => false,
            },
            "ViT with a class token and at most one register, learned positions and no LayerScale; distilled DeiT; Swin and Swin v2 with a \
             `norm_epsilon` of 1e-5, of square images whose grids are whole numbers of windows, none of them smaller than a window of Swin",
        ),
        Layout::Torchvision => (
            config.channels == 3
                && match family {
                    Family::Vit => plain && config.registers == 0 && is_square,
                    Family::Swin | Family::SwinV2 => swin_of_theirs && !windows_shrink(config),
                    Family::Distilled | Family::Cait => false,
                },
            "ViT with a class token alone, learned positions and neither LayerScale nor registers; Swin and Swin v2 whose grids are \
             whole numbers of windows and none of them smaller than one; all of them for square color images",
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

    fn weights(&self, job: &Job<'_>, tensors: &[NamedTensor]) -> Result<PathBuf> {
        let path = self.0.join("model.safetensors");
        weights_file::save(&path, tensors, &[], job.precision, card::metadata(job)?)?;
        Ok(path)
    }

    fn json(&self, name: &str, value: &Value) -> Result<PathBuf> {
        let path = self.0.join(name);
        write_atomically(&path, serde_json::to_string_pretty(value)?.as_bytes())?;
        Ok(path)
    }
}
