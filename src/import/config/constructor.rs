//! Arguments of timm's and torchvision's constructors, as JSON, and the facts about an architecture that they state.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use vitrine_models::weights::Facts;
use vitrine_models::{MlpKind, PerStage, Pool};

use super::eva;
use super::values::{activation, image_size, number, numbers, pretrained_windows, real, side, text, truth};

/// The supported classes, each with the defaults of its constructor.
const CLASSES: [(&str, &str); 7] = [
    (
        "VisionTransformer",
        r#"{"img_size":224,"patch_size":16,"in_chans":3,"global_pool":"token","embed_dim":768,"depth":12,"num_heads":12,
            "mlp_ratio":4,"qkv_bias":true,"qk_norm":false,"class_token":true,"pos_embed":"learn","no_embed_class":false,
            "reg_tokens":0,"norm_eps":1e-6,"act_layer":"gelu"}"#,
    ),
    (
        "VisionTransformerDistilled",
        r#"{"img_size":224,"patch_size":16,"in_chans":3,"global_pool":"token","embed_dim":768,"depth":12,"num_heads":12,
            "mlp_ratio":4,"qkv_bias":true,"qk_norm":false,"class_token":true,"pos_embed":"learn","no_embed_class":false,
            "reg_tokens":0,"norm_eps":1e-6,"act_layer":"gelu"}"#,
    ),
    ("Eva", eva::DEFAULTS),
    ("Beit", eva::BEIT_DEFAULTS),
    (
        "Cait",
        r#"{"img_size":224,"patch_size":16,"in_chans":3,"global_pool":"token","embed_dim":768,"depth":12,"num_heads":12,
            "mlp_ratio":4,"qkv_bias":true,"depth_token_only":2,"norm_eps":1e-6,"act_layer":"gelu"}"#,
    ),
    (
        "SwinTransformer",
        r#"{"img_size":224,"patch_size":4,"in_chans":3,"global_pool":"avg","embed_dim":96,"depths":[2,2,6,2],
            "num_heads":[3,6,12,24],"window_size":7,"mlp_ratio":4,"qkv_bias":true,"norm_eps":1e-5,"act_layer":"gelu"}"#,
    ),
    (
        "SwinTransformerV2",
        r#"{"img_size":224,"patch_size":4,"in_chans":3,"global_pool":"avg","embed_dim":96,"depths":[2,2,6,2],
            "num_heads":[3,6,12,24],"window_size":7,"mlp_ratio":4,"qkv_bias":true,"norm_eps":1e-5,"act_layer":"gelu",
            "pretrained_window_sizes":[0,0,0,0]}"#,
    ),
];

/// The default arguments of a class.
///
/// # Errors
/// If the class is not supported; the message lists those that are.
pub(super) fn defaults(class: &str) -> Result<Map<String, Value>> {
    let Some((_, text)) = CLASSES.into_iter().find(|(name, _)| *name == class) else {
        let names = CLASSES.map(|(name, _)| name).join(", ");
        bail!("{class} is not supported: {names} are");
    };
    Ok(serde_json::from_str(text)?)
}

/// The facts that follow from the class alone.
///
/// # Errors
/// If the class is not supported.
pub(super) fn facts_of_class(class: &str) -> Result<Facts> {
    defaults(class)?;
    let is_swin = class.starts_with("Swin");
    let unless_swin = |value: bool| (!is_swin).then_some(value);
    Ok(Facts {
        distillation_token: unless_swin(class == "VisionTransformerDistilled"),
        pre_norm: unless_swin(false),
        residual_post_norm: Some(class == "SwinTransformerV2"),
        layer_scale: (class == "Cait").then_some(true),
        class_depth: unless_swin(false).filter(|_| class != "Cait").map(usize::from),
        ..Facts::default()
    })
}

/// Adds the facts that arguments state. An argument that is `null` counts as missing.
///
/// # Errors
/// If an argument is unknown or has a value that is not supported; the message names it.
pub(super) fn add(arguments: &Map<String, Value>, facts: &mut Facts) -> Result<()> {
    for (name, value) in arguments.iter().filter(|(_, value)| !value.is_null()) {
        if IGNORED.contains(&name.as_str()) || eva::KEYS.contains(&name.as_str()) {
            continue;
        }
        match FIXED.into_iter().find(|(known, ..)| known == name) {
            Some((_, supported, _)) if is_equal(value, supported) => {}
            Some((_, _, otherwise)) => bail!("`{name}` is {value}: {otherwise}, which is not supported"),
            None => argument(name, value, facts).with_context(|| format!("`{name}`"))?,
        }
    }
    if eva::is_one(arguments) {
        eva::add(arguments, facts)?;
    }
    add_pooling_norm(arguments, facts)?;
    add_gate(arguments, facts)?;
    check_head_width(arguments, facts)
}

/// Whether a value is the text, or the boolean that the text spells.
fn is_equal(value: &Value, text: &str) -> bool {
    match value {
        Value::Bool(value) => text == if *value { "true" } else { "false" },
        value => value == text,
    }
}

/// Arguments that do not change the logits of a trained model at its own image size. `fc_norm`, `head_dim`, and `model`
/// are checked elsewhere in this module.
const IGNORED: [&str; 17] = [
    "drop_rate",
    "pos_drop_rate",
    "patch_drop_rate",
    "proj_drop_rate",
    "attn_drop_rate",
    "drop_path_rate",
    "dropout",
    "attention_dropout",
    "stochastic_depth_prob",
    "dynamic_img_size",
    "strict_img_size",
    "dynamic_img_pad",
    "weight_init",
    "fix_init",
    "fc_norm",
    "head_dim",
    "model",
];

/// Arguments with a single supported value: name, that value, and the meaning of any other, for messages.
const FIXED: [(&str, &str, &str); 13] = [
    ("scale_attn_norm", "false", "a norm inside of attention"),
    ("scale_mlp_norm", "false", "a norm inside of the MLP"),
    ("pool_include_prefix", "false", "a mean over the prefix tokens too"),
    ("always_partition", "false", "windows that are larger than the grid"),
    ("use_naflex", "false", "patches of images of changing shapes"),
    ("proj_bias", "true", "projections without a bias"),
    ("final_norm", "true", "no norm after the blocks"),
    ("block_fn", "Block", "another kind of block"),
    ("attn_layer", "Attention", "another kind of attention"),
    ("embed_layer", "PatchEmbed", "a hybrid stem before the blocks"),
    ("embed_norm_layer", "false", "a norm of the patches"),
    ("norm_layer", "LayerNorm", "another kind of norm"),
    ("block_layers", "LayerScaleBlock", "another kind of block"),
];

/// Adds the fact that one argument states.
fn argument(name: &str, value: &Value, facts: &mut Facts) -> Result<()> {
    match name {
        "img_size" | "image_size" => facts.image_size = Some(image_size(value)?),
        "patch_size" => facts.patch_size = Some(side(value)?),
        "in_chans" => facts.channels = Some(number(value)?),
        "num_classes" => facts.num_classes = Some(number(value)?),
        "embed_dim" | "hidden_dim" => facts.embed_dim = Some(number(value)?),
        "depth" | "depths" | "num_layers" => facts.depth = Some(PerStage(numbers(value)?)),
        "num_heads" => facts.num_heads = Some(PerStage(numbers(value)?)),
        "mlp_ratio" => facts.mlp_ratio = Some(real(value)?),
        "mlp_dim" => facts.mlp_dim = Some(number(value)?),
        "mlp_ratio_token_only" if real(value)? == 4.0 => {}
        "qkv_bias" => facts.qkv_bias = Some(truth(value)?),
        "pre_norm" => facts.pre_norm = Some(truth(value)?),
        "mlp_layer" if !matches!(text(value)?, "Mlp" | "SwiGLUPacked") => {
            bail!("{value}: another kind of MLP is not supported: Mlp and SwiGLUPacked are")
        }
        "mlp_layer" => {}
        "act_layer" if text(value)? == "silu" => facts.mlp = Some(MlpKind::SwiGlu),
        "qk_norm" => facts.qk_norm = Some(truth(value)?),
        "init_values" => facts.layer_scale = Some(real(value).is_ok()),
        "class_token" => facts.class_token = Some(truth(value)?),
        "reg_tokens" => facts.registers = Some(number(value)?),
        "no_embed_class" => facts.prefix_position = Some(!truth(value)?),
        "depth_token_only" => facts.class_depth = Some(number(value)?),
        "window_size" => facts.window = Some(window(value)?),
        "norm_eps" => facts.norm_epsilon = Some(real(value)?),
        "act_layer" => facts.mlp = Some(activation(value)?),
        "pos_embed" => facts.learned_position = Some(has_learned_positions(value)?),
        "global_pool" => facts.pool = Some(pooling(value)?),
        "pretrained_window_sizes" => facts.pretrained_windows = Some(pretrained_windows(value)?),
        _ => bail!(
            "{value} is stated, but this key is not known here: it may change what the model computes (remove it if it does not)"
        ),
    }
    Ok(())
}

fn has_learned_positions(value: &Value) -> Result<bool> {
    match text(value)? {
        "learn" => Ok(true),
        "none" | "" => Ok(false),
        other => bail!("positions of the kind {other} are not supported"),
    }
}

fn pooling(value: &Value) -> Result<Pool> {
    match text(value)? {
        "token" => Ok(Pool::ClassToken),
        "avg" => Ok(Pool::Mean),
        "map" => Ok(Pool::Attention),
        other => bail!("pooling by {other:?} is not supported: token, avg and map are"),
    }
}

/// The side of square windows, from one number or a list with a number or a pair per stage.
fn window(value: &Value) -> Result<usize> {
    match value {
        Value::Array(sides) => {
            let sides = sides.iter().map(side).collect::<Result<Vec<_>>>()?;
            let Some(first) = sides.first().filter(|first| sides.iter().all(|side| side == *first)) else {
                bail!("{sides:?}: only square windows of one size in all stages are supported");
            };
            Ok(*first)
        }
        value => number(value),
    }
}

/// Adds what `fc_norm` says: whether the last norm follows the pooling. If the argument is missing, it follows the mean
/// alone.
///
/// # Errors
/// If it follows another pooling.
fn add_pooling_norm(arguments: &Map<String, Value>, facts: &mut Facts) -> Result<()> {
    let after_pooling = match arguments.get("fc_norm") {
        None | Some(Value::Null) => return Ok(()),
        Some(value) => truth(value).context("`fc_norm`")?,
    };
    match (facts.pool, after_pooling) {
        (Some(Pool::Mean), false) => facts.pool = Some(Pool::NormalizedMean),
        (Some(Pool::Mean), true) | (_, false) => {}
        (_, true) => bail!("`fc_norm` is true: a norm after a pooling other than the mean is not supported"),
    }
    Ok(())
}

/// Adds that MLPs have a gate (`SwiGLUPacked`). `mlp_ratio` is then about the gate and the hidden values together.
///
/// # Errors
/// If the activation of the gate is another than SiLU, or MLPs without a gate have SiLU.
fn add_gate(arguments: &Map<String, Value>, facts: &mut Facts) -> Result<()> {
    let Some(layer) = arguments.get("mlp_layer") else { return Ok(()) };
    let is_gated = *layer == "SwiGLUPacked";
    if is_gated != (facts.mlp == Some(MlpKind::SwiGlu)) && arguments.contains_key("act_layer") {
        bail!("`mlp_layer` is {layer} with `act_layer` {}: not supported", arguments["act_layer"]);
    }
    if is_gated {
        facts.mlp = Some(MlpKind::SwiGlu);
        facts.mlp_ratio = facts.mlp_ratio.map(|ratio| ratio / 2.0);
    }
    Ok(())
}

/// Checks that in each stage of a Swin, the number of heads times `head_dim` is the width of a token, which doubles
/// from stage to stage.
fn check_head_width(arguments: &Map<String, Value>, facts: &Facts) -> Result<()> {
    let Some(width) = arguments.get("head_dim").filter(|value| !value.is_null()) else { return Ok(()) };
    let width = number(width).context("`head_dim`")?;
    let (Some(dim), Some(heads)) = (facts.embed_dim, &facts.num_heads) else { return Ok(()) };
    let fits = |(stage, heads): (usize, &usize)| heads.checked_mul(width) == dim.checked_shl(stage as u32);
    if !heads.0.iter().enumerate().all(fits) {
        bail!("`head_dim` is {width}: heads that together are not as wide as a token are not supported");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use vitrine_models::ImageSize;

    use super::*;

    /// The facts that arguments state.
    fn stated(arguments: Value) -> Result<Facts> {
        let mut facts = Facts::default();
        add(arguments.as_object().unwrap(), &mut facts)?;
        Ok(facts)
    }

    #[test]
    fn the_class_determines_facts_that_no_argument_states() {
        for (class, distilled, post_norm, layer_scale, class_depth) in [
            ("VisionTransformer", Some(false), false, None, Some(0)),
            ("VisionTransformerDistilled", Some(true), false, None, Some(0)),
            ("Cait", Some(false), false, Some(true), None),
            ("Eva", Some(false), false, None, Some(0)),
            ("Beit", Some(false), false, None, Some(0)),
            ("SwinTransformer", None, false, None, None),
            ("SwinTransformerV2", None, true, None, None),
        ] {
            let facts = facts_of_class(class).unwrap();
            assert_eq!(
                (facts.distillation_token, facts.residual_post_norm, facts.layer_scale, facts.class_depth),
                (distilled, Some(post_norm), layer_scale, class_depth),
                "{class}"
            );
        }
        let error = facts_of_class("Hiera").unwrap_err().to_string();
        assert!(error.contains("Hiera") && CLASSES.iter().all(|(name, _)| error.contains(name)), "{error}");
    }

    #[test]
    fn the_defaults_of_every_class_are_supported() {
        for (class, _) in CLASSES {
            let facts = stated(Value::Object(defaults(class).unwrap())).unwrap();
            assert_eq!(facts.image_size, Some(ImageSize::square(224)), "{class}");
            assert_eq!(facts.mlp, Some(MlpKind::Gelu), "{class}");
            let is_mean = class.starts_with("Swin") || ["Eva", "Beit"].contains(&class);
            let pool = if is_mean { Pool::Mean } else { Pool::ClassToken };
            assert_eq!(facts.pool, Some(pool), "{class}");
        }
    }

    #[test]
    fn arguments_become_facts() {
        let none = Facts::default;
        for (arguments, expected) in [
            (
                json!({ "img_size": [32, 48] }),
                Facts { image_size: Some(ImageSize { height: 32, width: 48 }), ..none() },
            ),
            (json!({ "image_size": 32 }), Facts { image_size: Some(ImageSize::square(32)), ..none() }),
            (json!({ "patch_size": [8, 8] }), Facts { patch_size: Some(8), ..none() }),
            (
                json!({ "in_chans": 1, "num_classes": 0 }),
                Facts { channels: Some(1), num_classes: Some(0), ..none() },
            ),
            (
                json!({ "hidden_dim": 96, "mlp_dim": 384 }),
                Facts { embed_dim: Some(96), mlp_dim: Some(384), ..none() },
            ),
            (json!({ "num_layers": 4 }), Facts { depth: Some(4.into()), ..none() }),
            (json!({ "depths": [2, 6] }), Facts { depth: Some([2, 6].into()), ..none() }),
            (
                json!({ "qkv_bias": false, "qk_norm": true }),
                Facts { qkv_bias: Some(false), qk_norm: Some(true), ..none() },
            ),
            (json!({ "init_values": 1e-5 }), Facts { layer_scale: Some(true), ..none() }),
            (
                json!({ "class_token": false, "reg_tokens": 4 }),
                Facts { class_token: Some(false), registers: Some(4), ..none() },
            ),
            (json!({ "no_embed_class": true }), Facts { prefix_position: Some(false), ..none() }),
            (
                json!({ "depth_token_only": 2, "mlp_ratio_token_only": 4 }),
                Facts { class_depth: Some(2), ..none() },
            ),
            (json!({ "window_size": 7 }), Facts { window: Some(7), ..none() }),
            (json!({ "window_size": [[7, 7], [7, 7]] }), Facts { window: Some(7), ..none() }),
            (json!({ "pos_embed": "none" }), Facts { learned_position: Some(false), ..none() }),
            (json!({ "global_pool": "map" }), Facts { pool: Some(Pool::Attention), ..none() }),
            (json!({ "global_pool": "avg", "fc_norm": true }), Facts { pool: Some(Pool::Mean), ..none() }),
            (
                json!({ "pretrained_window_sizes": [0, 0] }),
                Facts { pretrained_windows: Some([0, 0].into()), ..none() },
            ),
            (
                json!({ "pretrained_window_sizes": [12, 6] }),
                Facts { pretrained_windows: Some([12, 6].into()), ..none() },
            ),
            // Null, arguments of training, and arguments with their single supported value.
            (json!({ "global_pool": null, "drop_path_rate": 0.1, "weight_init": "jax" }), none()),
            (json!({ "proj_bias": true, "block_fn": "Block" }), none()),
            (json!({ "pre_norm": true }), Facts { pre_norm: Some(true), ..none() }),
            (
                json!({ "global_pool": "avg", "fc_norm": false }),
                Facts { pool: Some(Pool::NormalizedMean), ..none() },
            ),
            // The ratio is about the gate and the hidden values together.
            (
                json!({ "mlp_layer": "SwiGLUPacked", "act_layer": "silu", "mlp_ratio": 5 }),
                Facts { mlp: Some(MlpKind::SwiGlu), mlp_ratio: Some(2.5), ..none() },
            ),
        ] {
            assert_eq!(stated(arguments.clone()).unwrap(), expected, "{arguments}");
        }
        let heads = json!({ "embed_dim": 96, "num_heads": [3, 6], "head_dim": 32 });
        assert_eq!(stated(heads).unwrap().num_heads, Some([3, 6].into()));
    }

    #[test]
    fn errors_name_the_unsupported_argument() {
        for (arguments, name) in [
            (json!({ "surprise": 1 }), "surprise"),
            (json!({ "pre_norm": 1 }), "pre_norm"),
            (json!({ "proj_bias": false }), "proj_bias"),
            (json!({ "norm_layer": "RmsNorm" }), "norm_layer"),
            (json!({ "mlp_layer": "GluMlp" }), "mlp_layer"),
            (json!({ "mlp_layer": "SwiGLUPacked", "act_layer": "gelu" }), "mlp_layer"),
            (json!({ "act_layer": "relu" }), "act_layer"),
            (json!({ "pos_embed": "rope" }), "pos_embed"),
            (json!({ "global_pool": "max" }), "global_pool"),
            (json!({ "mlp_ratio_token_only": 2 }), "mlp_ratio_token_only"),
            (json!({ "window_size": [[7, 7], [14, 14]] }), "window_size"),
            (json!({ "window_size": [[7, 14]] }), "window_size"),
            (json!({ "pretrained_window_sizes": [12, 0] }), "pretrained_window_sizes"),
            (json!({ "patch_size": [8, 4] }), "patch_size"),
            (json!({ "depth": -1 }), "depth"),
            (json!({ "qkv_bias": 1 }), "qkv_bias"),
            (json!({ "global_pool": "token", "fc_norm": true }), "fc_norm"),
            (json!({ "embed_dim": 96, "num_heads": [3], "head_dim": 64 }), "head_dim"),
        ] {
            let error = format!("{:#}", stated(arguments.clone()).unwrap_err());
            assert!(error.contains(&format!("`{name}`")), "{arguments}: {error}");
        }
    }
}
