//! The one way from an image to numbers, shared by training, evaluation and classification.

mod rules;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

pub use self::rules::{CropRounding, ResizeRule};
use self::rules::{covering, scaled, within};
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
