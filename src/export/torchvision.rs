//! Export to torchvision: a file of weights, and the line of Python that builds the model for them.

use std::collections::BTreeSet;

use anyhow::Result;
use vitrine_models::ModelConfig;
use vitrine_models::weights::{IndexTable, NamedTensor, torchvision};

use super::{Exported, Family, Job, card, python_string, window_side};
use crate::weights_file;

/// Writes a file of weights, with the tables of relative positions that torchvision's Swin expects in it.
pub(super) fn write(job: &Job<'_>, tensors: Vec<NamedTensor>) -> Result<Exported> {
    let Job { card, family, output, precision, .. } = *job;
    let config = &card.model;
    let tensors = with_biases(tensors);
    let (tensors, tables): (_, Vec<IndexTable>) = match family {
        Family::Swin | Family::SwinV2 => {
            let learned_in = config.pretrained_windows.as_ref();
            torchvision::swin_from_timm_names(tensors, window_side(config), learned_in)
        }
        Family::Vit | Family::Distilled | Family::Cait => {
            (torchvision::vit_from_timm_names(tensors), Vec::new())
        }
    };
    weights_file::save(output, &tensors, &tables, precision, card::metadata(job)?)?;
    let (import, model) = match family {
        Family::Swin => (SWIN_IMPORT, swin_constructor(config, "")),
        Family::SwinV2 => (SWIN_IMPORT, swin_constructor(config, V2_ARGUMENTS)),
        Family::Vit | Family::Distilled | Family::Cait => (VIT_IMPORT, vit_constructor(config)),
    };
    let usage = format!(
        "{import}model = {model}; model.load_state_dict(safetensors.torch.load_file({}))",
        python_string(output.display())
    );
    Ok(Exported { files: vec![output.to_owned()], usage, notes: Vec::new() })
}

const VIT_IMPORT: &str = "import functools, safetensors.torch, torch, torchvision; ";
const SWIN_IMPORT: &str =
    "import functools, safetensors.torch, torch, torchvision.models.swin_transformer as s; ";
/// The arguments that make a Swin v2 of torchvision's class for Swin.
const V2_ARGUMENTS: &str = ", block=s.SwinTransformerBlockV2, downsample_layer=s.PatchMergingV2";

fn norm_argument(config: &ModelConfig) -> String {
    format!("norm_layer=functools.partial(torch.nn.LayerNorm, eps={:e})", config.norm_epsilon)
}

/// Python that builds a ViT.
fn vit_constructor(config: &ModelConfig) -> String {
    format!(
        "torchvision.models.VisionTransformer({}, {}, {}, {}, {}, {}, num_classes={}, {})",
        config.image_size.height,
        config.patch_size,
        config.depth,
        config.num_heads,
        config.embed_dim,
        config.mlp_dim(0),
        config.num_classes,
        norm_argument(config)
    )
}

/// Python that builds a Swin; `more` is appended to its arguments.
fn swin_constructor(config: &ModelConfig, more: &str) -> String {
    format!(
        "s.SwinTransformer([{0}, {0}], {1}, [{2}], [{3}], [{4}, {4}], mlp_ratio={5}, num_classes={6}, {7}{more})",
        config.patch_size,
        config.embed_dim,
        config.depth,
        config.num_heads,
        window_side(config),
        config.mlp_ratio,
        config.num_classes,
        norm_argument(config)
    )
}

/// Adds biases of zeros to the projections of queries, keys, and values that have none, because torchvision's always
/// have one.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use burn::tensor::Device;
    use vitrine_models::weights::to_timm;

    use super::*;
    use crate::export::Library;
    use crate::export::testing::{card, job, swin, swin_v2, vit};

    fn tensor(name: &str, shape: &[usize]) -> NamedTensor {
        let values = vec![1.0; shape.iter().product()];
        NamedTensor { name: name.to_owned(), shape: shape.to_vec(), values }
    }

    #[test]
    fn projections_without_a_bias_get_zeros() {
        let weight = || tensor("blocks.0.attn.qkv.weight", &[6, 2]);
        let bias = || tensor("blocks.0.attn.qkv.bias", &[6]);
        let scale = || tensor("blocks.0.attn.logit_scale", &[1, 1, 1]);
        let [q, v] = ["q", "v"].map(|part| tensor(&format!("blocks.0.attn.{part}_bias"), &[2]));
        let zero = |tensor: NamedTensor| NamedTensor { values: vec![0.0; tensor.values.len()], ..tensor };
        for (given, expected) in [
            (vec![weight()], vec![weight(), zero(bias())]),
            (vec![weight(), bias()], vec![weight(), bias()]),
            // Swin v2 has separate biases of queries and values, and none of keys.
            (vec![scale(), weight()], vec![scale(), weight(), zero(q.clone()), zero(v.clone())]),
            (vec![scale(), weight(), q.clone(), v.clone()], vec![scale(), weight(), q, v]),
            (
                vec![tensor("blocks.0.attn.proj.weight", &[2, 2])],
                vec![tensor("blocks.0.attn.proj.weight", &[2, 2])],
            ),
        ] {
            assert_eq!(with_biases(given), expected);
        }
    }

    #[test]
    fn the_line_of_python_builds_the_models_class() {
        for (model, parts, other) in [
            (
                vit(),
                &["torchvision.models.VisionTransformer(32, 4, 4, 3, 96, 384, num_classes=10"][..],
                "BlockV2",
            ),
            (swin(), &["s.SwinTransformer([2, 2], 32, [2,2,2], [1,2,4], [4, 4], mlp_ratio=4"], "BlockV2"),
            (swin_v2(), &["SwinTransformerBlockV2", "PatchMergingV2"], "VisionTransformer"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let output = folder.path().join("model.safetensors");
            let tensors = to_timm(&model.init(&Device::default()).unwrap());
            let usage = write(&job(&card(model), Library::Torchvision, &output), tensors).unwrap().usage;
            assert!(parts.iter().all(|part| usage.contains(part)) && !usage.contains(other), "{usage}");
            assert!(usage.starts_with("import functools, safetensors.torch, torch"), "{usage}");
        }
    }
}
