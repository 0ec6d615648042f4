//! Facts that neither shapes nor files tell: assumed with a warning, stated by options, or required.

use vitrine::import::Options;

use super::{File, Folder, Stored, config, load, stored, timm_folder};

#[test]
fn missing_positions_are_refused() {
    let mut file = stored("timm_vit");
    file.remove("pos_embed");
    let error = Folder::new(&file, Some(&config("timm_vit"))).load().err().unwrap();
    assert!(error.contains("rotary positions, as DINOv3"), "{error}");
}

#[test]
fn a_distilled_model_needs_both_heads() {
    let mut file = stored("timm_deit_distilled");
    file.retain(|name, _| !name.starts_with("head_dist."));
    assert!(Folder::new(&file, Some(&config("timm_deit_distilled"))).load().is_err());
    assert!(Folder::new(&file, None).load().is_err());
}

#[test]
fn assumptions_are_warned_of_and_replaced_by_options() {
    // Tokens of width 64 have one head of the usual width 64, so one head is assumed.
    let folder = Folder::new(&widened(stored("timm_vit")), None);
    let guessed = folder.load().unwrap();
    let warnings = guessed.account.warnings.join("\n");
    assert!(warnings.contains("1 heads are guessed") && warnings.contains("--heads"), "{warnings}");
    assert!(warnings.contains("mean and deviation") && warnings.contains("--mean"), "{warnings}");
    let stated = Options {
        heads: Some(vec![2]),
        image_size: Some([32, 32]),
        mean: Some(vec![0.1, 0.2, 0.3]),
        std: Some(vec![0.5; 3]),
        crop: Some(0.8),
        ..Options::default()
    };
    let imported = load(folder.path(), &stated).unwrap();
    assert_eq!(imported.card.model.num_heads, 2.into());
    assert_eq!(imported.card.preprocessing.mean, [0.1, 0.2, 0.3]);
    assert_eq!(imported.card.preprocessing.resize, vitrine_datasets::ResizeRule::ShorterSide { crop: 0.8 });
    assert!(!imported.account.warnings.iter().any(|line| line.contains("heads")));
    // Options that contradict a file are refused.
    let folder = Folder::new(&stored("timm_vit"), Some(&timm_folder("vit_base_patch16_224")));
    for (options, part) in [
        (Options { heads: Some(vec![4]), ..Options::default() }, "--heads 4: the configuration states 3"),
        (Options { mean: Some(vec![0.1; 3]), ..Options::default() }, "--mean"),
        (Options { std: Some(vec![0.1; 3]), ..Options::default() }, "--std"),
        (Options { crop: Some(0.8), ..Options::default() }, "--crop 0.8: the configuration states 0.9"),
    ] {
        let error = load(folder.path(), &options).err().unwrap();
        assert!(error.contains(part), "{error}");
    }
}

/// The weights of `timm_vit` with tokens of width 64 instead of 48, and made-up values.
fn widened(file: File) -> File {
    file.into_iter()
        .map(|(name, tensor)| {
            let wide = |side: usize| if side.is_multiple_of(48) { side / 48 * 64 } else { side };
            let shape: Vec<usize> = tensor.shape.iter().copied().map(wide).collect();
            let count: usize = shape.iter().product();
            let bytes = (0..count).flat_map(|place| (place as f32 * 1e-3).sin().to_le_bytes()).collect();
            (name, Stored { shape, bytes, ..tensor })
        })
        .collect()
}
