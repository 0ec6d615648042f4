//! The orientation that EXIF data state.

use image::metadata::Orientation;
use image::{ImageDecoder, ImageFormat};

/// What EXIF data begin with in a JPEG file, and should not begin with in files of other formats.
const JPEG_START: &[u8; 6] = b"Exif\0\0";

/// The orientation of a decoder's image, whose file is of this format and has these bytes. One whose EXIF data are invalid is used as
/// it is.
pub(super) fn of_decoder(decoder: &mut impl ImageDecoder, format: ImageFormat, bytes: &[u8]) -> Orientation {
    let stated = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    if stated != Orientation::NoTransforms {
        return stated;
    }
    let orientation = match (decoder.exif_metadata().ok().flatten(), format) {
        (Some(exif), _) => of_exif(&exif),
        (None, ImageFormat::Png) => exif_of_png(bytes).and_then(of_exif),
        (None, _) => None,
    };
    orientation.unwrap_or(stated)
}

/// The EXIF data of a PNG file. The decoder knows those before the pixels, where PNG's third edition has them (section 5.6). They were
/// allowed after the pixels, too, where ImageMagick writes them and PIL reads them.
fn exif_of_png(bytes: &[u8]) -> Option<&[u8]> {
    const SIGNATURE: usize = 8;
    const CHECKSUM: usize = 4;
    let mut chunks = bytes.get(SIGNATURE..)?;
    loop {
        let (length, rest) = chunks.split_first_chunk()?;
        let (kind, rest) = rest.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length) as usize;
        if kind == b"eXIf" {
            return rest.get(..length);
        }
        chunks = rest.get(length.checked_add(CHECKSUM)?..)?;
    }
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

    use super::exif_of_png;
    use crate::{DecodeLimits, ImageSource};

    /// EXIF data with the orientation "rotate by 90 degrees".
    const ROTATED: &[u8] = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";

    /// A PNG file with its EXIF data moved to its end, after the pixels.
    fn with_exif_last(png: &[u8]) -> Vec<u8> {
        let start = png.windows(4).position(|kind| kind == b"eXIf").unwrap() - 4;
        let length = u32::from_be_bytes(*png[start..].first_chunk().unwrap()) as usize;
        let (end, last) = (start + 12 + length, png.len() - 12);
        [&png[..start], &png[end..last], &png[start..end], &png[last..]].concat()
    }

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
            assert_eq!([size(with_exif_last(&png)), size(png), size(webp)], [(17, 23); 3], "{start:?}");
        }
    }

    #[test]
    fn the_exif_data_of_a_png_file_are_found_before_and_after_its_pixels() {
        let mut png = Vec::new();
        let mut encoder = PngEncoder::new(&mut png);
        encoder.set_exif_metadata(ROTATED.to_vec()).unwrap();
        DynamicImage::new_rgb8(23, 17).write_with_encoder(encoder).unwrap();
        let last = with_exif_last(&png);
        assert_ne!(png, last);
        assert_eq!([exif_of_png(&png), exif_of_png(&last)], [Some(ROTATED); 2]);
        for length in 0..last.len() - 12 - 4 {
            assert_eq!(exif_of_png(&last[..length]), None, "the first {length} bytes");
        }
        let endless = [&png[..8], &[0xff; 4], b"tEXt", &[0; 4]].concat();
        assert_eq!(exif_of_png(&endless), None);
    }

    #[test]
    fn an_image_with_invalid_exif_data_is_used_as_it_is() {
        for exif in [&b"Exif\0\0"[..], b"Exif\0\0nonsense", b"MM\0\x2a\0\0"] {
            let mut png = Vec::new();
            let mut encoder = PngEncoder::new(&mut png);
            encoder.set_exif_metadata(exif.to_vec()).unwrap();
            DynamicImage::new_rgb8(23, 17).write_with_encoder(encoder).unwrap();
            assert_eq!([size(with_exif_last(&png)), size(png)], [(23, 17); 2], "{exif:?}");
        }
    }
}
