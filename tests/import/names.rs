//! Architectures by name: in timm's configuration, in file names, and as `--config`.

use serde_json::json;
use vitrine::import::Options;

use super::{Folder, load, stored, timm_folder};

#[test]
fn timms_architecture_must_fit_the_tensors() {
    let file = stored("timm_vit");
    let imported = Folder::new(&file, Some(&timm_folder("vit_base_patch16_224.augreg_in1k"))).load().unwrap();
    assert_eq!(imported.account.warnings, Vec::<String>::new());
    for (name, part) in [
        ("vit_small_patch16_rope_224", "learned positions: false is stated"),
        ("vit_small_patch16_rope_ape_224", "layer_scale"),
        ("vit_base_patch16_rpn_224", "another kind of block"),
        ("vit_small_patch16_rope_mixed_224", "learned positions: false is stated"),
        ("vit_small_patch16_dinov3", "learned positions: false is stated"),
        ("eva02_base_patch16_clip_224", "`scale_attn_inner`"),
        ("beit3_base_patch16_224", "a norm inside of attention"),
        ("vit_base_r50_s16_224", "hybrid stem"),
        ("vit_base_patch16_clip_224", "a norm before the blocks"),
        ("resnet50", "resnet50"),
        ("test_vit", "width of the MLPs"),
        ("deit_base_distilled_patch16_224", "distillation_token"),
    ] {
        let error =
            Folder::new(&file, Some(&timm_folder(name))).load().err().unwrap_or_else(|| panic!("{name}"));
        assert!(error.contains(part), "{name}: {error}");
    }
    // The name implies a depth of 12 unless an argument states another.
    let mut config = timm_folder("vit_base_patch16_224");
    config["model_args"].as_object_mut().unwrap().remove("depth");
    let error = Folder::new(&file, Some(&config)).load().err().unwrap();
    assert!(error.contains("depth: 12 is stated, and the weights have 2"), "{error}");
    config["model_args"]["depth"] = json!(2);
    config["model_args"]["act_layer"] = json!("gelu_tanh");
    let imported = Folder::new(&file, Some(&config)).load().unwrap();
    assert_eq!(imported.card.model.mlp, vitrine_models::MlpKind::GeluTanh);
    let mut larger = config.clone();
    larger["pretrained_cfg"]["input_size"] = json!([3, 64, 64]);
    assert!(Folder::new(&file, Some(&larger)).load().err().unwrap().contains("resamples its positions"));
    config["model_args"]["act_layer"] = json!("relu");
    assert!(Folder::new(&file, Some(&config)).load().err().unwrap().contains("relu"));
}

#[test]
fn the_architecture_in_a_file_name_must_fit_the_tensors() {
    let folder = Folder::new(&stored("timm_vit"), None);
    for (name, part) in [
        ("vit_tiny_patch16_224.safetensors", "embed_dim: 192 is stated, and the weights have 48"),
        ("vit_small_patch16_rope_ape_224.safetensors", "embed_dim: 384 is stated"),
    ] {
        folder.weights(name, &stored("timm_vit"));
        let error = load(&folder.path().join(name), &Options::default()).err().unwrap();
        assert!(error.contains(part), "{name}: {error}");
    }
    let options = Options { config: Some("vit_tiny_patch16_224".to_owned()), ..Options::default() };
    let error = load(folder.path(), &options).err().unwrap();
    assert!(error.contains("--config vit_tiny_patch16_224") && error.contains("embed_dim"), "{error}");
}
