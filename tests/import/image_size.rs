//! The image size of the model and of the preprocessing.

use serde_json::{Value, json};
use vitrine::import::Options;
use vitrine_models::weights::adapt;
use vitrine_models::{ImageSize, ModelConfig};

use super::{Folder, config, load, stored, timm_folder};

#[test]
fn preprocessing_for_another_size_than_a_classifiers_is_refused() {
    for (side, fits) in [(32, true), (64, false)] {
        let folder = Folder::new(&stored("hf_swin"), Some(&config("hf_swin")));
        let preprocessor = json!({
            "image_processor_type": "ViTImageProcessor", "do_resize": true, "do_center_crop": false, "do_normalize": true,
            "do_rescale": true, "size": { "height": side, "width": side }, "resample": 3, "rescale_factor": 1.0 / 255.0,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        });
        std::fs::write(folder.path().join("preprocessor_config.json"), preprocessor.to_string()).unwrap();
        let loaded = folder.load();
        assert_eq!(loaded.is_ok(), fits, "{side}: {:?}", loaded.err());
    }
}

/// A `preprocessor_config.json` with a center crop of `side` pixels, like DINOv2's.
fn cropping(side: usize) -> Value {
    json!({
        "image_processor_type": "BitImageProcessor", "do_resize": true, "do_center_crop": true, "do_normalize": true,
        "do_rescale": true, "size": { "shortest_edge": side + side / 8 }, "crop_size": { "height": side, "width": side },
        "resample": 3, "rescale_factor": 1.0 / 255.0, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    })
}

fn with_size(side: usize) -> Options {
    Options { image_size: Some([side, side]), ..Options::default() }
}

#[test]
fn a_backbone_may_have_preprocessing_for_another_size_than_its_positions() {
    let case = "hf_dinov2_registers";
    let folder = Folder::new(&stored(case), Some(&config(case)));
    let preprocessor = folder.path().join("preprocessor_config.json");
    std::fs::write(&preprocessor, cropping(16).to_string()).unwrap();
    let as_it_is = folder.load().unwrap();
    assert_eq!(as_it_is.account.warnings, Vec::<String>::new());
    // The positions are not resampled before the user or training chooses a size.
    assert_eq!(as_it_is.card.model.image_size, ImageSize::square(32));
    assert_eq!(as_it_is.card.preprocessing.image_size, [16, 16]);
    for side in [16, 24, 32, 64] {
        let imported = load(folder.path(), &with_size(side)).unwrap();
        assert_eq!(imported.account.warnings, Vec::<String>::new(), "{side}");
        let is_resampled = imported.account.notes.iter().any(|note| note.contains("positions resampled"));
        assert_eq!(is_resampled, side != 32, "{side}");
        assert_eq!(imported.card.preprocessing.image_size, [side, side]);
        assert_eq!(
            imported.card.preprocessing.resize,
            vitrine_datasets::ResizeRule::ShorterSide { crop: 16.0 / 18.0 }
        );
        // The import resamples positions as training does.
        let wanted = ModelConfig { image_size: ImageSize::square(side), ..as_it_is.card.model.clone() };
        let expected =
            adapt(as_it_is.tensors.clone(), [&as_it_is.card.model, &wanted], true, as_it_is.card.resampling)
                .tensors;
        assert_eq!(imported.card.model, wanted);
        assert!(imported.tensors == expected, "{side}");
    }
    let error = load(folder.path(), &with_size(20)).err().unwrap();
    assert!(error.contains("--image-size 20x20") && error.contains("patch"), "{error}");
    // Patches do not divide a size of 20, so the stored size is kept, with a warning.
    std::fs::write(&preprocessor, cropping(20).to_string()).unwrap();
    let odd = folder.load().unwrap();
    assert_eq!(odd.card.preprocessing.image_size, [32, 32]);
    assert!(
        odd.account.warnings.iter().any(|warning| warning.contains("20x20")),
        "{:?}",
        odd.account.warnings
    );
    // A stated size that contradicts the shapes is refused even if the user asks for this size.
    let mut wrong = config(case);
    wrong["image_size"] = json!(64);
    let folder = Folder::new(&stored(case), Some(&wrong));
    assert!(load(folder.path(), &with_size(64)).err().unwrap().contains("`pos_embed` holds"));
}

#[test]
fn a_classifier_is_resampled_to_the_size_that_the_user_asks_for() {
    let with_config = Folder::new(&stored("timm_vit"), Some(&timm_folder("vit_base_patch16_224")));
    let alone = Folder::new(&stored("timm_vit"), None);
    for (folder, heads) in [(&with_config, None), (&alone, Some(vec![3]))] {
        let imported = load(folder.path(), &Options { heads, ..with_size(48) }).unwrap();
        assert_eq!(imported.card.model.image_size, ImageSize::square(48));
        assert_eq!(imported.card.preprocessing.image_size, [48, 48]);
        assert!(
            imported.has_head && imported.account.notes.iter().any(|note| note.contains("[4, 4] to [6, 6]"))
        );
        imported.model(&burn::tensor::Device::default()).unwrap();
    }
    let error = load(with_config.path(), &with_size(36)).err().unwrap();
    assert!(error.contains("--image-size 36x36"), "{error}");
    // Windows of 4 do not divide a grid of 5.
    let swin = Folder::new(&stored("hf_swin"), Some(&config("hf_swin")));
    let error = load(swin.path(), &with_size(40)).err().unwrap();
    assert!(error.contains("--image-size 40x40") && error.contains("windows"), "{error}");
    // Preprocessing for another size is refused unless the user chooses a size.
    std::fs::write(swin.path().join("preprocessor_config.json"), cropping(64).to_string()).unwrap();
    let error = swin.load().err().unwrap();
    assert!(error.contains("64x64") && error.contains("--image-size"), "{error}");
    assert!(load(swin.path(), &with_size(32)).is_ok());
}
