//! Parts of other architectures that a key's name gives away.

/// What the first key that is of no architecture of ours belongs to; none where all may be ours.
pub(super) fn part<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<(&'a str, &'static str)> {
    names
        .into_iter()
        .find_map(|name| PARTS.iter().find(|(is_of, _)| is_of(name)).map(|(_, part)| (name, *part)))
}

type Part = (fn(&str) -> bool, &'static str);

const PARTS: [Part; 13] = [
    (
        |name| name.ends_with("num_batches_tracked") || name.ends_with("running_mean"),
        "batch norms, as convolutional networks have them",
    ),
    (
        |name| name.contains("rope") || name.contains("rotary") || name.contains("inv_freq"),
        "rotary positions",
    ),
    (
        |name| name.contains("patch_embed.backbone.") || name.contains("patch_embeddings.backbone."),
        "a hybrid stem",
    ),
    (
        |name| name.starts_with("neck.") || name.contains(".reassemble_stage."),
        "a decoder for dense predictions (DPT)",
    ),
    (
        |name| name.starts_with("decoder.") || name.contains("decoder_"),
        "a decoder (of pre-training by masking)",
    ),
    (|name| name.contains("detection_tokens"), "detection tokens (YOLOS)"),
    (|name| name.contains("norm_pre.") || name.contains("pre_layrnorm."), "a norm before the blocks (CLIP)"),
    (is_relative_in_plain, "relative positions in a plain model (BEiT)"),
    (
        |name| name.contains("lambda_1") || name.ends_with("attn.q_bias") && name.starts_with("blocks."),
        "BEiT's blocks",
    ),
    (is_gated, "gated MLPs (SwiGLU)"),
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

fn is_relative_in_plain(name: &str) -> bool {
    let relative = name.contains("relative_position_bias") || name.contains("rel_pos");
    // Swin numbers its blocks in stages.
    let is_swin = name.contains("layers.") && name.contains(".blocks.") || name.starts_with("features.");
    relative && !is_swin
}

fn is_gated(name: &str) -> bool {
    [".mlp.w12.", ".mlp.w1.", ".mlp.fc1_g.", ".mlp.weights_in.", ".mlp.gate_proj."]
        .iter()
        .any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_other_architectures_are_told_by_their_parts() {
        for (name, expected) in [
            ("blocks.0.attn.relative_position_bias_table", "BEiT"),
            (
                "beit.encoder.layer.0.attention.attention.relative_position_bias.relative_position_bias_table",
                "BEiT",
            ),
            ("features.0.1.num_batches_tracked", "convolutional"),
            ("rope_embeddings.inv_freq", "rotary"),
            ("patch_embed.backbone.stem.conv.weight", "hybrid"),
            ("neck.reassemble_stage.layers.0.projection.weight", "DPT"),
            ("norm_pre.weight", "CLIP"),
            ("blocks.0.mlp.w12.weight", "SwiGLU"),
        ] {
            assert!(
                part([name]).is_some_and(|(_, part)| part.contains(expected)),
                "{name}: {:?}",
                part([name])
            );
        }
        for name in [
            "layers.0.blocks.0.attn.relative_position_bias_table",
            "swin.encoder.layers.0.blocks.0.attention.self.relative_position_bias_table",
            "features.1.0.attn.relative_position_bias_table",
            "blocks.0.attn.qkv.bias",
            "blocks.0.gamma_1",
        ] {
            assert_eq!(part([name]), None);
        }
    }
}
