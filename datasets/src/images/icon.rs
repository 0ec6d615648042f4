//! Icons (ICO files) whose image is a PNG file: the decoder of icons reads these in RGBA alone, and other programs write other colors,
//! too.

/// Bytes of the header.
const HEADER: usize = 6;
/// Bytes of an entry of the directory, one for each image.
const ENTRY: usize = 16;
/// What a PNG file begins with.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

/// The PNG file in an icon, if the image that the decoder of icons takes is one: that of the most bits per pixel, and of these the
/// largest. `None` for another image, and in a damaged file.
pub(super) fn png(bytes: &[u8]) -> Option<&[u8]> {
    let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
    let count = u16::from_le_bytes([header[4], header[5]]);
    let entries = rest.as_chunks::<ENTRY>().0.get(..usize::from(count))?;
    let (last, others) = entries.split_last()?;
    // The decoder prefers the last of equal ones, or else the first.
    let best = others.iter().fold(last, |best, entry| if score(entry) > score(best) { entry } else { best });
    // Its length, which the decoder does not heed, comes before its place.
    let place = u32::from_le_bytes(*best.last_chunk()?);
    let image = bytes.get(usize::try_from(place).ok()?..)?;
    image.starts_with(PNG).then_some(image)
}

/// By what the image of an entry is preferred: its bits per pixel, and its number of pixels. A side of 256 pixels is stated as 0.
fn score(entry: &[u8; ENTRY]) -> (u16, u32) {
    let side = |side: u8| if side == 0 { 256 } else { u32::from(side) };
    (u16::from_le_bytes([entry[6], entry[7]]), side(entry[0]) * side(entry[1]))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use image::{DynamicImage, GrayImage, ImageFormat, Luma, Rgb, RgbImage};

    use super::*;
    use crate::{DecodeLimits, Image, ImageSource};

    /// A PNG file of the size of an icon, whose pixels depend on `shade`.
    fn picture(side: u32, shade: u8) -> DynamicImage {
        RgbImage::from_fn(side, side, |x, y| Rgb([x as u8, y as u8, shade])).into()
    }

    fn encoded(image: &DynamicImage) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        image.write_to(&mut bytes, ImageFormat::Png).unwrap();
        bytes.into_inner()
    }

    /// An icon with these PNG files, each with its side and bits per pixel.
    fn icon(files: &[(u8, u16, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 1, 0, files.len() as u8, 0];
        let mut place = HEADER + ENTRY * files.len();
        for (side, bits, file) in files {
            bytes.extend([*side, *side, 0, 0, 1, 0]);
            bytes.extend(bits.to_le_bytes());
            bytes.extend((file.len() as u32).to_le_bytes());
            bytes.extend((place as u32).to_le_bytes());
            place += file.len();
        }
        bytes.extend(files.iter().flat_map(|(_, _, file)| file));
        bytes
    }

    fn decoded(bytes: Vec<u8>) -> Image {
        let source = ImageSource::Encoded { name: "icon".into(), bytes: bytes.into() };
        source.probe(&DecodeLimits::default()).unwrap();
        source.decode(&DecodeLimits::default()).unwrap()
    }

    #[test]
    fn png_files_of_any_colors_are_read() {
        let color = picture(24, 7);
        let image = decoded(icon(&[(24, 24, encoded(&color))]));
        assert_eq!((image.channels, image.pixels), (3, color.into_bytes()));
        let gray = DynamicImage::from(GrayImage::from_fn(24, 24, |x, y| Luma([(x * y) as u8])));
        let image = decoded(icon(&[(24, 8, encoded(&gray))]));
        assert_eq!((image.channels, image.pixels), (1, gray.into_bytes()));
    }

    #[test]
    fn of_several_images_the_one_of_the_most_bits_and_pixels_is_read() {
        let files: [(u8, u16, u8); 4] = [(16, 24, 1), (32, 24, 2), (48, 8, 3), (32, 24, 4)];
        let files = files.map(|(side, bits, shade)| (side, bits, encoded(&picture(u32::from(side), shade))));
        assert_eq!(decoded(icon(&files)).pixels, picture(32, 4).into_bytes());
        assert_eq!(decoded(icon(&files[..3])).pixels, picture(32, 2).into_bytes());
    }

    #[test]
    fn a_damaged_or_other_file_has_none() {
        let whole = icon(&[(16, 24, encoded(&picture(16, 1)))]);
        for length in 0..HEADER + ENTRY + PNG.len() {
            assert_eq!(png(&whole[..length]), None, "{length}");
        }
        assert_eq!(png(&whole), Some(&whole[HEADER + ENTRY..]));
        assert_eq!(png(&icon(&[])), None);
        assert_eq!(png(&icon(&[(16, 32, b"no PNG file".to_vec())])), None);
        let far = [&whole[..HEADER + 12], &[0xff; 4], &whole[HEADER + ENTRY..]].concat();
        assert_eq!(png(&far), None);
    }
}
