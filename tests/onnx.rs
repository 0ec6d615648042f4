//! Models in ONNX Runtime: files of all architectures, with the logits that this program computes, which
//! `tests/reference/check_onnx.py` compares with those of the runtime.

#![allow(clippy::unwrap_used)]

#[path = "../models/src/testing.rs"]
mod variants;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use burn::tensor::{Device, Distribution, Tensor, TensorData};
use vitrine::export::onnx;
use vitrine::model_file::ModelCard;
use vitrine::predict::{Output, Views};
use vitrine::weights_file::{self, Precision};
use vitrine_datasets::{
    CropRounding, DecodeLimits, Image, ImageSource, Interpolation, Preprocessing, ResizeRule,
};
use vitrine_models::weights::{NamedTensor, from_timm, to_timm};
use vitrine_models::{ImageSize, Mixer, ModelConfig, Pool, VisionTransformer, preset};

/// The number of images with which a file is checked.
const IMAGES: usize = 16;

/// A model whose parameters all differ from their start, so that none can be left out or taken for another.
fn model(config: &ModelConfig) -> VisionTransformer {
    let device = Device::default();
    device.seed(7);
    let fresh = config.init(&device).unwrap();
    let changed = to_timm(&fresh).into_iter().map(|tensor| {
        let noise = Tensor::<1>::random([tensor.values.len()], Distribution::Uniform(-0.2, 0.2), &device);
        let noise: Vec<f32> = noise.into_data().iter::<f32>().collect();
        let values = tensor.values.iter().zip(noise).map(|(value, noise)| value + noise).collect();
        NamedTensor { values, ..tensor }
    });
    from_timm(config.init(&device).unwrap(), changed.collect()).unwrap()
}

fn card(config: &ModelConfig) -> ModelCard {
    let preprocessing = Preprocessing {
        image_size: [config.image_size.height, config.image_size.width],
        channels: config.channels,
        resize: ResizeRule::Squash,
        interpolation: Interpolation::Bilinear,
        mean: vec![0.4; config.channels],
        std: vec![0.3; config.channels],
        crop_rounding: CropRounding::HalfToEven,
    };
    let classes = (0..config.num_classes).map(|class| format!("kind {class}")).collect();
    ModelCard::new(config.clone(), classes, preprocessing)
}

/// Writes `name.onnx`, and inputs with the answers for them.
fn write(folder: &Path, name: &str, card: &ModelCard, precision: Precision) {
    let model = model(&card.model);
    let size = card.model.image_size;
    let shape = [IMAGES, card.model.channels, size.height, size.width];
    let images = Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &Device::default());
    onnx::write(card, &model, &folder.join(format!("{name}.onnx")), precision, false).unwrap();
    let output = if card.has_classifier() { Output::Logits } else { Output::Embedding };
    let answers = output.compute(&model, Views::of(card), images.clone());
    save(folder, name, images, answers);
}

fn save<const D: usize>(folder: &Path, name: &str, input: Tensor<D>, answers: Tensor<2>) {
    let named = |name: &str, data: TensorData| NamedTensor {
        name: name.to_owned(),
        shape: data.shape().to_vec(),
        values: data.iter::<f32>().collect(),
    };
    let tensors = [named("input", input.into_data()), named("answers", answers.into_data())];
    let path = folder.join(format!("{name}.safetensors"));
    weights_file::save(&path, &tensors, &[], Precision::F32, HashMap::new()).unwrap();
}

/// A model that preprocesses a photo itself.
struct PhotoCase<'a> {
    preprocessing: Preprocessing,
    mirror_views: bool,
    precision: Precision,
    photo: &'a Image,
}

/// Writes the model of a case, and the logits for the photo, its negative, and its mirror image as this program preprocesses them.
fn write_with_preprocessing(folder: &Path, name: &str, case: &PhotoCase<'_>) {
    let PhotoCase { preprocessing, mirror_views, precision, photo } = case;
    let channels = preprocessing.channels;
    let [height, width] = preprocessing.image_size;
    let config = ModelConfig {
        image_size: ImageSize { height, width },
        channels,
        ..preset::find("vit_pico_patch4_32").unwrap().with_num_classes(5)
    };
    let card =
        ModelCard { preprocessing: preprocessing.clone(), mirror_views: *mirror_views, ..card(&config) };
    let model = model(&config);
    let photo = photo.with_channels(channels as u8);
    let negative = Image { pixels: photo.pixels.iter().map(|value| 255 - value).collect(), ..photo };
    let row = photo.width as usize * channels;
    let mirrored = photo.pixels.chunks(row).flat_map(|row| row.chunks(channels).rev().flatten()).copied();
    let mirrored = Image { pixels: mirrored.collect(), ..photo };
    let photos = [photo, negative, mirrored];
    onnx::write(&card, &model, &folder.join(format!("{name}.onnx")), *precision, true).unwrap();
    let tensor =
        |values: Vec<f32>, shape| Tensor::<4>::from_data(TensorData::new(values, shape), &Device::default());
    let bytes = photos.iter().flat_map(|photo| photo.pixels.iter().map(|&pixel| f32::from(pixel))).collect();
    let input = tensor(bytes, [3, photos[0].height as usize, photos[0].width as usize, channels]);
    let planes = photos.iter().flat_map(|photo| preprocessing.apply(photo)).collect();
    let planes = tensor(planes, [3, channels, height, width]);
    save(folder, name, input, Output::Logits.compute(&model, Views::of(&card), planes));
}

/// Writes models that preprocess photos, in all ways.
fn write_photos(folder: &Path) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/tests/fixtures/preprocess/photo.png");
    let photo = ImageSource::File(path).decode(&DecodeLimits::default()).unwrap();
    // Smaller than the input, so that it is enlarged.
    let row = photo.width as usize * 3;
    let small = photo.pixels.chunks(row).take(23).flat_map(|row| &row[..31 * 3]).copied().collect();
    let small = Image { width: 31, height: 23, channels: 3, pixels: small };
    let rules = [
        ResizeRule::Squash,
        ResizeRule::SquashCrop { crop: 0.8 },
        ResizeRule::ShorterSide { crop: 0.875 },
        ResizeRule::Letterbox,
    ];
    for (number, resize) in rules.into_iter().enumerate() {
        for (image_size, channels, crop_rounding) in
            [([64, 64], 3, CropRounding::HalfToEven), ([48, 80], 1, CropRounding::Down)]
        {
            for interpolation in [Interpolation::Bilinear, Interpolation::Bicubic] {
                let steps = photo_steps(channels);
                let preprocessing =
                    Preprocessing { image_size, resize, interpolation, crop_rounding, ..steps };
                for (size, photo) in [("large", &photo), ("small", &small)] {
                    let name = format!("photo_{size}_{number}_{channels}_{interpolation:?}");
                    let (precision, preprocessing) = (Precision::F32, preprocessing.clone());
                    let case = PhotoCase { preprocessing, mirror_views: false, precision, photo };
                    write_with_preprocessing(folder, &name, &case);
                }
            }
        }
    }
    let (mirror_views, precision, photo) = (true, Precision::Bf16, &photo);
    let case = PhotoCase { preprocessing: photo_steps(3), mirror_views, precision, photo };
    write_with_preprocessing(folder, "photo_mirrored_bf16", &case);
}

#[test]
#[ignore = "needs Python with onnx, onnxruntime, numpy and safetensors"]
fn onnx_runtime_computes_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (number, config) in variants::variants().iter().enumerate() {
        write(folder, &format!("variant{number:03}"), &card(config), Precision::F32);
    }
    for name in ["swin_pico_patch2_window4_32", "cct_2_3x2", "cvt_7_4"] {
        write(folder, name, &card(&preset::find(name).unwrap()), Precision::F32);
    }
    let pico = card(&preset::find("vit_pico_patch4_32").unwrap());
    for (name, mirror_views, shifted_views) in
        [("mirrored", true, false), ("shifted", false, true), ("shifted_mirrored", true, true)]
    {
        let card = ModelCard { mirror_views, shifted_views, ..pico.clone() };
        write(folder, name, &card, Precision::F32);
    }
    write(folder, "backbone", &ModelCard { classes: Vec::new(), ..pico.clone() }, Precision::F32);
    let near = ModelConfig { mixers: vec![Mixer::Neighborhood(1)], ..pico.model.clone() };
    let swin = preset::find("swin_pico_patch2_window4_32").unwrap();
    for (number, config) in [&pico.model, &near, &swin].into_iter().enumerate() {
        for (name, precision) in [("f16", Precision::F16), ("bf16", Precision::Bf16)] {
            write(folder, &format!("{name}_{number}"), &card(config), precision);
        }
    }
    // Without a classifier: the embedding of every pooling, and of a model with a distillation token.
    for (number, &pool) in Pool::EXAMPLES.iter().enumerate() {
        let class_token = matches!(pool, Pool::ClassToken | Pool::ClassTokenMean | Pool::TwoDepths { .. });
        let config = ModelConfig { pool, class_token, ..variants::base() };
        write(
            folder,
            &format!("embedding{number}"),
            &ModelCard { classes: Vec::new(), ..card(&config) },
            Precision::F32,
        );
    }
    let distilled = ModelConfig {
        class_token: true,
        distillation_token: true,
        pool: Pool::ClassToken,
        ..variants::base()
    };
    write(
        folder,
        "embedding_distilled",
        &ModelCard { classes: Vec::new(), ..card(&distilled) },
        Precision::F32,
    );
    write_photos(folder);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/check_onnx.py");
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let status = Command::new(python).arg(script).arg(folder).status().unwrap();
    assert!(status.success());
}

#[test]
fn preprocessing_without_an_operator_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = preset::find("vit_pico_patch4_32").unwrap();
    let preprocessing =
        Preprocessing { interpolation: Interpolation::Lanczos, ..card(&config).preprocessing };
    let card = ModelCard { preprocessing, ..card(&config) };
    let write = |with_preprocessing| {
        let path = folder.path().join("model.onnx");
        onnx::write(&card, &model(&config), &path, Precision::F32, with_preprocessing)
    };
    let error = write(true).err().unwrap().to_string();
    assert!(error.contains("lanczos") && error.contains("--with-preprocessing"), "{error}");
    assert!(write(false).is_ok());
}

/// Preprocessing with different numbers for each channel.
fn photo_steps(channels: usize) -> Preprocessing {
    let numbers = |from: f32| (0..channels).map(|channel| from + 0.05 * channel as f32).collect();
    Preprocessing {
        image_size: [64, 64],
        channels,
        resize: ResizeRule::Squash,
        interpolation: Interpolation::Bilinear,
        mean: numbers(0.4),
        std: numbers(0.2),
        crop_rounding: CropRounding::HalfToEven,
    }
}
