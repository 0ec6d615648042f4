//! Tests of preprocessing: values, sizes, crops, and padding as in timm.

use std::path::Path;

use safetensors::SafeTensors;

use super::*;
use crate::transform::resize::most_pixels;
use crate::{DecodeLimits, ImageSource};

fn preprocessing(size: usize, resize: ResizeRule, interpolation: Interpolation) -> Preprocessing {
    Preprocessing {
        image_size: [size, size],
        channels: 3,
        resize,
        interpolation,
        mean: vec![0.485, 0.456, 0.406],
        std: vec![0.229, 0.224, 0.225],
        crop_rounding: CropRounding::default(),
    }
}

fn test_image(width: u32, height: u32) -> Image {
    let pixels = (0..width * height * 3).map(|i| (i * 37 % 251) as u8).collect();
    Image { width, height, channels: 3, pixels }
}

/// Compares with the results of timm's evaluation transform in `tests/fixtures/preprocess`.
#[test]
fn preprocessed_images_agree_with_timm() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/preprocess");
    let bytes = std::fs::read(folder.join("io.safetensors")).unwrap();
    let cases = SafeTensors::deserialize(&bytes).unwrap();
    for (name, view) in cases.iter() {
        let parts: Vec<&str> = name.splitn(3, '.').collect();
        let file = folder.join(format!("{}.png", parts[0]));
        let interpolation =
            if parts[1] == "bicubic" { Interpolation::Bicubic } else { Interpolation::Bilinear };
        let crop: f64 = parts[2].trim_start_matches("crop").parse().unwrap();
        let ours = preprocessing(64, ResizeRule::ShorterSide { crop }, interpolation);
        let values = ours.apply(&ImageSource::File(file).decode(&DecodeLimits::default()).unwrap());
        let theirs: Vec<f32> =
            view.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(values.len(), theirs.len());
        for (index, (a, b)) in values.iter().zip(&theirs).enumerate() {
            let gap = (a - b).abs() * ours.std[index / (64 * 64)] * 255.0;
            assert!(gap < 1.01, "{name}[{index}]: {gap} of 255 levels");
        }
    }
    assert_eq!(cases.len(), 8);
}

#[test]
fn images_of_any_size_are_resized_to_the_input_size() {
    for (width, height) in [(1, 1), (1, 50), (64, 63), (7, 200), (300, 20), (32, 32)] {
        for resize in [
            ResizeRule::Squash,
            ResizeRule::ShorterSide { crop: 0.9 },
            ResizeRule::ShorterSide { crop: 1.0 },
            ResizeRule::Letterbox,
        ] {
            let values = preprocessing(32, resize, Interpolation::Bicubic).apply(&test_image(width, height));
            assert_eq!(values.len(), 3 * 32 * 32, "{width}x{height}");
            assert!(values.iter().all(|value| (-3.0..3.0).contains(value)));
        }
    }
}

/// The rounding of timm's `ResizeKeepRatio` and of torchvision's `Resize`.
#[test]
fn the_longer_side_is_rounded_as_in_timm() {
    assert_eq!(covering([100, 150], [40, 40]), [40, 60]);
    assert_eq!(covering([100, 133], [35, 35]), [35, 46], "46.55 is rounded down for a square");
    assert_eq!(covering([133, 100], [40, 35]), [47, 35], "46.55 is rounded to the nearest integer otherwise");
    assert_eq!(covering([100, 133], [35, 40]), [35, 47]);
    assert_eq!(covering([7, 1000], [64, 32]), [64, 9143]);
}

#[test]
fn a_letterbox_keeps_the_aspect_ratio_and_pads_both_sides_with_the_mean() {
    assert_eq!(within([100, 133], [32, 32]), [24, 32], "24.06");
    assert_eq!(within([133, 100], [32, 32]), [32, 24]);
    assert_eq!(within([4, 4], [32, 16]), [16, 16], "small images are scaled up");
    assert_eq!(within([1, 1000], [32, 32]), [1, 32], "at least one row is left");
    let white = |width, height| Image {
        width,
        height,
        channels: 3,
        pixels: vec![255; width as usize * height as usize * 3],
    };
    let rule = preprocessing(32, ResizeRule::Letterbox, Interpolation::Bicubic);
    // If the padding is odd, the additional pixel is at the bottom or on the right.
    for (width, height, rows, columns) in
        [(64, 42, 5..26, 0..32), (42, 64, 0..32, 5..26), (5, 5, 0..32, 0..32), (90, 3, 15..16, 0..32)]
    {
        let image = rule.resized(&white(width, height));
        for (place, pixel) in image.pixels.chunks(3).enumerate() {
            let is_image = rows.contains(&(place / 32)) && columns.contains(&(place % 32));
            // The mean is 123.7, 116.3, and 103.5 of 255.
            assert_eq!(pixel, if is_image { [255; 3] } else { [124, 116, 104] }, "{width}x{height}: {place}");
        }
    }
    let values = rule.apply(&white(64, 32));
    assert!(values[..32].iter().all(|value| value.abs() < 0.01), "padding is about 0");
}

#[test]
fn parts_are_distorted_and_padded_as_whole_images() {
    let image = test_image(60, 30);
    let part = |resize, part| {
        preprocessing(32, resize, Interpolation::Bicubic).resized_part(&image, part, Interpolation::Bicubic)
    };
    let whole = |resize| preprocessing(32, resize, Interpolation::Bicubic).resized(&image);
    for resize in [ResizeRule::Squash, ResizeRule::Letterbox] {
        assert_eq!(part(resize, [0, 0, 60, 30]), whole(resize));
        assert_eq!(preprocessing(32, resize, Interpolation::Bicubic).part_ratio(&image), 2.0);
    }
    let half = part(ResizeRule::Letterbox, [30, 0, 30, 15]);
    assert_eq!(
        half.pixels[..3],
        [124, 116, 104],
        "a part of the same aspect ratio is padded in the same way"
    );
    // A rule that crops is not applied to a part, which is itself a crop.
    let square = ResizeRule::ShorterSide { crop: 0.9 };
    assert_eq!(part(square, [0, 0, 60, 30]), image.resize(32, 32, Interpolation::Bicubic));
    assert_eq!(preprocessing(32, square, Interpolation::Bicubic).part_ratio(&image), 1.0);
    let wide = Preprocessing { image_size: [16, 48], ..preprocessing(32, square, Interpolation::Bicubic) };
    assert_eq!(wide.part_ratio(&image), 3.0);
}

#[test]
fn a_center_crop_of_an_odd_rest_is_rounded_as_in_the_libraries() {
    let image = test_image(9, 4);
    let column = |crop_rounding| {
        let resize = ResizeRule::ShorterSide { crop: 1.0 };
        let rule = Preprocessing {
            image_size: [4, 2],
            crop_rounding,
            ..preprocessing(4, resize, Interpolation::Bicubic)
        };
        rule.resized(&image).pixels[0]
    };
    assert_eq!(column(CropRounding::HalfToEven), image.pixels[3 * 4], "3.5 becomes 4");
    assert_eq!(column(CropRounding::Down), image.pixels[3 * 3]);
}

/// The reference: scales the whole image, then crops the result.
fn scaled_then_cropped(rule: &Preprocessing, image: &Image, [rows, columns]: [u64; 2]) -> Image {
    let whole = image.resize(columns as u32, rows as u32, rule.interpolation);
    let [height, width] = rule.image_size;
    let (top, left) = (
        rule.crop_rounding.half(rows - height as u64) as usize,
        rule.crop_rounding.half(columns - width as u64) as usize,
    );
    let row = |row: usize| &whole.pixels[(row * columns as usize + left) * 3..][..width * 3];
    let pixels = (top..top + height).flat_map(row).copied().collect();
    Image { width: width as u32, height: height as u32, channels: 3, pixels }
}

#[test]
fn cropping_while_scaling_equals_scaling_the_whole_image_then_cropping() {
    let sizes = [(100, 150), (333, 500), (37, 41), (31, 33), (600, 200), (90, 200), (224, 224), (1, 1)];
    for (width, height) in sizes.into_iter().chain([(1000, 60), (17, 400), (3, 1000)]) {
        let image = test_image(width, height);
        for (crop, interpolation) in [1.0, 0.875, 0.5].into_iter().zip(Interpolation::ALL) {
            for image_size in [[32, 32], [24, 40], [64, 64]] {
                let target = image_size.map(|side| scaled(side as u32, crop));
                for (resize, size) in [
                    (ResizeRule::ShorterSide { crop }, covering([height, width], target)),
                    (ResizeRule::SquashCrop { crop }, target.map(u64::from)),
                ] {
                    let rule = Preprocessing { image_size, ..preprocessing(32, resize, interpolation) };
                    let (ours, expected) = (rule.resized(&image), scaled_then_cropped(&rule, &image, size));
                    let gaps = ours.pixels.iter().zip(&expected.pixels).map(|(a, b)| a.abs_diff(*b));
                    let gap = gaps.max().unwrap_or(0);
                    // If most is cut off, only the rest is computed, with filter weights that may be rounded
                    // differently.
                    let is_most = size.iter().zip(image_size).any(|(&side, kept)| side > 4 * kept as u64);
                    assert!(gap == 0 || is_most && gap <= 2, "{width}x{height} by {rule:?}: {gap}");
                }
            }
        }
    }
}

#[test]
fn extreme_aspect_ratios_need_little_memory() {
    let crop = 0.875;
    let rules = [
        ResizeRule::Squash,
        ResizeRule::SquashCrop { crop },
        ResizeRule::SquashCrop { crop: LEAST_CROP },
        ResizeRule::ShorterSide { crop },
        ResizeRule::ShorterSide { crop: LEAST_CROP },
        ResizeRule::Letterbox,
    ];
    for (width, height) in [(32_768, 1), (1, 32_768)] {
        let image = Image { width, height, channels: 3, pixels: [200, 100, 50].repeat(32_768) };
        for (resize, interpolation) in
            rules.into_iter().flat_map(|rule| Interpolation::ALL.map(|filter| (rule, filter)))
        {
            let rule = preprocessing(224, resize, interpolation);
            let [down, across] = rule.sides([height, width]);
            let (pixels, most) = (most_pixels(&across, &down), 4 * 224 * 224);
            assert!(pixels <= most, "{width}x{height} by {resize:?}: {pixels}");
            let resized = rule.resized(&image);
            let is_sane = |pixel: &[u8]| pixel == [200, 100, 50] || pixel == [124, 116, 104];
            assert!(resized.pixels.len() == 3 * 224 * 224 && resized.pixels.chunks(3).all(is_sane));
            let part = rule.resized_part(&image, [0, 0, width, height], interpolation);
            assert!(part.pixels.chunks(3).all(is_sane));
        }
    }
    // The scaled size does not fit into 32 bits.
    let rule =
        preprocessing(LARGEST_SIDE, ResizeRule::ShorterSide { crop: LEAST_CROP }, Interpolation::Lanczos);
    let [down, across] = rule.sides([1, 32_768]);
    assert!(most_pixels(&across, &down) <= (LARGEST_SIDE * LARGEST_SIDE) as u64);
}

#[test]
fn images_of_the_input_size_are_unchanged() {
    let image = test_image(32, 32);
    for resize in [ResizeRule::Squash, ResizeRule::ShorterSide { crop: 1.0 }, ResizeRule::Letterbox] {
        assert_eq!(preprocessing(32, resize, Interpolation::Lanczos).resized(&image), image);
    }
}

#[test]
fn channels_are_converted_in_both_directions() {
    let image = Image { width: 2, height: 1, channels: 3, pixels: vec![255, 255, 255, 255, 0, 0] };
    let gray = image.with_channels(1);
    assert_eq!(gray.pixels, [255, 76]);
    assert_eq!(gray.with_channels(3).pixels, [255, 255, 255, 76, 76, 76]);
}

#[test]
fn errors_name_the_key() {
    let good = preprocessing(8, ResizeRule::Squash, Interpolation::Bicubic);
    assert_eq!(good.validate(), Ok(()));
    let cases = [
        ("crop", Preprocessing { resize: ResizeRule::ShorterSide { crop: 1.5 }, ..good.clone() }),
        ("mean", Preprocessing { mean: vec![0.5], ..good.clone() }),
        ("std", Preprocessing { std: vec![0.0; 3], ..good.clone() }),
        ("channels", Preprocessing { channels: 4, ..good.clone() }),
        ("image_size", Preprocessing { image_size: [0, 8], ..good }),
    ];
    for (key, bad) in cases {
        assert!(bad.validate().unwrap_err().to_string().contains(key), "{key}");
    }
}
