//! torchvision: a file of weights.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use vitrine_models::weights::{IndexTable, NamedTensor, torchvision};

use super::{Exported, Family, Job, card, window};
use crate::weights_file;

/// Writes a file of weights with the tables that torchvision wants next to them.
pub(super) fn write(job: &Job<'_>, tensors: Vec<NamedTensor>) -> Result<Exported> {
    let Job { card, family, output, precision, .. } = *job;
    if !job.names_a_file() {
        bail!("--output {}: --layout torchvision needs a .safetensors file", output.display());
    }
    let config = &card.model;
    let tensors = with_biases(tensors);
    let norm = format!("norm_layer=functools.partial(torch.nn.LayerNorm, eps={:e})", config.norm_epsilon);
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
                "s.SwinTransformer([{0}, {0}], {1}, [{2}], [{3}], [{side}, {side}], mlp_ratio={4}, num_classes={5}, {norm}{v2})",
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
                "torchvision.models.VisionTransformer({}, {}, {}, {}, {}, {}, num_classes={}, {norm})",
                config.image_size.height,
                config.patch_size,
                config.depth,
                config.num_heads,
                config.embed_dim,
                config.mlp_dim(0),
                config.num_classes
            );
            (torchvision::vit_from_timm_names(tensors), Vec::new(), model)
        }
    };
    weights_file::save(output, &tensors, &tables, precision, card::metadata(job)?)?;
    let import = if matches!(family, Family::Swin | Family::SwinV2) {
        "import functools, torch, torchvision.models.swin_transformer as s; "
    } else {
        "import functools, torch, torchvision; "
    };
    let usage = format!(
        "{import}model = {model}; model.load_state_dict(safetensors.torch.load_file(\"{}\"))",
        output.display()
    );
    Ok(Exported { files: vec![output.to_owned()], usage, notes: Vec::new() })
}

/// torchvision's queries, keys and values have a bias: zeros, where ours have none.
fn with_biases(tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    let names: BTreeSet<String> = tensors.iter().map(|tensor| tensor.name.clone()).collect();
    let zeros =
        |name: String, length: usize| NamedTensor { name, shape: vec![length], values: vec![0.0; length] };
    let mut completed = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let place = tensor.name.strip_suffix("attn.qkv.weight").map(str::to_owned);
        let rows = tensor.shape.first().copied().unwrap_or(0);
        completed.push(tensor);
        let Some(place) = place else { continue };
        let (whole, part) =
            (format!("{place}attn.qkv.bias"), |part: &str| format!("{place}attn.{part}_bias"));
        if names.contains(&whole) || names.contains(&part("q")) {
            continue;
        }
        if names.contains(&format!("{place}attn.logit_scale")) {
            completed.extend(["q", "v"].map(|name| zeros(part(name), rows / 3)));
        } else {
            completed.push(zeros(whole, rows));
        }
    }
    completed
}
