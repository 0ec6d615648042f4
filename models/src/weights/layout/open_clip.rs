//! Translation from the names of OpenAI's CLIP and of open_clip, whose image tower is under `visual.`, to timm's.

use super::names::exchange;
use super::parts::with_batch_dimensions;
use crate::weights::NamedTensor;

/// The key of the patch embedding.
pub(super) const PATCH_EMBEDDING: &str = "visual.conv1.weight";

/// The starts of the names of the text half, which has no prefix.
const TEXT: [&str; 5] =
    ["token_embedding.", "positional_embedding", "transformer.resblocks.", "ln_final.", "text_projection"];

const NAMES: [(&str, &str); 13] = [
    (".visual.conv1.", ".patch_embed.proj."),
    (".visual.class_embedding.", ".cls_token."),
    (".visual.positional_embedding.", ".pos_embed."),
    (".visual.ln_pre.", ".norm_pre."),
    (".visual.ln_post.", ".norm."),
    (".visual.transformer.resblocks.", ".blocks."),
    (".ln_1.", ".norm1."),
    (".ln_2.", ".norm2."),
    (".attn.in_proj_weight.", ".attn.qkv.weight."),
    (".attn.in_proj_bias.", ".attn.qkv.bias."),
    (".attn.out_proj.", ".attn.proj."),
    (".mlp.c_fc.", ".mlp.fc1."),
    (".mlp.c_proj.", ".mlp.fc2."),
];

/// Whether a tensor of this name belongs to the text half.
pub(super) fn is_text(name: &str) -> bool {
    TEXT.iter().any(|start| name.starts_with(start))
}

/// The tensors under timm's names. The projection to the space of texts becomes the head, with a bias of zeros. Tensors
/// of other libraries do not change.
pub(super) fn to_timm_names(tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    if tensors.iter().all(|tensor| tensor.name != PATCH_EMBEDDING) {
        return tensors;
    }
    tensors.into_iter().flat_map(translated).collect()
}

fn translated(mut tensor: NamedTensor) -> Vec<NamedTensor> {
    if let ("visual.proj", &[dim, width]) = (tensor.name.as_str(), tensor.shape.as_slice()) {
        let column = |column: usize| tensor.values.iter().skip(column).step_by(width.max(1)).copied();
        let values = (0..width).flat_map(column).collect();
        return vec![
            NamedTensor { name: "head.weight".to_owned(), shape: vec![width, dim], values },
            NamedTensor { name: "head.bias".to_owned(), shape: vec![width], values: vec![0.0; width] },
        ];
    }
    tensor.name = exchange(&tensor.name, NAMES);
    vec![with_batch_dimensions(tensor)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Layout;

    fn tensor(name: &str, shape: &[usize]) -> NamedTensor {
        let count: usize = shape.iter().product();
        let values = (0..count).map(|value| value as f32).collect();
        NamedTensor { name: name.to_owned(), shape: shape.to_vec(), values }
    }

    #[test]
    fn the_image_tower_has_timms_names_and_the_projection_is_the_head() {
        let theirs = [
            ("visual.conv1.weight", &[2, 3, 1, 1][..], "patch_embed.proj.weight", &[2, 3, 1, 1][..]),
            ("visual.class_embedding", &[2], "cls_token", &[1, 1, 2]),
            ("visual.positional_embedding", &[5, 2], "pos_embed", &[1, 5, 2]),
            ("visual.ln_pre.weight", &[2], "norm_pre.weight", &[2]),
            ("visual.ln_post.bias", &[2], "norm.bias", &[2]),
            ("visual.transformer.resblocks.3.ln_1.bias", &[2], "blocks.3.norm1.bias", &[2]),
            ("visual.transformer.resblocks.3.ln_2.bias", &[2], "blocks.3.norm2.bias", &[2]),
            (
                "visual.transformer.resblocks.3.attn.in_proj_weight",
                &[6, 2],
                "blocks.3.attn.qkv.weight",
                &[6, 2],
            ),
            ("visual.transformer.resblocks.3.attn.in_proj_bias", &[6], "blocks.3.attn.qkv.bias", &[6]),
            ("visual.transformer.resblocks.3.attn.out_proj.bias", &[2], "blocks.3.attn.proj.bias", &[2]),
            ("visual.transformer.resblocks.3.mlp.c_fc.bias", &[8], "blocks.3.mlp.fc1.bias", &[8]),
            ("visual.transformer.resblocks.3.mlp.c_proj.bias", &[2], "blocks.3.mlp.fc2.bias", &[2]),
        ];
        assert_eq!(Layout::recognize(theirs.map(|(name, ..)| name)), Some(Layout::Timm));
        let tensors: Vec<NamedTensor> = theirs.iter().map(|(name, shape, ..)| tensor(name, shape)).collect();
        let timms = Layout::Timm.to_timm([tensors, vec![tensor("visual.proj", &[2, 3])]].concat());
        let find = |name: &str| timms.iter().find(|tensor| tensor.name == name);
        for (_, _, name, shape) in theirs {
            assert_eq!(find(name).map(|tensor| tensor.shape.as_slice()), Some(shape), "{name}");
        }
        let head = find("head.weight").map(|head| (head.shape.clone(), head.values.clone()));
        assert_eq!(head, Some((vec![3, 2], vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0])));
        for bias in ["head.bias", "patch_embed.proj.bias"] {
            assert!(find(bias).is_some_and(|bias| bias.values.iter().all(|value| *value == 0.0)), "{bias}");
        }
        assert!(is_text("transformer.resblocks.0.ln_1.bias") && !is_text("visual.proj"));
    }
}
