//! What the decoder of TIFF files does not tell: whether the colors of an image are multiplied by its alpha.

/// The tag that says what the samples of a pixel besides its colors are (TIFF 6.0, section 18).
const EXTRA_SAMPLES: u16 = 338;
/// Its value for alpha by which the colors are multiplied already.
const ASSOCIATED_ALPHA: u16 = 1;

/// Whether the first image of a TIFF file has colors that are multiplied by its alpha.
pub(super) fn is_premultiplied(bytes: &[u8]) -> bool {
    extra_sample(bytes) == Some(ASSOCIATED_ALPHA)
}

/// What the first sample besides the colors is. `None` without any, and in a damaged file.
fn extra_sample(bytes: &[u8]) -> Option<u16> {
    let (is_little, is_big) = match bytes.get(..4)? {
        b"II*\0" => (true, false),
        b"MM\0*" => (false, false),
        b"II+\0" => (true, true),
        b"MM\0+" => (false, true),
        _ => return None,
    };
    let short = |place: usize| {
        let number = *bytes.get(place..)?.first_chunk()?;
        Some(if is_little { u16::from_le_bytes(number) } else { u16::from_be_bytes(number) })
    };
    // A place in the file, or a number of values.
    let long = |place: usize| {
        if is_big {
            let number = *bytes.get(place..)?.first_chunk()?;
            let number = if is_little { u64::from_le_bytes(number) } else { u64::from_be_bytes(number) };
            return usize::try_from(number).ok();
        }
        let number = *bytes.get(place..)?.first_chunk()?;
        let number = if is_little { u32::from_le_bytes(number) } else { u32::from_be_bytes(number) };
        usize::try_from(number).ok()
    };
    // Bytes of such a number, of the number of entries in a directory, and of an entry.
    let (width, count, entry) = if is_big { (8, 8, 20) } else { (4, 2, 12) };
    let directory = long(width)?;
    let entries = if is_big { long(directory)? } else { usize::from(short(directory)?) };
    let first = directory.checked_add(count)?;
    let mut entries = (first..bytes.len()).step_by(entry).take(entries);
    let found = entries.find(|&entry| short(entry) == Some(EXTRA_SAMPLES))?;
    // Few numbers lie in the entry itself; more lie where it says.
    let value = found.checked_add(4 + width)?;
    match long(found.checked_add(4)?)? {
        0 => None,
        few if few <= width / 2 => short(value),
        _ => short(long(value)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DecodeLimits, ImageSource};

    /// A TIFF or BigTIFF file of one pixel in RGBA, whose alpha is of this kind.
    fn file(pixel: [u8; 4], kind: u16, is_little: bool, is_big: bool) -> Vec<u8> {
        let short = |number: u16| if is_little { number.to_le_bytes() } else { number.to_be_bytes() };
        let long = |number: u32| if is_little { number.to_le_bytes() } else { number.to_be_bytes() };
        let wide = |number: u32| match (is_big, is_little) {
            (false, _) => long(number).to_vec(),
            (true, true) => u64::from(number).to_le_bytes().to_vec(),
            (true, false) => u64::from(number).to_be_bytes().to_vec(),
        };
        let mut bytes = if is_little { b"II".to_vec() } else { b"MM".to_vec() };
        if is_big {
            bytes.extend([43, 8, 0].map(short).concat());
            bytes.extend([16, 10].map(wide).concat());
        } else {
            bytes.extend(short(42));
            bytes.extend(wide(8));
            bytes.extend(short(10));
        }
        // Sides, bits of a sample, no compression, RGB, place, samples, rows, length, and kind. The pixel follows the entries, after the
        // bits where these do not lie in their entry.
        let (width, place) = if is_big { (8, 232) } else { (4, 142) };
        let numbers =
            [(256, 1), (257, 1), (258, 134), (259, 1), (262, 2), (273, place), (277, 4), (278, 1), (279, 4)];
        for (tag, number) in numbers.into_iter().chain([(EXTRA_SAMPLES, kind)]) {
            bytes.extend(short(tag));
            bytes.extend(short(if [273, 279].contains(&tag) { 4 } else { 3 }));
            bytes.extend(wide(if tag == 258 { 4 } else { 1 }));
            let mut value = match tag {
                258 if is_big => [8; 4].map(short).concat(),
                258 | 273 | 279 => long(number.into()).to_vec(),
                _ => short(number).to_vec(),
            };
            value.resize(width, 0);
            bytes.extend(value);
        }
        bytes.extend(wide(0));
        if !is_big {
            bytes.extend([8; 4].map(short).concat());
        }
        bytes.extend(pixel);
        bytes
    }

    #[test]
    fn colors_that_are_multiplied_by_their_alpha_are_not_multiplied_again() {
        // The same pixel: a fifth of [0, 50, 255].
        for (pixel, kind) in [([0, 10, 51, 51], ASSOCIATED_ALPHA), ([0, 50, 255, 51], 2)] {
            for (is_little, is_big) in [(true, false), (false, false), (true, true), (false, true)] {
                let bytes = file(pixel, kind, is_little, is_big);
                assert_eq!(extra_sample(&bytes), Some(kind));
                let source = ImageSource::Encoded { name: "a.tif".into(), bytes: bytes.into() };
                let image = source.decode(&DecodeLimits::default()).unwrap();
                let found = (image.channels, image.pixels);
                assert_eq!(found, (3, vec![204, 214, 255]), "{kind} {is_little} {is_big}");
            }
        }
    }

    #[test]
    fn a_damaged_or_other_file_says_nothing() {
        for (is_big, needed) in [(false, 128), (true, 218)] {
            let whole = file([0, 10, 51, 51], ASSOCIATED_ALPHA, true, is_big);
            for length in 0..needed {
                assert_eq!(extra_sample(&whole[..length]), None, "{length}");
            }
            assert_eq!(extra_sample(&whole[..needed]), Some(ASSOCIATED_ALPHA));
        }
        assert_eq!(extra_sample(b"II*\0\xff\xff\xff\xff"), None);
        let far = |count: u8| [&b"II+\0\x08\0\0\0\x10\0\0\0\0\0\0\0"[..], &[count; 8], &[0; 40]].concat();
        assert_eq!([0, 1, 0xff].map(|count| extra_sample(&far(count))), [None; 3]);
        assert_eq!(extra_sample(&[&b"II+\0\x08\0\0\0"[..], &[0xff; 8]].concat()), None);
        assert_eq!(extra_sample(b"\x89PNG\r\n\x1a\n"), None);
    }
}
