//! timm's `config.json`: an architecture's name, constructor arguments that differ from it, and the preprocessing.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use vitrine_models::weights::Facts;

use super::timm_names::{TimmArchitecture, unsupported_feature};
use super::{constructor, values};

/// The facts about the architecture in a configuration.
///
/// # Errors
/// If the architecture is not supported, or a key is unknown or has a value that is not supported. The message names
/// the key.
pub(super) fn read(file: &Map<String, Value>) -> Result<Facts> {
    check_keys(file, &TOP_LEVEL_KEYS)?;
    let Some(name) = file.get("architecture").and_then(Value::as_str) else {
        bail!("`architecture` is missing: it names the model");
    };
    let architecture = find(name).with_context(|| format!("`architecture` {name}"))?;
    // Early versions of timm wrote the keys of `pretrained_cfg` at the top level.
    let pipeline = file.get("pretrained_cfg").and_then(Value::as_object).unwrap_or(file);
    check_keys(pipeline, &PIPELINE_KEYS)?;
    if pipeline.get("label_offset").is_some_and(|offset| !offset.is_null() && *offset != 0) {
        bail!(
            "`pretrained_cfg.label_offset` is {}: a class before the others is not supported",
            pipeline["label_offset"]
        );
    }
    let mut arguments = constructor::defaults(architecture.class)?;
    add_pipeline(&mut arguments, architecture, pipeline)?;
    arguments.extend(architecture.arguments.clone());
    if let Some(classes) = file.get("num_classes").filter(|classes| !classes.is_null()) {
        arguments.insert("num_classes".to_owned(), classes.clone());
    }
    check_size(file, pipeline)?;
    let stated = file.get("model_args").and_then(Value::as_object).into_iter().flatten();
    // timm ignores arguments that are null.
    arguments.extend(
        stated.filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())),
    );
    if let Some(pool) = file.get("global_pool").filter(|pool| !pool.is_null() && **pool != "")
        && Some(pool) != arguments.get("global_pool")
    {
        bail!("`global_pool` is {pool}, but {name} has {}", arguments["global_pool"]);
    }
    facts(architecture.class, &arguments).context("`model_args`, and what the architecture stands for")
}

/// The facts that timm's name of an architecture stands for, without the numbers of classes and channels. The image
/// size is among them only for Swin, whose tensors have no positions that tell it.
///
/// # Errors
/// If timm has no such name, or the architecture is not supported.
pub(crate) fn facts_of_name(name: &str) -> Result<Facts> {
    let architecture = find(name)?;
    let mut arguments = constructor::defaults(architecture.class)?;
    arguments.extend(architecture.arguments.clone());
    for key in ["num_classes", "in_chans", "img_size"] {
        arguments.remove(key);
    }
    // Positions tell the image size, but there are none in a Swin or with rotary positions alone.
    let has_positions = arguments.get("use_abs_pos_emb") != Some(&Value::Bool(false));
    let is_open = architecture.class.starts_with("Swin") || !has_positions;
    if let Some([height, width]) = architecture.image_size.filter(|_| is_open) {
        arguments.insert("img_size".to_owned(), json!([height, width]));
    }
    facts(architecture.class, &arguments)
}

fn find(name: &str) -> Result<&'static TimmArchitecture> {
    TimmArchitecture::find(name).with_context(|| match unsupported_feature(name) {
        Some(feature) => format!("a model with {feature} is not supported"),
        None => "timm's ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP, BEiT, CaiT, Swin and Swin v2 are supported, under timm's names"
            .to_owned(),
    })
}

fn facts(class: &str, arguments: &Map<String, Value>) -> Result<Facts> {
    let mut facts = constructor::facts_of_class(class)?;
    constructor::add(arguments, &mut facts)?;
    if class.starts_with("VisionTransformer") || ["Eva", "Beit"].contains(&class) {
        facts.layer_scale.get_or_insert(false);
        if class.ends_with("Distilled") && facts.prefix_position == Some(false) {
            bail!("`no_embed_class` is true: DeiT with a teacher has positions for its tokens");
        }
    }
    Ok(facts)
}

/// Adds the constructor arguments that timm takes from `pretrained_cfg`.
fn add_pipeline(
    arguments: &mut Map<String, Value>,
    architecture: &TimmArchitecture,
    pipeline: &Map<String, Value>,
) -> Result<()> {
    if let Some([height, width]) = architecture.image_size {
        arguments.insert("img_size".to_owned(), json!([height, width]));
    }
    if let Some(size) = pipeline.get("input_size").filter(|value| !value.is_null()) {
        let size = values::numbers(size).context("`pretrained_cfg.input_size`")?;
        let [channels, height, width] = size[..] else {
            bail!("`pretrained_cfg.input_size` is {size:?}: channels, height and width are needed");
        };
        arguments.insert("in_chans".to_owned(), json!(channels));
        arguments.insert("img_size".to_owned(), json!([height, width]));
    }
    for key in ["num_classes", "global_pool"] {
        if let Some(value) = pipeline.get(key).filter(|value| !value.is_null()) {
            arguments.insert(key.to_owned(), value.clone());
        }
    }
    Ok(())
}

/// Refuses a model whose positions are for another size than its images: it resamples them in every forward pass. A
/// model with `fixed_input_size` is exempt, because it never resamples.
fn check_size(file: &Map<String, Value>, pipeline: &Map<String, Value>) -> Result<()> {
    let stated = |part: Option<&Value>, key: &str| part?.get(key).filter(|value| !value.is_null()).cloned();
    let is_fixed = pipeline.get("fixed_input_size") == Some(&Value::Bool(true));
    let (Some(model), Some(input)) = (stated(file.get("model_args"), "img_size"), pipeline.get("input_size"))
    else {
        return Ok(());
    };
    let model = values::image_size(&model).context("`model_args.img_size`")?;
    let input = values::numbers(input).context("`pretrained_cfg.input_size`")?;
    if !is_fixed && input.get(1..) != Some(&[model.height, model.width]) {
        bail!(
            "`model_args.img_size` is {model} and `pretrained_cfg.input_size` {input:?}: a model that resamples its positions for images \
             of another size is not supported"
        );
    }
    Ok(())
}

/// The keys that are known at the top level.
const TOP_LEVEL_KEYS: [&str; 18] = [
    "architecture",
    "architectures",
    "model_type",
    "num_classes",
    "num_features",
    "global_pool",
    "model_args",
    "pretrained_cfg",
    "label_names",
    "label_descriptions",
    "labels",
    "id2label",
    "label2id",
    "num_labels",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "do_pooling",
];

/// The keys that are known in `pretrained_cfg`. `timm_pipeline` reads those of the preprocessing.
const PIPELINE_KEYS: [&str; 36] = [
    "architecture",
    "tag",
    "url",
    "file",
    "source",
    "state_dict",
    "hash_sha256",
    "hf_hub_id",
    "hf_hub_filename",
    "custom_load",
    "input_size",
    "test_input_size",
    "min_input_size",
    "fixed_input_size",
    "interpolation",
    "crop_pct",
    "test_crop_pct",
    "crop_mode",
    "mean",
    "std",
    "num_classes",
    "label_offset",
    "label_names",
    "label_descriptions",
    "pool_size",
    "test_pool_size",
    "first_conv",
    "classifier",
    "license",
    "description",
    "origin_url",
    "paper_name",
    "paper_ids",
    "notes",
    "global_pool",
    "test_interpolation",
];

/// Refuses a key that is not in `known`. A file of the early form, whose keys are all at the top level, may have those
/// of both lists.
fn check_keys(part: &Map<String, Value>, known: &[&str]) -> Result<()> {
    let is_early = !part.contains_key("pretrained_cfg") && part.contains_key("architecture");
    let knows = |key: &str| {
        known.contains(&key) || is_early && (PIPELINE_KEYS.contains(&key) || TOP_LEVEL_KEYS.contains(&key))
    };
    match part.iter().find(|(key, value)| !value.is_null() && !knows(key)) {
        Some((key, value)) => bail!(
            "`{key}`: {value} is stated, but this key is not known here: it may change what the model computes (remove it if it \
             does not)"
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use vitrine_models::{ImageSize, Pool};

    use super::*;
    use crate::hub::published::{BACKBONES, PublishedBackbone};

    const TINY: &str = "vit_tiny_patch16_224";

    fn stated(file: Value) -> Result<Facts> {
        read(file.as_object().unwrap())
    }

    #[test]
    fn the_name_of_the_architecture_completes_the_arguments() {
        let facts = stated(json!({ "architecture": format!("{TINY}.augreg_in21k") })).unwrap();
        assert_eq!(
            (facts.embed_dim, facts.num_heads, facts.depth),
            (Some(192), Some(3.into()), Some(12.into()))
        );
        assert_eq!((facts.image_size, facts.patch_size), (Some(ImageSize::square(224)), Some(16)));
        assert_eq!((facts.pool, facts.layer_scale), (Some(Pool::ClassToken), Some(false)));
        // `model_args` overrides the name, the top level's `num_classes` overrides that of `pretrained_cfg`, and null
        // overrides nothing.
        let facts = stated(json!({
            "architecture": TINY,
            "num_classes": 5,
            "model_args": { "embed_dim": 96, "depth": null },
            "pretrained_cfg": { "input_size": [1, 96, 64], "num_classes": 1000, "tag": null, "label_offset": 0 },
        }))
        .unwrap();
        assert_eq!((facts.embed_dim, facts.depth), (Some(96), Some(12.into())));
        assert_eq!((facts.channels, facts.num_classes), (Some(1), Some(5)));
        assert_eq!(facts.image_size, Some(ImageSize { height: 96, width: 64 }));
    }

    #[test]
    fn files_of_the_early_form_have_all_keys_at_the_top_level() {
        let file =
            json!({ "architecture": TINY, "input_size": [3, 384, 384], "num_classes": 7, "crop_pct": 1.0 });
        let facts = stated(file).unwrap();
        assert_eq!((facts.image_size, facts.num_classes), (Some(ImageSize::square(384)), Some(7)));
    }

    #[test]
    fn errors_name_the_unsupported_key() {
        let with = |key: &str, value: Value| {
            let mut file = json!({ "architecture": TINY });
            file[key] = value;
            file
        };
        let resampled = json!({
            "architecture": TINY, "model_args": { "img_size": 32 }, "pretrained_cfg": { "input_size": [3, 64, 64] },
        });
        let distilled = json!({
            "architecture": "deit_base_distilled_patch16_224", "model_args": { "no_embed_class": true },
        });
        let other_pool = json!({ "architecture": TINY, "global_pool": "avg", "pretrained_cfg": {} });
        for (file, name) in [
            (json!({ "num_classes": 3 }), "`architecture`"),
            (with("architecture", json!("resnet50")), "resnet50"),
            (with("architecture", json!("eva02_base_patch16_clip_224")), "`scale_attn_inner`"),
            (with("surprise", json!(1)), "`surprise`"),
            (with("model_args", json!({ "surprise": 1 })), "`surprise`"),
            (with("pretrained_cfg", json!({ "surprise": 1 })), "`surprise`"),
            (with("pretrained_cfg", json!({ "label_offset": 1 })), "label_offset"),
            (with("pretrained_cfg", json!({ "input_size": [224, 224] })), "input_size"),
            (other_pool, "`global_pool`"),
            (resampled, "img_size"),
            (distilled, "`no_embed_class`"),
        ] {
            let error = format!("{:#}", stated(file.clone()).unwrap_err());
            assert!(error.contains(name), "{file}: {error}");
        }
    }

    #[test]
    fn a_name_alone_tells_the_image_size_only_for_swin() {
        let plain = facts_of_name(TINY).unwrap();
        assert_eq!((plain.image_size, plain.channels, plain.num_classes), (None, None, None));
        let swin = facts_of_name("swinv2_tiny_window8_256").unwrap();
        assert_eq!((swin.image_size, swin.window), (Some(ImageSize::square(256)), Some(8)));
        let enlarged = facts_of_name("swinv2_base_window12to16_192to256").unwrap();
        assert_eq!((enlarged.window, enlarged.pretrained_windows), (Some(16), Some([12, 12, 12, 6].into())));
        assert!(facts_of_name("vit_huge_patch1_1").is_err());
    }

    #[test]
    fn published_backbones_of_timm_are_supported_at_their_image_size() {
        for PublishedBackbone { repository, image_size, .. } in BACKBONES {
            let Some(name) = repository.strip_prefix("timm/") else { continue };
            let input = [3, image_size, image_size];
            let file = json!({ "architecture": name, "pretrained_cfg": { "input_size": input } });
            let facts = stated(file).unwrap();
            assert_eq!(facts.image_size, Some(ImageSize::square(image_size)), "{name}");
            assert_eq!(find(name).unwrap().image_size, Some([image_size; 2]), "{name}");
        }
    }
}
