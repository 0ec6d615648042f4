//! JPEG decoding with bit for bit the pixels of libjpeg-turbo, the library that PIL, OpenCV, and torchvision use: its
//! inverse DCT, its upsampling filter for chroma, and its conversion from YCbCr.

use image::metadata::Orientation;
use image::{DynamicImage, GrayImage, ImageFormat, RgbImage};
use libjpeg_turbo_rs::{ColorSpace, Decoder, PixelFormat};

use super::memory::{self, Reserved};
use super::orientation;
use crate::DecodeLimits;

/// Largest number of scans of a progressive file. No encoder writes as many, and each costs a pass over the whole
/// image.
const MOST_SCANS: usize = 500;

/// Decodes a gray or color file and applies its EXIF orientation. `None` for files of four channels (CMYK, YCCK), which
/// need another decoder. The memory of the image is reserved until the [`Reserved`] is dropped.
///
/// Damaged data is decoded as far as possible, as PIL does.
///
/// # Errors
///
/// If the file is invalid or exceeds a limit; the message says which.
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
    // An image with invalid EXIF data is used as it is.
    let orientation = decoder.exif_data().and_then(orientation::of_exif);
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

/// Checks that the header is valid and within the limits.
///
/// # Errors
///
/// As [`decode`].
pub(crate) fn probe(bytes: &[u8], limits: &DecodeLimits) -> Result<(), String> {
    open(bytes, limits).map(drop)
}

/// A decoder that has read the header.
fn open<'a>(bytes: &'a [u8], limits: &DecodeLimits) -> Result<Decoder<'a>, String> {
    let limits = libjpeg_turbo_rs::DecodeLimits {
        max_width: limits.max_side as usize,
        max_height: limits.max_side as usize,
        max_pixels: limits.max_bytes / 3,
        max_scans: MOST_SCANS,
        // The decoder holds planes, coefficients, and pixels at the same time.
        max_memory: Some(limits.max_bytes.saturating_mul(5) / 2),
    };
    Decoder::new_with_limits(bytes, limits).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{DecodeLimits, ImageSource};

    /// The largest absolute difference of our pixel values from PIL's, and the mean difference.
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

    /// The PNG files hold the pixels that PIL 13.0 with libjpeg-turbo 3.2 decodes from the JPEG files.
    #[test]
    fn every_kind_of_jpeg_file_is_decoded_to_the_pixels_of_pil() {
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
    fn a_file_that_exceeds_a_limit_is_refused_by_its_header() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/jpeg/420.jpg");
        let limits = DecodeLimits { max_side: 20, ..DecodeLimits::default() };
        let error = ImageSource::File(path).decode(&limits).unwrap_err().to_string();
        assert!(error.contains("420.jpg") && error.contains("20"), "{error}");
    }
}
