//! Recognition of the library that weights come from, by the names of their tensors, and refusal of architectures that
//! are not supported but have similar names.

use anyhow::{Result, bail};
use vitrine_models::weights::{self, Layout};

use crate::usage::usage;
use crate::weights_file::StoredTensor;

/// The layout that the names of the tensors have, or the one that the user states if the names do not tell.
///
/// # Errors
/// If a name belongs to an unsupported architecture, the names contradict the stated layout, or no layout has such
/// names.
pub(super) fn recognize(tensors: &[StoredTensor], stated: Option<Layout>) -> Result<Layout> {
    let names = || tensors.iter().map(|tensor| tensor.name.as_str());
    if let Some((name, feature)) = unsupported_feature(names().filter(|name| weights::unused(name).is_none()))
    {
        bail!("`{name}` belongs to a model with {feature}, which is not supported");
    }
    let recognized = Layout::recognize(names().collect::<Vec<_>>());
    match (stated, recognized) {
        (Some(stated), Some(recognized)) if stated != recognized => {
            usage!("--layout {}: the names of the tensors are those of {}", stated.name(), recognized.name())
        }
        (Some(layout), _) | (None, Some(layout)) => Ok(layout),
        (None, None) => {
            let first: Vec<&str> = names().take(5).collect();
            bail!(
                "no known layout has these keys ({}, ...); {} are known, for Vision Transformers and Swin; --layout chooses one",
                first.join(", "),
                Layout::ALL.iter().map(|layout| layout.name()).collect::<Vec<_>>().join(", ")
            )
        }
    }
}

/// The first name that only an unsupported architecture has, and the feature that it belongs to.
fn unsupported_feature<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<(&'a str, &'static str)> {
    names.into_iter().find_map(|name| {
        UNSUPPORTED.iter().find(|(belongs, _)| belongs(name)).map(|(_, feature)| (name, *feature))
    })
}

/// Whether a tensor of this name belongs to a feature, and what the feature is called in messages.
type Marker = (fn(&str) -> bool, &'static str);

const UNSUPPORTED: [Marker; 10] = [
    (
        |name| name.ends_with("num_batches_tracked") || name.ends_with("running_mean"),
        "batch norms, as convolutional networks have them",
    ),
    (
        |name| {
            let is_stored = name.contains("rope") || name.contains("rotary") || name.contains("inv_freq");
            // The frequencies that timm's `rope_mixed` learns.
            is_stored && !["rope.freqs", "model.rope.freqs"].contains(&name)
        },
        "stored rotary positions",
    ),
    (
        |name| name.contains("patch_embed.backbone.") || name.contains("patch_embeddings.backbone."),
        "a hybrid stem",
    ),
    (
        |name| name.starts_with("neck.") || name.contains(".reassemble_stage."),
        "a decoder for dense predictions (DPT)",
    ),
    (|name| name.contains("detection_tokens"), "detection tokens (YOLOS)"),
    (
        is_relative_position_without_stages,
        "relative positions in a plain model other than BEiT (such as a table that blocks share)",
    ),
    (|name| name.contains(".mlp.ffn_ln."), "a norm inside of the MLP, in EVA-02's own files"),
    (
        |name| name.contains(".attn.qkv_conv.") || name.contains(".conv_pos."),
        "convolutions between the blocks",
    ),
    (
        |name| name.ends_with(".attn.scale_norm.weight") || name.contains(".attn.norm."),
        "a norm inside of attention",
    ),
    (|name| name.contains("lora_"), "adapters (LoRA) that were not merged"),
];

fn is_relative_position_without_stages(name: &str) -> bool {
    let is_relative = name.contains("relative_position_bias") || name.contains("rel_pos");
    // Swin's names contain the numbers of stage and block.
    let is_swin = name.contains("layers.") && name.contains(".blocks.") || name.starts_with("features.");
    let is_beit = name.starts_with("blocks.") && name.contains(".attn.relative_position_")
        || name.contains(".attention.attention.relative_position_bias.")
        || name.contains("layers.") && name.contains(".relative_position_bias.relative_");
    is_relative && !is_swin && !is_beit
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use vitrine_models::weights::NamedTensor;

    use super::*;
    use crate::weights_file::{self, Precision};

    /// The tensors of a file with these names.
    fn stored(names: &[&str]) -> Vec<StoredTensor> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let tensor =
            |name: &&str| NamedTensor { name: (*name).to_owned(), shape: vec![1], values: vec![0.0] };
        let tensors: Vec<NamedTensor> = names.iter().map(tensor).collect();
        weights_file::save(&path, &tensors, &[], Precision::F32, HashMap::new()).unwrap();
        weights_file::open(&path).unwrap().tensors
    }

    #[test]
    fn the_layout_follows_from_the_names_or_is_stated_if_they_do_not_tell() {
        let timms = ["patch_embed.proj.weight", "head.bias"];
        for (names, stated, layout) in [
            (&timms[..], None, Layout::Timm),
            (&timms, Some(Layout::Timm), Layout::Timm),
            (&["conv_proj.weight"], None, Layout::Torchvision),
            (&["stem.weight"], Some(Layout::Microsoft), Layout::Microsoft),
        ] {
            assert_eq!(recognize(&self::stored(names), stated).unwrap(), layout, "{names:?}");
        }
        for (names, stated, part) in [
            (&timms[..], Some(Layout::HuggingFace), "--layout hugging-face"),
            (&["stem.weight"], None, "--layout"),
            (&["patch_embed.proj.weight", "rope.periods"], None, "`rope.periods`"),
        ] {
            let error = recognize(&self::stored(names), stated).unwrap_err().to_string();
            assert!(error.contains(part), "{names:?}: {error}");
        }
    }

    #[test]
    fn names_of_unsupported_architectures_are_detected_and_similar_names_are_not() {
        for (name, expected) in [
            ("rel_pos_bias.relative_position_bias_table", "BEiT"),
            ("beit.encoder.relative_position_bias.relative_position_bias_table", "BEiT"),
            ("features.0.1.num_batches_tracked", "convolutional"),
            ("rope_embeddings.inv_freq", "rotary"),
            ("patch_embed.backbone.stem.conv.weight", "hybrid"),
            ("neck.reassemble_stage.layers.0.projection.weight", "DPT"),
            ("blocks.0.mlp.ffn_ln.weight", "EVA-02"),
        ] {
            let found = unsupported_feature([name]);
            assert!(found.is_some_and(|(_, feature)| feature.contains(expected)), "{name}: {found:?}");
        }
        for name in [
            "layers.0.blocks.0.attn.relative_position_bias_table",
            "swin.encoder.layers.0.blocks.0.attention.self.relative_position_bias_table",
            "features.1.0.attn.relative_position_bias_table",
            "blocks.0.attn.qkv.bias",
            "blocks.0.gamma_1",
            "blocks.0.attn.relative_position_bias_table",
            "beit.encoder.layer.0.attention.attention.relative_position_bias.relative_position_bias_table",
        ] {
            assert_eq!(unsupported_feature([name]), None);
        }
    }
}
