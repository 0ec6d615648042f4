//! Arguments of timm's classes `Eva`, which is EVA, DINOv3, and ViT with rotary positions, and `Beit`, which has some of them.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use vitrine_models::weights::{Facts, RotaryPairs};
use vitrine_models::{ImageSize, MlpKind, Pool, RotaryCoordinates, RotaryOptions};

use super::values::{image_size, number, real, text, truth};

/// The defaults of its constructor.
pub(super) const DEFAULTS: &str = r#"{"img_size":224,"patch_size":16,"in_chans":3,"global_pool":"avg","embed_dim":768,"depth":12,
    "num_heads":12,"mlp_ratio":4,"qkv_bias":true,"qk_norm":false,"swiglu_mlp":false,"class_token":true,"num_reg_tokens":0,
    "no_embed_class":false,"use_abs_pos_emb":true,"use_rot_pos_emb":false,"rope_type":"cat","rope_grid_offset":0,
    "rope_grid_indexing":"ij","rope_temperature":10000,"rope_rotate_half":false,"use_pre_transformer_norm":false,
    "norm_eps":1e-6}"#;

/// The defaults of the constructor of `Beit`.
pub(super) const BEIT_DEFAULTS: &str = r#"{"img_size":224,"patch_size":16,"in_chans":3,"global_pool":"avg","embed_dim":768,"depth":12,
    "num_heads":12,"mlp_ratio":4,"qkv_bias":true,"swiglu_mlp":false,"scale_mlp":false,"use_abs_pos_emb":true,"use_rel_pos_bias":false,
    "use_shared_rel_pos_bias":false,"norm_eps":1e-6}"#;

/// Their arguments that no other class has.
pub(super) const KEYS: [&str; 31] = [
    "use_rel_pos_bias",
    "use_shared_rel_pos_bias",
    "num_kv_heads",
    "qkv_fused",
    "swiglu_mlp",
    "swiglu_align_to",
    "scale_mlp",
    "scale_attn_inner",
    "attn_type",
    "gated_attn",
    "attn_only_layer_scale",
    "num_reg_tokens",
    "use_abs_pos_emb",
    "use_rot_pos_emb",
    "rope_type",
    "rope_grid_offset",
    "rope_grid_indexing",
    "rope_temperature",
    "rope_rotate_half",
    "rope_shift_coords",
    "rope_jitter_coords",
    "rope_rescale_coords",
    "rope_mrope_section",
    "use_post_norm",
    "use_pre_transformer_norm",
    "use_post_transformer_norm",
    "use_fc_norm",
    "attn_pool_num_heads",
    "attn_pool_mlp_ratio",
    "ref_feat_shape",
    "head_init_scale",
];

/// Arguments that must be false or missing: name, and the meaning of any other value, for messages.
const ABSENT: [(&str, &str); 8] = [
    ("use_shared_rel_pos_bias", "relative positions that all blocks share"),
    ("scale_attn_inner", "a norm inside of attention"),
    ("gated_attn", "a gate of attention"),
    ("attn_only_layer_scale", "LayerScale of attention alone"),
    ("num_kv_heads", "keys that several heads share"),
    ("use_post_norm", "norms after the branches"),
    ("attn_pool_num_heads", "attention pooling with heads of its own"),
    ("attn_pool_mlp_ratio", "attention pooling with an MLP of its own"),
];

/// Whether the arguments are those of one of these classes.
pub(super) fn is_one(arguments: &Map<String, Value>) -> bool {
    arguments.contains_key("use_rot_pos_emb") || arguments.contains_key("use_rel_pos_bias")
}

/// Adds the facts that the arguments state together.
///
/// # Errors
/// If one of them has a value that is not supported; the message names it.
pub(super) fn add(arguments: &Map<String, Value>, facts: &mut Facts) -> Result<()> {
    let mut complete: Map<String, Value> = serde_json::from_str(DEFAULTS)?;
    complete.retain(|name, _| KEYS.contains(&name.as_str()));
    let given = arguments.iter().filter(|(_, value)| !value.is_null());
    complete.extend(given.map(|(name, value)| (name.clone(), value.clone())));
    let arguments = &complete;
    facts.pool.get_or_insert(Pool::Mean);
    facts.class_token.get_or_insert(true);
    let stated = |name: &str| arguments.get(name);
    let is_set = |name: &str| {
        stated(name).map_or(Ok(false), |value| truth(value).with_context(|| format!("`{name}`")))
    };
    for (name, feature) in ABSENT {
        if stated(name).is_some_and(|value| *value != false) {
            bail!("`{name}` is {}: {feature}, which is not supported", arguments[name]);
        }
    }
    facts.registers = stated("num_reg_tokens").map(number).transpose().context("`num_reg_tokens`")?;
    facts.pre_norm = Some(is_set("use_pre_transformer_norm")?);
    facts.mlp_norm = Some(is_set("scale_mlp")?);
    facts.mlp = Some(if is_set("swiglu_mlp")? { MlpKind::SwiGlu } else { MlpKind::Gelu });
    let has_positions = is_set("use_abs_pos_emb")?;
    facts.learned_position = Some(has_positions);
    if !has_positions || facts.class_token == Some(false) && facts.registers == Some(0) {
        facts.prefix_position = None;
    }
    let norms_mean = match stated("use_fc_norm") {
        Some(value) => truth(value).context("`use_fc_norm`")?,
        None => facts.pool == Some(Pool::Mean),
    };
    let norms_tokens = match stated("use_post_transformer_norm") {
        Some(value) => truth(value).context("`use_post_transformer_norm`")?,
        None => !norms_mean,
    };
    facts.pool = match (facts.pool, norms_mean, norms_tokens) {
        (Some(Pool::Mean), true, false) => Some(Pool::Mean),
        (Some(Pool::Mean), false, true) => Some(Pool::NormalizedMean),
        (pool, false, true) => pool,
        (pool, ..) => bail!("`use_fc_norm` {norms_mean} with {pool:?} pooling is not supported"),
    };
    if is_set("use_rot_pos_emb")? {
        facts.rotary = Some(rotary(arguments).context("rotary positions")?);
    }
    Ok(())
}

fn rotary(arguments: &Map<String, Value>) -> Result<(RotaryOptions, RotaryPairs)> {
    let stated = |name: &str| arguments.get(name).filter(|value| !value.is_null());
    let (coordinates, learned) = match stated("rope_type").map(text).transpose()? {
        Some("cat") | None => (RotaryCoordinates::Index, false),
        Some("dinov3") => (RotaryCoordinates::Centered, false),
        Some("mixed") => (RotaryCoordinates::Index, true),
        Some(other) => bail!("`rope_type` is {other}: only cat, dinov3, and mixed are supported"),
    };
    if stated("rope_grid_offset").map(real).transpose()?.is_some_and(|offset| offset != 0.0) {
        bail!("`rope_grid_offset` other than 0 is not supported");
    }
    let columns_first = match stated("rope_grid_indexing").map(text).transpose()? {
        Some("ij") | None => false,
        Some("xy") => true,
        Some(other) => bail!("`rope_grid_indexing` is {other}: only ij and xy are supported"),
    };
    // Coordinates are scaled to those of this grid, which the other kinds ignore.
    let is_scaled = coordinates == RotaryCoordinates::Index && !learned;
    let grid = match stated("ref_feat_shape").filter(|_| is_scaled) {
        Some(grid) => {
            let ImageSize { height, width } = image_size(grid).context("`ref_feat_shape`")?;
            Some([height, width])
        }
        None => None,
    };
    let base = stated("rope_temperature").map(real).transpose()?.unwrap_or(10_000.0);
    let halves = stated("rope_rotate_half").map(truth).transpose()?.unwrap_or(false);
    if learned && halves {
        bail!("`rope_rotate_half` is true with `rope_type` mixed, which timm does not have either");
    }
    let pairs = match (halves, columns_first) {
        (true, false) => RotaryPairs::Halves,
        (false, false) => RotaryPairs::Neighbors,
        (false, true) => RotaryPairs::NeighborsColumnsFirst,
        (true, true) => bail!("`rope_grid_indexing` xy with `rope_rotate_half` is not supported"),
    };
    Ok((RotaryOptions { base, coordinates, grid, learned }, pairs))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn stated(more: Value) -> Result<Facts> {
        let mut arguments: Map<String, Value> = serde_json::from_str(DEFAULTS).unwrap();
        arguments.extend(more.as_object().unwrap().clone());
        let mut facts = Facts { pool: Some(Pool::Mean), ..Facts::default() };
        add(&arguments, &mut facts).map(|()| facts)
    }

    #[test]
    fn dinov3_has_rotary_positions_and_the_mean_of_normalized_tokens() {
        let facts = stated(json!({
            "use_rot_pos_emb": true, "use_abs_pos_emb": false, "rope_type": "dinov3", "rope_temperature": 100,
            "rope_rotate_half": true, "num_reg_tokens": 4, "use_fc_norm": false, "swiglu_mlp": true,
        }))
        .unwrap();
        let coordinates = RotaryCoordinates::Centered;
        let options = RotaryOptions { base: 100.0, coordinates, ..RotaryOptions::default() };
        assert_eq!(facts.rotary, Some((options, RotaryPairs::Halves)));
        assert_eq!((facts.pool, facts.registers), (Some(Pool::NormalizedMean), Some(4)));
        assert_eq!((facts.mlp, facts.learned_position), (Some(MlpKind::SwiGlu), Some(false)));
    }

    #[test]
    fn eva02_scales_positions_to_a_grid_and_mixed_ones_are_learned() {
        let rotary = |more| stated(more).unwrap().rotary.unwrap();
        let (options, pairs) =
            rotary(json!({ "use_rot_pos_emb": true, "ref_feat_shape": [16, 16], "img_size": 448 }));
        assert_eq!((options.grid, options.learned, pairs), (Some([16, 16]), false, RotaryPairs::Neighbors));
        let (options, pairs) = rotary(json!({
            "use_rot_pos_emb": true, "rope_type": "mixed", "rope_grid_indexing": "xy", "rope_temperature": 10,
            "ref_feat_shape": [16, 16],
        }));
        assert_eq!((options.grid, options.learned, options.base), (None, true, 10.0));
        assert_eq!(pairs, RotaryPairs::NeighborsColumnsFirst);
    }

    #[test]
    fn errors_name_the_unsupported_argument() {
        for (arguments, name) in [
            (json!({ "scale_attn_inner": true }), "`scale_attn_inner`"),
            (json!({ "num_kv_heads": 2 }), "`num_kv_heads`"),
            (json!({ "use_fc_norm": true, "use_post_transformer_norm": true }), "`use_fc_norm`"),
            (json!({ "use_rot_pos_emb": true, "rope_type": "mrope" }), "`rope_type`"),
            (json!({ "use_rot_pos_emb": true, "rope_grid_indexing": "yx" }), "`rope_grid_indexing`"),
            (json!({ "use_rot_pos_emb": true, "ref_feat_shape": "16" }), "`ref_feat_shape`"),
            (
                json!({ "use_rot_pos_emb": true, "rope_type": "mixed", "rope_rotate_half": true }),
                "`rope_rotate_half`",
            ),
        ] {
            let error = format!("{:#}", stated(arguments.clone()).unwrap_err());
            assert!(error.contains(name), "{arguments}: {error}");
        }
    }
}
