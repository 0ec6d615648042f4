//! Backbones: the tokens after the last norm, the vector before the head, and the logits if there is a head
//! (`tests/reference/make_backbones.py`).

use burn::tensor::Device;
use vitrine::import::{self, Options};

use super::reference::{Arrays, arrays, assert_close, fixture, tensor, tested_device, values};
use vitrine_models::VisionTransformer;

/// Compares a model with the results of a fixture whose names end with `resized`.
fn assert_results(case: &str, model: &VisionTransformer, io: &Arrays, resized: &str) {
    let (device, tolerance) = tested_device();
    let images = || tensor::<4>(&io[&format!("input{resized}")], &device);
    for (what, ours) in [
        ("features", values(model.features(images()))),
        ("pooled", values(model.embedding(images()))),
        ("logits", values(model.forward(images()))),
    ] {
        if let Some(theirs) = io.get(&format!("{what}{resized}")) {
            assert_close(&format!("{case}: {what}{resized}"), &ours, &theirs.values, tolerance);
        }
    }
}

fn imported(case: &str, options: Options, device: &Device) -> VisionTransformer {
    let imported = import::load(&fixture(case).join("weights.safetensors"), &options);
    let imported = imported.unwrap_or_else(|error| panic!("{case}: {error:#}"));
    let has_logits = arrays(case, "io.safetensors").contains_key("logits");
    assert_eq!(imported.has_head, has_logits, "{case}");
    imported.model(device).unwrap()
}

#[test]
fn features_pooled_vectors_and_logits_of_backbones() {
    let (device, _) = tested_device();
    for case in [
        "hf_beit",
        "hf_clip",
        "hf_dinov2",
        "hf_dinov2_classifier",
        "hf_dinov3",
        "hf_dinov3_plus",
        "hf_mae",
        "hf_siglip_classifier",
        "timm_beit",
        "timm_clip",
        "timm_dinov3",
        "timm_dinov3_plus",
        "timm_eva02",
        "timm_eva02_base",
        "timm_eva02_scaled",
        "timm_flexi",
        "timm_siglip",
        "timm_siglip_gap",
        "timm_swiglu",
        "timm_swinv2_enlarged",
        "timm_vit_rope",
        "timm_vit_rope_mixed",
    ] {
        let model = imported(case, Options::default(), &device);
        assert_results(case, &model, &arrays(case, "io.safetensors"), "");
    }
}

#[test]
fn another_image_size_is_computed_as_the_library_does() {
    let (device, _) = tested_device();
    for case in ["hf_dinov2", "hf_dinov3"] {
        let io = arrays(case, "io.safetensors");
        let options = Options { image_size: Some([48, 48]), ..Options::default() };
        assert_results(case, &imported(case, options, &device), &io, "_48");
    }
}

#[test]
fn another_patch_size_is_computed_as_timm_does() {
    let (device, _) = tested_device();
    let io = arrays("timm_flexi", "io.safetensors");
    for side in [4, 16] {
        let options = Options { patch_size: Some(side), ..Options::default() };
        assert_results(
            "timm_flexi",
            &imported("timm_flexi", options, &device),
            &io,
            &format!("_patch{side}"),
        );
    }
}
