//! Tests of batches: order, reproducibility, targets, and unreadable samples.

use super::*;
use crate::{Augmentation, Crop, ImageSource, Interpolation, Labels, Preprocessing, ResizeRule};

/// `count` gray images of 8 by 8 pixels in 3 classes. The data of those at the indices `broken` are incomplete.
fn samples(count: usize, broken: &[usize]) -> Arc<[Sample]> {
    let buffer: Arc<[u8]> = (0..count * 64).map(|i| (i * 31 % 256) as u8).collect();
    (0..count)
        .map(|index| Sample {
            labels: (index % 3).into(),
            source: ImageSource::Raw {
                name: format!("image {index}"),
                buffer: Arc::clone(&buffer),
                offset: if broken.contains(&index) { buffer.len() - 10 } else { index * 64 },
                width: 8,
                height: 8,
                channels: 1,
            },
        })
        .collect()
}

/// The class of each sample of a batch.
fn labels_of(batch: &Batch) -> Vec<usize> {
    batch.labels.iter().map(|labels| labels.only().unwrap()).collect()
}

fn config(threads: usize) -> LoaderConfig {
    let preprocessing = Preprocessing {
        image_size: [8, 8],
        channels: 3,
        resize: ResizeRule::Squash,
        interpolation: Interpolation::Bicubic,
        mean: vec![0.5; 3],
        std: vec![0.25; 3],
        crop_rounding: Default::default(),
    };
    LoaderConfig {
        batch_size: 4,
        seed: 5,
        threads,
        augmentation: Some(Augmentation {
            crop: Crop::Pad { pixels: 2, reflect: false },
            horizontal_flip: 0.5,
            random_erasing: 0.5,
            mixup: 0.8,
            cutmix: 1.0,
            ..Augmentation::none().with_jitter(0.3)
        }),
        label_smoothing: 0.1,
        ..LoaderConfig::evaluation(&preprocessing, 3)
    }
}

fn epoch(loader: &Loader, epoch: usize, first: usize) -> Vec<Batch> {
    loader.epoch(epoch, first).map(Result::unwrap).collect()
}

#[test]
fn batches_depend_on_seed_and_epoch_and_not_on_threads_or_cache() {
    let loader = |threads, cache_bytes| {
        Loader::new(samples(18, &[]), LoaderConfig { cache_bytes, ..config(threads) }).unwrap()
    };
    let first = epoch(&loader(1, 0), 3, 0);
    assert_eq!(first.iter().map(|batch| batch.size).collect::<Vec<_>>(), [4, 4, 4, 4, 2]);
    let shared = loader(4, 1 << 20);
    assert_eq!(first, epoch(&shared, 3, 0));
    assert_eq!(first, epoch(&shared, 3, 0), "the second time from the cache");
    assert_ne!(first, epoch(&shared, 4, 0));
    let mut indices: Vec<usize> = first.iter().flat_map(|batch| batch.indices.clone()).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..18).collect::<Vec<_>>(), "every sample once");
}

#[test]
fn a_resumed_epoch_continues_with_the_same_batches() {
    let loader = Loader::new(samples(18, &[]), config(2)).unwrap();
    assert_eq!(epoch(&loader, 1, 0)[3..], epoch(&loader, 1, 3));
}

#[test]
fn a_balanced_epoch_can_be_resumed_and_augments_every_draw_differently() {
    let labels = [vec![0; 30], vec![1; 4]].concat();
    let samples: Arc<[Sample]> = samples(34, &[])
        .iter()
        .zip(&labels)
        .map(|(sample, &label)| Sample { labels: usize::into(label), ..sample.clone() })
        .collect();
    let plain = Augmentation { mixup: 0.0, cutmix: 0.0, ..config(1).augmentation.unwrap() };
    let loader = |threads| {
        let balanced =
            LoaderConfig { balanced_sampling: true, augmentation: Some(plain.clone()), ..config(threads) };
        Loader::new(Arc::clone(&samples), balanced).unwrap()
    };
    let batches = epoch(&loader(1), 2, 0);
    assert_eq!(batches.len(), loader(1).batches());
    assert_eq!(batches, epoch(&loader(3), 2, 0));
    for first in [1, 5, 8] {
        assert_eq!(batches[first..], epoch(&loader(2), 2, first));
    }
    let drawn: Vec<usize> = batches.iter().flat_map(labels_of).collect();
    assert_eq!(drawn.iter().filter(|&&label| label == 1).count(), 17);
    // The four images of the small class are drawn at least four times each and augmented differently each time.
    let views = |index: usize| -> Vec<Vec<f32>> {
        batches
            .iter()
            .flat_map(|batch| batch.indices.iter().zip(batch.images.chunks(192)))
            .filter(|(of, _)| **of == index)
            .map(|(_, values)| values.to_vec())
            .collect()
    };
    for index in 30..34 {
        let views = views(index);
        assert!(views.len() >= 4);
        assert!((1..views.len()).all(|other| views[other] != views[0]), "image {index}");
    }
    let (first, again) = (loader(1).in_order().next(), loader(1).in_order().next());
    assert_eq!(first.unwrap().unwrap().indices, [0, 1, 2, 3], "evaluation ignores balanced sampling");
    assert!(again.is_some());
}

#[test]
fn class_weights_multiply_the_targets_of_an_image() {
    let weights = vec![0.5, 1.0, 4.0];
    let loader = |augmentation, class_weights| {
        let config = LoaderConfig { augmentation: Some(augmentation), class_weights, ..config(2) };
        Loader::new(samples(18, &[]), config).unwrap()
    };
    // Without mixing, a row is the smoothed target times the weight of the label.
    let weighted = loader(Augmentation::none(), Some(weights.clone()));
    for batch in epoch(&weighted, 0, 0) {
        for (row, label) in batch.targets.chunks(3).zip(labels_of(&batch)) {
            for (class, target) in row.iter().enumerate() {
                let smoothed = 0.1 / 3.0 + if class == label { 0.9 } else { 0.0 };
                assert!((target - smoothed * weights[label]).abs() < 1e-5, "{row:?} of {label}");
            }
        }
    }
    let measured = weighted.in_order().map(Result::unwrap).flat_map(|batch| batch.targets);
    assert!((measured.sum::<f32>() - 18.0).abs() < 1e-4, "evaluation ignores class weights");
    // With mixing, a row is the mixed target times the mean of its classes' weights, weighted by their shares.
    let mixing = Augmentation { mixup: 1.0, cutmix: 1.0, ..Augmentation::none() };
    let (plain, weighted) = (loader(mixing.clone(), None), loader(mixing, Some(weights.clone())));
    let mut mixed = 0;
    for (plain, weighted) in epoch(&plain, 0, 0).into_iter().zip(epoch(&weighted, 0, 0)) {
        assert_eq!(plain.images, weighted.images);
        for (row, scaled) in plain.targets.chunks(3).zip(weighted.targets.chunks(3)) {
            let shares = row.iter().map(|target| (target - 0.1 / 3.0) / 0.9);
            mixed += usize::from(shares.clone().filter(|share| *share > 0.01).count() > 1);
            let weight: f32 = shares.zip(&weights).map(|(share, weight)| share * weight).sum();
            for (target, scaled) in row.iter().zip(scaled) {
                assert!((target * weight - scaled).abs() < 1e-5, "{row:?} {scaled}");
            }
        }
    }
    assert!(mixed > 5, "{mixed}");
}

#[test]
fn unreadable_samples_are_left_out_and_listed_once() {
    let loader = Loader::new(samples(9, &[0, 5]), config(2)).unwrap();
    let batches = epoch(&loader, 0, 0);
    assert_eq!(batches.len(), loader.batches());
    assert_eq!(batches.iter().map(|batch| batch.size).sum::<usize>(), 7);
    let mut names: Vec<String> =
        batches.iter().flat_map(|batch| batch.skipped.iter().map(|bad| bad.name.clone())).collect();
    names.sort();
    assert_eq!(names, ["image 0", "image 5"]);
    // The values of the readable samples are the same as without unreadable ones.
    let whole = Loader::new(samples(9, &[]), config(2)).unwrap();
    let value = |loader: &Loader, index: usize| {
        let batch =
            loader.in_order().map(Result::unwrap).find(|batch| batch.indices.contains(&index)).unwrap();
        let place = batch.indices.iter().position(|&i| i == index).unwrap();
        batch.images[place * 192..(place + 1) * 192].to_vec()
    };
    for index in [1, 2, 4, 8] {
        assert_eq!(value(&loader, index), value(&whole, index));
    }
}

#[test]
fn evaluation_normalizes_without_augmentation_and_in_order() {
    let loader = Loader::new(samples(6, &[]), LoaderConfig { label_smoothing: 0.0, ..config(2) }).unwrap();
    let batches: Vec<Batch> = loader.in_order().map(Result::unwrap).collect();
    assert_eq!(batches[1].indices, [4, 5]);
    assert_eq!(batches[0].targets[..6], [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    assert_eq!(batches[0].images[1], (31.0 / 255.0 - 0.5) / 0.25);
}

#[test]
fn targets_are_smoothed_and_sum_to_one() {
    let loader = Loader::new(samples(5, &[]), config(1)).unwrap();
    for batch in loader.epoch(0, 0).map(Result::unwrap) {
        for row in batch.targets.chunks(3) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{row:?}");
            assert!(row.iter().all(|&share| share >= 0.1 / 3.0 - 1e-6));
        }
    }
}

/// The index and the pixels of the sample at a position in a batch: the first channel, with the normalization undone.
fn pixels(batch: &Batch, place: usize) -> (usize, Vec<u8>) {
    let values = &batch.images[place * 192..place * 192 + 64];
    (batch.indices[place], values.iter().map(|value| ((value * 0.25 + 0.5) * 255.0).round() as u8).collect())
}

#[test]
fn flips_alternate_between_epochs() {
    let augmentation = Augmentation { horizontal_flip: 0.5, alternate_flips: true, ..Augmentation::none() };
    let config = LoaderConfig { augmentation: Some(augmentation), ..config(2) };
    let loader = Loader::new(samples(18, &[]), config).unwrap();
    let plain: Vec<Vec<u8>> = loader
        .in_order()
        .map(Result::unwrap)
        .flat_map(|batch| (0..batch.size).map(|place| pixels(&batch, place).1).collect::<Vec<_>>())
        .collect();
    let mirrored = |number| -> Vec<bool> {
        let mut mirrored = vec![false; 18];
        for batch in epoch(&loader, number, 0) {
            for (index, seen) in (0..batch.size).map(|place| pixels(&batch, place)) {
                mirrored[index] = seen != plain[index];
            }
        }
        mirrored
    };
    let epochs = [0, 1, 2, 3].map(mirrored);
    for pair in epochs.windows(2) {
        assert!(pair[0].iter().zip(&pair[1]).all(|(now, then)| now != then), "{epochs:?}");
    }
    assert!(epochs[0].contains(&true) && epochs[0].contains(&false));
}

#[test]
fn repeated_images_share_a_batch_and_are_augmented_differently() {
    let mut config = config(2);
    let augmentation =
        Augmentation { repeats: 3, crop: Crop::Pad { pixels: 4, reflect: false }, ..Augmentation::none() };
    (config.batch_size, config.augmentation) = (6, Some(augmentation));
    let loader = Loader::new(samples(18, &[]), config.clone()).unwrap();
    let batches = epoch(&loader, 2, 0);
    assert_eq!(batches.iter().map(|batch| batch.size).collect::<Vec<_>>(), [6, 6, 6]);
    let mut differing = 0;
    for batch in &batches {
        let seen: Vec<_> = (0..6).map(|place| pixels(batch, place)).collect();
        for group in seen.chunks(3) {
            assert!(group.iter().all(|(index, _)| *index == group[0].0));
            differing += usize::from(group[0].1 != group[1].1 && group[1].1 != group[2].1);
        }
        assert_ne!(seen[0].0, seen[3].0);
    }
    assert!(differing >= 5, "{differing} of 6");
    assert_eq!(batches, epoch(&Loader::new(samples(18, &[]), config.clone()).unwrap(), 2, 0));
    assert_eq!(batches[2..], epoch(&loader, 2, 2));
    let broken = Loader::new(samples(18, &[batches[1].indices[0]]), config).unwrap();
    let skipped: usize = epoch(&broken, 2, 0).iter().map(|batch| batch.skipped.len()).sum();
    assert_eq!(skipped, 1, "an unreadable image counts once");
}

#[test]
fn only_the_first_batches_of_an_epoch_are_mixed() {
    let loader = Loader::new(samples(18, &[]), config(2)).unwrap();
    let whole = epoch(&loader, 0, 0);
    let part: Vec<Batch> = loader.epoch_mixing(0, 1, 3).map(Result::unwrap).collect();
    assert_eq!(part[..2], whole[1..3]);
    for batch in &part[2..] {
        for (row, label) in batch.targets.chunks(3).zip(labels_of(batch)) {
            assert!((row[label] - (0.9 + 0.1 / 3.0)).abs() < 1e-6, "{row:?}");
        }
    }
    let pure =
        |batch: &Batch| batch.targets.chunks(3).zip(labels_of(batch)).all(|(row, label)| row[label] > 0.93);
    assert!(!whole.iter().all(pure), "all batches are mixed in a whole epoch");
}

#[test]
fn a_part_has_its_samples_in_their_order_without_augmentation() {
    let part = |loader: Loader| -> Vec<Batch> { loader.part(vec![7, 2, 9]).map(Result::unwrap).collect() };
    let augmented = part(Loader::new(samples(10, &[]), config(2)).unwrap());
    assert_eq!(augmented[0].indices, [7, 2, 9]);
    let plain = LoaderConfig { augmentation: None, ..config(2) };
    assert_eq!(augmented, part(Loader::new(samples(10, &[]), plain).unwrap()));
}

#[test]
fn large_images_are_kept_small_and_give_the_same_batches_from_the_cache() {
    let samples: Arc<[Sample]> = (0..6u8)
        .map(|shade| {
            let pixel = |x: u32, y: u32| image::Rgb([(x * 5 + y) as u8, (y * 3) as u8, shade * 40]);
            let mut bytes = std::io::Cursor::new(Vec::new());
            image::RgbImage::from_fn(70, 50, pixel).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
            let source =
                ImageSource::Encoded { name: format!("{shade}.png"), bytes: bytes.into_inner().into() };
            Sample { labels: usize::from(shade % 3).into(), source }
        })
        .collect();
    let loader = |cache_bytes, reduce_to, is_training: bool| {
        let augmentation = config(1).augmentation.filter(|_| is_training);
        let settings = LoaderConfig { cache_bytes, reduce_to, augmentation, hash_pixels: true, ..config(2) };
        Loader::new(Arc::clone(&samples), settings).unwrap()
    };
    let reduced = epoch(&loader(0, Some(16), true), 0, 0);
    // Six images of 23 by 16 pixels; as they are in the files, not one would fit.
    let cached = loader(6 * 23 * 16 * 3, Some(16), true);
    for _ in 0..2 {
        assert_eq!(epoch(&cached, 0, 0), reduced);
    }
    let whole = epoch(&loader(0, None, true), 0, 0);
    assert_ne!(whole, reduced);
    let keys = |batches: &[Batch]| -> Vec<u64> {
        batches.iter().flat_map(|batch| batch.pixel_keys.clone()).collect()
    };
    assert_eq!(keys(&whole), keys(&reduced), "the hashes of the pixels in the file");

    let in_order = |loader: &Loader| -> Vec<Batch> { loader.in_order().map(Result::unwrap).collect() };
    let exact = in_order(&loader(0, None, false));
    assert_eq!(in_order(&loader(0, Some(16), false)), exact, "evaluation sees every pixel");
    // Six images in the size of the model's input.
    let cached = loader(6 * 8 * 8 * 3, None, false);
    for _ in 0..2 {
        assert_eq!(in_order(&cached), exact);
    }
    let without_keys =
        cached.reconfigured(LoaderConfig { hash_pixels: false, ..cached.config().clone() }).unwrap();
    assert!(in_order(&without_keys).iter().all(|batch| batch.pixel_keys.is_empty()));
}

/// A PNG file of 9 by 7 pixels that depend on `shade`, with or without a text chunk.
fn png(shade: u8, has_text: bool) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    let image = image::RgbImage::from_fn(9, 7, |x, y| image::Rgb([x as u8, y as u8, shade]));
    image.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    let mut bytes = bytes.into_inner();
    if has_text {
        // A text chunk is inserted after the signature and the header.
        let chunk = [&7u32.to_be_bytes()[..], b"tEXtkey\0abc", &0x5350_bce5u32.to_be_bytes()].concat();
        bytes.splice(33..33, chunk);
    }
    bytes
}

#[test]
fn pixel_keys_are_equal_for_equal_pixels_in_different_files() {
    let files = [png(1, false), png(2, false), png(1, true), b"broken".to_vec(), png(2, true), png(3, false)];
    assert_ne!(files[0], files[2]);
    let samples: Arc<[Sample]> = files
        .iter()
        .map(|bytes| {
            let source = ImageSource::Encoded { name: "a.png".to_owned(), bytes: bytes[..].into() };
            Sample { labels: 0.into(), source }
        })
        .collect();
    let keys = |threads, cache_bytes, hash_pixels| -> Vec<(usize, Option<u64>)> {
        let config = LoaderConfig { cache_bytes, hash_pixels, ..config(threads) };
        let loader = Loader::new(Arc::clone(&samples), config).unwrap();
        let batches: Vec<Batch> = (0..2).flat_map(|number| epoch(&loader, number, 0)).collect();
        let keys = |batch: Batch| {
            let keys = batch.pixel_keys.into_iter().map(Some).chain(std::iter::repeat(None));
            batch.indices.into_iter().zip(keys).collect::<Vec<_>>()
        };
        batches.into_iter().flat_map(keys).collect()
    };
    let found = keys(1, 0, true);
    assert_eq!(found.len(), 10);
    let key = |index| found.iter().find(|(of, _)| *of == index).unwrap().1.unwrap();
    assert!(
        found.iter().all(|(index, found)| *found == Some(key(*index))),
        "keys are the same in each epoch"
    );
    assert_eq!((key(0), key(1)), (key(2), key(4)));
    assert!(key(0) != key(1) && key(1) != key(5) && key(5) != key(0));
    assert_eq!(found, keys(3, 1 << 20, true));
    assert!(keys(2, 0, false).iter().all(|(_, key)| key.is_none()), "keys are computed only on request");
}

#[test]
fn dropping_unfinished_batches_ends_their_thread() {
    let loader = Loader::new(samples(4000, &[]), config(2)).unwrap();
    let mut batches = loader.epoch(0, 0);
    assert!(batches.next().is_some());
    drop(batches);
    drop(loader);
}

#[test]
fn targets_of_several_labels_are_smoothed_towards_one_half() {
    let all: Arc<[Sample]> = samples(4, &[])
        .iter()
        .zip([vec![0, 2], vec![], vec![1], vec![0, 1, 2]])
        .map(|(sample, labels)| Sample { labels: Labels::new(labels), ..sample.clone() })
        .collect();
    let config = LoaderConfig { multi_label: true, augmentation: Some(Augmentation::none()), ..config(1) };
    let batch = Loader::new(all, config).unwrap().in_order().next().unwrap().unwrap();
    for (row, labels) in batch.targets.chunks(3).zip(&batch.labels) {
        for (class, target) in row.iter().enumerate() {
            let expected = if labels.contains(&class) { 0.95 } else { 0.05 };
            assert!((target - expected).abs() < 1e-6, "{row:?} of {labels:?}");
        }
    }
}

#[test]
#[should_panic(expected = "one label a sample")]
fn balanced_sampling_needs_one_label_a_sample() {
    let config = LoaderConfig { multi_label: true, balanced_sampling: true, ..config(1) };
    let _ = Loader::new(samples(4, &[]), config);
}
