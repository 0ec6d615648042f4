//! timm's keys and shapes of models, and how stored tensors that do not fit are refused.

#![allow(clippy::unwrap_used)]
use super::*;
use crate::{ModelConfig, preset};
use burn::tensor::Device;

fn config() -> ModelConfig {
    ModelConfig {
        class_token: true,
        position: crate::Position::Learned,
        registers: 1,
        layer_scale: Some(0.1),
        head_hidden: vec![5],
        depth: 1.into(),
        ..preset::find("vit_pico_patch4_28").unwrap()
    }
}

#[test]
fn stages_of_a_tokenizer_are_not_renamed() {
    let config = crate::preset::find("hybrid_pico_patch4_32").unwrap();
    let tensors = to_timm(&config.init(&Device::default()).unwrap());
    let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    for name in [
        "patch_embed.stem.weight",
        "patch_embed.stages.0.conv1.weight",
        "patch_embed.stages.1.norm2.running_var",
        "blocks.0.norm1.weight",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
}

#[test]
fn stored_parameters_have_timms_names_and_load_again() {
    let device = Device::default();
    let tensors = to_timm(&config().init(&device).unwrap());
    let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    for name in [
        "patch_embed.proj.weight",
        "cls_token",
        "reg_token",
        "pos_embed",
        "blocks.0.norm1.weight",
        "blocks.0.attn.qkv.bias",
        "blocks.0.ls1.gamma",
        "blocks.0.norm2.bias",
        "blocks.0.mlp.fc1.weight",
        "blocks.0.ls2.gamma",
        "fc_norm.weight",
        "head.hidden.0.weight",
        "head.weight",
    ] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    let proj = tensors.iter().find(|tensor| tensor.name == "patch_embed.proj.weight").unwrap();
    assert_eq!(proj.shape, [96, 1, 4, 4]);
    let fresh = config().init(&device).unwrap();
    assert_ne!(to_timm(&fresh), tensors);
    let loaded = from_timm(fresh, tensors.clone()).unwrap();
    assert_eq!(to_timm(&loaded), tensors);
}

#[test]
fn every_variant_has_distinct_names_and_loads_again() {
    let device = Device::default();
    for config in crate::testing::variants() {
        let tensors = to_timm(&config.init(&device).unwrap());
        let names: std::collections::BTreeSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names.len(), tensors.len(), "{config:?}");
        let fresh = config.init(&device).unwrap();
        assert_eq!(check(&fresh, &tensors), Ok(()), "{config:?}");
        let loaded = from_timm(fresh, tensors.clone()).unwrap();
        assert_eq!(to_timm(&loaded), tensors, "{config:?}");
    }
}

#[test]
fn cait_and_swin_have_timms_names() {
    let device = Device::default();
    let names = |preset: &str| -> Vec<String> {
        let config = preset::find(preset).unwrap();
        let config = ModelConfig { depth: crate::PerStage(vec![2; config.num_stages()]), ..config };
        to_timm(&config.init(&device).unwrap()).into_iter().map(|tensor| tensor.name).collect()
    };
    let expected: [(&str, &[&str]); 3] = [
        (
            "cait_xxs24_224",
            &[
                "cls_token",
                "pos_embed",
                "blocks.1.gamma_1",
                "blocks.1.gamma_2",
                "blocks.0.attn.proj_l.weight",
                "blocks.0.attn.proj_w.bias",
                "blocks_token_only.1.gamma_1",
                "blocks_token_only.0.attn.q.weight",
                "blocks_token_only.0.attn.k.bias",
                "blocks_token_only.0.attn.v.weight",
                "blocks_token_only.0.attn.proj.bias",
                "blocks_token_only.0.mlp.fc2.weight",
                "norm.weight",
                "head.weight",
            ],
        ),
        (
            "swin_tiny_patch4_window7_224",
            &[
                "patch_embed.norm.weight",
                "layers.0.blocks.1.attn.relative_position_bias_table",
                "layers.3.downsample.reduction.weight",
                "layers.3.downsample.norm.bias",
                "norm.bias",
                "head.fc.weight",
            ],
        ),
        (
            "swinv2_tiny_window8_256",
            &[
                "layers.0.blocks.0.attn.logit_scale",
                "layers.0.blocks.0.attn.q_bias",
                "layers.0.blocks.0.attn.v_bias",
                "layers.0.blocks.0.attn.cpb_mlp.0.bias",
                "layers.0.blocks.0.attn.cpb_mlp.2.weight",
            ],
        ),
    ];
    for (preset, keys) in expected {
        let names = names(preset);
        for key in keys {
            assert!(names.iter().any(|name| name == key), "{preset}: {key} is not in {names:?}");
        }
    }
}

#[test]
fn every_key_at_fault_is_listed() {
    let device = Device::default();
    let model = config().init(&device).unwrap();
    let mut tensors = to_timm(&model);
    tensors.retain(|tensor| tensor.name != "cls_token");
    tensors.iter_mut().find(|tensor| tensor.name == "head.bias").unwrap().shape = vec![2, 5];
    tensors.push(NamedTensor { name: "extra".into(), shape: vec![1], values: vec![0.0] });
    let early = check(&model, &tensors).unwrap_err();
    let error = from_timm(model, tensors).unwrap_err();
    assert_eq!(early, error);
    assert_eq!((error.missing, error.unexpected), (vec!["cls_token".to_owned()], vec!["extra".to_owned()]));
    assert!(error.mismatched[0].contains("head.bias (stored [2, 5], needed [10])"), "{:?}", error.mismatched);
}
