//! `config.json` of Hugging Face's transformers, and the facts about an architecture that it states.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use vitrine_models::weights::{Facts, RotaryPairs};
use vitrine_models::{MlpKind, PerStage, Pool, RotaryCoordinates, RotaryOptions};

use super::values::{activation, image_size, number, numbers, pretrained_windows, real, side, text, truth};

/// The supported values of `model_type`, each with the classes that have such a configuration and the defaults of its
/// keys.
const KINDS: [(&str, &[&str], &str); 12] = [
    ("vit", &["ViTModel", "ViTForImageClassification"], VIT),
    ("vit_mae", &["ViTMAEModel", "ViTMAEForPreTraining"], VIT),
    ("vit_msn", &["ViTMSNModel", "ViTMSNForImageClassification"], MSN),
    ("deit", &["DeiTModel", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"], VIT),
    ("dinov2", &["Dinov2Model", "Dinov2ForImageClassification", "Dinov2Backbone"], DINO),
    (
        "dinov2_with_registers",
        &[
            "Dinov2WithRegistersModel",
            "Dinov2WithRegistersForImageClassification",
            "Dinov2WithRegistersBackbone",
        ],
        DINO_REGISTERS,
    ),
    ("dinov3_vit", &["DINOv3ViTModel", "DINOv3ViTBackbone"], DINO_V3),
    ("clip_vision_model", &["CLIPVisionModel", "CLIPVisionModelWithProjection", "CLIPModel"], CLIP),
    ("siglip_vision_model", &["SiglipVisionModel", "SiglipModel", "SiglipForImageClassification"], SIGLIP),
    ("beit", &["BeitModel", "BeitForImageClassification"], BEIT),
    ("swin", &["SwinModel", "SwinForImageClassification"], SWIN),
    ("swinv2", &["Swinv2Model", "Swinv2ForImageClassification"], SWIN),
];

const VIT: &str = r#"{"hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,"hidden_act":"gelu",
    "layer_norm_eps":1e-12,"image_size":224,"patch_size":16,"num_channels":3,"qkv_bias":true}"#;
const MSN: &str = r#"{"hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,"hidden_act":"gelu",
    "layer_norm_eps":1e-6,"image_size":224,"patch_size":16,"num_channels":3,"qkv_bias":true}"#;
const DINO: &str = r#"{"hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"mlp_ratio":4,"hidden_act":"gelu",
    "layer_norm_eps":1e-6,"image_size":224,"patch_size":14,"num_channels":3,"qkv_bias":true}"#;
const DINO_REGISTERS: &str = r#"{"hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"mlp_ratio":4,"hidden_act":"gelu",
    "layer_norm_eps":1e-6,"image_size":224,"patch_size":16,"num_channels":3,"qkv_bias":true,"num_register_tokens":4}"#;
const DINO_V3: &str = r#"{"hidden_size":384,"num_hidden_layers":12,"num_attention_heads":6,"intermediate_size":1536,
    "hidden_act":"gelu","layer_norm_eps":1e-5,"image_size":224,"patch_size":16,"num_channels":3,"num_register_tokens":0}"#;
const CLIP: &str = r#"{"hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,
    "hidden_act":"quick_gelu","layer_norm_eps":1e-5,"image_size":224,"patch_size":32,"num_channels":3}"#;
const SIGLIP: &str = r#"{"hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,
    "hidden_act":"gelu_pytorch_tanh","layer_norm_eps":1e-6,"image_size":224,"patch_size":16,"num_channels":3}"#;
const BEIT: &str = r#"{"hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,"hidden_act":"gelu",
    "layer_norm_eps":1e-12,"image_size":224,"patch_size":16,"num_channels":3,"use_mean_pooling":true,
    "use_absolute_position_embeddings":false,"use_shared_relative_position_bias":false,"layer_scale_init_value":0.1}"#;
const SWIN: &str = r#"{"embed_dim":96,"depths":[2,2,6,2],"num_heads":[3,6,12,24],"window_size":7,"mlp_ratio":4,"hidden_act":"gelu",
    "layer_norm_eps":1e-5,"image_size":224,"patch_size":4,"num_channels":3,"qkv_bias":true}"#;

/// The facts about the architecture in a configuration. For CLIP and SigLIP, only the vision tower's.
///
/// # Errors
/// If the kind of model is not supported, or a key is unknown or has a value that is not supported. The message names
/// it.
pub(super) fn read(file: &Map<String, Value>) -> Result<Facts> {
    let Some(kind) = file.get("model_type").and_then(Value::as_str) else {
        bail!("`model_type` is missing: it names the kind of model");
    };
    let tower = match kind {
        "siglip2" => bail!("`model_type` siglip2: images of changing shapes are not supported"),
        "siglip" => Some("siglip_vision_model"),
        "clip" => Some("clip_vision_model"),
        _ => None,
    };
    check_class(file, tower.unwrap_or(kind))?;
    let mut facts = match tower {
        Some(tower) => {
            let empty = Map::new();
            let vision = file.get("vision_config").and_then(Value::as_object).unwrap_or(&empty);
            let mut facts = describe(vision, tower).context("`vision_config`")?;
            let others = file.iter().filter(|(name, value)| *name != "vision_config" && !value.is_null());
            for (name, value) in others {
                key(name, value, false, &mut facts).with_context(|| format!("`{name}`"))?;
            }
            facts
        }
        None => describe(file, kind)?,
    };
    for class in class_names(file) {
        match class {
            "SiglipForImageClassification" => facts.pool = Some(Pool::NormalizedMean),
            "Dinov2ForImageClassification" | "Dinov2WithRegistersForImageClassification" => {
                facts.pool = Some(Pool::ClassTokenMean);
            }
            _ => {}
        }
    }
    Ok(facts)
}

/// The classes that a configuration names.
fn class_names(file: &Map<String, Value>) -> impl Iterator<Item = &str> {
    file.get("architectures").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// The default values of a kind's keys.
fn defaults(kind: &str) -> Result<Map<String, Value>> {
    let Some((.., text)) = KINDS.into_iter().find(|(name, ..)| *name == kind) else {
        let names = KINDS.map(|(name, ..)| name).join(", ");
        let feature = unsupported_feature(kind).map(|feature| format!(" ({feature})")).unwrap_or_default();
        bail!("`model_type` {kind}{feature} is not supported: {names} are");
    };
    Ok(serde_json::from_str(text)?)
}

/// The feature for which a kind of model is not supported, for kinds whose tensors have similar names.
fn unsupported_feature(kind: &str) -> Option<&'static str> {
    const FEATURES: [(&str, &str); 6] = [
        ("data2vec-vision", "relative positions in a plain model"),
        ("dpt", "a decoder for depth"),
        ("vit_hybrid", "a hybrid stem"),
        ("vit-hybrid", "a hybrid stem"),
        ("ijepa", "no class token and no classifier of it"),
        ("yolos", "detection tokens"),
    ];
    FEATURES.into_iter().find(|(name, _)| *name == kind).map(|(_, feature)| feature)
}

/// Refuses classes with another head than a classifier's, and tasks other than choosing classes.
fn check_class(file: &Map<String, Value>, kind: &str) -> Result<()> {
    defaults(kind)?;
    let classes =
        KINDS.into_iter().find(|(name, ..)| *name == kind).map_or(&[][..], |(_, classes, _)| classes);
    for class in class_names(file) {
        if !classes.contains(&class) {
            bail!("`architectures` {class} is not supported: {} are", classes.join(", "));
        }
    }
    if file.get("problem_type").is_some_and(|kind| kind == "regression") {
        bail!("`problem_type` regression is not supported: only classes are");
    }
    Ok(())
}

/// The facts that a file's keys state, or the kind's defaults for missing keys.
fn describe(file: &Map<String, Value>, kind: &str) -> Result<Facts> {
    let is_swin = kind.starts_with("swin");
    let unless_swin = |value: bool| (!is_swin).then_some(value);
    let mut facts = Facts {
        residual_post_norm: Some(kind == "swinv2"),
        layer_scale: unless_swin(kind.starts_with("dinov")),
        class_token: unless_swin(kind != "siglip_vision_model"),
        learned_position: unless_swin(kind != "dinov3_vit"),
        rotary: (kind == "dinov3_vit").then_some((
            RotaryOptions { coordinates: RotaryCoordinates::Centered, ..RotaryOptions::default() },
            RotaryPairs::Halves,
        )),
        pre_norm: unless_swin(kind == "clip_vision_model"),
        class_depth: unless_swin(false).map(usize::from),
        registers: unless_swin(false).map(usize::from).filter(|_| kind != "deit"),
        pool: Some(match kind {
            _ if is_swin => Pool::Mean,
            "siglip_vision_model" => Pool::Attention,
            _ => Pool::ClassToken,
        }),
        ..Facts::default()
    };
    if kind == "deit" {
        add_teacher(class_names(file), &mut facts);
    }
    let mut keys = defaults(kind)?;
    keys.extend(
        file.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())),
    );
    for (name, value) in &keys {
        key(name, value, is_swin, &mut facts).with_context(|| format!("`{name}`"))?;
    }
    let states = |key: &str| keys.get(key).is_some_and(|value| *value == true);
    if states("use_gated_mlp") && facts.mlp != Some(MlpKind::SwiGlu) {
        bail!("`use_gated_mlp` with another `hidden_act` than silu is not supported");
    }
    if states("use_swiglu_ffn") {
        add_gate(&mut facts);
    }
    // transformers ignores the key in Swin's norms of patches and before merging, which always have PyTorch's 1e-5.
    if let Some(epsilon) = facts.norm_epsilon.filter(|epsilon| is_swin && *epsilon != 1e-5) {
        bail!(
            "`layer_norm_eps` is {epsilon}: only 1e-5 is supported, and Swin with norms of two kinds is not"
        );
    }
    Ok(facts)
}

/// Replaces the MLPs by gated ones. Those of DINOv2 hold two thirds as many hidden values, in multiples of 8, so that they
/// have as many parameters as MLPs without a gate.
fn add_gate(facts: &mut Facts) {
    facts.mlp = Some(MlpKind::SwiGlu);
    if let (Some(ratio), Some(dim)) = (facts.mlp_ratio.take(), facts.embed_dim) {
        let hidden = (dim as f64 * ratio) as usize;
        facts.mlp_dim = Some((hidden * 2 / 3).next_multiple_of(8));
    }
}

/// Distinguishes DeiT with a teacher, which has a second head for the distillation token, from DeiT without. There no
/// head reads that token, which makes it a register.
fn add_teacher<'a>(classes: impl Iterator<Item = &'a str>, facts: &mut Facts) {
    for class in classes.filter(|class| class.starts_with("DeiTFor")) {
        let has_teacher = class.ends_with("WithTeacher");
        facts.distillation_token = Some(has_teacher);
        facts.registers = Some(usize::from(!has_teacher));
    }
}

/// Adds the fact that one key states.
fn key(name: &str, value: &Value, is_swin: bool, facts: &mut Facts) -> Result<()> {
    match name {
        // In a Swin, this is the width of the last stage, which follows from `embed_dim`.
        "hidden_size" if is_swin => {}
        "hidden_size" | "embed_dim" => facts.embed_dim = Some(number(value)?),
        "num_hidden_layers" | "depths" => facts.depth = Some(PerStage(numbers(value)?)),
        "num_attention_heads" | "num_heads" => facts.num_heads = Some(PerStage(numbers(value)?)),
        "intermediate_size" => facts.mlp_dim = Some(number(value)?),
        "mlp_ratio" => facts.mlp_ratio = Some(real(value)?),
        "hidden_act" if text(value)? == "silu" => facts.mlp = Some(MlpKind::SwiGlu),
        "hidden_act" => facts.mlp = Some(activation(value)?),
        "rope_theta" => {
            if let Some((options, _)) = &mut facts.rotary {
                options.base = real(value)?;
            }
        }
        "layer_norm_eps" => facts.norm_epsilon = Some(real(value)?),
        "image_size" => facts.image_size = Some(image_size(value)?),
        "patch_size" => facts.patch_size = Some(side(value)?),
        "num_channels" => facts.channels = Some(number(value)?),
        "qkv_bias" => facts.qkv_bias = Some(truth(value)?),
        "num_register_tokens" => facts.registers = Some(number(value)?),
        "window_size" => facts.window = Some(side(value)?),
        "pretrained_window_sizes" => facts.pretrained_windows = Some(pretrained_windows(value)?),
        "use_mean_pooling" => {
            facts.pool = Some(if truth(value)? { Pool::Mean } else { Pool::ClassToken });
        }
        "use_absolute_position_embeddings" => facts.learned_position = Some(truth(value)?),
        "layer_scale_init_value" => facts.layer_scale = Some(real(value)? > 0.0),
        "id2label" => {
            facts.num_classes = Some(value.as_object().context("names by number are needed")?.len());
        }
        "num_labels" | "_num_labels" => facts.num_classes = Some(number(value)?),
        _ => check_key(name, value)?,
    }
    Ok(())
}

/// Checks a key that states no fact: it must have its one supported value, or be without effect on the logits.
fn check_key(name: &str, value: &Value) -> Result<()> {
    match name {
        "use_swiglu_ffn" | "use_gated_mlp" => {
            truth(value)?;
        }
        "key_bias" if truth(value)? => bail!("a bias of keys is not supported in such a model"),
        "proj_bias" | "mlp_bias" if !truth(value)? => bail!("layers without a bias are not supported"),
        "query_bias" | "value_bias" if !truth(value)? => {
            bail!("queries and values without a bias are not supported in such a model")
        }
        "use_absolute_embeddings" if truth(value)? => {
            bail!("a Swin with absolute positions is not supported")
        }
        "vision_use_head" if !truth(value)? => bail!("a SigLIP without its pooling is not supported"),
        "pruned_heads" if value.as_object().is_none_or(|heads| !heads.is_empty()) => {
            bail!("pruned heads are not supported")
        }
        "quantization_config" => bail!("quantized weights are not supported"),
        "use_shared_relative_position_bias" if truth(value)? => {
            bail!("relative positions that all blocks share are not supported")
        }
        "key_bias"
        | "proj_bias"
        | "mlp_bias"
        | "query_bias"
        | "value_bias"
        | "use_absolute_embeddings"
        | "use_shared_relative_position_bias"
        | "vision_use_head"
        | "pruned_heads" => {}
        _ if is_harmless(name) => {}
        _ => bail!(
            "{value} is stated, but this key is not known here: it may change what the model computes (remove it if it does not)"
        ),
    }
    Ok(())
}

/// Whether a key does not change the logits of a trained classifier.
fn is_harmless(name: &str) -> bool {
    HARMLESS.split_whitespace().any(|known| known == name)
}

/// Keys of training, of other tasks, of a file's origin, and of the form of results.
const HARMLESS: &str = "
    _name_or_path architectures model_type transformers_version dtype torch_dtype label2id problem_type _commit_hash
    _attn_implementation_autoset attn_implementation _attn_implementation torchscript use_bfloat16 tf_legacy_loss
    hidden_dropout_prob attention_probs_dropout_prob attention_dropout dropout drop_path_rate initializer_range initializer_factor
    layerscale_value use_mask_token encoder_stride pooler_act pooler_output_size
    out_features out_indices _out_features _out_indices stage_names apply_layernorm reshape_hidden_states num_layers path_norm
    output_hidden_states output_attentions output_scores return_dict return_dict_in_generate use_return_dict use_cache
    chunk_size_feed_forward is_encoder_decoder is_decoder add_cross_attention cross_attention_hidden_size tie_encoder_decoder
    tie_word_embeddings bad_words_ids begin_suppress_tokens bos_token_id decoder_start_token_id diversity_penalty do_sample
    early_stopping encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id
    forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    pad_token_id prefix remove_invalid_values repetition_penalty sep_token_id suppress_tokens task_specific_params temperature
    tokenizer_class top_k top_p typical_p base_config_key text_config text_config_dict vision_config_dict logit_scale_init_value projection_size projection_dim
    pos_embed_shift pos_embed_jitter pos_embed_rescale decoder_num_attention_heads decoder_hidden_size
    decoder_num_hidden_layers decoder_intermediate_size mask_ratio norm_pix_loss
    add_fpn auxiliary_channels auxiliary_concat_input auxiliary_loss_weight auxiliary_num_convs pool_scales
    semantic_loss_ignore_index use_auxiliary_head use_relative_position_bias vocab_size";

/// Whether a configuration is one of transformers. `timm_wrapper` is not: transformers writes it for a model of timm.
pub(super) fn is_configuration(file: &Map<String, Value>) -> bool {
    let kind = file.get("model_type");
    kind.is_some_and(|kind| *kind != "timm_wrapper")
        || file.get("architectures").is_some_and(Value::is_array) && !file.contains_key("architecture")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use vitrine_models::ImageSize;

    use super::*;

    fn stated(file: Value) -> Result<Facts> {
        read(file.as_object().unwrap())
    }

    #[test]
    fn every_kind_has_its_own_defaults() {
        for (kind, epsilon, pool, registers, layer_scale) in [
            ("vit", 1e-12, Pool::ClassToken, Some(0), Some(false)),
            ("vit_msn", 1e-6, Pool::ClassToken, Some(0), Some(false)),
            // Whether DeiT's second token is a register depends on the class.
            ("deit", 1e-12, Pool::ClassToken, None, Some(false)),
            ("dinov2", 1e-6, Pool::ClassToken, Some(0), Some(true)),
            ("dinov2_with_registers", 1e-6, Pool::ClassToken, Some(4), Some(true)),
            ("siglip_vision_model", 1e-6, Pool::Attention, Some(0), Some(false)),
            ("swin", 1e-5, Pool::Mean, None, None),
            ("swinv2", 1e-5, Pool::Mean, None, None),
        ] {
            let facts = stated(json!({ "model_type": kind })).unwrap();
            assert_eq!(
                (facts.norm_epsilon, facts.pool, facts.registers, facts.layer_scale),
                (Some(epsilon), Some(pool), registers, layer_scale),
                "{kind}"
            );
            assert_eq!(facts.residual_post_norm, Some(kind == "swinv2"), "{kind}");
            assert_eq!(facts.window, kind.starts_with("swin").then_some(7), "{kind}");
        }
    }

    #[test]
    fn keys_override_the_defaults() {
        let facts = stated(json!({
            "model_type": "vit", "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 384,
            "image_size": [32, 48], "patch_size": 8, "num_channels": 1, "qkv_bias": false, "hidden_act": "gelu_new",
            "id2label": { "0": "cat", "1": "dog" }, "layer_norm_eps": null, "hidden_dropout_prob": 0.1,
        }))
        .unwrap();
        assert_eq!(
            (facts.embed_dim, facts.depth, facts.num_heads),
            (Some(96), Some(2.into()), Some(3.into()))
        );
        assert_eq!((facts.mlp_dim, facts.patch_size, facts.channels), (Some(384), Some(8), Some(1)));
        assert_eq!(facts.image_size, Some(ImageSize { height: 32, width: 48 }));
        assert_eq!((facts.qkv_bias, facts.mlp), (Some(false), Some(MlpKind::GeluTanh)));
        assert_eq!((facts.num_classes, facts.norm_epsilon), (Some(2), Some(1e-12)));
        // Swin's `hidden_size` is the last stage's width, and SigLIP's `text_config` does not concern images.
        let swin = stated(json!({ "model_type": "swin", "embed_dim": 48, "hidden_size": 384 })).unwrap();
        assert_eq!(swin.embed_dim, Some(48));
        let siglip = json!({ "model_type": "siglip", "vision_config": { "hidden_size": 96 }, "text_config": { "hidden_size": 7 } });
        assert_eq!(stated(siglip).unwrap().embed_dim, Some(96));
    }

    #[test]
    fn deits_second_token_has_a_head_with_a_teacher_and_is_a_register_without() {
        for (class, distilled, registers) in [
            ("DeiTForImageClassification", Some(false), Some(1)),
            ("DeiTForImageClassificationWithTeacher", Some(true), Some(0)),
            ("DeiTModel", None, None),
        ] {
            let facts = stated(json!({ "model_type": "deit", "architectures": [class] })).unwrap();
            assert_eq!((facts.distillation_token, facts.registers), (distilled, registers), "{class}");
        }
    }

    #[test]
    fn errors_name_the_unsupported_key() {
        for (file, name) in [
            (json!({ "hidden_size": 96 }), "`model_type`"),
            (json!({ "model_type": "resnet" }), "resnet"),
            (json!({ "model_type": "data2vec-vision" }), "relative positions"),
            (json!({ "model_type": "beit", "use_shared_relative_position_bias": true }), "blocks share"),
            (json!({ "model_type": "dinov3_vit", "key_bias": true }), "`key_bias`"),
            (json!({ "model_type": "siglip2" }), "siglip2"),
            (
                json!({ "model_type": "vit", "architectures": ["ViTForMaskedImageModeling"] }),
                "`architectures`",
            ),
            (json!({ "model_type": "vit", "problem_type": "regression" }), "`problem_type`"),
            (json!({ "model_type": "vit", "surprise": 1 }), "`surprise`"),
            (json!({ "model_type": "vit", "hidden_act": "relu" }), "`hidden_act`"),
            (json!({ "model_type": "vit", "patch_size": [8, 4] }), "`patch_size`"),
            (json!({ "model_type": "vit", "pruned_heads": { "0": [1] } }), "`pruned_heads`"),
            (json!({ "model_type": "vit", "quantization_config": {} }), "`quantization_config`"),
            (json!({ "model_type": "vit", "id2label": 3 }), "`id2label`"),
            (json!({ "model_type": "dinov2", "use_swiglu_ffn": 1 }), "`use_swiglu_ffn`"),
            (
                json!({ "model_type": "siglip", "vision_config": { "vision_use_head": false } }),
                "`vision_use_head`",
            ),
            (json!({ "model_type": "swin", "use_absolute_embeddings": true }), "`use_absolute_embeddings`"),
            (json!({ "model_type": "swin", "layer_norm_eps": 1e-6 }), "`layer_norm_eps`"),
            (
                json!({ "model_type": "swinv2", "pretrained_window_sizes": [12, 12, 12, 0] }),
                "`pretrained_window_sizes`",
            ),
        ] {
            let error = format!("{:#}", stated(file.clone()).unwrap_err());
            assert!(error.contains(name), "{file}: {error}");
        }
    }

    #[test]
    fn configurations_of_transformers_are_told_from_timms() {
        for (file, is_transformers) in [
            (json!({ "model_type": "vit" }), true),
            (json!({ "architectures": ["ViTModel"] }), true),
            (json!({ "model_type": "timm_wrapper", "architecture": "vit_tiny_patch16_224" }), false),
            (json!({ "architecture": "vit_tiny_patch16_224", "architectures": ["TimmWrapper"] }), false),
            (json!({ "embed_dim": 96 }), false),
        ] {
            assert_eq!(is_configuration(file.as_object().unwrap()), is_transformers, "{file}");
        }
    }
}
