//! Architectures read from the weights of presets, from too little, and from hostile keys.

#![allow(clippy::unwrap_used)]
use super::reader::base;
use super::*;
use crate::weights::to_timm;
use crate::{ImageSize, preset};
use burn::tensor::Device;

/// A preset, and the reading of its weights.
fn read(name: &str, facts: &Facts) -> (ModelConfig, Reading) {
    let config = preset::find(name).unwrap();
    let tensors = to_timm(&config.init(&Device::default()).unwrap());
    let reading = read_architecture(&tensors, Layout::Timm, facts).unwrap();
    (config, reading)
}

#[test]
fn the_shapes_of_a_presets_weights_give_its_architecture() {
    for name in [
        "vit_tiny_patch16_224",
        "deit_tiny_distilled_patch16_224",
        "cait_xxs24_224",
        "swin_tiny_patch4_window7_224",
    ] {
        let (config, reading) = read(name, &Facts::default());
        assert_eq!(reading.config, config, "{name}");
        assert!(reading.has_head);
    }
    let facts = Facts { window: Some(8), image_size: Some(ImageSize::square(256)), ..Facts::default() };
    let (config, reading) = read("swinv2_tiny_window8_256", &facts);
    assert_eq!(reading.config, config);
    // Neither shapes nor these facts tell whether the windows were enlarged.
    assert_eq!(reading.guesses.iter().map(|guess| guess.fact).collect::<Vec<_>>(), [OpenFact::Window]);
    for (stated, found) in [([0; 4], None), ([12, 12, 12, 6], Some([12, 12, 12, 6].into()))] {
        let facts = Facts { pretrained_windows: Some(stated.into()), ..facts.clone() };
        let (_, reading) = read("swinv2_tiny_window8_256", &facts);
        assert_eq!((reading.config.pretrained_windows, reading.guesses), (found, Vec::new()));
    }
}

#[test]
fn an_error_names_the_fact_that_shapes_leave_open() {
    let tensors =
        to_timm(&preset::find("swinv2_tiny_window8_256").unwrap().init(&Device::default()).unwrap());
    let error = read_architecture(&tensors, Layout::Timm, &Facts::default()).unwrap_err();
    assert_eq!(error.open, Some(OpenFact::Window), "{error}");
    let config = ModelConfig { embed_dim: 60, num_heads: 5.into(), depth: 2.into(), ..base() };
    let mut tensors = to_timm(&config.init(&Device::default()).unwrap());
    let error = read_architecture(&tensors, Layout::Timm, &Facts::default()).unwrap_err();
    assert_eq!(error.open, Some(OpenFact::NumHeads), "{error}");
    let facts = Facts { num_heads: Some(5.into()), ..Facts::default() };
    assert_eq!(read_architecture(&tensors, Layout::Timm, &facts).unwrap().config, config);
    tensors.retain(|tensor| !tensor.name.starts_with("patch_embed"));
    let error = read_architecture(&tensors, Layout::Timm, &facts).unwrap_err().to_string();
    assert!(error.contains("patch_embed.proj.weight"), "{error}");
}

#[test]
fn a_huge_number_in_a_key_is_an_error_and_takes_no_memory() {
    let tensor = |name: &str, shape: &[usize]| NamedTensor {
        name: name.to_owned(),
        shape: shape.to_vec(),
        values: Vec::new(),
    };
    let tensors = [
        tensor("patch_embed.proj.weight", &[usize::MAX, 3, 16, 16]),
        tensor("blocks.18446744073709551615.norm1.weight", &[8]),
        tensor("layers.99999999999.blocks.0.norm1.weight", &[8]),
    ];
    assert!(read_architecture(&tensors, Layout::Timm, &Facts::default()).is_err());
}
