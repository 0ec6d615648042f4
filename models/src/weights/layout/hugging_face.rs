//! Translation between the names of Hugging Face's `transformers` (ViT, DeiT, DINOv2, DINOv3, CLIP,
//! SigLIP, BEiT, Swin, Swin v2) and
//! timm's.

use std::collections::BTreeMap;

use super::names::{exchange, merge_of_next_stage, merge_of_previous_stage};
use super::parts::with_batch_dimensions;
use crate::weights::NamedTensor;

/// The ends of the key of the patch embedding in Hugging Face's files.
pub(super) const PATCH_EMBEDDINGS: [&str; 3] = [
    "embeddings.patch_embeddings.projection.weight",
    "embeddings.patch_embeddings.weight",
    "embeddings.patch_embedding.weight",
];

/// The prefixes of names in models with a head.
const PREFIXES: [&str; 8] =
    ["beit.", "vit.", "deit.", "dinov2_with_registers.", "dinov2.", "swinv2.", "swin.", "vision_model."];

/// Fragments of names that Swin and ViT share; those that differ are in [`SWIN`] and [`VIT`].
const SHARED: [(&str, &str); 11] = [
    (".embeddings.cls_token.", ".cls_token."),
    (".embeddings.distillation_token.", ".dist_token."),
    (".embeddings.position_embeddings.", ".pos_embed."),
    (".embeddings.patch_embeddings.projection.", ".patch_embed.proj."),
    (".embeddings.norm.", ".patch_embed.norm."),
    (".attention.output.dense.", ".attn.proj."),
    (".layernorm_before.", ".norm1."),
    (".layernorm_after.", ".norm2."),
    (".intermediate.dense.", ".mlp.fc1."),
    (".output.dense.", ".mlp.fc2."),
    (".distillation_classifier.", ".head_dist."),
];

const VIT: [(&str, &str); 4] = [
    (".encoder.layer.", ".blocks."),
    (".attention.attention.query.", ".attn.q."),
    (".attention.attention.key.", ".attn.k."),
    (".attention.attention.value.", ".attn.v."),
];

const SWIN: [(&str, &str); 8] = [
    (".encoder.layers.", ".layers."),
    (".attention.self.query.", ".attn.q."),
    (".attention.self.key.", ".attn.k."),
    (".attention.self.value.", ".attn.v."),
    (".attention.self.relative_position_bias_table.", ".attn.relative_position_bias_table."),
    (".attention.self.logit_scale.", ".attn.logit_scale."),
    (".attention.self.continuous_position_bias_mlp.", ".attn.cpb_mlp."),
    (".classifier.", ".head.fc."),
];

/// Names that are read and never written: those of DINOv2, CLIP, SigLIP, and BEiT, and those that models of transformers 5 have in
/// memory.
const READ_ONLY: [(&str, &str); 36] = [
    (
        ".attention.attention.relative_position_bias.relative_position_bias_table.",
        ".attn.relative_position_bias_table.",
    ),
    (".lambda_1.", ".ls1.gamma."),
    (".lambda_2.", ".ls2.gamma."),
    (".pooler.layernorm.", ".fc_norm."),
    (".embeddings.register_tokens.", ".register_tokens."),
    (".attention.q_proj.", ".attn.q."),
    (".attention.k_proj.", ".attn.k."),
    (".attention.v_proj.", ".attn.v."),
    (".attention.o_proj.", ".attn.proj."),
    (
        ".attention.relative_position_bias.relative_position_bias_table.",
        ".attn.relative_position_bias_table.",
    ),
    (".relative_position_bias.relative_position_bias_table.", ".attn.relative_position_bias_table."),
    (".attention.continuous_position_bias_mlp.", ".attn.cpb_mlp."),
    (".attention.logit_scale.", ".attn.logit_scale."),
    (".layer_scale1.lambda1.", ".ls1.gamma."),
    (".layer_scale2.lambda1.", ".ls2.gamma."),
    (".embeddings.patch_embedding.", ".patch_embed.proj."),
    (".embeddings.position_embedding.weight.", ".pos_embed."),
    (".encoder.layers.", ".layers."),
    (".self_attn.q_proj.", ".attn.q."),
    (".self_attn.k_proj.", ".attn.k."),
    (".self_attn.v_proj.", ".attn.v."),
    (".self_attn.out_proj.", ".attn.proj."),
    (".layer_norm1.", ".norm1."),
    (".layer_norm2.", ".norm2."),
    (".post_layernorm.", ".norm."),
    (".mlp.weights_in.", ".mlp.fc1."),
    (".mlp.weights_out.", ".mlp.fc2."),
    (".mlp.gate_proj.", ".mlp.fc1_g."),
    (".mlp.up_proj.", ".mlp.fc1_x."),
    (".mlp.down_proj.", ".mlp.fc2."),
    (".embeddings.class_embedding.", ".cls_token."),
    (".pre_layrnorm.", ".norm_pre."),
    (".head.probe.", ".attn_pool.latent."),
    (".head.attention.out_proj.", ".attn_pool.proj."),
    (".head.layernorm.", ".attn_pool.norm."),
    (".head.mlp.", ".attn_pool.mlp."),
];

/// The tensors under timm's names, with queries, keys and values joined. Names that are not Hugging Face's do not
/// change.
///
/// # Examples
///
/// ```
/// use vitrine_models::weights::{NamedTensor, hugging_face};
///
/// let theirs = [("query", 1.0), ("key", 2.0), ("value", 3.0)].map(|(part, value)| NamedTensor {
///     name: format!("vit.encoder.layer.0.attention.attention.{part}.bias"),
///     shape: vec![1],
///     values: vec![value],
/// });
/// let timms = hugging_face::to_timm_names(theirs.to_vec());
/// assert_eq!((timms.len(), timms[0].name.as_str()), (1, "blocks.0.attn.qkv.bias"));
/// assert_eq!(timms[0].values, [1.0, 2.0, 3.0]);
/// let back = hugging_face::from_timm_names(timms, hugging_face::Family::Vit);
/// assert_eq!(back, theirs);
/// ```
pub fn to_timm_names(tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    let is_swin = tensors.iter().any(|tensor| is_swin_key(&tensor.name));
    let renamed = tensors.into_iter().flat_map(with_projection_bias).flat_map(|tensor| {
        let name = if is_swin { swin_name(&tensor.name) } else { vit_name(&tensor.name) };
        split_pooling_attention(NamedTensor { name, ..tensor })
    });
    join_projections(renamed.map(with_batch_dimensions).collect())
}

fn is_swin_key(name: &str) -> bool {
    name.contains("layers.0.blocks.0.")
}

/// The name without the prefix of models with a head, and with timm's name of the last norm.
fn without_prefix(name: &str) -> String {
    let name = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    match name.strip_prefix("layernorm.") {
        Some(rest) => format!("norm.{rest}"),
        None => name.to_owned(),
    }
}

fn swin_name(name: &str) -> String {
    let name = exchange(&without_prefix(name), SWIN.into_iter().chain(READ_ONLY).chain(SHARED));
    merge_of_next_stage(&name)
}

fn vit_name(name: &str) -> String {
    // In SigLIP, `head` is the pooling, and `classifier` the head.
    let pairs = READ_ONLY.into_iter().chain(VIT).chain(SHARED).chain([
        (".classifier.", ".head."),
        (".cls_classifier.", ".head."),
        (".visual_projection.", ".head."),
        (".layers.", ".blocks."),
        // DINOv3.
        (".layer.", ".blocks."),
        (".embeddings.patch_embeddings.", ".patch_embed.proj."),
    ]);
    exchange(&without_prefix(name), pairs)
}

/// Adds a bias of zeros to the projection of CLIP, which has none and becomes the head.
fn with_projection_bias(tensor: NamedTensor) -> Vec<NamedTensor> {
    let rows = tensor.shape.first().copied().filter(|_| tensor.name == "visual_projection.weight");
    let bias = rows.map(|rows| NamedTensor {
        name: "visual_projection.bias".to_owned(),
        shape: vec![rows],
        values: vec![0.0; rows],
    });
    [tensor].into_iter().chain(bias).collect()
}

/// Splits the projection of attention pooling, one tensor in SigLIP, into timm's two: the query, and keys with values.
fn split_pooling_attention(tensor: NamedTensor) -> Vec<NamedTensor> {
    let kind = match tensor.name.as_str() {
        "head.attention.in_proj_weight" => "weight",
        "head.attention.in_proj_bias" => "bias",
        _ => return vec![tensor],
    };
    let Some(rows) = tensor.shape.first().filter(|rows| rows.is_multiple_of(3)).map(|rows| rows / 3) else {
        return vec![tensor];
    };
    let shape = |rows: usize| [&[rows], &tensor.shape[1..]].concat();
    let (query, rest) = tensor.values.split_at(tensor.values.len() / 3);
    vec![
        NamedTensor { name: format!("attn_pool.q.{kind}"), shape: shape(rows), values: query.to_vec() },
        NamedTensor { name: format!("attn_pool.kv.{kind}"), shape: shape(2 * rows), values: rest.to_vec() },
    ]
}

/// Whether tensors have the same shape apart from the first dimension.
fn can_join(parts: [&NamedTensor; 3]) -> bool {
    parts.iter().all(|part| !part.shape.is_empty() && part.shape[1..] == parts[0].shape[1..])
}

const PROJECTIONS: [&str; 3] = [".attn.q.", ".attn.k.", ".attn.v."];
/// The start of the names of CaiT's class blocks, whose projections stay apart.
const APART: &str = "blocks_token_only.";

/// Joins the projections to query, key and value of each block, in this order, into one tensor.
pub(super) fn join_projections(tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    let mut parts: BTreeMap<String, [Option<NamedTensor>; 3]> = BTreeMap::new();
    let mut whole = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let is_apart = tensor.name.starts_with(APART);
        match PROJECTIONS.iter().position(|part| !is_apart && tensor.name.contains(part)) {
            Some(place) => {
                let name = tensor.name.replace(PROJECTIONS[place], ".attn.qkv.");
                parts.entry(name).or_default()[place] = Some(tensor);
            }
            None => whole.push(tensor),
        }
    }
    for (name, parts) in parts {
        match parts {
            [Some(q), Some(k), Some(v)] if can_join([&q, &k, &v]) => {
                let mut shape = q.shape.clone();
                shape[0] += k.shape[0] + v.shape[0];
                whole.push(NamedTensor { name, shape, values: [q.values, k.values, v.values].concat() });
            }
            // Swin v2 and DINOv3 have no bias of keys.
            [Some(q), None, Some(v)] if name.ends_with(".bias") => {
                let bias = |part: &str| name.replace(".attn.qkv.bias", &format!(".attn.{part}_bias"));
                whole.push(NamedTensor { name: bias("q"), ..q });
                whole.push(NamedTensor { name: bias("v"), ..v });
            }
            // An incomplete set is not joined, so that the check of keys names its tensors.
            parts => whole.extend(parts.into_iter().flatten()),
        }
    }
    whole
}

/// The architectures of Hugging Face that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `ViTForImageClassification`.
    Vit,
    /// `DeiTForImageClassification`. Its distillation token has no head, so that it is a register here.
    Deit,
    /// `DeiTForImageClassificationWithTeacher`.
    DeitDistilled,
    /// `SwinForImageClassification`.
    Swin,
    /// `Swinv2ForImageClassification`.
    SwinV2,
}

/// timm's tensors under the names of Hugging Face's files, with queries, keys and values separated.
pub fn from_timm_names(tensors: Vec<NamedTensor>, family: Family) -> Vec<NamedTensor> {
    tensors
        .into_iter()
        .flat_map(split_projections)
        .map(|tensor| NamedTensor { name: hugging_face_name(&tensor.name, family), ..tensor })
        .collect()
}

fn hugging_face_name(name: &str, family: Family) -> String {
    let (own, prefix): (&[(&str, &str)], _) = match family {
        Family::Vit => (&VIT, "vit."),
        Family::Deit | Family::DeitDistilled => (&VIT, "deit."),
        Family::Swin => (&SWIN, "swin."),
        Family::SwinV2 => (&SWIN, "swinv2."),
    };
    let head = if family == Family::DeitDistilled { ".cls_classifier." } else { ".classifier." };
    let name = merge_of_previous_stage(name);
    // Swin v2's separate biases are those of the linear layers of queries and values.
    let name = name.replace(".attn.q_bias", ".attn.q.bias").replace(".attn.v_bias", ".attn.v.bias");
    let name = match name.strip_prefix("norm.") {
        Some(rest) => format!("layernorm.{rest}"),
        None => name,
    };
    let turned = own.iter().chain(&SHARED).map(|&(theirs, timms)| (timms, theirs));
    let name =
        exchange(&name, turned.chain([(".head.", head), (".reg_token.", ".embeddings.distillation_token.")]));
    if name.contains("classifier.") { name } else { format!("{prefix}{name}") }
}

fn split_projections(tensor: NamedTensor) -> Vec<NamedTensor> {
    let rows = tensor.shape.first().copied().unwrap_or(1);
    if !tensor.name.contains(".attn.qkv.") || !rows.is_multiple_of(3) {
        return vec![tensor];
    }
    let shape = [&[rows / 3], &tensor.shape[1..]].concat();
    tensor
        .values
        .chunks_exact((tensor.values.len() / 3).max(1))
        .zip(PROJECTIONS)
        .map(|(values, part)| NamedTensor {
            name: tensor.name.replace(".attn.qkv.", part),
            shape: shape.clone(),
            values: values.to_vec(),
        })
        .collect()
}
