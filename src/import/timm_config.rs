//! `config.json` as timm's hub has it: an architecture's name, arguments that differ, and how images are prepared.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use vitrine_models::weights::Facts;

use super::timm_names::{self, Named};
use super::{constructor, values};

/// What a file states.
///
/// # Errors
/// When the architecture is none of ours, or something asks for what is not supported or is not known; the message names the key.
pub(super) fn read(file: &Map<String, Value>) -> Result<Facts> {
    check_keys(file, &TOP)?;
    let Some(name) = file.get("architecture").and_then(Value::as_str) else {
        bail!("`architecture` is missing: it names the model");
    };
    let named = find(name).with_context(|| format!("`architecture` {name}"))?;
    // Files of early versions have the keys of `pretrained_cfg` at the top.
    let pipeline = file.get("pretrained_cfg").and_then(Value::as_object).unwrap_or(file);
    check_keys(pipeline, &PIPELINE)?;
    if pipeline.get("label_offset").is_some_and(|offset| !offset.is_null() && *offset != 0) {
        bail!(
            "`pretrained_cfg.label_offset` is {}: a class before the others is not supported",
            pipeline["label_offset"]
        );
    }
    let mut arguments = constructor::defaults(named.class)?;
    add_pipeline(&mut arguments, named, pipeline)?;
    arguments.extend(named.arguments.clone());
    if let Some(classes) = file.get("num_classes").filter(|classes| !classes.is_null()) {
        arguments.insert("num_classes".to_owned(), classes.clone());
    }
    check_size(file, pipeline)?;
    let stated = file.get("model_args").and_then(Value::as_object).into_iter().flatten();
    // timm leaves out what is null.
    arguments.extend(
        stated.filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())),
    );
    if let Some(pool) = file.get("global_pool").filter(|pool| !pool.is_null() && **pool != "")
        && Some(pool) != arguments.get("global_pool")
    {
        bail!("`global_pool` is {pool}, but {name} has {}", arguments["global_pool"]);
    }
    facts(named.class, &arguments).context("`model_args`, and what the architecture stands for")
}

/// What timm's name of an architecture stands for, but for its classes and its channels; the image size only where shapes do not tell.
pub(super) fn of_name(name: &str) -> Result<Facts> {
    let named = find(name)?;
    let mut arguments = constructor::defaults(named.class)?;
    arguments.extend(named.arguments.clone());
    for key in ["num_classes", "in_chans", "img_size"] {
        arguments.remove(key);
    }
    if let Some([height, width]) = named.image_size.filter(|_| named.class.starts_with("Swin")) {
        arguments.insert("img_size".to_owned(), json!([height, width]));
    }
    facts(named.class, &arguments)
}

fn find(name: &str) -> Result<&'static Named> {
    timm_names::find(name).with_context(|| match timm_names::foreign_part(name) {
        Some(part) => format!("a model with {part} is not supported"),
        None => "timm's ViT, DeiT, DINOv2, SigLIP, CaiT, Swin and Swin v2 are supported, under timm's names"
            .to_owned(),
    })
}

fn facts(class: &str, arguments: &Map<String, Value>) -> Result<Facts> {
    let mut facts = constructor::of_class(class)?;
    constructor::add(arguments, &mut facts)?;
    if class.starts_with("VisionTransformer") {
        facts.layer_scale.get_or_insert(false);
        if class.ends_with("Distilled") && facts.prefix_position == Some(false) {
            bail!("`no_embed_class` is true: DeiT with a teacher has positions for its tokens");
        }
    }
    Ok(facts)
}

/// Arguments that timm takes from `pretrained_cfg`.
fn add_pipeline(
    arguments: &mut Map<String, Value>,
    named: &Named,
    pipeline: &Map<String, Value>,
) -> Result<()> {
    if let Some([height, width]) = named.image_size {
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

/// A model of a size of its own, prepared for another, resamples its positions in every forward pass; one that is fixed to its size
/// has it in both places.
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

const TOP: [&str; 18] = [
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

/// What is known of `pretrained_cfg`; the preprocessing in it is read elsewhere.
const PIPELINE: [&str; 36] = [
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

/// Refuses a key that is on neither list, where the file is of the old form, or not on its own.
fn check_keys(part: &Map<String, Value>, known: &[&str]) -> Result<()> {
    let is_old = !part.contains_key("pretrained_cfg") && part.contains_key("architecture");
    let knows = |key: &str| known.contains(&key) || is_old && (PIPELINE.contains(&key) || TOP.contains(&key));
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

    const TINY: &str = "vit_tiny_patch16_224";

    fn stated(file: Value) -> Result<Facts> {
        read(file.as_object().unwrap())
    }

    #[test]
    fn a_name_stands_for_what_the_file_leaves_out() {
        let facts = stated(json!({ "architecture": format!("{TINY}.augreg_in21k") })).unwrap();
        assert_eq!(
            (facts.embed_dim, facts.num_heads, facts.depth),
            (Some(192), Some(3.into()), Some(12.into()))
        );
        assert_eq!((facts.image_size, facts.patch_size), (Some(ImageSize::square(224)), Some(16)));
        assert_eq!((facts.pool, facts.layer_scale), (Some(Pool::ClassToken), Some(false)));
        // Arguments come before the name, the file's classes before those of its weights, and null says nothing.
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
    fn early_files_have_the_keys_of_the_weights_at_the_top() {
        let file =
            json!({ "architecture": TINY, "input_size": [3, 384, 384], "num_classes": 7, "crop_pct": 1.0 });
        let facts = stated(file).unwrap();
        assert_eq!((facts.image_size, facts.num_classes), (Some(ImageSize::square(384)), Some(7)));
    }

    #[test]
    fn what_is_not_supported_is_refused_under_its_name() {
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
            (with("architecture", json!("vit_small_patch16_rope_224")), "rotary positions"),
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
    fn a_name_alone_tells_the_image_size_only_where_shapes_do_not() {
        let plain = of_name(TINY).unwrap();
        assert_eq!((plain.image_size, plain.channels, plain.num_classes), (None, None, None));
        let swin = of_name("swinv2_tiny_window8_256").unwrap();
        assert_eq!((swin.image_size, swin.window), (Some(ImageSize::square(256)), Some(8)));
        let error = format!("{:#}", of_name("swinv2_base_window12to16_192to256").unwrap_err());
        assert!(error.contains("`pretrained_window_sizes`"), "{error}");
        assert!(of_name("vit_huge_patch1_1").is_err());
    }
}
