//! A model and images with its answers, for the tests of the bindings.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use image::{Rgb, RgbImage};
use vitrine::model_file::{self, ModelCard};
use vitrine::weights_file::Precision;
use vitrine::{Classifier, LoadOptions};
use vitrine_datasets::{CropRounding, ImageSource, Interpolation, Preprocessing, ResizeRule};
use vitrine_models::preset;

/// A folder with `model.safetensors`, the images, and what the library itself answers.
pub struct Prepared {
    folder: tempfile::TempDir,
    /// The paths of the images.
    pub images: Vec<PathBuf>,
    /// The logits of each image.
    pub logits: Vec<Vec<f32>>,
    /// The embedding of each image.
    pub embeddings: Vec<Vec<f32>>,
}

impl Prepared {
    /// A model with random weights, and this many images of different sizes.
    pub fn new(count: u32) -> Self {
        // As the programs do that are compared: other threads could give other last bits.
        vitrine::threads::set(Some(2)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let device = Device::default();
        device.seed(3);
        let config = preset::find("vit_pico_patch4_32").unwrap().with_num_classes(7);
        let preprocessing = Preprocessing {
            image_size: [32, 32],
            channels: 3,
            resize: ResizeRule::ShorterSide { crop: 0.875 },
            interpolation: Interpolation::Bicubic,
            mean: vec![0.5; 3],
            std: vec![0.25; 3],
            crop_rounding: CropRounding::HalfToEven,
        };
        let classes = (0..7).map(|class| format!("kind {class}")).collect();
        let model = config.init(&device).unwrap();
        let path = folder.path().join("model.safetensors");
        model_file::save(&path, &ModelCard::new(config, classes, preprocessing), &model, Precision::F32)
            .unwrap();
        let images: Vec<PathBuf> = (0..count).map(|number| draw(folder.path(), number)).collect();
        let classifier: Classifier = vitrine::load(&path, &LoadOptions::default()).unwrap();
        let sources: Vec<ImageSource> = images.iter().cloned().map(ImageSource::File).collect();
        let all = |answers: Vec<anyhow::Result<Vec<f32>>>| answers.into_iter().map(Result::unwrap).collect();
        let (logits, embeddings) = (all(classifier.classify(&sources)), all(classifier.embed(&sources)));
        Self { folder, images, logits, embeddings }
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Writes an image that differs from the others.
fn draw(folder: &Path, number: u32) -> PathBuf {
    let path = folder.join(format!("{number}.png"));
    let color = |x: u32, y: u32, channel: u32| (x * (3 + number) + y * (5 + channel) + number * 29) as u8;
    let image = RgbImage::from_fn(20 + number, 50 - number % 30, |x, y| {
        Rgb([color(x, y, 0), color(x, y, 7), color(y, x, 1)])
    });
    image.save(&path).unwrap();
    path
}

/// The folder in which cargo puts the libraries that it builds for this test.
pub fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}
