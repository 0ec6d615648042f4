//! JPEG files, decoded to the values of libjpeg-turbo, with which PIL, OpenCV and torchvision read them: its inverse transform, its
//! filter for subsampled color and its conversion from YCbCr, bit for bit.

use image::metadata::Orientation;
use image::{DynamicImage, GrayImage, ImageFormat, RgbImage};
use libjpeg_turbo_rs::{ColorSpace, Decoder, PixelFormat};

use super::memory::{self, Reserved};
use crate::DecodeLimits;

/// More scans than any program writes; each costs a pass over the whole image.
const MOST_SCANS: usize = 500;

/// Decodes a gray or color file, turned as its EXIF data says; none for the kinds with four channels, which are left to another
/// decoder. The memory that it takes is reserved as long as the second part of the result lives.
///
/// Damaged data is decoded as far as it goes, as PIL does.
///
/// # Errors
///
/// Says what is wrong with the file, or which limit it exceeds.
pub(crate) fn decode(
    bytes: &[u8],
    limits: &DecodeLimits,
) -> Result<Option<(DynamicImage, Reserved)>, String> {
    let mut decoder = open(bytes, limits)?;
    let format = match decoder.jpeg_color_space() {
        ColorSpace::Grayscale => PixelFormat::Grayscale,
        ColorSpace::YCbCr | ColorSpace::Rgb => PixelFormat::Rgb,
        ColorSpace::Cmyk | ColorSpace::Ycck | ColorSpace::Unknown => return Ok(None),
    };
    // Broken EXIF data says nothing about the pixels.
    let orientation = decoder.exif_data().and_then(Orientation::from_exif_chunk);
    let header = decoder.header();
    let pixels = u64::from(header.width) * u64::from(header.height) * format.bytes_per_pixel() as u64;
    let reserved = memory::reserve(memory::cost(ImageFormat::Jpeg, pixels, bytes).saturating_add(pixels));
    decoder.set_output_format(format);
    decoder.set_lenient(true);
    let decoded = decoder.decode_image().map_err(|error| error.to_string())?;
    let (width, height) = (decoded.width as u32, decoded.height as u32);
    let image = match format {
        PixelFormat::Grayscale => {
            GrayImage::from_raw(width, height, decoded.data).map(DynamicImage::ImageLuma8)
        }
        _ => RgbImage::from_raw(width, height, decoded.data).map(DynamicImage::ImageRgb8),
    };
    let mut image = image.ok_or("it has fewer pixels than its header says")?;
    image.apply_orientation(orientation.unwrap_or(Orientation::NoTransforms));
    Ok(Some((image, reserved)))
}

/// Whether the header makes sense and is within the limits.
///
/// # Errors
///
/// As [`decode`].
pub(crate) fn probe(bytes: &[u8], limits: &DecodeLimits) -> Result<(), String> {
    open(bytes, limits).map(drop)
}

fn open<'a>(bytes: &'a [u8], limits: &DecodeLimits) -> Result<Decoder<'a>, String> {
    let limits = libjpeg_turbo_rs::DecodeLimits {
        max_width: limits.max_side as usize,
        max_height: limits.max_side as usize,
        max_pixels: limits.max_bytes / 3,
        max_scans: MOST_SCANS,
        // Planes, coefficients and pixels are there at one time.
        max_memory: Some(limits.max_bytes.saturating_mul(5) / 2),
    };
    Decoder::new_with_limits(bytes, limits).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{DecodeLimits, ImageSource};

    /// The largest difference of a channel's values from PIL's, and the mean difference.
    fn difference(name: &str) -> (i32, f64) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/jpeg");
        let read =
            |file: String| ImageSource::File(folder.join(file)).decode(&DecodeLimits::default()).unwrap();
        let (ours, theirs) = (read(format!("{name}.jpg")), read(format!("{name}.png")));
        assert_eq!((ours.width, ours.height, ours.channels), (theirs.width, theirs.height, theirs.channels));
        let gaps = ours.pixels.iter().zip(&theirs.pixels).map(|(a, b)| i32::from(*a) - i32::from(*b));
        let sum: i32 = gaps.clone().sum();
        (gaps.map(i32::abs).max().unwrap(), f64::from(sum) / ours.pixels.len() as f64)
    }

    /// The PNG files hold what PIL 13.0 with libjpeg-turbo 3.2 made of the JPEG files.
    #[test]
    fn every_kind_of_file_has_the_pixels_of_pil() {
        for name in [
            "444",
            "422",
            "420",
            "440",
            "411",
            "420_progressive",
            "422_progressive",
            "420_restarts",
            "420_even",
            "420_narrow",
            "gray",
            "rgb",
        ] {
            assert_eq!(difference(name), (0, 0.0), "{name}");
        }
        let (largest, bias) = difference("cmyk");
        assert!(largest <= 1 && bias.abs() < 0.02, "cmyk: {largest}, {bias}");
    }

    #[test]
    fn limits_hold_before_anything_is_decoded() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/jpeg/420.jpg");
        let limits = DecodeLimits { max_side: 20, ..DecodeLimits::default() };
        let error = ImageSource::File(path).decode(&limits).unwrap_err().to_string();
        assert!(error.contains("420.jpg") && error.contains("20"), "{error}");
    }
}
