//! What is told of weights before they are read.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use vitrine_datasets::{CropRounding, Interpolation, ResizeRule};
use vitrine_models::{ImageSize, preset};

use super::*;
use crate::weights_file::Precision;

/// A file whose tensors have these names.
fn entries(names: &[&str]) -> Vec<Entry> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let tensor = |name: &&str| NamedTensor { name: (*name).to_owned(), shape: vec![1], values: vec![0.0] };
    let tensors: Vec<NamedTensor> = names.iter().map(tensor).collect();
    weights_file::save(&path, &tensors, &[], Precision::F32, HashMap::new()).unwrap();
    weights_file::open(&path).unwrap().entries
}

#[test]
fn a_layout_is_told_from_the_names_and_named_only_where_they_do_not_tell() {
    let timms = ["patch_embed.proj.weight", "head.bias"];
    for (names, wanted, layout) in [
        (&timms[..], None, Layout::Timm),
        (&timms, Some(Layout::Timm), Layout::Timm),
        (&["conv_proj.weight"], None, Layout::Torchvision),
        (&["stem.weight"], Some(Layout::Microsoft), Layout::Microsoft),
    ] {
        assert_eq!(recognize(&entries(names), wanted).unwrap(), layout, "{names:?}");
    }
    for (names, wanted, part) in [
        (&timms[..], Some(Layout::HuggingFace), "--layout hugging-face"),
        (&["stem.weight"], None, "--layout"),
        (&["patch_embed.proj.weight", "rope.freqs"], None, "`rope.freqs`"),
    ] {
        let error = recognize(&entries(names), wanted).unwrap_err().to_string();
        assert!(error.contains(part), "{names:?}: {error}");
    }
}

#[test]
fn stored_tables_tell_windows_that_are_not_stated() {
    let tables = Windows { largest: Some(7), last: Some(4) };
    for (stated, window) in [(None, Some(7)), (Some(7), Some(7)), (Some(8), Some(8)), (Some(4), None)] {
        let facts = with_windows(&Facts { window: stated, ..Facts::default() }, &tables);
        match window {
            Some(_) => {
                let facts = facts.unwrap();
                assert_eq!((facts.window, facts.last_window), (window, Some(4)));
            }
            None => {
                let error = facts.unwrap_err().to_string();
                assert!(error.contains('4') && error.contains('7'), "{error}");
            }
        }
    }
    let facts = with_windows(&Facts { window: Some(7), ..Facts::default() }, &Windows::default()).unwrap();
    assert_eq!((facts.window, facts.last_window), (Some(7), None));
}

#[test]
fn a_header_of_ours_counts_unless_the_user_states_something_else() {
    let none = Options::default;
    for (options, states_nothing) in [
        (none(), true),
        (Options { layout: Some(Layout::Timm), ..none() }, true),
        (Options { classes: Some(PathBuf::from("names.txt")), ..none() }, true),
        (Options { config: Some("vit_tiny_patch16_224".to_owned()), ..none() }, false),
        (Options { heads: Some(vec![3]), ..none() }, false),
        (Options { image_size: Some([32; 2]), ..none() }, false),
        (Options { mean: Some(vec![0.5; 3]), ..none() }, false),
        (Options { std: Some(vec![0.5; 3]), ..none() }, false),
        (Options { crop: Some(0.9), ..none() }, false),
    ] {
        assert_eq!(options.state_nothing(), states_nothing, "{options:?}");
    }
}

#[test]
fn a_folder_holds_weights_whole_or_in_parts_that_an_index_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let weights = || Files::find(folder.path()).map(|files| files.weights);
    let error = weights().unwrap_err().to_string();
    assert!(error.contains("model.safetensors"), "{error}");
    let index = r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}}"#;
    std::fs::write(path("model.safetensors.index.json"), index).unwrap();
    assert_eq!(weights().unwrap(), [path("1.safetensors"), path("2.safetensors")]);
    std::fs::write(path("model.safetensors"), "").unwrap();
    assert_eq!(weights().unwrap(), [path("model.safetensors")]);
    // A file's configuration lies next to it.
    std::fs::write(path("config.json"), "").unwrap();
    let files = Files::find(&path("model.safetensors")).unwrap();
    assert_eq!((files.config, files.preprocessor), (Some(path("config.json")), None));
    let error = Files::find(&path("nowhere")).err().unwrap().to_string();
    assert!(error.contains("nowhere"), "{error}");
}

#[test]
fn preprocessing_follows_a_variant_of_its_model() {
    let preprocessing = Preprocessing {
        image_size: [32; 2],
        channels: 3,
        resize: ResizeRule::Squash,
        interpolation: Interpolation::Lanczos,
        mean: vec![0.25, 0.5, 0.75],
        std: vec![0.125; 3],
        crop_rounding: CropRounding::Down,
    };
    let gray = ModelConfig {
        image_size: ImageSize { height: 48, width: 64 },
        channels: 1,
        ..preset::find("vit_pico_patch4_32").unwrap()
    };
    let expected = Preprocessing {
        image_size: [48, 64],
        channels: 1,
        mean: vec![0.5],
        std: vec![0.125],
        ..preprocessing.clone()
    };
    assert_eq!(preprocessing_for(&preprocessing, &gray), expected);
}
