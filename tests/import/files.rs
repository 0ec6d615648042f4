//! Damaged, foreign, and wrapped files of weights.

use vitrine::import::Options;

use super::{File, Folder, config, fixture, import_command, load, stored};

#[test]
fn errors_name_the_tensor_or_file_with_values_that_are_not_finite() {
    let mut file = stored("timm_vit");
    file.get_mut("blocks.1.mlp.fc1.weight").unwrap().bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let error = Folder::new(&file, Some(&config("timm_vit"))).load().err().unwrap();
    assert!(error.contains("blocks.1.mlp.fc1.weight") && error.contains("finite"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.safetensors");
    import_command(&fixture("timm_vit").join("weights.safetensors"), &model).assert().success();
    let mut bytes = std::fs::read(&model).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    std::fs::write(&model, bytes).unwrap();
    let error = format!("{:#}", vitrine::model_file::read(&model).err().unwrap());
    assert!(error.contains("inf") && error.contains("model.safetensors: "), "{error}");
}

#[test]
fn prefixes_of_all_keys_and_a_byte_order_mark_are_stripped() {
    for prefix in ["module.", "vit.", "encoder.", "timm_model.", "model.", "backbone.", "module.vit."] {
        let file: File = stored("timm_vit")
            .into_iter()
            .map(|(name, tensor)| (format!("{prefix}{name}"), tensor))
            .collect();
        Folder::new(&file, Some(&config("timm_vit")))
            .load()
            .unwrap_or_else(|error| panic!("{prefix}: {error}"));
    }
    let folder = Folder::new(&stored("timm_vit"), Some(&config("timm_vit")));
    let names = folder.path().join("names.txt");
    let lines: Vec<String> = (0..10).map(|class| format!("thing {class}")).collect();
    std::fs::write(&names, format!("\u{feff}{}\r\n", lines.join("\r\n"))).unwrap();
    let options = Options { classes: Some(names), ..Options::default() };
    assert_eq!(load(folder.path(), &options).unwrap().card.classes, lines);
}

#[test]
fn errors_explain_files_of_another_kind_in_few_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    for (content, part) in [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        ("\n<!DOCTYPE html><html><body>404</body></html>", "HTML page"),
    ] {
        std::fs::write(&path, content).unwrap();
        let error = load(&path, &Options::default()).err().unwrap();
        assert!(error.contains(part) && error.contains("model.safetensors"), "{error}");
    }
    let with = |name: &str| {
        let mut file = stored("timm_vit");
        file.insert(name.to_owned(), file["norm.bias"].clone());
        Folder::new(&file, Some(&config("timm_vit"))).load().err().unwrap()
    };
    for (name, part) in [
        ("rel_pos_bias.relative_position_bias_table", "BEiT"),
        ("rope.freqs", "rotary positions"),
        ("neck.convs.0.weight", "DPT"),
        ("patch_embed.backbone.stem.conv.weight", "hybrid stem"),
    ] {
        assert!(with(name).contains(part), "{name}");
    }
    // Of many unexpected keys, the message lists a few and the number of the others.
    let mut file = stored("timm_vit");
    for number in 0..400 {
        file.insert(format!("surplus.{number}"), file["norm.bias"].clone());
    }
    let error = Folder::new(&file, Some(&config("timm_vit"))).load().err().unwrap();
    assert!(error.contains("400 unexpected") && error.contains("more") && error.len() < 500, "{error}");
}

#[test]
fn tensors_with_pytorchs_negative_bit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.pth");
    // The end of `_rebuild_tensor_v2(..., {"neg": True})` in a pickle of protocol 2.
    std::fs::write(&path, b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01}q\x02X\x03\x00\x00\x00negq\x03\x88ss.")
        .unwrap();
    let error = load(&path, &Options::default()).err().unwrap();
    assert!(error.contains("negative bit") && error.contains("resolve_neg"), "{error}");
}
