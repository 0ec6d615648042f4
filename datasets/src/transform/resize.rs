//! Antialiased resizing of images or parts of them, one side after the other.
//!
//! If only a small part of the scaled image is kept, only that part is computed, from the pixels that the filter needs
//! for it. Otherwise, a row of 32,768 pixels, scaled to cover a square of 224, would have 1.6 billion pixels before it
//! is cropped.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use serde::{Deserialize, Serialize};

use crate::Image;
use crate::listed::listed;

/// If a side would be scaled to more than so many times the pixels that are kept, only those are computed. Otherwise
/// the whole side is scaled, since the rounding of the filter weights depends on the weights at the edges: computing a
/// part may change values by one or two of 255 levels.
const MOST_CROPPED: u64 = 4;
/// Rows are scaled before columns, unless the intermediate image would have more than so many times the pixels of both
/// the image and the result. That happens if a tall and thin image becomes much wider and much lower.
const MOST_GROWTH: u64 = 4;

thread_local! {
    /// A resizer per thread, which reuses its buffers.
    static RESIZER: RefCell<Resizer> = RefCell::new(Resizer::new());
}

listed! {
    /// An antialiased filter for resizing, as in PIL.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Interpolation {
        /// Triangle.
        Bilinear,
        /// Catmull-Rom, a = -0.5.
        Bicubic,
        /// Three lobes.
        Lanczos,
    }
}

impl Interpolation {
    fn filter(self) -> FilterType {
        match self {
            Self::Bilinear => FilterType::Bilinear,
            Self::Bicubic => FilterType::CatmullRom,
            Self::Lanczos => FilterType::Lanczos3,
        }
    }

    /// The radius of the filter in pixels, if an image is not scaled down.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }
}

/// How one side of an image is scaled and cropped.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Side {
    /// The pixels of the image that are read.
    seen: Range<u32>,
    /// The start of the interval that is scaled, in pixels from the edge of the image.
    start: f64,
    /// The length of the interval, in pixels of the image.
    length: f64,
    /// The number of pixels to which the interval is scaled.
    pixels: u32,
    /// The range of the scaled pixels that is kept for the result.
    kept: Range<u32>,
}

impl Side {
    /// Scales the `length` pixels from `start` on to `pixels` (at least 1), without reading the pixels around them.
    pub(super) fn part(start: u32, length: u32, pixels: u32) -> Self {
        let pixels = pixels.max(1);
        let (seen, kept) = (start..start + length, 0..pixels);
        Self { seen, start: start.into(), length: length.into(), pixels, kept }
    }

    /// Scales a side of `length` pixels to `scaled`, of which the `kept` pixels from `offset` on are kept.
    pub(super) fn cropped(
        length: u32,
        scaled: u64,
        offset: u64,
        kept: u32,
        interpolation: Interpolation,
    ) -> Self {
        if let (true, Ok(pixels)) = (scaled <= MOST_CROPPED * u64::from(kept), u32::try_from(scaled)) {
            let first = offset as u32;
            return Self { kept: first..first + kept, ..Self::part(0, length, pixels) };
        }
        let scale = f64::from(length) / scaled as f64;
        let start = offset as f64 * scale;
        // Rounding errors must not lead beyond the edge.
        let size = (f64::from(kept) * scale).min(f64::from(length) - start);
        // One pixel more than the radius of the filter, since the resizer rounds it too.
        let reach = interpolation.support() * scale.max(1.0) + 1.0;
        let first = (start - reach).floor().max(0.0) as u32;
        let last = ((start + size + reach).ceil() as u32).min(length);
        Self { seen: first..last, start, length: size, pixels: kept, kept: 0..kept }
    }

    /// The same scaling for an image from which the pixels `seen` have been cut out.
    fn within_seen(&self) -> Self {
        let first = self.seen.start;
        let start = self.start - f64::from(first);
        Self { seen: 0..self.seen.end - first, start, kept: self.kept.clone(), ..*self }
    }

    /// Cuts out the pixels `seen` without scaling.
    fn unscaled(&self) -> Self {
        let length = self.seen.end - self.seen.start;
        Self::part(self.seen.start, length, length)
    }

    /// Cuts the pixels `kept` out of a side that has been scaled.
    fn crop(&self) -> Self {
        let length = self.kept.end - self.kept.start;
        Self::part(self.kept.start, length, length)
    }

    /// Leaves a side as it is that has been scaled and cropped.
    fn result(&self) -> Self {
        Self::part(0, self.kept.end - self.kept.start, self.kept.end - self.kept.start)
    }

    /// Whether a side of `length` pixels is unchanged.
    fn keeps(&self, length: u32) -> bool {
        *self == Self::part(0, length, length)
    }
}

/// The number of pixels of the intermediate image, and whether columns rather than rows are scaled first.
fn between(across: &Side, down: &Side) -> (u64, bool) {
    let pixels = |width: u32, height: u32| u64::from(width) * u64::from(height);
    let [columns, rows] = [across, down].map(|side| side.seen.end - side.seen.start);
    let (rows_first, columns_first) = (pixels(across.pixels, rows), pixels(columns, down.pixels));
    let ends = pixels(columns, rows).max(pixels(across.pixels, down.pixels));
    match rows_first > MOST_GROWTH * ends {
        true => (columns_first, true),
        false => (rows_first, false),
    }
}

/// The number of pixels of the largest image that is made on the way to the result.
#[cfg(test)]
pub(super) fn most_pixels(across: &Side, down: &Side) -> u64 {
    let scaled = match between(across, down) {
        (_, false) => u64::from(across.crop().pixels) * u64::from(down.pixels),
        (_, true) => u64::from(across.pixels) * u64::from(down.crop().pixels),
    };
    between(across, down).0.max(scaled)
}

impl Image {
    /// The image scaled to `width` by `height` (at least 1 each) with an antialiased filter.
    pub fn resize(&self, width: u32, height: u32, interpolation: Interpolation) -> Self {
        self.resize_part([0, 0, self.width, self.height], width, height, interpolation)
    }

    /// A part (left, top, width, height) of the image, scaled to `width` by `height` (at least 1 each).
    ///
    /// # Panics
    ///
    /// If the part is empty or reaches beyond the image.
    pub(super) fn resize_part(
        &self,
        [left, top, columns, rows]: [u32; 4],
        width: u32,
        height: u32,
        interpolation: Interpolation,
    ) -> Self {
        let (across, down) = (Side::part(left, columns, width), Side::part(top, rows, height));
        self.resize_sides(&across, &down, interpolation)
    }

    /// Scales and crops the width as `across` says and the height as `down` says.
    ///
    /// # Panics
    ///
    /// If one of them is empty or reaches beyond the image.
    pub(super) fn resize_sides(&self, across: &Side, down: &Side, interpolation: Interpolation) -> Self {
        // The typed functions of `fast_image_resize` are used, since the untyped ones would compile code for all of its
        // pixel types.
        let scale = if self.channels == 1 { scale::<U8> } else { scale::<U8x3> };
        // Rows are scaled before columns, as PIL does. `fast_image_resize` alone would begin with the columns.
        let steps = match between(across, down) {
            (_, false) => [
                [across.clone(), down.unscaled()],
                [across.crop(), down.within_seen()],
                [across.result(), down.crop()],
            ],
            (_, true) => [
                [across.unscaled(), down.clone()],
                [across.within_seen(), down.crop()],
                [across.crop(), down.result()],
            ],
        };
        let mut image = Cow::Borrowed(self);
        for [across, down] in steps {
            if !across.keeps(image.width) || !down.keeps(image.height) {
                image = Cow::Owned(scale(&image, &across, &down, interpolation.filter()));
            }
        }
        image.into_owned()
    }

    /// A large image, scaled down by a whole number to the means of its pixels, so far that the shorter side keeps at least this
    /// many; `None` for an image that is not at least twice as large. An image that is then scaled to a fourth of that looks the
    /// same as one that was scaled at once (PIL's `reducing_gap`).
    pub(crate) fn reduced(&self, shorter_side: u32) -> Option<Self> {
        let factor = self.width.min(self.height) / shorter_side.max(1);
        let scale = if self.channels == 1 { scale::<U8> } else { scale::<U8x3> };
        let [across, down] = [self.width, self.height].map(|side| Side::part(0, side, side / factor.max(1)));
        (factor >= 2).then(|| scale(self, &across, &down, FilterType::Box))
    }
}

/// Scales an image in one call of the resizer; `kept` is not applied.
fn scale<P: PixelTrait>(image: &Image, across: &Side, down: &Side, filter: FilterType) -> Image {
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter)).crop(
        across.start,
        down.start,
        across.length,
        down.length,
    );
    let (width, height) = (across.pixels, down.pixels);
    let mut pixels = vec![0; width as usize * height as usize * usize::from(image.channels)];
    let source = TypedImageRef::<P>::from_buffer(image.width, image.height, &image.pixels);
    let done = source.ok().and_then(|source| {
        let mut target = TypedImage::<P>::from_buffer(width, height, &mut pixels).ok()?;
        RESIZER.with_borrow_mut(|resizer| resizer.resize_typed(&source, &mut target, &options).ok())
    });
    assert!(
        done.is_some(),
        "the buffer must have the length of the image's size, and the part must lie inside the image"
    );
    Image { width, height, channels: image.channels, pixels }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cropped_side_reads_the_pixels_around_the_crop() {
        let filter = Interpolation::Bicubic;
        // 1000 pixels are scaled to 100. The filter reaches two pixels of the result on each side, which are ten pixels
        // each, and one more is read.
        let side = Side::cropped(1000, 100, 40, 20, filter);
        assert_eq!((side.seen, side.start, side.length, side.kept), (379..621, 400.0, 200.0, 0..20));
        let edge = Side::cropped(1000, 100, 0, 20, filter);
        assert_eq!(edge.seen, 0..221, "no pixels are read beyond the edge");
        let whole = Side::cropped(1000, 80, 30, 20, filter);
        assert_eq!(
            (whole.seen, whole.pixels, whole.kept),
            (0..1000, 80, 30..50),
            "scaled as a whole, then cropped"
        );
        let tiny = Side::cropped(1, 1 << 40, 1 << 39, 7, filter);
        assert_eq!((tiny.seen, tiny.start, tiny.pixels), (0..1, 0.5, 7));
    }

    #[test]
    fn a_large_image_is_reduced_to_means_that_give_the_same_small_image() {
        let pixel = |place: u32| ((place * 37) % 200 + place % 50) as u8;
        let image = |width: u32, height: u32, channels: u8| Image {
            width,
            height,
            channels,
            pixels: (0..width * height * u32::from(channels)).map(pixel).collect(),
        };
        let whole = image(6, 4, 1);
        let halved = whole.reduced(2).unwrap();
        assert_eq!((halved.width, halved.height), (3, 2));
        let mean = [0, 1, 6, 7].map(|place| u32::from(whole.pixels[place])).iter().sum::<u32>() as f64 / 4.0;
        assert!((f64::from(halved.pixels[0]) - mean).abs() <= 1.0);
        assert_eq!(whole.reduced(3), None, "the shorter side would have two pixels");
        let photo = image(430, 310, 3);
        let reduced = photo.reduced(96).unwrap();
        assert_eq!((reduced.width, reduced.height), (143, 103));
        let small = |image: &Image| image.resize(24, 24, Interpolation::Bicubic).pixels;
        let gap = |(a, b): (u8, u8)| a.abs_diff(b);
        let largest = small(&photo).into_iter().zip(small(&reduced)).map(gap).max().unwrap();
        assert!(largest <= 3, "{largest} of 255");
    }

    #[test]
    fn columns_are_scaled_first_if_a_tall_image_becomes_wide() {
        let whole = |width, height, columns, rows| {
            between(&Side::part(0, width, columns), &Side::part(0, height, rows))
        };
        assert_eq!(whole(1, 32_768, 224, 224), (224, true));
        assert_eq!(whole(32_768, 1, 224, 224), (224, false));
        assert_eq!(whole(200, 300, 224, 224), (224 * 300, false));
        assert_eq!(whole(20, 1000, 64, 64), (64 * 1000, false));
        assert_eq!(whole(4000, 3000, 224, 224), (224 * 3000, false));
    }
}
