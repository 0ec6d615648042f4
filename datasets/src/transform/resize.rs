//! Antialiased scaling of images, whole or in part, one side after the other.
//!
//! Where a small part of a scaled image is kept, no more than that is computed, from what the filter sees of the image. A
//! row of 32,768 pixels that covers a square of 224 would be 1.6 billion pixels before it is cropped.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use serde::{Deserialize, Serialize};

use crate::Image;
use crate::listed::listed;

/// A side that is scaled to more than so many times what is kept of it is not scaled as a whole. A smaller one is: the
/// precision of the filter's weights depends on those at the edges, so that leaving these out may change a value by a level
/// or two of 255.
const MOST_CROPPED: u64 = 4;
/// Rows are scaled first unless the image in between has so many times the pixels of what it is made of, and of what is
/// made of it: then it is tall and thin, and becomes much wider and much lower.
const MOST_GROWTH: u64 = 4;

thread_local! {
    /// Keeps its buffers between images.
    static RESIZER: RefCell<Resizer> = RefCell::new(Resizer::new());
}

listed! {
    /// An antialiased scaling filter, as PIL has them.
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

    /// How many pixels the filter reaches to each side, where an image is not scaled down.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }
}

/// What becomes of an image along one of its sides.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Side {
    /// The pixels of the image that are looked at.
    seen: Range<u32>,
    /// Where the interval that is scaled begins: 0 is the edge of the image.
    start: f64,
    /// The length of that interval, in pixels of the image.
    length: f64,
    /// The pixels that it becomes.
    pixels: u32,
    /// Those of them that the result has.
    kept: Range<u32>,
}

impl Side {
    /// `length` pixels from `start` on, and nothing beyond them, become `pixels`, at least 1.
    pub(super) fn part(start: u32, length: u32, pixels: u32) -> Self {
        let pixels = pixels.max(1);
        let (seen, kept) = (start..start + length, 0..pixels);
        Self { seen, start: start.into(), length: length.into(), pixels, kept }
    }

    /// Of a side of `length` pixels that is scaled to `scaled`, the `kept` pixels from `offset` on.
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
        // Rounding must not lead beyond the edge.
        let size = (f64::from(kept) * scale).min(f64::from(length) - start);
        // A pixel more than the filter reaches, as that is rounded, too.
        let reach = interpolation.support() * scale.max(1.0) + 1.0;
        let first = (start - reach).floor().max(0.0) as u32;
        let last = ((start + size + reach).ceil() as u32).min(length);
        Self { seen: first..last, start, length: size, pixels: kept, kept: 0..kept }
    }

    /// The same where what is seen was cut out.
    fn within_seen(&self) -> Self {
        let first = self.seen.start;
        let start = self.start - f64::from(first);
        Self { seen: 0..self.seen.end - first, start, kept: self.kept.clone(), ..*self }
    }

    /// What is seen, as it is.
    fn unscaled(&self) -> Self {
        let length = self.seen.end - self.seen.start;
        Self::part(self.seen.start, length, length)
    }

    /// What is kept of what is scaled already.
    fn crop(&self) -> Self {
        let length = self.kept.end - self.kept.start;
        Self::part(self.kept.start, length, length)
    }

    /// What is kept, as it is.
    fn result(&self) -> Self {
        Self::part(0, self.kept.end - self.kept.start, self.kept.end - self.kept.start)
    }

    /// Whether a side of `length` pixels stays as it is.
    fn keeps(&self, length: u32) -> bool {
        *self == Self::part(0, length, length)
    }
}

/// Pixels of the image between the two steps, and whether its columns are scaled already rather than its rows.
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

/// The most pixels of an image that scaling makes on its way to the result.
#[cfg(test)]
pub(super) fn most_pixels(across: &Side, down: &Side) -> u64 {
    let scaled = match between(across, down) {
        (_, false) => u64::from(across.crop().pixels) * u64::from(down.pixels),
        (_, true) => u64::from(across.pixels) * u64::from(down.crop().pixels),
    };
    between(across, down).0.max(scaled)
}

impl Image {
    /// The image scaled to `width` by `height` (at least 1) with an antialiased filter.
    pub fn resize(&self, width: u32, height: u32, interpolation: Interpolation) -> Self {
        self.resize_part([0, 0, self.width, self.height], width, height, interpolation)
    }

    /// A part (left, top, width, height) scaled to `width` by `height`, at least 1 each.
    ///
    /// # Panics
    ///
    /// When the part is empty or reaches beyond the image.
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

    /// What `across` makes of the width and `down` of the height.
    ///
    /// # Panics
    ///
    /// When one of them is empty or reaches beyond the image.
    pub(super) fn resize_sides(&self, across: &Side, down: &Side, interpolation: Interpolation) -> Self {
        // One pixel type at a time: the crate's untyped form would be compiled here for all that it knows.
        let scale = if self.channels == 1 { scale::<U8> } else { scale::<U8x3> };
        // Rows first, then columns, as PIL does; the crate alone would begin with the columns.
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
                image = Cow::Owned(scale(&image, &across, &down, interpolation));
            }
        }
        image.into_owned()
    }
}

fn scale<P: PixelTrait>(image: &Image, across: &Side, down: &Side, interpolation: Interpolation) -> Image {
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(interpolation.filter())).crop(
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
    assert!(done.is_some(), "an image's buffer has the length of its size, and the part lies in it");
    Image { width, height, channels: image.channels, pixels }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cropped_has_the_neighbors_that_it_had() {
        let filter = Interpolation::Bicubic;
        // 1000 pixels scaled to 100: two pixels of the result on each side, of ten each, and one more.
        let side = Side::cropped(1000, 100, 40, 20, filter);
        assert_eq!((side.seen, side.start, side.length, side.kept), (379..621, 400.0, 200.0, 0..20));
        let edge = Side::cropped(1000, 100, 0, 20, filter);
        assert_eq!(edge.seen, 0..221, "there is nothing before the edge");
        let whole = Side::cropped(1000, 80, 30, 20, filter);
        assert_eq!((whole.seen, whole.pixels, whole.kept), (0..1000, 80, 30..50), "as a whole, then cropped");
        let tiny = Side::cropped(1, 1 << 40, 1 << 39, 7, filter);
        assert_eq!((tiny.seen, tiny.start, tiny.pixels), (0..1, 0.5, 7));
    }

    #[test]
    fn what_is_tall_and_becomes_wide_is_made_low_first() {
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
