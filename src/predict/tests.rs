//! Predictors asked about images of every source, readable and not, one by one, in batches, and as a stream.

#![allow(clippy::unwrap_used)]

use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Distribution, Tensor};
use image::{ImageFormat, Rgb, RgbImage};
use vitrine_datasets::{CropRounding, Image, ImageSource, Interpolation, Preprocessing, ResizeRule, Sample};
use vitrine_models::{ImageSize, ModelConfig, VisionTransformer, preset};

use super::{Asked, Classifier, NOT_FINITE, Output, Predictor, Views, rank};
use crate::device::{self, FoundDevice};
use crate::events::Quiet;
use crate::model_file::ModelCard;

const CLASSES: usize = 3;
const DIM: usize = 16;
/// 16 by 16 pixels in patches of 8 by 8, without a class token.
const TOKENS: usize = 4;

fn config() -> ModelConfig {
    ModelConfig {
        image_size: ImageSize { height: 16, width: 16 },
        patch_size: 8,
        embed_dim: DIM,
        depth: 2.into(),
        num_heads: 2.into(),
        ..preset::find("vit_pico_patch4_32").unwrap().with_num_classes(CLASSES)
    }
}

fn preprocessing() -> Preprocessing {
    Preprocessing {
        image_size: [16, 16],
        channels: 3,
        resize: ResizeRule::Squash,
        interpolation: Interpolation::Bilinear,
        mean: vec![0.5; 3],
        std: vec![0.25; 3],
        crop_rounding: CropRounding::default(),
    }
}

fn cpu() -> FoundDevice {
    device::select(Some("cpu")).unwrap().0
}

/// A small model with random parameters.
fn model() -> VisionTransformer {
    let model = config().init(&cpu().device).unwrap();
    model.initialize();
    model
}

fn predictor() -> Predictor {
    Predictor::new(model(), preprocessing(), &cpu())
}

/// Drawn images, no two alike.
fn drawn(count: usize) -> Vec<ImageSource> {
    (0..count).map(|index| ImageSource::Drawn { class: index % 10, seed: index as u64 }).collect()
}

/// An image in memory that no decoder can read.
fn broken(name: &str) -> ImageSource {
    ImageSource::Encoded { name: name.to_owned(), bytes: b"no image".as_slice().into() }
}

/// The answer to one image alone.
fn alone(predictor: &Predictor, output: Output, image: &ImageSource) -> Vec<f32> {
    predictor.ask_images(output, std::slice::from_ref(image)).remove(0).unwrap()
}

/// Whether two answers differ by no more than the order of sums explains.
fn is_close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4)
}

fn rows(tensor: Tensor<2>) -> Vec<Vec<f32>> {
    let [_, width] = tensor.dims();
    let values: Vec<f32> = tensor.into_data().iter::<f32>().collect();
    values.chunks_exact(width).map(<[f32]>::to_vec).collect()
}

#[test]
fn unreadable_images_fail_alone_wherever_they_are_in_the_batch() {
    let predictor = predictor();
    let [a, b, c] = drawn(3).try_into().unwrap();
    let missing = ImageSource::File("nowhere/missing.png".into());
    let list = [broken("first.png"), a.clone(), broken("middle.png"), b.clone(), c.clone(), missing];
    for output in [Output::Logits, Output::Embedding] {
        let answers = predictor.ask_images(output, &list);
        assert_eq!(answers.len(), list.len());
        for (index, name) in [(0, "first.png"), (2, "middle.png"), (5, "missing.png")] {
            let message = format!("{:#}", answers[index].as_ref().unwrap_err());
            assert!(message.contains(name), "{message}");
        }
        for (index, image) in [(1, &a), (3, &b), (4, &c)] {
            let answer = answers[index].as_ref().unwrap();
            assert!(is_close(answer, &alone(&predictor, output, image)), "{output:?} of image {index}");
        }
    }
}

#[test]
fn a_batch_without_a_readable_image_has_an_error_for_each_and_an_empty_one_has_no_answer() {
    let predictor = predictor();
    let answers = predictor.ask_images(Output::Logits, &[broken("a.png"), broken("b.png")]);
    let messages: Vec<String> =
        answers.into_iter().map(|answer| format!("{:#}", answer.unwrap_err())).collect();
    assert!(messages[0].contains("a.png") && messages[1].contains("b.png"), "{messages:?}");
    assert!(predictor.ask_images(Output::Logits, &[]).is_empty());
}

#[test]
fn the_same_pixels_get_the_same_answer_from_every_source() {
    let pixels = RgbImage::from_fn(16, 16, |x, y| Rgb([x as u8 * 15, y as u8 * 15, (x + y) as u8 * 8]));
    let mut png = Cursor::new(Vec::new());
    pixels.write_to(&mut png, ImageFormat::Png).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image.png");
    std::fs::write(&path, png.get_ref()).unwrap();
    // Three planes after 5 bytes that belong to another image.
    let planes = (0..3).flat_map(|channel| pixels.pixels().map(move |pixel| pixel.0[channel]));
    let buffer: Arc<[u8]> = [0; 5].into_iter().chain(planes).collect();
    let sources = [
        ImageSource::File(path),
        ImageSource::Encoded { name: "image.png".to_owned(), bytes: png.into_inner().into() },
        ImageSource::Raw {
            name: "batch[1]".to_owned(),
            buffer,
            offset: 5,
            width: 16,
            height: 16,
            channels: 3,
        },
        ImageSource::Pixels {
            name: "array".to_owned(),
            image: Arc::new(Image { width: 16, height: 16, channels: 3, pixels: pixels.into_raw() }),
        },
    ];
    let predictor = predictor();
    let answers: Vec<Vec<f32>> =
        sources.iter().map(|source| alone(&predictor, Output::Logits, source)).collect();
    assert_eq!(answers[0], answers[1], "a file and its bytes");
    assert_eq!(answers[0], answers[2], "a file and its planes");
    assert_eq!(answers[0], answers[3], "a file and its pixels");
    assert_ne!(answers[0], alone(&predictor, Output::Logits, &drawn(1)[0]), "answers depend on the pixels");
}

#[test]
fn pixels_that_are_no_image_are_errors_of_their_own() {
    let predictor = predictor();
    for (width, height, channels, bytes) in
        [(2, 2, 3, 11), (0, 2, 3, 0), (2, 2, 4, 16), (u32::MAX, u32::MAX, 3, 3)]
    {
        let image = Arc::new(Image { width, height, channels, pixels: vec![7; bytes] });
        let images = [ImageSource::Pixels { name: "camera".to_owned(), image }, drawn(1)[0].clone()];
        let answers = predictor.ask_images(Output::Logits, &images);
        assert!(
            answers[0].as_ref().unwrap_err().to_string().contains("camera"),
            "{width} {height} {channels}"
        );
        assert!(answers[1].is_ok());
    }
}

#[test]
fn threads_may_share_a_classifier() {
    fn shared<T: Send + Sync>() {}
    shared::<Classifier>();
}

#[test]
fn a_thousand_images_classified_at_once_have_the_logits_of_each_alone() {
    let card = ModelCard::new(config(), ["a", "b", "c"].map(str::to_owned).to_vec(), preprocessing());
    let classifier = Classifier::new(card, model(), &cpu());
    let images = drawn(1_100);
    let together = classifier.classify(&images);
    assert_eq!(together.len(), images.len());
    for (image, logits) in images.iter().zip(&together) {
        let single = classifier.classify(std::slice::from_ref(image)).remove(0).unwrap();
        let logits = logits.as_ref().unwrap();
        assert!(is_close(logits, &single), "{}: {logits:?} and {single:?}", image.name());
    }
    let different =
        together.iter().filter(|logits| logits.as_ref().unwrap() != together[0].as_ref().unwrap());
    assert!(different.count() > 1_000, "the images differ, and so must their logits");
}

#[test]
fn labeled_images_get_the_answers_of_unlabeled_ones() {
    let predictor = predictor();
    let mut images = drawn(7);
    images.insert(2, broken("broken.png"));
    let samples: Arc<[Sample]> = images
        .iter()
        .enumerate()
        .map(|(index, source)| Sample { labels: (index % CLASSES).into(), source: source.clone() })
        .collect();
    for (output, width) in [(Output::Logits, CLASSES), (Output::Embedding, DIM)] {
        let expected = predictor.ask_images(output, &images);
        for batch_size in [1, 3, 64] {
            let loader = predictor.loader(samples.clone(), batch_size, 2).unwrap();
            let (mut indices, mut bad) = (Vec::new(), Vec::new());
            for answers in predictor.ask_labeled(output, &loader) {
                let answers = answers.unwrap();
                assert_eq!(answers.values.len(), width * answers.indices.len());
                for (place, &index) in answers.indices.iter().enumerate() {
                    assert_eq!(answers.labels[place], samples[index].labels);
                    let answer = &answers.values[place * width..(place + 1) * width];
                    assert!(is_close(answer, expected[index].as_ref().unwrap()), "{index} of {batch_size}");
                }
                indices.extend(answers.indices);
                bad.extend(answers.bad);
            }
            assert_eq!(indices, [0, 1, 3, 4, 5, 6, 7], "the order of the samples, without the broken one");
            assert_eq!(bad.iter().map(|bad| bad.name.as_str()).collect::<Vec<_>>(), ["broken.png"]);
        }
    }
}

#[test]
fn mirrored_views_change_the_answers_of_images_and_of_labeled_images_alike() {
    let plain = predictor();
    let mirrored = Predictor::new(plain.model().clone(), preprocessing(), &cpu()).with_views(Views::Mirrored);
    let other = Predictor::new(plain.model().clone(), preprocessing(), &cpu()).with_views(Views::MirrorImage);
    let shifted =
        Predictor::new(plain.model().clone(), preprocessing(), &cpu()).with_views(Views::ShiftedMirrored);
    let images = drawn(2);
    let samples: Arc<[Sample]> =
        images.iter().map(|source| Sample { labels: 0.into(), source: source.clone() }).collect();
    let loader = mirrored.loader(samples, 2, 1).unwrap();
    let labeled = mirrored.ask_labeled(Output::Logits, &loader).next().unwrap().unwrap().values;
    for (index, image) in images.iter().enumerate() {
        let [one, flipped, both] =
            [&plain, &other, &mirrored].map(|predictor| alone(predictor, Output::Logits, image));
        let mean: Vec<f32> = one.iter().zip(&flipped).map(|(a, b)| (a + b) / 2.0).collect();
        assert!(is_close(&both, &mean) && !is_close(&one, &flipped), "{one:?} {flipped:?} {both:?}");
        assert!(is_close(&labeled[index * CLASSES..(index + 1) * CLASSES], &mean));
        let [embedding, of_mirrored, of_shifted] =
            [&plain, &mirrored, &shifted].map(|predictor| alone(predictor, Output::Embedding, image));
        assert!(is_close(&embedding, &of_mirrored), "an embedding is that of the image itself");
        assert!(is_close(&embedding, &of_shifted), "whatever the views");
        assert!(!is_close(&embedding, &alone(&other, Output::Embedding, image)), "or of its mirror image");
    }
}

#[test]
fn attention_weights_of_every_block_are_distributions_over_the_tokens() {
    let predictor = predictor();
    let images = Tensor::<4>::random([3, 3, 16, 16], Distribution::Default, &cpu().device);
    let maps = predictor.attention(images.clone());
    assert_eq!(maps.len(), 2, "one per block");
    for map in maps {
        assert_eq!(map.dims(), [3, 2, TOKENS, TOKENS]);
        let values: Vec<f32> = map.into_data().iter::<f32>().collect();
        assert!(values.iter().all(|weight| (0.0..=1.0).contains(weight)));
        for row in values.chunks_exact(TOKENS) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{row:?}");
        }
    }
    let logits = rows(predictor.ask(Output::Logits, images.clone()));
    let (traced, _) = predictor.model().forward_with_weights(images);
    assert!(logits.iter().zip(rows(traced)).all(|(a, b)| is_close(a, &b)), "the same logits on both paths");
}

#[test]
fn memory_limits_the_largest_batch() {
    let predictor = predictor();
    assert_eq!(predictor.check_memory(1).unwrap(), None);
    assert_eq!([0, 1, 64].map(|wanted| predictor.largest_batch(wanted)), [1, 1, 64]);
    let absurd = 1 << 36;
    let message = predictor.check_memory(absurd).unwrap_err().to_string();
    assert!(message.contains("GB"), "{message}");
    let largest = predictor.largest_batch(absurd);
    assert!(largest > 64 && largest < absurd, "{largest}");
    assert_eq!(absurd % largest, 0, "halved until it fits");
}

/// Replaces every parameter by NaN.
struct Break;

impl ModuleMapper for Break {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|values| values.mul_scalar(f32::NAN))
    }
}

#[test]
fn a_model_with_broken_weights_gives_an_error_for_each_image_and_no_prediction() {
    let predictor = Predictor::new(model().map(&mut Break), preprocessing(), &cpu());
    let images = [drawn(2), vec![broken("c.png")]].concat();
    for output in [Output::Logits, Output::Embedding] {
        let answers = predictor.ask_images(output, &images);
        let messages: Vec<String> =
            answers.into_iter().map(|answer| format!("{:#}", answer.unwrap_err())).collect();
        assert_eq!(messages[..2], [NOT_FINITE, NOT_FINITE], "the weights are at fault");
        assert!(messages[2].contains("c.png"), "the file is at fault: {}", messages[2]);
    }
    let samples: Arc<[Sample]> =
        drawn(1).into_iter().map(|source| Sample { labels: 0.into(), source }).collect();
    let loader = predictor.loader(samples, 1, 1).unwrap();
    let answers = predictor.ask_labeled(Output::Logits, &loader).next().unwrap().unwrap();
    assert!(answers.values.iter().all(|value| value.is_nan()), "an evaluation counts them as wrong");
}

/// Entries of a stream, tagged with their numbers.
fn asked(numbers: std::ops::Range<usize>) -> Vec<Asked<usize, ImageSource>> {
    let images = drawn(numbers.end);
    numbers.map(|tag| Asked { tag, value: Ok(images[tag].clone()) }).collect()
}

#[test]
fn a_stream_answers_each_batch_before_a_slow_producer_makes_the_next() {
    let predictor = predictor();
    let (sender, receiver) = channel();
    sender.send(asked(0..2)).unwrap();
    // Each further batch is sent only when the one before is answered. A stream that waited for it would time out.
    let batches = std::iter::from_fn(move || match receiver.recv_timeout(Duration::from_secs(60)) {
        Ok(batch) => Some(batch),
        Err(error) if error.to_string().contains("timed out") => panic!("the stream waits for a batch"),
        Err(_) => None,
    });
    let (mut sender, mut tags) = (Some(sender), Vec::new());
    predictor
        .ask_stream(Output::Logits, batches, &Quiet, |batch| {
            tags.extend(batch.iter().map(|answer| answer.tag));
            let next = tags.len();
            match &sender {
                Some(list) if next < 10 => list.send(asked(next..next + 2)).unwrap(),
                _ => sender = None,
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(tags, (0..10).collect::<Vec<_>>());
}

#[test]
fn the_answers_of_a_stream_do_not_depend_on_its_batches() {
    let predictor = predictor();
    let expected: Vec<Vec<f32>> =
        drawn(23).iter().map(|image| alone(&predictor, Output::Embedding, image)).collect();
    for size in [1, 4, 100] {
        let batches = (0..23).step_by(size).map(move |start| asked(start..(start + size).min(23)));
        let mut answers = Vec::new();
        let collect = |batch: Vec<Asked<usize, Vec<f32>>>| -> Result<()> {
            answers.extend(batch);
            Ok(())
        };
        predictor.ask_stream(Output::Embedding, batches, &Quiet, collect).unwrap();
        assert_eq!(answers.iter().map(|answer| answer.tag).collect::<Vec<_>>(), (0..23).collect::<Vec<_>>());
        for (answer, expected) in answers.iter().zip(&expected) {
            assert!(
                is_close(answer.value.as_ref().unwrap(), expected),
                "{} of batches of {size}",
                answer.tag
            );
        }
    }
}

#[test]
fn a_first_batch_of_errors_does_not_end_a_stream() {
    let predictor = predictor();
    let first = vec![
        Asked { tag: 0, value: Err(anyhow!("not listed")) },
        Asked { tag: 1, value: Ok(broken("broken.png")) },
    ];
    let mut answers = Vec::new();
    predictor
        .ask_stream(Output::Logits, [first, asked(2..4)].into_iter(), &Quiet, |batch| {
            answers.extend(batch);
            Ok(())
        })
        .unwrap();
    let outcomes: Vec<(usize, bool)> =
        answers.iter().map(|answer| (answer.tag, answer.value.is_ok())).collect();
    assert_eq!(outcomes, [(0, false), (1, false), (2, true), (3, true)]);
    assert_eq!(answers[0].value.as_ref().unwrap_err().to_string(), "not listed");
    assert!(format!("{:#}", answers[1].value.as_ref().unwrap_err()).contains("broken.png"));
}

#[test]
fn a_receiver_that_refuses_the_first_batch_is_asked_for_no_second() {
    let predictor = predictor();
    let made = Arc::new(AtomicUsize::new(0));
    let counter = made.clone();
    let batches = (0..).map(move |number| {
        counter.fetch_add(1, Ordering::Relaxed);
        asked(number..number + 1)
    });
    let refused = predictor.ask_stream(Output::Logits, batches, &Quiet, |_| bail!("nobody reads it"));
    assert_eq!(refused.unwrap_err().to_string(), "nobody reads it");
    assert_eq!(made.load(Ordering::Relaxed), 1);
    let none = std::iter::empty::<Vec<Asked<usize, ImageSource>>>();
    predictor.ask_stream(Output::Logits, none, &Quiet, |_| bail!("there is nothing to handle")).unwrap();
}

#[test]
fn classes_are_ranked_by_probabilities_that_sum_to_one_however_large_the_logits_are() {
    let card = ModelCard::new(config(), ["a", "b", "c"].map(str::to_owned).to_vec(), preprocessing());
    // Without the largest logit subtracted, exp(1e4) would overflow.
    for shift in [0.0, 1e4, -1e4] {
        let logits = [2.0f32.ln(), 5.0f32.ln(), 3.0f32.ln()].map(|logit| logit + shift);
        let ranked = rank(&card, &logits, 3);
        let found: Vec<(&str, usize)> =
            ranked.iter().map(|class| (class.label.as_str(), class.index)).collect();
        assert_eq!(found, [("b", 1), ("c", 2), ("a", 0)], "shifted by {shift}");
        for (class, expected) in ranked.iter().zip([0.5, 0.3, 0.2]) {
            // A float32 near 1e4 is known to within 1e-3.
            assert!((class.probability - expected).abs() < 1e-3, "{class:?}");
        }
        assert!((ranked.iter().map(|class| class.probability).sum::<f64>() - 1.0).abs() < 1e-12);
    }
    assert_eq!(rank(&card, &[1.0, 1.0, 0.0], 2).iter().map(|class| class.index).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(rank(&card, &[0.0; 3], 10).len(), 3);
}
