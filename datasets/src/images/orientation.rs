//! The orientation that EXIF data state.

use image::ImageDecoder;
use image::metadata::Orientation;

/// What EXIF data begin with in a JPEG file, and should not begin with in files of other formats.
const JPEG_START: &[u8; 6] = b"Exif\0\0";

/// The orientation of a decoder's image. One whose EXIF data are invalid is used as it is.
pub(super) fn of_decoder(decoder: &mut impl ImageDecoder) -> Orientation {
    let stated = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    if stated != Orientation::NoTransforms {
        return stated;
    }
    let exif = decoder.exif_metadata().ok().flatten();
    exif.and_then(|exif| of_exif(&exif)).unwrap_or(stated)
}

/// The orientation that EXIF data state. Some programs begin them in WebP and PNG files as in JPEG files, or do so twice; PIL reads
/// these, too.
pub(super) fn of_exif(mut exif: &[u8]) -> Option<Orientation> {
    while let Some(rest) = exif.strip_prefix(JPEG_START) {
        exif = rest;
    }
    Orientation::from_exif_chunk(exif)
}

#[cfg(test)]
mod tests {
    use image::codecs::png::PngEncoder;
    use image::codecs::webp::WebPEncoder;
    use image::{DynamicImage, ImageEncoder};

    use crate::{DecodeLimits, ImageSource};

    /// EXIF data with the orientation "rotate by 90 degrees".
    const ROTATED: &[u8] = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";

    fn size(bytes: Vec<u8>) -> (u32, u32) {
        let source = ImageSource::Encoded { name: "an image".into(), bytes: bytes.into() };
        let image = source.decode(&DecodeLimits::default()).unwrap();
        (image.width, image.height)
    }

    #[test]
    fn exif_data_that_begin_as_in_a_jpeg_file_are_read_in_other_formats() {
        let image = DynamicImage::new_rgb8(23, 17);
        for start in [&b""[..], b"Exif\0\0", b"Exif\0\0Exif\0\0"] {
            let exif = [start, ROTATED].concat();
            let (mut png, mut webp) = (Vec::new(), Vec::new());
            let mut encoder = PngEncoder::new(&mut png);
            encoder.set_exif_metadata(exif.clone()).unwrap();
            image.write_with_encoder(encoder).unwrap();
            let mut encoder = WebPEncoder::new_lossless(&mut webp);
            encoder.set_exif_metadata(exif).unwrap();
            image.write_with_encoder(encoder).unwrap();
            assert_eq!([size(png), size(webp)], [(17, 23); 2], "{start:?}");
        }
    }

    #[test]
    fn an_image_with_invalid_exif_data_is_used_as_it_is() {
        for exif in [&b"Exif\0\0"[..], b"Exif\0\0nonsense", b"MM\0\x2a\0\0"] {
            let mut png = Vec::new();
            let mut encoder = PngEncoder::new(&mut png);
            encoder.set_exif_metadata(exif.to_vec()).unwrap();
            DynamicImage::new_rgb8(23, 17).write_with_encoder(encoder).unwrap();
            assert_eq!(size(png), (23, 17), "{exif:?}");
        }
    }
}
