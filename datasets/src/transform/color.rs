//! Operations on pixel values in place, as PIL's `ImageEnhance` and `ImageOps`.
//!
//! A factor of 1 leaves the image unchanged; a factor of 0 makes it black (brightness), uniformly gray (contrast),
//! colorless (saturation), or blurred (sharpness). Results are rounded to the nearest of the 256 levels.

use crate::Image;

/// Multiplies every value by a factor.
pub(super) fn brightness(image: &mut Image, factor: f32) {
    map(image, |value| level(f32::from(value) * factor));
}

/// Multiplies the difference of every value from the image's mean gray value by a factor.
pub(super) fn contrast(image: &mut Image, factor: f32) {
    let sum: u64 = match image.channels {
        3 => image.pixels.as_chunks::<3>().0.iter().map(|pixel| u64::from(luma(*pixel))).sum(),
        _ => image.pixels.iter().map(|&value| u64::from(value)).sum(),
    };
    let area = u64::from(image.width) * u64::from(image.height);
    let mean = ((sum * 2 + area) / (area * 2).max(1)) as f32;
    map(image, |value| level(mean + (f32::from(value) - mean) * factor));
}

/// Multiplies the difference of every value from its pixel's gray value by a factor. Gray images are unchanged.
pub(super) fn saturation(image: &mut Image, factor: f32) {
    if image.channels != 3 {
        return;
    }
    for pixel in image.pixels.as_chunks_mut::<3>().0 {
        let gray = f32::from(luma(*pixel));
        *pixel = pixel.map(|value| level(gray + (f32::from(value) - gray) * factor));
    }
}

/// Rotates hues by a share of the color circle, keeping saturation and value of HSV. Gray images are unchanged.
pub(super) fn rotate_hue(image: &mut Image, share: f32) {
    if image.channels != 3 {
        return;
    }
    let rotation = share.rem_euclid(1.0) * 6.0;
    for pixel in image.pixels.as_chunks_mut::<3>().0 {
        let [r, g, b] = pixel.map(f32::from);
        let (highest, lowest) = (r.max(g).max(b), r.min(g).min(b));
        let spread = highest - lowest;
        if spread == 0.0 {
            continue;
        }
        // In sixths of the circle, from red (0) over green (2) to blue (4).
        let hue = if highest == r {
            (g - b) / spread
        } else if highest == g {
            (b - r) / spread + 2.0
        } else {
            (r - g) / spread + 4.0
        };
        let hue = hue + rotation;
        *pixel = [5.0, 3.0, 1.0].map(|offset: f32| {
            // `place` is between -1 and 17, from which full circles of 6 are subtracted.
            let place = hue + offset;
            let place = place - 6.0 * ((place >= 6.0) as u8 as f32 + (place >= 12.0) as u8 as f32);
            level(highest - spread * place.min(4.0 - place).clamp(0.0, 1.0))
        });
    }
}

/// Blends the image with a blurred one (3 x 3 filter with 5 in the center and 1 elsewhere, divided by 13). Pixels at
/// the border are unchanged.
pub(super) fn sharpness(image: &mut Image, factor: f32) {
    let (width, height, channels) =
        (image.width as usize, image.height as usize, usize::from(image.channels));
    if width < 3 || height < 3 {
        return;
    }
    let source = image.pixels.clone();
    let stride = width * channels;
    for row in 1..height - 1 {
        for index in row * stride + channels..(row + 1) * stride - channels {
            let around: u32 = [index - stride, index, index + stride]
                .iter()
                .flat_map(|&center| [center - channels, center, center + channels])
                .map(|place| u32::from(source[place]))
                .sum();
            let value = u32::from(source[index]);
            let blurred = ((around + 4 * value) as f32 / 13.0).round();
            image.pixels[index] = level(blurred + (value as f32 - blurred) * factor);
        }
    }
}

/// Stretches the values of each channel linearly to the full range.
pub(super) fn autocontrast(image: &mut Image) {
    map_channels(image, |counts| {
        let lowest = counts.iter().position(|&count| count > 0)?;
        let highest = counts.iter().rposition(|&count| count > 0)?;
        (highest > lowest).then(|| {
            std::array::from_fn(|value| (value.clamp(lowest, highest) - lowest) * 255 / (highest - lowest))
        })
    });
}

/// Equalizes the histogram of each channel.
pub(super) fn equalize(image: &mut Image) {
    map_channels(image, |counts| {
        let last = *counts.iter().rfind(|&&count| count > 0)?;
        let step = (counts.iter().sum::<usize>() - last) / 255;
        let mut below = step / 2;
        (step > 0).then(|| {
            counts.map(|count| {
                let value = (below / step).min(255);
                below += count;
                value
            })
        })
    });
}

/// Replaces every value by 255 minus it.
pub(super) fn invert(image: &mut Image) {
    map(image, |value| !value);
}

/// Keeps only the highest bits of every value, from 0 to 8 of them.
pub(super) fn posterize(image: &mut Image, bits: u32) {
    let mask = !0xff_u8.checked_shr(bits).unwrap_or(0);
    map(image, |value| value & mask);
}

/// Inverts the values of at least `threshold`, which is from 0 to 256.
pub(super) fn solarize(image: &mut Image, threshold: u32) {
    map(image, |value| if u32::from(value) < threshold { value } else { !value });
}

/// Adds `addend` to the values below 128.
pub(super) fn solarize_add(image: &mut Image, addend: u8) {
    map(image, |value| if value < 128 { value.saturating_add(addend) } else { value });
}

/// PIL's integer form of 0.299 R + 0.587 G + 0.114 B.
pub(super) fn luma([r, g, b]: [u8; 3]) -> u8 {
    ((u32::from(r) * 19595 + u32::from(g) * 38470 + u32::from(b) * 7471 + 0x8000) >> 16) as u8
}

/// The nearest level. The conversion saturates at both ends of the range.
fn level(value: f32) -> u8 {
    (value + 0.5) as u8
}

/// Replaces every value by a function of it.
fn map(image: &mut Image, function: impl Fn(u8) -> u8) {
    let table: [u8; 256] = std::array::from_fn(|value| function(value as u8));
    image.pixels.iter_mut().for_each(|value| *value = table[usize::from(*value)]);
}

/// Replaces the values of each channel by a table that is made from the channel's histogram. `None` leaves the channel
/// unchanged.
fn map_channels(image: &mut Image, table: impl Fn(&[usize; 256]) -> Option<[usize; 256]>) {
    let channels = usize::from(image.channels);
    for channel in 0..channels {
        let mut counts = [0; 256];
        for &value in image.pixels[channel..].iter().step_by(channels) {
            counts[usize::from(value)] += 1;
        }
        if let Some(table) = table(&counts) {
            for value in image.pixels[channel..].iter_mut().step_by(channels) {
                *value = table[usize::from(*value)] as u8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colors() -> Image {
        let pixels = (0..16 * 16 * 3).map(|i| (i * 89 % 256) as u8).collect();
        Image { width: 16, height: 16, channels: 3, pixels }
    }

    fn one(pixel: [u8; 3], change: impl Fn(&mut Image)) -> [u8; 3] {
        let mut image = Image { width: 1, height: 1, channels: 3, pixels: pixel.to_vec() };
        change(&mut image);
        [image.pixels[0], image.pixels[1], image.pixels[2]]
    }

    fn gray(values: &[u8], change: impl Fn(&mut Image)) -> Vec<u8> {
        let mut image = Image { width: values.len() as u32, height: 1, channels: 1, pixels: values.to_vec() };
        change(&mut image);
        image.pixels
    }

    #[test]
    fn factor_one_changes_nothing() {
        let changes: [fn(&mut Image); 9] = [
            |image| brightness(image, 1.0),
            |image| contrast(image, 1.0),
            |image| saturation(image, 1.0),
            |image| sharpness(image, 1.0),
            |image| rotate_hue(image, 0.0),
            |image| rotate_hue(image, 1.0),
            |image| posterize(image, 8),
            |image| solarize(image, 256),
            |image| solarize_add(image, 0),
        ];
        for (index, change) in changes.iter().enumerate() {
            let mut image = colors();
            change(&mut image);
            assert_eq!(image, colors(), "{index}");
        }
    }

    #[test]
    fn brightness_multiplies_and_stops_at_white() {
        assert_eq!(gray(&[0, 10, 200], |image| brightness(image, 1.5)), [0, 15, 255]);
        assert_eq!(gray(&[0, 10, 200], |image| brightness(image, 0.0)), [0, 0, 0]);
    }

    #[test]
    fn contrast_spreads_around_the_mean() {
        assert_eq!(gray(&[90, 110], |image| contrast(image, 2.0)), [80, 120]);
        assert_eq!(gray(&[90, 110], |image| contrast(image, 0.0)), [100, 100]);
        assert_eq!(gray(&[0, 200], |image| contrast(image, 2.0)), [0, 255]);
    }

    #[test]
    fn saturation_zero_is_the_gray_value() {
        assert_eq!(one([255, 0, 0], |image| saturation(image, 0.0)), [76; 3]);
        assert_eq!(one([120, 100, 100], |image| saturation(image, 2.0)), [134, 94, 94]);
        assert_eq!(one([7; 3], |image| saturation(image, 3.0)), [7; 3]);
    }

    #[test]
    fn rotating_hues_by_a_third_turns_red_into_green() {
        assert_eq!(one([200, 50, 50], |image| rotate_hue(image, 1.0 / 3.0)), [50, 200, 50]);
        assert_eq!(one([200, 50, 50], |image| rotate_hue(image, -1.0 / 3.0)), [50, 50, 200]);
        assert_eq!(one([255, 0, 0], |image| rotate_hue(image, 0.5)), [0, 255, 255]);
        assert_eq!(one([9; 3], |image| rotate_hue(image, 0.3)), [9; 3]);
        let mut image = colors();
        rotate_hue(&mut image, 0.21);
        assert_ne!(image, colors());
        for (now, then) in image.pixels.chunks(3).zip(colors().pixels.chunks(3)) {
            assert_eq!((now.iter().max(), now.iter().min()), (then.iter().max(), then.iter().min()));
        }
        rotate_hue(&mut image, -0.21);
        assert!(image.pixels.iter().zip(&colors().pixels).all(|(a, b)| a.abs_diff(*b) <= 1));
    }

    #[test]
    fn sharpness_blurs_below_one_and_sharpens_above() {
        let dot = Image { width: 3, height: 3, channels: 1, pixels: vec![0, 0, 0, 0, 130, 0, 0, 0, 0] };
        for (factor, center) in [(0.0, 50), (0.5, 90), (1.5, 170)] {
            let mut image = dot.clone();
            sharpness(&mut image, factor);
            assert_eq!(image.pixels, [0, 0, 0, 0, center, 0, 0, 0, 0]);
        }
    }

    #[test]
    fn autocontrast_stretches_and_equalize_flattens_the_histogram() {
        assert_eq!(gray(&[50, 60, 70], autocontrast), [0, 127, 255]);
        assert_eq!(gray(&[50, 50], autocontrast), [50, 50]);
        let dark: Vec<u8> = (0..32 * 1024).map(|i| (i / 1024) as u8).collect();
        let spread = gray(&dark, equalize);
        assert_eq!((spread[0], spread[32767]), (0, 255));
        assert!(spread.is_sorted() && spread[16384].abs_diff(128) < 8, "{}", spread[16384]);
        assert_eq!(gray(&[5; 300], equalize), [5; 300]);
    }

    #[test]
    fn invert_posterize_and_solarize_change_values_as_documented() {
        assert_eq!(gray(&[0, 100, 255], invert), [255, 155, 0]);
        assert_eq!(gray(&[0, 100, 255], |image| posterize(image, 2)), [0, 64, 192]);
        assert_eq!(gray(&[0, 100, 255], |image| posterize(image, 0)), [0, 0, 0]);
        assert_eq!(gray(&[0, 100, 255], |image| solarize(image, 100)), [0, 155, 0]);
        assert_eq!(gray(&[0, 100, 200], |image| solarize_add(image, 110)), [110, 210, 200]);
    }
}
