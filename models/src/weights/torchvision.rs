//! torchvision's names (`torchvision/models/vision_transformer.py`, `swin_transformer.py`) to timm's.

use super::NamedTensor;

/// The tensors under timm's names. Names that are not torchvision's stay as they are; index tables, which follow from the
/// architecture, are dropped.
pub fn to_timm_names(tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    let is_swin = tensors.iter().any(|tensor| tensor.name.starts_with("features."));
    let rename = if is_swin { swin } else { vit };
    tensors
        .into_iter()
        .filter(|tensor| !tensor.name.ends_with("relative_position_index"))
        .map(|tensor| NamedTensor { name: rename(&tensor.name), ..tensor })
        .collect()
}

fn vit(name: &str) -> String {
    match name {
        "class_token" => return "cls_token".into(),
        "encoder.pos_embedding" => return "pos_embed".into(),
        _ => {}
    }
    let pairs = [
        ("conv_proj.", "patch_embed.proj."),
        ("encoder.layers.encoder_layer_", "blocks."),
        ("encoder.ln.", "norm."),
        (".ln_1.", ".norm1."),
        (".ln_2.", ".norm2."),
        (".self_attention.in_proj_", ".attn.qkv."),
        (".self_attention.out_proj.", ".attn.proj."),
        (".mlp.0.", ".mlp.fc1."),
        (".mlp.linear_1.", ".mlp.fc1."),
        (".mlp.3.", ".mlp.fc2."),
        (".mlp.linear_2.", ".mlp.fc2."),
        ("heads.head.", "head."),
    ];
    pairs.iter().fold(name.to_owned(), |name, (theirs, timms)| name.replace(theirs, timms))
}

/// `features` alternates: the embedding, then a stage, then a merge, which timm counts to the next stage.
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
        (_, 1) => {
            let rest = rest.replace(".mlp.0.", ".mlp.fc1.").replace(".mlp.3.", ".mlp.fc2.");
            format!("layers.{}.blocks.{rest}", number / 2)
        }
        _ => format!("layers.{}.downsample.{rest}", number / 2),
    }
}
