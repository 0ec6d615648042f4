//! Tests of the augmentation of single images, and of the keys and ranges of its settings.

use rand::SeedableRng;

use super::*;
use crate::ResizeRule;

fn test_image(width: u32, height: u32, channels: u8) -> Image {
    let pixels = (0..width * height * u32::from(channels)).map(|i| (i * 37 % 251) as u8).collect();
    Image { width, height, channels, pixels }
}

fn run(augmentation: &Augmentation, image: &Image, size: [usize; 2], seed: u64) -> Image {
    run_with(augmentation, image, size, ResizeRule::Squash, seed)
}

fn run_with(
    augmentation: &Augmentation,
    image: &Image,
    image_size: [usize; 2],
    resize: ResizeRule,
    seed: u64,
) -> Image {
    let channels = usize::from(image.channels);
    let preprocessing = Preprocessing {
        image_size,
        channels,
        resize,
        interpolation: Interpolation::Bicubic,
        mean: vec![0.5; channels],
        std: vec![0.25; channels],
        crop_rounding: Default::default(),
    };
    augmentation.apply(image, &preprocessing, &mut ChaCha8Rng::seed_from_u64(seed))
}

fn everything() -> Augmentation {
    let crop = Crop::Resized { scale: [0.3, 1.0], ratio: [0.75, 4.0 / 3.0] };
    let first = Augmentation { crop, horizontal_flip: 0.5, rotation: 15.0, ..Augmentation::none() };
    first.with_jitter(0.4).strong()
}

#[test]
fn strength_zero_changes_nothing() {
    let none = Augmentation::none();
    assert_eq!(none, Augmentation::default());
    for image in [test_image(20, 16, 3), test_image(20, 16, 1)] {
        assert_eq!(run(&none, &image, [16, 20], 1), image);
        let tiny = Augmentation { rotation: 1e-9, ..none.clone() }.with_jitter(1e-9);
        assert_eq!(run(&tiny, &image, [16, 20], 1), image);
    }
}

/// Finds keys without effect and numbers without a range. A new key must be added to `strong`.
#[test]
fn every_key_has_an_effect_and_a_range() {
    let strong = serde_json::json!({
        "crop": { "pad": { "pixels": 3 } }, "horizontal_flip": 1.0, "rotation": 90.0, "brightness": 0.5,
        "contrast": 0.5, "saturation": 0.5, "hue": 0.5, "auto_augment": "cifar10", "trivial_augment": true,
        "rand_augment": { "layers": 4, "magnitude": 9.0, "magnitude_std": 0.0 }, "alternate_flips": true,
        "repeats": 3, "random_erasing": 1.0, "mixup": 1.0, "cutmix": 1.0, "mix_probability": 0.5,
        "mix_mode": "pair", "mix_until": 0.5,
    });
    let batch_keys =
        ["repeats", "random_erasing", "mixup", "cutmix", "mix_probability", "mix_mode", "mix_until"];
    let plain = serde_json::to_value(Augmentation::none()).unwrap();
    let read = |value: serde_json::Value| serde_json::from_value::<Augmentation>(value);
    for key in plain.as_object().unwrap().keys() {
        let mut with = plain.clone();
        with[key] = strong[key].clone();
        if key.starts_with("mix_") {
            with["mixup"] = serde_json::json!(1.0);
        }
        if key == "alternate_flips" {
            with["horizontal_flip"] = serde_json::json!(0.5);
        }
        let augmentation = read(with.clone()).unwrap();
        augmentation.validate().unwrap();
        let image = test_image(24, 16, 3);
        let changed = (0..20).any(|seed| {
            let mut changed = run(&augmentation, &image, [16, 24], seed);
            augmentation.alternate(&mut changed, 0, &mut ChaCha8Rng::seed_from_u64(seed));
            changed != image
        });
        assert_eq!(changed, !batch_keys.contains(&key.as_str()), "{key}");
        if with[key].is_number() {
            with[key] = if key == "repeats" { serde_json::json!(99) } else { serde_json::json!(1e9) };
            let error = read(with).unwrap().validate().unwrap_err().to_string();
            assert!(error.contains(key.as_str()), "{error}");
        }
    }
}

#[test]
fn equal_generators_give_equal_images_of_the_requested_size() {
    for (width, height, channels) in [(50, 31, 3), (1, 1, 3), (200, 3, 1), (24, 32, 1)] {
        let image = test_image(width, height, channels);
        for crop in [
            everything().crop,
            Crop::None,
            Crop::Pad { pixels: 4, reflect: true },
            Crop::Pad { pixels: u32::MAX, reflect: false },
        ] {
            let augmentation = Augmentation { crop, ..everything() };
            for seed in 0..40 {
                let result = run(&augmentation, &image, [32, 24], seed);
                assert_eq!((result.height, result.width, result.channels), (32, 24, channels));
                assert_eq!(result.pixels.len(), 32 * 24 * usize::from(channels));
                assert_eq!(result, run(&augmentation, &image, [32, 24], seed));
            }
        }
    }
    let image = test_image(32, 32, 3);
    assert_ne!(run(&everything(), &image, [32, 32], 1), run(&everything(), &image, [32, 32], 2));
}

/// In a white image of 4:1, padding shows as gray; in one whose pixels count columns, the width of the crop can be read
/// off.
#[test]
fn random_crops_are_squashed_or_padded_as_in_evaluation() {
    let white = Image { width: 128, height: 32, channels: 1, pixels: vec![255; 128 * 32] };
    let crop = Crop::Resized { scale: [0.5, 0.5], ratio: [1.0, 1.0] };
    let augmentation = Augmentation { crop, ..Augmentation::none() };
    for seed in 0..20 {
        let seen = |resize| run_with(&augmentation, &white, [32, 32], resize, seed);
        assert!(seen(ResizeRule::Squash).pixels.iter().all(|&pixel| pixel == 255));
        let padded = seen(ResizeRule::Letterbox);
        let rows: Vec<bool> =
            padded.pixels.chunks(32).map(|row| row.iter().all(|&pixel| pixel == 255)).collect();
        assert_eq!(rows.iter().filter(|&&is_image| is_image).count(), 8, "the aspect ratio stays 4:1");
        assert!(rows[12..20].iter().all(|&is_image| is_image) && padded.pixels[0] == 128);
    }
    // The value of each pixel is its column. Half of the area of a 4:1 image is 91 of 128 columns if it is squashed. A
    // square crop has the full height, and so 32 columns.
    let pixels = (0..32).flat_map(|_| 0..128).collect();
    let counting = Image { width: 128, height: 32, channels: 1, pixels };
    let span = |resize| {
        let image = run_with(&augmentation, &counting, [32, 32], resize, 1);
        i32::from(image.pixels[31]) - i32::from(image.pixels[0])
    };
    assert!((82..=92).contains(&span(ResizeRule::Squash)));
    assert!((28..=33).contains(&span(ResizeRule::ShorterSide { crop: 1.0 })));
}

/// The value of each pixel is its column, so that the width of the crop can be read off.
#[test]
fn random_crops_have_the_shape_of_an_input_that_is_not_square() {
    let pixels = (0..32).flat_map(|_| 0..128).collect();
    let counting = Image { width: 128, height: 32, channels: 1, pixels };
    let crop = Crop::Resized { scale: [0.25, 0.25], ratio: [1.0, 1.0] };
    let augmentation = Augmentation { crop, ..Augmentation::none() };
    for seed in 0..20 {
        let seen = run_with(&augmentation, &counting, [16, 64], ResizeRule::ShorterSide { crop: 1.0 }, seed);
        let columns: Vec<u8> = (0..64).map(|column| seen.pixels[0] + column).collect();
        assert_eq!(seen.pixels, columns.repeat(16), "a quarter of the image, at its own scale");
    }
}

#[test]
fn images_are_mirrored_with_the_given_probability() {
    let image = test_image(8, 8, 3);
    let half = Augmentation { horizontal_flip: 0.5, ..Augmentation::none() };
    let mirrored = (0..400).filter(|&seed| run(&half, &image, [8, 8], seed) != image).count();
    assert!((160..240).contains(&mirrored), "{mirrored}");
    let always = Augmentation { horizontal_flip: 1.0, ..half };
    let once = run(&always, &image, [8, 8], 0);
    assert_eq!(run(&always, &once, [8, 8], 1), image);
}

#[test]
fn all_shifts_of_a_padded_crop_are_equally_likely() {
    let image = Image { width: 1, height: 1, channels: 1, pixels: vec![200] };
    let pad = Augmentation { crop: Crop::Pad { pixels: 1, reflect: false }, ..Augmentation::none() };
    let kept = (0..900).filter(|&seed| run(&pad, &image, [1, 1], seed) == image).count();
    assert!((70..130).contains(&kept), "one of nine shifts keeps the pixel in place: {kept} of 900");
}

#[test]
fn saturation_and_hue_do_not_change_gray_images() {
    let image = test_image(9, 9, 1);
    let color = Augmentation { saturation: 0.9, hue: 0.5, ..Augmentation::none() };
    assert_eq!(run(&color, &image, [9, 9], 3), image);
}

/// Checks that each augmentation is invalid with a message that contains the two words.
fn assert_errors(cases: &[(&str, &str, Augmentation)]) {
    for (key, value, invalid) in cases {
        let message = invalid.validate().unwrap_err().to_string();
        assert!(message.contains(key) && message.contains(value) && message.contains("needed"), "{message}");
    }
}

#[test]
fn numbers_out_of_range_are_named_with_their_range() {
    let none = Augmentation::none;
    let resized = |scale, ratio| Augmentation { crop: Crop::Resized { scale, ratio }, ..none() };
    let layers = |layers, magnitude, magnitude_std| Augmentation {
        rand_augment: Some(RandAugment { layers, magnitude, magnitude_std }),
        ..none()
    };
    assert_errors(&[
        ("horizontal_flip", "1.5", Augmentation { horizontal_flip: 1.5, ..none() }),
        ("rotation", "181", Augmentation { rotation: 181.0, ..none() }),
        ("brightness", "-0.1", Augmentation { brightness: -0.1, ..none() }),
        ("contrast", "inf", Augmentation { contrast: f64::INFINITY, ..none() }),
        ("saturation", "NaN", Augmentation { saturation: f64::NAN, ..none() }),
        ("hue", "0.6", Augmentation { hue: 0.6, ..none() }),
        ("random_erasing", "2", Augmentation { random_erasing: 2.0, ..none() }),
        ("mixup", "-1", Augmentation { mixup: -1.0, ..none() }),
        ("cutmix", "-1", Augmentation { cutmix: -1.0, ..none() }),
        ("mix_probability", "1.1", Augmentation { mix_probability: 1.1, ..none() }),
        ("repeats", "0", Augmentation { repeats: 0, ..none() }),
        ("scale", "[0.0", resized([0.0, 1.0], [1.0, 1.0])),
        ("scale", "[0.5, 0.4]", resized([0.5, 0.4], [1.0, 1.0])),
        ("scale", "[0.5, 1.5]", resized([0.5, 1.5], [1.0, 1.0])),
        ("ratio", "[2.0, 1.0]", resized([0.5, 1.0], [2.0, 1.0])),
        ("rand_augment.layers", "17", layers(17, 9.0, 0.5)),
        ("rand_augment.magnitude", "11", layers(2, 11.0, 0.5)),
        ("rand_augment.magnitude_std", "-1", layers(2, 9.0, -1.0)),
    ]);
    assert_eq!(everything().validate(), Ok(()));
}

#[test]
fn values_without_effect_and_contradictions_are_named() {
    let none = Augmentation::none;
    let (crop, rand_augment) =
        (Crop::Pad { pixels: 0, reflect: false }, RandAugment { layers: 0, ..RandAugment::default() });
    let auto_augment = Some(AutoAugment::Cifar10);
    assert_errors(&[
        ("no effect without", "0.5", Augmentation { mix_probability: 0.5, ..none() }),
        ("no effect otherwise", "0.0", Augmentation { mix_probability: 0.0, ..none().strong() }),
        ("mix_until", "0.9", Augmentation { mix_until: 0.9, ..none() }),
        ("mix_until", "0.0", Augmentation { mix_until: 0.0, ..none().strong() }),
        ("mix_mode", "Elem", Augmentation { mix_mode: MixMode::Elem, ..none() }),
        ("alternate_flips", "true", Augmentation { alternate_flips: true, ..none() }),
        ("crop.pad.pixels", "no effect", Augmentation { crop, ..none() }),
        ("rand_augment.layers", "no effect", Augmentation { rand_augment: Some(rand_augment), ..none() }),
        ("only one of", "true", Augmentation { trivial_augment: true, ..none().strong() }),
        ("auto_augment", "cifar10", Augmentation { auto_augment, trivial_augment: true, ..none() }),
    ]);
}

#[test]
fn alternating_flips_mirror_each_image_in_every_second_epoch() {
    let alternating = Augmentation { horizontal_flip: 0.5, alternate_flips: true, ..Augmentation::none() };
    let image = test_image(6, 4, 3);
    let mut mirrored = image.clone();
    geometry::mirror(&mut mirrored);
    let mut first_epoch = 0;
    for seed in 0..200 {
        let is_mirrored = |epoch| {
            let mut seen = run(&alternating, &image, [4, 6], seed);
            alternating.alternate(&mut seen, epoch, &mut ChaCha8Rng::seed_from_u64(seed));
            assert!(seen == image || seen == mirrored);
            seen == mirrored
        };
        let epochs = [0, 1, 2, 3].map(is_mirrored);
        assert!(epochs.windows(2).all(|pair| pair[0] != pair[1]), "{epochs:?}");
        first_epoch += usize::from(epochs[0]);
    }
    assert!((70..130).contains(&first_epoch), "{first_epoch}");
}

#[test]
fn settings_survive_serialization() {
    let text = serde_json::to_string(&everything()).unwrap();
    assert_eq!(serde_json::from_str::<Augmentation>(&text).unwrap(), everything());
    let read = serde_json::from_str::<Augmentation>(r#"{"crop": {"pad": {"pixels": 4}}}"#).unwrap();
    let crop = Crop::Pad { pixels: 4, reflect: false };
    assert_eq!(read, Augmentation { crop, ..Augmentation::none() });
    assert!(serde_json::from_str::<Augmentation>(r#"{"flips": 1}"#).is_err());
}
