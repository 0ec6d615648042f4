//! Hugging Face's names (`transformers`: ViT, DeiT, Swin) to timm's, of files and of the library in memory.

use std::collections::BTreeMap;

use super::NamedTensor;

/// The tensors under timm's names, with queries, keys and values joined. What timm's models do not have is dropped: pooling
/// layers before a head, mask tokens, index tables. Names that are not Hugging Face's stay as they are.
pub fn to_timm_names(tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    let dropped = ["pooler.dense.weight", "pooler.dense.bias", "mask_token", "relative_position_index"];
    let renamed = tensors
        .into_iter()
        .filter(|tensor| !dropped.iter().any(|end| tensor.name.ends_with(end)))
        .map(|tensor| NamedTensor { name: rename(&tensor.name), ..tensor });
    join(renamed.collect())
}

/// Fragments of names; a block's norms, attention and MLP are called alike in ViT and Swin.
const PAIRS: [(&str, &str); 32] = [
    ("embeddings.cls_token", "cls_token"),
    ("embeddings.distillation_token", "dist_token"),
    ("embeddings.position_embeddings", "pos_embed"),
    ("embeddings.patch_embeddings.projection.", "patch_embed.proj."),
    ("embeddings.norm.", "patch_embed.norm."),
    ("encoder.layer.", "blocks."),
    ("encoder.layers.", "layers."),
    (".attention.attention.query.", ".attn.q."),
    (".attention.attention.key.", ".attn.k."),
    (".attention.attention.value.", ".attn.v."),
    (".attention.self.query.", ".attn.q."),
    (".attention.self.key.", ".attn.k."),
    (".attention.self.value.", ".attn.v."),
    (".attention.q_proj.", ".attn.q."),
    (".attention.k_proj.", ".attn.k."),
    (".attention.v_proj.", ".attn.v."),
    (".attention.o_proj.", ".attn.proj."),
    (".attention.output.dense.", ".attn.proj."),
    (".attention.self.relative_position_bias_table", ".attn.relative_position_bias_table"),
    (".attention.relative_position_bias.relative_position_bias_table", ".attn.relative_position_bias_table"),
    (".layernorm_before.", ".norm1."),
    (".layernorm_after.", ".norm2."),
    (".intermediate.dense.", ".mlp.fc1."),
    (".output.dense.", ".mlp.fc2."),
    ("cls_classifier.", "head."),
    ("distillation_classifier.", "head_dist."),
    ("vit.layernorm.", "norm."),
    ("deit.layernorm.", "norm."),
    ("swin.layernorm.", "norm."),
    ("vit.", ""),
    ("deit.", ""),
    ("swin.", ""),
];

fn rename(name: &str) -> String {
    PAIRS.iter().fold(name.to_owned(), |name, (theirs, timms)| name.replace(theirs, timms))
}

/// Puts a block's query, key and value, in this order, into one tensor.
fn join(tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    let mut parts: BTreeMap<String, [Option<NamedTensor>; 3]> = BTreeMap::new();
    let mut whole = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let place = [".attn.q.", ".attn.k.", ".attn.v."].iter().position(|part| tensor.name.contains(part));
        match place {
            Some(place) => {
                let name = tensor.name.replace([".attn.q.", ".attn.k.", ".attn.v."][place], ".attn.qkv.");
                parts.entry(name).or_default()[place] = Some(tensor);
            }
            None => whole.push(tensor),
        }
    }
    for (name, parts) in parts {
        match parts {
            [Some(q), Some(k), Some(v)] => {
                let mut shape = q.shape.clone();
                shape[0] += k.shape[0] + v.shape[0];
                whole.push(NamedTensor { name, shape, values: [q.values, k.values, v.values].concat() });
            }
            // Incomplete: left as they are, so that the key check names them.
            parts => whole.extend(parts.into_iter().flatten()),
        }
    }
    number_stages(whole)
}

/// A plain model's blocks are `layers.N` in memory; in Swin a merge stands at the end of a stage, at timm's start of the next.
fn number_stages(tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    let is_swin = tensors.iter().any(|tensor| tensor.name.starts_with("layers.0.blocks."));
    tensors
        .into_iter()
        .map(|tensor| {
            let name = match is_swin {
                true => {
                    match tensor.name.strip_prefix("layers.").and_then(|rest| rest.split_once(".downsample."))
                    {
                        Some((stage, rest)) => match stage.parse::<usize>() {
                            Ok(stage) => format!("layers.{}.downsample.{rest}", stage + 1),
                            Err(_) => tensor.name.clone(),
                        },
                        None => tensor.name.replace("classifier.", "head.fc."),
                    }
                }
                false => match tensor.name.strip_prefix("layers.") {
                    Some(rest) => format!("blocks.{rest}"),
                    None => tensor.name.replace("classifier.", "head."),
                },
            };
            NamedTensor { name, ..tensor }
        })
        .collect()
}
