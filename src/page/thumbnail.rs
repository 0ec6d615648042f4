//! A small image that a page holds as PNG or JPEG.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::codecs::{jpeg::JpegEncoder, png::PngEncoder};
use image::{ExtendedColorType, ImageEncoder};
use maud::{Markup, html};

/// The quality of JPEG files, at which an image in the size of a thumbnail shows no blocks.
const JPEG_QUALITY: u8 = 88;

/// An image of 8 bits per channel. The page stores all of its pixels, so a side should have at most about 128.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thumbnail {
    width: u32,
    height: u32,
    color: ExtendedColorType,
    pixels: Vec<u8>,
}

impl Thumbnail {
    /// A gray (1 channel) or RGB (3 channels) image.
    ///
    /// # Shapes
    ///
    /// - pixels: `[height, width, channels]`
    ///
    /// # Panics
    ///
    /// If a side is zero, `channels` is neither 1 nor 3, or `pixels` has a length that does not fit them.
    pub fn new(width: u32, height: u32, channels: usize, pixels: Vec<u8>) -> Self {
        assert!(width > 0 && height > 0, "an image has at least one pixel");
        assert_eq!(pixels.len(), width as usize * height as usize * channels, "[height, width, channels]");
        let color = match channels {
            1 => ExtendedColorType::L8,
            3 => ExtendedColorType::Rgb8,
            _ => panic!("an image has 1 or 3 channels, not {channels}"),
        };
        Self { width, height, color, pixels }
    }

    /// The `img` element, whose address holds the image as PNG. Small images are enlarged without smoothing.
    pub(crate) fn element(&self, alternative: &str) -> Markup {
        self.element_with(alternative, &address("png", &self.png()))
    }

    /// As [`Self::element`], with the address of [`Self::compact_address`].
    pub(crate) fn compact_element(&self, alternative: &str) -> Markup {
        self.element_with(alternative, &self.compact_address())
    }

    fn element_with(&self, alternative: &str, address: &str) -> Markup {
        let class = (self.width.max(self.height) <= 96).then_some("pixelated");
        html! {
            img class=[class] width=(self.width) height=(self.height) alt=(alternative) src=(address);
        }
    }

    /// An address that holds the image as PNG or as JPEG, whichever is shorter: for pages of many images.
    pub(crate) fn compact_address(&self) -> String {
        let (png, mut jpeg) = (self.png(), Vec::new());
        JpegEncoder::new_with_quality(&mut jpeg, JPEG_QUALITY)
            .write_image(&self.pixels, self.width, self.height, self.color)
            .expect("an image with the right number of pixels can be written to memory");
        if jpeg.len() < png.len() { address("jpeg", &jpeg) } else { address("png", &png) }
    }

    /// The encoded image.
    fn png(&self) -> Vec<u8> {
        let mut png = Vec::new();
        PngEncoder::new(&mut png)
            .write_image(&self.pixels, self.width, self.height, self.color)
            .expect("an image with the right number of pixels can be written to memory");
        png
    }
}

/// An address that holds an image file.
fn address(format: &str, file: &[u8]) -> String {
    format!("data:image/{format};base64,{}", STANDARD.encode(file))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_png_holds_the_pixels() {
        for channels in [1, 3] {
            let pixels: Vec<u8> = (0..6 * channels as u8).map(|value| value * 14).collect();
            let png = Thumbnail::new(3, 2, channels, pixels.clone()).png();
            let read = image::load_from_memory(&png).unwrap();
            assert_eq!((read.width(), read.height()), (3, 2));
            assert_eq!(read.into_bytes(), pixels);
        }
    }

    #[test]
    fn photos_are_compact_as_jpeg_and_flat_drawings_as_png() {
        let noisy: Vec<u8> =
            (0..64 * 64 * 3u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        assert!(Thumbnail::new(64, 64, 3, noisy).compact_address().starts_with("data:image/jpeg"));
        assert!(Thumbnail::new(64, 64, 1, vec![9; 64 * 64]).compact_address().starts_with("data:image/png"));
    }

    #[test]
    fn only_small_images_are_pixelated() {
        let element =
            |side: u32| Thumbnail::new(side, 1, 1, vec![0; side as usize]).element("").into_string();
        assert!(element(28).contains("pixelated"));
        assert!(!element(97).contains("pixelated"));
    }

    #[test]
    #[should_panic(expected = "[height, width, channels]")]
    fn a_wrong_length_is_refused() {
        Thumbnail::new(2, 2, 3, vec![0; 4]);
    }

    #[test]
    #[should_panic(expected = "not 4")]
    fn four_channels_are_refused() {
        Thumbnail::new(1, 1, 4, vec![0; 4]);
    }
}
