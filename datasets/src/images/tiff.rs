//! What the decoder of TIFF files does not tell: whether the colors of an image are multiplied by its alpha.

/// The tag that says what the samples of a pixel besides its colors are (TIFF 6.0, section 18).
const EXTRA_SAMPLES: u16 = 338;
/// Its value for alpha by which the colors are multiplied already.
const ASSOCIATED_ALPHA: u16 = 1;
/// Bytes of an entry of a directory.
const ENTRY: usize = 12;

/// Whether the first image of a TIFF file has colors that are multiplied by its alpha.
pub(super) fn is_premultiplied(bytes: &[u8]) -> bool {
    extra_sample(bytes) == Some(ASSOCIATED_ALPHA)
}

/// What the first sample besides the colors is. `None` without any, in a damaged file, and in a BigTIFF file.
fn extra_sample(bytes: &[u8]) -> Option<u16> {
    let is_little = match bytes.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let short = |place: usize| {
        let number = *bytes.get(place..)?.first_chunk()?;
        Some(if is_little { u16::from_le_bytes(number) } else { u16::from_be_bytes(number) })
    };
    let long = |place: usize| {
        let number = *bytes.get(place..)?.first_chunk()?;
        let number = if is_little { u32::from_le_bytes(number) } else { u32::from_be_bytes(number) };
        usize::try_from(number).ok()
    };
    let directory = long(4)?;
    let first = directory.checked_add(2)?;
    let mut entries = (0..usize::from(short(directory)?)).map(|index| first.saturating_add(ENTRY * index));
    let entry = entries.find(|&entry| short(entry) == Some(EXTRA_SAMPLES))?;
    // Two numbers at most lie in the entry itself; more lie where it says.
    match long(entry.checked_add(4)?)? {
        0 => None,
        1 | 2 => short(entry.checked_add(8)?),
        _ => short(long(entry.checked_add(8)?)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DecodeLimits, ImageSource};

    /// A TIFF file of one pixel in RGBA, whose alpha is of this kind.
    fn file(pixel: [u8; 4], kind: u16, is_little: bool) -> Vec<u8> {
        let short = |number: u16| if is_little { number.to_le_bytes() } else { number.to_be_bytes() };
        let long = |number: u32| if is_little { number.to_le_bytes() } else { number.to_be_bytes() };
        let mut bytes = if is_little { b"II*\0".to_vec() } else { b"MM\0*".to_vec() };
        bytes.extend(long(8));
        bytes.extend(short(10));
        // Sides, bits of a sample, no compression, RGB, place, samples, rows, length, and kind. Bits and pixel follow the entries.
        let numbers =
            [(256, 1), (257, 1), (258, 134), (259, 1), (262, 2), (273, 142), (277, 4), (278, 1), (279, 4)];
        for (tag, number) in numbers.into_iter().chain([(EXTRA_SAMPLES, kind)]) {
            bytes.extend(short(tag));
            bytes.extend(short(if [273, 279].contains(&tag) { 4 } else { 3 }));
            bytes.extend(long(if tag == 258 { 4 } else { 1 }));
            match tag {
                258 | 273 | 279 => bytes.extend(long(number.into())),
                _ => bytes.extend([short(number), short(0)].concat()),
            }
        }
        bytes.extend(long(0));
        bytes.extend([8; 4].map(short).concat());
        bytes.extend(pixel);
        bytes
    }

    #[test]
    fn colors_that_are_multiplied_by_their_alpha_are_not_multiplied_again() {
        // The same pixel: a fifth of [0, 50, 255].
        for (pixel, kind) in [([0, 10, 51, 51], ASSOCIATED_ALPHA), ([0, 50, 255, 51], 2)] {
            for is_little in [true, false] {
                let bytes = file(pixel, kind, is_little);
                assert_eq!(extra_sample(&bytes), Some(kind));
                let source = ImageSource::Encoded { name: "a.tif".into(), bytes: bytes.into() };
                let image = source.decode(&DecodeLimits::default()).unwrap();
                assert_eq!((image.channels, image.pixels), (3, vec![204, 214, 255]), "{kind} {is_little}");
            }
        }
    }

    #[test]
    fn a_damaged_or_other_file_says_nothing() {
        let whole = file([0, 10, 51, 51], ASSOCIATED_ALPHA, true);
        for length in 0..128 {
            assert_eq!(extra_sample(&whole[..length]), None, "{length}");
        }
        assert_eq!(extra_sample(b"II*\0\xff\xff\xff\xff"), None);
        assert_eq!(extra_sample(b"\x89PNG\r\n\x1a\n"), None);
    }
}
