//! Configurations and data sets of very small runs, for tests.

use std::path::Path;

use vitrine_datasets::{
    CropRounding, Dataset, DatasetInfo, ImageSource, Interpolation, LeftOut, Preprocessing, ResizeRule,
    Sample, SourceKind, ValidationOrigin,
};
use vitrine_models::{ImageSize, ModelConfig, preset};

use super::RunConfig;
use crate::recipe::Recipe;

/// The configuration of a run on 16 by 16 pixels, with these classes.
pub(crate) fn config(classes: &[&str]) -> RunConfig {
    let model = ModelConfig {
        image_size: ImageSize::square(16),
        patch_size: 4,
        embed_dim: 16,
        depth: 1.into(),
        num_heads: 2.into(),
        ..preset::find("vit_pico_patch4_32").expect("listed").with_num_classes(classes.len())
    };
    let preprocessing = Preprocessing {
        image_size: [16, 16],
        channels: 3,
        resize: ResizeRule::Squash,
        interpolation: Interpolation::Bilinear,
        mean: vec![0.5; 3],
        std: vec![0.25; 3],
        crop_rounding: CropRounding::default(),
    };
    RunConfig {
        program: "vitrine test".to_owned(),
        data: "data".to_owned(),
        data_path: None,
        data_dir: "datasets".into(),
        val_fraction: 0.25,
        seed: 7,
        split_seed: None,
        fold: None,
        model_name: "tiny".to_owned(),
        pretrained: None,
        pretrained_path: None,
        lengthened: false,
        max_file_size: None,
        label_separator: None,
        multi_label: false,
        classes: classes.iter().map(|class| (*class).to_owned()).collect(),
        model,
        preprocessing,
        recipe: Recipe { epochs: Some(2), batch_size: 8, ..Recipe::default() },
        origin: super::Origin::default(),
    }
}

/// Drawn images of two classes, in turn: so many for training, validation, and test, no two alike.
pub(crate) fn drawn([train, val, test]: [usize; 3]) -> Dataset {
    let samples = |first: usize, count: usize| -> Vec<Sample> {
        let sample = |index: usize| {
            let label = index % 2;
            Sample { labels: label.into(), source: ImageSource::Drawn { class: label, seed: index as u64 } }
        };
        (first..first + count).map(sample).collect()
    };
    Dataset {
        info: DatasetInfo {
            name: "drawn".to_owned(),
            classes: vec!["circle".to_owned(), "ring".to_owned()],
            multi_label: false,
            source: SourceKind::Shapes,
            validation: if val > 0 { ValidationOrigin::Given } else { ValidationOrigin::Absent },
            flip_safe: true,
        },
        train: samples(0, train),
        val: samples(10_000, val),
        test: samples(20_000, test),
        left_out: LeftOut::default(),
        warnings: Vec::new(),
    }
}

/// Writes so many images of 8 by 8 pixels into a class folder, no two alike, also between shades.
pub(crate) fn photos(folder: &Path, shade: u8, count: u8) {
    std::fs::create_dir_all(folder).expect("a writable folder");
    for number in 0..count {
        let image = image::RgbImage::from_fn(8, 8, |x, y| image::Rgb([shade, number, (x * 8 + y) as u8]));
        image.save(folder.join(format!("{number}.png"))).expect("a writable file");
    }
}
