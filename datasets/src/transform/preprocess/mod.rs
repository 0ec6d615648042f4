//! Preprocessing: resizing and normalization of an image, the same in training, evaluation, and classification.

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

/// Largest height and width of a model's input, in pixels.
const LARGEST_SIDE: usize = 16_384;
/// Smallest `crop`. Images are scaled to the input size divided by `crop` before the center is cut out.
const LEAST_CROP: f64 = 0.05;

/// The preprocessing of a model's input, which is stored with the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preprocessing {
    /// Height and width of the model's input, in pixels.
    pub image_size: [usize; 2],
    /// Channels of the model's input: 1 for gray, 3 for red, green, and blue. Images are converted.
    pub channels: usize,
    /// How images of other sizes are resized.
    pub resize: ResizeRule,
    /// The filter for resizing.
    pub interpolation: Interpolation,
    /// The value that is subtracted from each channel, whose values are from 0 to 1.
    pub mean: Vec<f32>,
    /// The value by which each channel is then divided.
    pub std: Vec<f32>,
    /// Rounding of the offset of a center crop, if an odd number of pixels is cut off.
    #[serde(default, skip_serializing_if = "CropRounding::is_default")]
    pub crop_rounding: CropRounding,
}

/// The error for an invalid value of a [`Preprocessing`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("preprocessing: {0}")]
pub struct InvalidPreprocessing(String);

impl Preprocessing {
    /// Checks every value.
    ///
    /// # Errors
    ///
    /// Names the first key with an invalid value, and what is allowed.
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

    /// Rows and columns to which an image is scaled before its center is cut out; with [`ResizeRule::ShorterSide`], one of them
    /// fits exactly, and the other may be longer. Without a crop, those of the model's input.
    pub fn size_before_crop(&self) -> [usize; 2] {
        match self.resize {
            ResizeRule::SquashCrop { crop } | ResizeRule::ShorterSide { crop } => {
                self.image_size.map(|side| scaled(side as u32, crop) as usize)
            }
            ResizeRule::Squash | ResizeRule::Letterbox => self.image_size,
        }
    }

    /// Number of values of the model's input for one image.
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

    /// The image in the size and with the channels of the model's input, before normalization.
    pub fn resized(&self, image: &Image) -> Image {
        let [down, across] = self.sides([image.height, image.width]);
        let resized = self.with_fewer_channels(image).resize_sides(&across, &down, self.interpolation);
        let resized = self.with_more_channels(resized);
        match self.resize {
            ResizeRule::Squash | ResizeRule::SquashCrop { .. } | ResizeRule::ShorterSide { .. } => resized,
            ResizeRule::Letterbox => self.padded(&resized),
        }
    }

    /// How the height and the width of an image of `size` are scaled and cropped, without padding. Height comes first.
    fn sides(&self, size: [u32; 2]) -> [Side; 2] {
        let target = self.image_size.map(|side| side as u32);
        let whole =
            |[rows, columns]: [u32; 2]| [Side::part(0, size[0], rows), Side::part(0, size[1], columns)];
        // The whole image is scaled, and the center is kept.
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

    /// A part (left, top, width, height) of an image, in the size and with the channels of the model's input. It is
    /// distorted or padded as whole images are, but not cropped further.
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
                self.padded(&resized(columns, rows))
            }
        }
    }

    /// Converts a color image to gray, if the model takes gray images. This is done before resizing, which then has
    /// less to do.
    fn with_fewer_channels<'a>(&self, image: &'a Image) -> Cow<'a, Image> {
        let channels = self.channels as u8;
        if channels < image.channels {
            Cow::Owned(image.with_channels(channels))
        } else {
            Cow::Borrowed(image)
        }
    }

    /// Converts a gray image to color, if the model takes color images. This is done after resizing, so that a large
    /// image need not be stored three times.
    fn with_more_channels(&self, image: Image) -> Image {
        let channels = self.channels as u8;
        if channels > image.channels { image.with_channels(channels) } else { image }
    }

    /// The width / height of a part that [`resized_part`](Self::resized_part) distorts and pads as evaluation does the
    /// whole image: that of the model's input if evaluation keeps the aspect ratio and crops, that of the image if it
    /// distorts or pads.
    pub(super) fn part_ratio(&self, image: &Image) -> f64 {
        match self.resize {
            ResizeRule::ShorterSide { .. } => {
                let [height, width] = self.image_size;
                width as f64 / height as f64
            }
            ResizeRule::Squash | ResizeRule::SquashCrop { .. } | ResizeRule::Letterbox => {
                f64::from(image.width) / f64::from(image.height)
            }
        }
    }

    /// Pads an image on all sides with the mean color to the size of the model's input.
    ///
    /// # Panics
    ///
    /// If the image is larger than that.
    fn padded(&self, image: &Image) -> Image {
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

    /// Writes `(value / 255 - mean) / std` for an image in the size and with the channels of the model's input.
    ///
    /// # Shapes
    ///
    /// - output: `[channels, height, width]`
    ///
    /// # Panics
    ///
    /// If the image has another size or the output another length.
    pub fn normalize(&self, image: &Image, output: &mut [f32]) {
        let [height, width] = self.image_size;
        let area = height * width;
        assert_eq!(
            image.pixels.len(),
            self.values(),
            "the image must have the size and the channels of the model's input"
        );
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
    /// The image with 1 or 3 channels. Gray is repeated; color is converted to gray with the ITU-R 601 weights, as PIL
    /// does.
    pub fn with_channels(&self, channels: u8) -> Self {
        let pixels = match (self.channels, channels) {
            (1, 3) => self.pixels.iter().flat_map(|&gray| [gray; 3]).collect(),
            (3, 1) => self.pixels.as_chunks::<3>().0.iter().map(|pixel| luma(*pixel)).collect(),
            _ => self.pixels.clone(),
        };
        Self { channels, pixels, ..*self }
    }

    /// The image, scaled down to a longer side of `longest` pixels if that is larger. A side has at least one pixel.
    pub fn fit(&self, longest: u32) -> Self {
        let side = self.width.max(self.height);
        if side <= longest {
            return self.clone();
        }
        let scaled = |length: u32| ((u64::from(length) * u64::from(longest) / u64::from(side)) as u32).max(1);
        self.resize(scaled(self.width), scaled(self.height), Interpolation::Bicubic)
    }
}
