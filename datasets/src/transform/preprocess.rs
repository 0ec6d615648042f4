//! The one way from an image to numbers, shared by training, evaluation and classification.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::color::luma;
use super::resize::{Interpolation, Side};
use crate::Image;

/// Pixels; an image of more would not fit the memory of most machines.
const LARGEST_SIDE: usize = 16_384;
/// Images are scaled to their size divided by it.
const LEAST_CROP: f64 = 0.05;

/// What is done to an image before a model sees it; stored with the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preprocessing {
    /// Height and width that the model takes, in pixels.
    pub image_size: [usize; 2],
    /// 1: images become gray; 3: red, green, blue.
    pub channels: usize,
    /// How other sizes become this one.
    pub resize: ResizeRule,
    /// The filter that scales.
    pub interpolation: Interpolation,
    /// Subtracted from each channel's values between 0 and 1.
    pub mean: Vec<f32>,
    /// Then divided by.
    pub std: Vec<f32>,
    /// Where the center lies when an odd number of pixels is cut off.
    #[serde(default, skip_serializing_if = "CropRounding::is_default")]
    pub crop_rounding: CropRounding,
}

/// How half a pixel before a center crop is rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CropRounding {
    /// To the even number, as torchvision and timm do.
    #[default]
    HalfToEven,
    /// Down, as Hugging Face's processors do.
    Down,
}

impl CropRounding {
    /// Whether nothing needs to be said of it.
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Half of what is cut off: where the center begins.
    fn half(self, rest: u64) -> u64 {
        match self {
            Self::HalfToEven => (rest as f64 / 2.0).round_ties_even() as u64,
            Self::Down => rest / 2,
        }
    }
}

/// How an image of any size becomes one of the model's size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ResizeRule {
    /// Both sides are scaled, whatever that does to the shape.
    Squash,
    /// Both sides are scaled to size / crop, then the center is cut out (timm's `crop_mode = squash`).
    SquashCrop {
        /// Share of the scaled sides that is kept: from 0.05 to 1.
        crop: f64,
    },
    /// The shorter side is scaled to size / crop, then the center is cut out (timm's `crop_mode = center`).
    ShorterSide {
        /// Share of the scaled side that is kept: from 0.05 to 1.
        crop: f64,
    },
    /// The longer side is scaled to the size, and the rest is filled with the mean color, which is about 0 once it is
    /// normalized (timm's `crop_mode = border` with `crop_pct = 1`).
    Letterbox,
}

impl ResizeRule {
    /// Whether a part of some images is cut off.
    pub fn crops(self) -> bool {
        match self {
            Self::Squash | Self::Letterbox => false,
            Self::SquashCrop { .. } | Self::ShorterSide { .. } => true,
        }
    }
}

/// What is wrong with a [`Preprocessing`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("preprocessing: {0}")]
pub struct InvalidPreprocessing(String);

impl Preprocessing {
    /// Checks every value.
    ///
    /// # Errors
    ///
    /// Names the key and what is allowed.
    pub fn validate(&self) -> Result<(), InvalidPreprocessing> {
        let fail = |message: String| Err(InvalidPreprocessing(message));
        if !self.image_size.iter().all(|side| (1..=LARGEST_SIDE).contains(side)) {
            return fail(format!(
                "`image_size` is {:?}: from 1 to {LARGEST_SIDE} pixels are possible",
                self.image_size
            ));
        }
        if self.channels != 1 && self.channels != 3 {
            return fail(format!("`channels` is {}: images have 1 or 3", self.channels));
        }
        if self.mean.len() != self.channels || self.std.len() != self.channels {
            return fail(format!("`mean` and `std` need {} values, one per channel", self.channels));
        }
        if !self.mean.iter().all(|mean| mean.is_finite())
            || !self.std.iter().all(|std| *std > 0.0 && std.is_finite())
        {
            return fail("`mean` must be finite and `std` above 0".to_owned());
        }
        match self.resize {
            ResizeRule::ShorterSide { crop } | ResizeRule::SquashCrop { crop }
                if !(LEAST_CROP..=1.0).contains(&crop) =>
            {
                fail(format!("`crop` is {crop}: a share from {LEAST_CROP} to 1 is needed"))
            }
            ResizeRule::ShorterSide { .. }
            | ResizeRule::SquashCrop { .. }
            | ResizeRule::Squash
            | ResizeRule::Letterbox => Ok(()),
        }
    }

    /// Numbers that one image becomes.
    pub fn values(&self) -> usize {
        self.channels * self.image_size[0] * self.image_size[1]
    }

    /// The model's input for an image.
    ///
    /// # Shapes
    ///
    /// - output: `[channels, height, width]`
    pub fn apply(&self, image: &Image) -> Vec<f32> {
        let mut values = vec![0.0; self.values()];
        self.normalize(&self.resized(image), &mut values);
        values
    }

    /// The image in the model's size and channels, before its values become numbers around 0.
    pub fn resized(&self, image: &Image) -> Image {
        let [down, across] = self.sides([image.height, image.width]);
        let resized = self.with_fewer_channels(image).resize_sides(&across, &down, self.interpolation);
        let resized = self.with_more_channels(resized);
        match self.resize {
            ResizeRule::Squash | ResizeRule::SquashCrop { .. } | ResizeRule::ShorterSide { .. } => resized,
            ResizeRule::Letterbox => self.framed(&resized),
        }
    }

    /// What becomes of the height and the width of an image of `size`, rows first, up to the padding.
    fn sides(&self, size: [u32; 2]) -> [Side; 2] {
        let target = self.image_size.map(|side| side as u32);
        let whole =
            |[rows, columns]: [u32; 2]| [Side::part(0, size[0], rows), Side::part(0, size[1], columns)];
        // Scaled as a whole, of which the center is kept.
        let cropped = |scaled: [u64; 2]| {
            [0, 1].map(|side| {
                let offset = self.crop_rounding.half(scaled[side] - u64::from(target[side]));
                Side::cropped(size[side], scaled[side], offset, target[side], self.interpolation)
            })
        };
        match self.resize {
            ResizeRule::Squash => whole(target),
            ResizeRule::SquashCrop { crop } => cropped(target.map(|side| scaled(side, crop).into())),
            ResizeRule::ShorterSide { crop } => {
                cropped(covering(size, target.map(|side| scaled(side, crop))))
            }
            ResizeRule::Letterbox => whole(within(size, target)),
        }
    }

    /// A part (left, top, width, height) of an image, in the model's size and channels: distorted or padded as whole images are, and not
    /// cropped.
    pub(super) fn resized_part(&self, image: &Image, part: [u32; 4], interpolation: Interpolation) -> Image {
        let [height, width] = self.image_size.map(|side| side as u32);
        let resized = |columns, rows| {
            self.with_more_channels(self.with_fewer_channels(image).resize_part(
                part,
                columns,
                rows,
                interpolation,
            ))
        };
        match self.resize {
            ResizeRule::Squash | ResizeRule::SquashCrop { .. } | ResizeRule::ShorterSide { .. } => {
                resized(width, height)
            }
            ResizeRule::Letterbox => {
                let [rows, columns] = within([part[3], part[2]], [height, width]);
                self.framed(&resized(columns, rows))
            }
        }
    }

    /// An image before it is scaled: in gray already, if the model wants that.
    fn with_fewer_channels<'a>(&self, image: &'a Image) -> Cow<'a, Image> {
        let channels = self.channels as u8;
        if channels < image.channels {
            Cow::Owned(image.with_channels(channels))
        } else {
            Cow::Borrowed(image)
        }
    }

    /// An image after it was scaled: gray is repeated only now, as a large image would take three times its memory.
    fn with_more_channels(&self, image: Image) -> Image {
        let channels = self.channels as u8;
        if channels > image.channels { image.with_channels(channels) } else { image }
    }

    /// Width / height of a part of the image to which [`resized_part`](Self::resized_part) does what evaluation does to the whole:
    /// a square where that keeps shapes and crops, the image's own shape where it distorts or pads them.
    pub(super) fn shape_of_parts(&self, image: &Image) -> f64 {
        match self.resize {
            ResizeRule::ShorterSide { .. } => 1.0,
            ResizeRule::Squash | ResizeRule::SquashCrop { .. } | ResizeRule::Letterbox => {
                f64::from(image.width) / f64::from(image.height)
            }
        }
    }

    /// The image in the middle of one of the model's size and of the mean color.
    ///
    /// # Panics
    ///
    /// When the image is larger.
    fn framed(&self, image: &Image) -> Image {
        let [height, width] = self.image_size;
        let color: Vec<u8> = self.mean.iter().map(|mean| (255.0 * mean).round_ties_even() as u8).collect();
        let mut pixels = color.repeat(height * width);
        let (left, top) = ((width - image.width as usize) / 2, (height - image.height as usize) / 2);
        let length = image.width as usize * self.channels;
        let rows = image.pixels.chunks_exact(length);
        for (target, row) in pixels.chunks_exact_mut(width * self.channels).skip(top).zip(rows) {
            target[left * self.channels..][..length].copy_from_slice(row);
        }
        Image { width: width as u32, height: height as u32, channels: self.channels as u8, pixels }
    }

    /// Writes `(value / 255 - mean) / std` for an image of the model's size and channels.
    ///
    /// # Shapes
    ///
    /// - output: `[channels, height, width]`
    ///
    /// # Panics
    ///
    /// When the image or the output has another size.
    pub fn normalize(&self, image: &Image, output: &mut [f32]) {
        let [height, width] = self.image_size;
        let area = height * width;
        assert_eq!(image.pixels.len(), self.values(), "an image of the model's size is needed");
        for (channel, plane) in output.chunks_exact_mut(area).enumerate() {
            let scale = 1.0 / (255.0 * self.std[channel]);
            let shift = -self.mean[channel] / self.std[channel];
            let pixels = image.pixels[channel..].iter().step_by(self.channels);
            for (value, &pixel) in plane.iter_mut().zip(pixels) {
                *value = f32::from(pixel) * scale + shift;
            }
        }
    }
}

/// The side before a crop that keeps a share of it, rounded down as timm does; what is whole but for rounding stays whole.
fn scaled(side: u32, crop: f64) -> u32 {
    ((f64::from(side) / crop + 1e-6).floor() as u32).max(side)
}

/// Rows and columns of an image of `size` scaled to cover `target`: the side that is shorter in proportion fits exactly. The other one is
/// rounded down for a square, as torchvision's `Resize` does, and to the nearest number otherwise, as timm's `ResizeKeepRatio` does.
fn covering(size: [u32; 2], target: [u32; 2]) -> [u64; 2] {
    let ([height, width], [rows, columns]) = (size.map(u64::from), target.map(u64::from));
    let is_low = height * columns <= width * rows;
    if rows == columns {
        return match is_low {
            true => [rows, rows * width / height],
            false => [columns * height / width, columns],
        };
    }
    let ratio = match is_low {
        true => height as f64 / rows as f64,
        false => width as f64 / columns as f64,
    };
    let [height, width] = size.map(|side| (f64::from(side) / ratio).round_ties_even() as u64);
    [height.max(rows), width.max(columns)]
}

/// Rows and columns of an image of `size` scaled to lie within `target`: the side that is longer in proportion fits exactly, the
/// other one is rounded to the nearest number, as timm's `ResizeKeepRatio` does with `longest = 1`.
fn within(size: [u32; 2], target: [u32; 2]) -> [u32; 2] {
    let [height, width] = size.map(f64::from);
    let ratio = (height / f64::from(target[0])).max(width / f64::from(target[1]));
    let [rows, columns] = [height, width].map(|side| (side / ratio).round_ties_even() as u32);
    [rows.clamp(1, target[0]), columns.clamp(1, target[1])]
}

impl Image {
    /// The image with 1 or 3 channels: gray is repeated, color weighed by ITU-R 601 as PIL does.
    pub fn with_channels(&self, channels: u8) -> Self {
        let pixels = match (self.channels, channels) {
            (1, 3) => self.pixels.iter().flat_map(|&gray| [gray; 3]).collect(),
            (3, 1) => self.pixels.as_chunks::<3>().0.iter().map(|pixel| luma(*pixel)).collect(),
            _ => self.pixels.clone(),
        };
        Self { channels, pixels, ..*self }
    }

    /// The whole image, scaled down where a side is longer than `longest`.
    pub fn fit(&self, longest: u32) -> Self {
        let side = self.width.max(self.height);
        if side <= longest {
            return self.clone();
        }
        let scaled = |length: u32| (u64::from(length) * u64::from(longest) / u64::from(side)) as u32;
        self.resize(scaled(self.width), scaled(self.height), Interpolation::Bicubic)
    }
}

#[cfg(test)]
mod tests {
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

    /// timm's evaluation transform, on the images of `tests/fixtures/preprocess`.
    #[test]
    fn images_become_what_timm_makes_of_them() {
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
    fn any_size_gives_the_size_that_was_asked_for() {
        for (width, height) in [(1, 1), (1, 50), (64, 63), (7, 200), (300, 20), (32, 32)] {
            for resize in [
                ResizeRule::Squash,
                ResizeRule::ShorterSide { crop: 0.9 },
                ResizeRule::ShorterSide { crop: 1.0 },
                ResizeRule::Letterbox,
            ] {
                let values =
                    preprocessing(32, resize, Interpolation::Bicubic).apply(&test_image(width, height));
                assert_eq!(values.len(), 3 * 32 * 32, "{width}x{height}");
                assert!(values.iter().all(|value| (-3.0..3.0).contains(value)));
            }
        }
    }

    /// timm's `ResizeKeepRatio` and torchvision's `Resize`.
    #[test]
    fn the_longer_side_is_rounded_as_timm_rounds_it() {
        assert_eq!(covering([100, 150], [40, 40]), [40, 60]);
        assert_eq!(covering([100, 133], [35, 35]), [35, 46], "46.55 is rounded down for a square");
        assert_eq!(
            covering([133, 100], [40, 35]),
            [47, 35],
            "46.55 is rounded to the nearest number otherwise"
        );
        assert_eq!(covering([100, 133], [35, 40]), [35, 47]);
        assert_eq!(covering([7, 1000], [64, 32]), [64, 9143]);
    }

    #[test]
    fn a_letterbox_keeps_the_shape_and_pads_with_the_mean_on_both_sides() {
        assert_eq!(within([100, 133], [32, 32]), [24, 32], "24.06");
        assert_eq!(within([133, 100], [32, 32]), [32, 24]);
        assert_eq!(within([4, 4], [32, 16]), [16, 16], "small images are scaled up");
        assert_eq!(within([1, 1000], [32, 32]), [1, 32], "a row is left of the thinnest image");
        let white = |width, height| Image {
            width,
            height,
            channels: 3,
            pixels: vec![255; width as usize * height as usize * 3],
        };
        let rule = preprocessing(32, ResizeRule::Letterbox, Interpolation::Bicubic);
        // Of an odd rest, the one pixel more is below or to the right.
        for (width, height, rows, columns) in
            [(64, 42, 5..26, 0..32), (42, 64, 0..32, 5..26), (5, 5, 0..32, 0..32), (90, 3, 15..16, 0..32)]
        {
            let image = rule.resized(&white(width, height));
            for (place, pixel) in image.pixels.chunks(3).enumerate() {
                let is_image = rows.contains(&(place / 32)) && columns.contains(&(place % 32));
                // Of 255 levels, the mean is 123.7, 116.3 and 103.5.
                assert_eq!(
                    pixel,
                    if is_image { [255; 3] } else { [124, 116, 104] },
                    "{width}x{height}: {place}"
                );
            }
        }
        let values = rule.apply(&white(64, 32));
        assert!(values[..32].iter().all(|value| value.abs() < 0.01), "padding is about 0");
    }

    #[test]
    fn a_part_is_distorted_and_padded_as_the_whole_is() {
        let image = test_image(60, 30);
        let part = |resize, part| {
            preprocessing(32, resize, Interpolation::Bicubic).resized_part(
                &image,
                part,
                Interpolation::Bicubic,
            )
        };
        let whole = |resize| preprocessing(32, resize, Interpolation::Bicubic).resized(&image);
        for resize in [ResizeRule::Squash, ResizeRule::Letterbox] {
            assert_eq!(part(resize, [0, 0, 60, 30]), whole(resize));
            assert_eq!(preprocessing(32, resize, Interpolation::Bicubic).shape_of_parts(&image), 2.0);
        }
        let half = part(ResizeRule::Letterbox, [30, 0, 30, 15]);
        assert_eq!(half.pixels[..3], [124, 116, 104], "a part of the same shape is padded alike");
        // A crop keeps the shape of what it sees, and a random part takes its place.
        let square = ResizeRule::ShorterSide { crop: 0.9 };
        assert_eq!(part(square, [0, 0, 60, 30]), image.resize(32, 32, Interpolation::Bicubic));
        assert_eq!(preprocessing(32, square, Interpolation::Bicubic).shape_of_parts(&image), 1.0);
    }

    #[test]
    fn the_center_of_an_odd_rest_is_where_the_library_has_it() {
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

    /// What scaling the whole image and cropping the result gives.
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

    const FILTERS: [Interpolation; 3] =
        [Interpolation::Bilinear, Interpolation::Bicubic, Interpolation::Lanczos];

    #[test]
    fn a_crop_has_the_pixels_of_the_whole_image() {
        let sizes = [(100, 150), (333, 500), (37, 41), (31, 33), (600, 200), (90, 200), (224, 224), (1, 1)];
        for (width, height) in sizes.into_iter().chain([(1000, 60), (17, 400), (3, 1000)]) {
            let image = test_image(width, height);
            for (crop, interpolation) in [1.0, 0.875, 0.5].into_iter().zip(FILTERS) {
                for image_size in [[32, 32], [24, 40], [64, 64]] {
                    let target = image_size.map(|side| scaled(side as u32, crop));
                    for (resize, size) in [
                        (ResizeRule::ShorterSide { crop }, covering([height, width], target)),
                        (ResizeRule::SquashCrop { crop }, target.map(u64::from)),
                    ] {
                        let rule = Preprocessing { image_size, ..preprocessing(32, resize, interpolation) };
                        let (ours, expected) =
                            (rule.resized(&image), scaled_then_cropped(&rule, &image, size));
                        let gaps = ours.pixels.iter().zip(&expected.pixels).map(|(a, b)| a.abs_diff(*b));
                        let gap = gaps.max().unwrap_or(0);
                        // Where most is cut off, only the rest is computed, with weights that may be rounded otherwise.
                        let is_most = size.iter().zip(image_size).any(|(&side, kept)| side > 4 * kept as u64);
                        assert!(gap == 0 || is_most && gap <= 2, "{width}x{height} by {rule:?}: {gap}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_most_extreme_shape_takes_no_more_memory_than_a_few_results() {
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
                rules.into_iter().flat_map(|rule| FILTERS.map(|filter| (rule, filter)))
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
        // Scaled to a size beyond 32 bits.
        let rule =
            preprocessing(LARGEST_SIDE, ResizeRule::ShorterSide { crop: LEAST_CROP }, Interpolation::Lanczos);
        let [down, across] = rule.sides([1, 32_768]);
        assert!(most_pixels(&across, &down) <= (LARGEST_SIDE * LARGEST_SIDE) as u64);
    }

    #[test]
    fn the_right_size_is_not_touched() {
        let image = test_image(32, 32);
        for resize in [ResizeRule::Squash, ResizeRule::ShorterSide { crop: 1.0 }, ResizeRule::Letterbox] {
            assert_eq!(preprocessing(32, resize, Interpolation::Lanczos).resized(&image), image);
        }
    }

    #[test]
    fn color_becomes_gray_and_back() {
        let image = Image { width: 2, height: 1, channels: 3, pixels: vec![255, 255, 255, 255, 0, 0] };
        let gray = image.with_channels(1);
        assert_eq!(gray.pixels, [255, 76]);
        assert_eq!(gray.with_channels(3).pixels, [255, 255, 255, 76, 76, 76]);
    }

    #[test]
    fn mistakes_name_their_key() {
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
}
