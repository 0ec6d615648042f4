//! Translation between torchvision's names (`torchvision/models/vision_transformer.py`, `swin_transformer.py`) and
//! timm's.

use super::names::exchange;
use crate::PerStage;
use crate::attention::relative_position::{log_offsets, table_rows};
use crate::weights::{IndexTable, NamedTensor};

const VIT: [(&str, &str); 8] = [
    (".class_token.", ".cls_token."),
    (".encoder.pos_embedding.", ".pos_embed."),
    (".conv_proj.", ".patch_embed.proj."),
    (".encoder.layers.encoder_layer_", ".blocks."),
    (".encoder.ln.", ".norm."),
    (".ln_1.", ".norm1."),
    (".ln_2.", ".norm2."),
    (".self_attention.out_proj.", ".attn.proj."),
];

/// Pairs that are used only to read: names of earlier versions, and names that are written by another rule.
const VIT_READ_ONLY: [(&str, &str); 4] = [
    (".mlp.linear_1.", ".mlp.fc1."),
    (".mlp.linear_2.", ".mlp.fc2."),
    (".self_attention.in_proj_", ".attn.qkv."),
    (".heads.head.", ".head."),
];

const MLP: [(&str, &str); 2] = [(".mlp.0.", ".mlp.fc1."), (".mlp.3.", ".mlp.fc2.")];

/// The tensors under timm's names. Names that are not torchvision's do not change.
pub fn to_timm_names(tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    let is_swin = tensors.iter().any(|tensor| tensor.name.starts_with("features."));
    let is_v2 = tensors.iter().any(|tensor| tensor.name.ends_with(".attn.logit_scale"));
    tensors
        .into_iter()
        .flat_map(|tensor| if is_v2 { split_bias(tensor) } else { vec![tensor] })
        .map(|tensor| {
            let name = match is_swin {
                true => swin(&tensor.name),
                false => exchange(&tensor.name, VIT.into_iter().chain(MLP).chain(VIT_READ_ONLY)),
            };
            NamedTensor { name, ..tensor }
        })
        .collect()
}

/// Splits the joint bias of Swin v2 into those of queries and values. torchvision also stores a bias of keys, which it
/// sets to zero in every forward pass.
fn split_bias(tensor: NamedTensor) -> Vec<NamedTensor> {
    let Some(place) = tensor.name.strip_suffix("qkv.bias").filter(|_| tensor.values.len().is_multiple_of(3))
    else {
        return vec![tensor];
    };
    let third = tensor.values.len() / 3;
    [("q_bias", 0), ("v_bias", 2)]
        .map(|(part, at)| NamedTensor {
            name: format!("{place}{part}"),
            shape: vec![third],
            values: tensor.values[at * third..(at + 1) * third].to_vec(),
        })
        .into()
}

/// timm's name for a part of torchvision's `features`: the embedding, then by turns a stage and a merging, which
/// belongs to the next stage in timm.
fn swin(name: &str) -> String {
    let Some((number, rest)) = name
        .strip_prefix("features.")
        .and_then(|rest| rest.split_once('.'))
        .and_then(|(number, rest)| Some((number.parse::<usize>().ok()?, rest)))
    else {
        return name.replace("head.", "head.fc.");
    };
    match (number, number % 2) {
        (0, _) => format!("patch_embed.{}", rest.replace("0.", "proj.").replace("2.", "norm.")),
        (_, 1) => format!("layers.{}.blocks.{}", number / 2, exchange(rest, MLP)),
        _ => format!("layers.{}.downsample.{rest}", number / 2),
    }
}

/// timm's tensors of a plain model under torchvision's names.
pub fn vit_from_timm_names(tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    let turned = || {
        let pairs = VIT.iter().chain(&MLP).map(|&(theirs, timms)| (timms, theirs));
        pairs.chain([(".head.", ".heads.head.")])
    };
    tensors
        .into_iter()
        .map(|tensor| {
            let name = exchange(&tensor.name, turned()).replace(".attn.qkv.", ".self_attention.in_proj_");
            NamedTensor { name, ..tensor }
        })
        .collect()
}

/// timm's tensors of a Swin, with windows of `window` tokens per side, under torchvision's names, and the tables of
/// indices that torchvision stores next to them. `learned_in` has the sides of the windows before they were enlarged, per stage.
pub fn swin_from_timm_names(
    tensors: Vec<NamedTensor>,
    window: usize,
    learned_in: Option<&PerStage>,
) -> (Vec<NamedTensor>, Vec<IndexTable>) {
    let index: Vec<i64> = table_rows([window; 2]);
    let side_of = |name: &str| {
        let stage = name.split('.').nth(1).and_then(|stage| stage.parse::<usize>().ok());
        stage.and_then(|stage| learned_in?.0.get(stage).copied()).unwrap_or(window)
    };
    let mut renamed: Vec<NamedTensor> = Vec::with_capacity(tensors.len());
    let mut tables = Vec::new();
    for tensor in tensors {
        let name = swin_from_timm(&tensor.name);
        if let Some(place) = name.strip_suffix("attn.proj.bias") {
            tables.push(IndexTable {
                name: format!("{place}attn.relative_position_index"),
                shape: vec![index.len()],
                values: index.clone(),
            });
        }
        if let Some(place) = name.strip_suffix("logit_scale") {
            let side = 2 * window - 1;
            renamed.push(NamedTensor {
                name: format!("{place}relative_coords_table"),
                shape: vec![1, side, side, 2],
                values: log_offsets([window; 2], [side_of(&tensor.name); 2]),
            });
        }
        match (name.strip_suffix("q_bias"), name.strip_suffix("v_bias")) {
            (Some(place), _) => {
                let zeros = vec![0.0; tensor.values.len()];
                renamed.push(NamedTensor {
                    name: format!("{place}qkv.bias"),
                    shape: vec![3 * tensor.values.len()],
                    values: [tensor.values, zeros].concat(),
                });
            }
            (_, Some(place)) => {
                let joined = format!("{place}qkv.bias");
                let bias = renamed.iter_mut().find(|other| other.name == joined);
                bias.expect("queries come before values").values.extend(tensor.values);
            }
            _ => renamed.push(NamedTensor { name, ..tensor }),
        }
    }
    (renamed, tables)
}

fn swin_from_timm(name: &str) -> String {
    if let Some(rest) = name.strip_prefix("patch_embed.") {
        return format!("features.0.{}", rest.replace("proj.", "0.").replace("norm.", "2."));
    }
    let staged = name.strip_prefix("layers.").and_then(|rest| {
        let (stage, rest) = rest.split_once('.')?;
        let stage: usize = stage.parse().ok()?;
        Some(match (rest.strip_prefix("blocks."), rest.strip_prefix("downsample.")) {
            (Some(rest), _) => {
                let rest = exchange(rest, MLP.map(|(theirs, timms)| (timms, theirs)));
                format!("features.{}.{rest}", 2 * stage + 1)
            }
            (_, Some(rest)) => format!("features.{}.{rest}", 2 * stage),
            _ => return None,
        })
    });
    staged.unwrap_or_else(|| name.replace("head.fc.", "head."))
}
