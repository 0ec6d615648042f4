//! Geometric operations on images: shifts, mirroring, random crops, and affine maps.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::Image;

/// The value of pixels from outside the image in affine maps: medium gray.
const FILL: u8 = 128;

/// Shifts an image by `across` pixels to the right and `down` pixels down. Pixels from outside are black.
pub(super) fn shift(image: &Image, across: i64, down: i64) -> Image {
    let channels = usize::from(image.channels);
    let stride = image.width as usize * channels;
    let mut pixels = vec![0; image.pixels.len()];
    let columns = i64::from(image.width) - across.abs();
    if columns > 0 {
        let length = columns as usize * channels;
        let (from, to) = ((-across).max(0) as usize * channels, across.max(0) as usize * channels);
        for (row, target) in pixels.chunks_exact_mut(stride).enumerate() {
            let source = row as i64 - down;
            if (0..i64::from(image.height)).contains(&source) {
                let start = source as usize * stride + from;
                target[to..to + length].copy_from_slice(&image.pixels[start..start + length]);
            }
        }
    }
    Image { pixels, ..*image }
}

/// Shifts an image by `across` pixels to the right and `down` pixels down. Pixels from outside are the mirror image of
/// those inside (PyTorch's `reflect`, which does not repeat the pixels at the edge).
pub(super) fn shift_reflected(image: &Image, across: i64, down: i64) -> Image {
    let channels = usize::from(image.channels);
    let stride = image.width as usize * channels;
    let sources = |length: u32, by: i64| -> Vec<usize> {
        (0..i64::from(length)).map(|place| reflected(place - by, length)).collect()
    };
    let (rows, columns) = (sources(image.height, down), sources(image.width, across));
    let mut pixels = Vec::with_capacity(image.pixels.len());
    for row in rows {
        let row = &image.pixels[row * stride..(row + 1) * stride];
        columns.iter().for_each(|column| pixels.extend_from_slice(&row[column * channels..][..channels]));
    }
    Image { pixels, ..*image }
}

/// The index in `0..length` of which `place` is the mirror image.
fn reflected(place: i64, length: u32) -> usize {
    let period = 2 * (i64::from(length) - 1).max(1);
    let place = place.rem_euclid(period);
    place.min(period - place).min(i64::from(length) - 1) as usize
}

/// Mirrors an image horizontally.
pub(super) fn mirror(image: &mut Image) {
    let width = image.width as usize;
    if image.channels == 3 {
        image.pixels.as_chunks_mut::<3>().0.chunks_exact_mut(width).for_each(<[_]>::reverse);
    } else {
        image.pixels.chunks_exact_mut(width).for_each(<[_]>::reverse);
    }
}

/// Left, top, width, and height of a random crop, drawn as torchvision's `RandomResizedCrop` does: the share of the
/// area is uniform in `scale`, and the logarithm of width / height is uniform in `ratio`. After ten draws that do not
/// fit into the image, the crop is the largest centered one of an allowed ratio.
pub(super) fn random_crop(
    width: u32,
    height: u32,
    scale: [f64; 2],
    ratio: [f64; 2],
    rng: &mut ChaCha8Rng,
) -> [u32; 4] {
    let (w, h) = (f64::from(width), f64::from(height));
    for _ in 0..10 {
        let area = w * h * rng.random_range(scale[0]..=scale[1]);
        let shape = rng.random_range(ratio[0].ln()..=ratio[1].ln()).exp();
        let (columns, rows) = ((area * shape).sqrt().round() as u32, (area / shape).sqrt().round() as u32);
        if (1..=width).contains(&columns) && (1..=height).contains(&rows) {
            let left = rng.random_range(0..=width - columns);
            let top = rng.random_range(0..=height - rows);
            return [left, top, columns, rows];
        }
    }
    let shape = w / h;
    let (columns, rows) = if shape < ratio[0] {
        (width, (w / ratio[0]).round() as u32)
    } else if shape > ratio[1] {
        ((h * ratio[1]).round() as u32, height)
    } else {
        (width, height)
    };
    let (columns, rows) = (columns.clamp(1, width), rows.clamp(1, height));
    [(width - columns) / 2, (height - rows) / 2, columns, rows]
}

/// Rotates the image counterclockwise around its center.
pub(super) fn rotate(image: &mut Image, degrees: f32) {
    let (sin, cos) = degrees.to_radians().sin_cos();
    let (x, y) = (image.width as f32 / 2.0, image.height as f32 / 2.0);
    affine(image, [cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y]);
}

/// Applies an affine map `[a, b, c, d, e, f]`, as PIL's `transform` does: the pixel at (x, y) comes from (ax + by + c,
/// dx + ey + f).
///
/// Coordinates are those of pixel centers; the first pixel is at (0.5, 0.5). Values between pixels are interpolated
/// bilinearly, and pixels from outside the image are medium gray.
pub(super) fn affine(image: &mut Image, map: [f32; 6]) {
    let size = [image.height as usize, image.width as usize];
    image.pixels = match image.channels {
        3 => sample::<3>(&image.pixels, size, map),
        _ => sample::<1>(&image.pixels, size, map),
    };
}

/// The pixels of an affine map of an image with `C` channels.
fn sample<const C: usize>(pixels: &[u8], [height, width]: [usize; 2], map: [f32; 6]) -> Vec<u8> {
    let source = pixels.as_chunks::<C>().0;
    let mut output = vec![FILL; pixels.len()];
    let rows = output.as_chunks_mut::<C>().0.chunks_exact_mut(width);
    let (w, h) = (width as f32, height as f32);
    for (row, line) in rows.enumerate() {
        let y = row as f32 + 0.5;
        for (column, pixel) in line.iter_mut().enumerate() {
            let x = column as f32 + 0.5;
            let across = map[0] * x + map[1] * y + map[2];
            let down = map[3] * x + map[4] * y + map[5];
            if !(0.0..w).contains(&across) || !(0.0..h).contains(&down) {
                continue;
            }
            // Relative to the center of the first pixel, and at least 0, so that conversion to an integer rounds down.
            let (across, down) = ((across - 0.5).max(0.0), (down - 0.5).max(0.0));
            let (left, top) = (across as usize, down as usize);
            let (right, bottom) = ((left + 1).min(width - 1), (top + 1).min(height - 1));
            let (u, v) = (across - left as f32, down - top as f32);
            let corners = [
                source[top * width + left],
                source[top * width + right],
                source[bottom * width + left],
                source[bottom * width + right],
            ];
            for (channel, value) in pixel.iter_mut().enumerate() {
                let [a, b, c, d] = corners.map(|corner| f32::from(corner[channel]));
                let (above, below) = (a + (b - a) * u, c + (d - c) * u);
                *value = (above + (below - above) * v + 0.5) as u8;
            }
        }
    }
    output
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::Interpolation;

    fn grid() -> Image {
        Image { width: 3, height: 3, channels: 1, pixels: vec![1, 2, 3, 4, 5, 6, 7, 8, 9] }
    }

    #[test]
    fn a_shift_fills_with_black() {
        assert_eq!(shift(&grid(), 0, 0), grid());
        assert_eq!(shift(&grid(), 1, 0).pixels, [0, 1, 2, 0, 4, 5, 0, 7, 8]);
        assert_eq!(shift(&grid(), -1, 2).pixels, [0, 0, 0, 0, 0, 0, 2, 3, 0]);
        assert_eq!(shift(&grid(), 3, 0).pixels, [0; 9]);
        assert_eq!(shift(&grid(), 0, -4).pixels, [0; 9]);
    }

    #[test]
    fn a_reflected_shift_fills_with_the_mirror_image() {
        assert_eq!(shift_reflected(&grid(), 0, 0), grid());
        assert_eq!(shift_reflected(&grid(), 1, 0).pixels, [2, 1, 2, 5, 4, 5, 8, 7, 8]);
        assert_eq!(shift_reflected(&grid(), -1, -2).pixels, [8, 9, 8, 5, 6, 5, 2, 3, 2]);
        let wide = Image { width: 2, height: 1, channels: 3, pixels: vec![1, 2, 3, 4, 5, 6] };
        assert_eq!(shift_reflected(&wide, 1, 5).pixels, [4, 5, 6, 1, 2, 3]);
        assert_eq!(shift_reflected(&wide, 1000, i64::from(u32::MAX)).pixels, wide.pixels);
    }

    #[test]
    fn mirrored_twice_is_unchanged() {
        for channels in [1, 3] {
            let start = Image { width: 5, height: 2, channels, pixels: (0..10 * channels).collect() };
            let mut image = start.clone();
            mirror(&mut image);
            assert_eq!(
                image.pixels[..usize::from(channels)],
                start.pixels[4 * usize::from(channels)..][..usize::from(channels)]
            );
            mirror(&mut image);
            assert_eq!(image, start);
        }
    }

    #[test]
    fn rotations_are_counterclockwise() {
        for (degrees, expected) in [
            (0.0, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
            (90.0, [3, 6, 9, 2, 5, 8, 1, 4, 7]),
            (-90.0, [7, 4, 1, 8, 5, 2, 9, 6, 3]),
            (180.0, [9, 8, 7, 6, 5, 4, 3, 2, 1]),
        ] {
            let mut image = grid();
            rotate(&mut image, degrees);
            assert_eq!(image.pixels, expected, "{degrees}");
        }
    }

    #[test]
    fn affine_maps_interpolate_and_fill_with_gray() {
        let mut image = grid();
        affine(&mut image, [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
        assert_eq!(image.pixels, [2, 3, 128, 5, 6, 128, 8, 9, 128]);
        let mut image = Image { width: 2, height: 1, channels: 3, pixels: vec![0, 10, 20, 100, 110, 120] };
        affine(&mut image, [1.0, 0.0, 0.25, 0.0, 1.0, 0.0]);
        assert_eq!(image.pixels, [25, 35, 45, 100, 110, 120]);
    }

    #[test]
    fn random_crops_have_the_requested_areas_and_aspect_ratios() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut shares = Vec::new();
        for _ in 0..2000 {
            let [left, top, width, height] = random_crop(400, 300, [0.2, 0.8], [0.75, 4.0 / 3.0], &mut rng);
            assert!(left + width <= 400 && top + height <= 300);
            let shape = f64::from(width) / f64::from(height);
            assert!((0.74..1.35).contains(&shape), "{shape}");
            shares.push(f64::from(width * height) / 120_000.0);
        }
        let lowest = shares.iter().copied().fold(1.0, f64::min);
        let highest = shares.iter().copied().fold(0.0, f64::max);
        assert!((0.195..0.22).contains(&lowest) && (0.75..0.81).contains(&highest), "{lowest} {highest}");
        assert_eq!(random_crop(100, 10, [1.0, 1.0], [1.0, 1.0], &mut rng), [45, 0, 10, 10]);
        assert_eq!(random_crop(1, 9, [0.5, 1.0], [0.75, 1.25], &mut rng)[2..], [1, 1]);
        assert_eq!(random_crop(64, 64, [1.0, 1.0], [1.0, 1.0], &mut rng), [0, 0, 64, 64]);
    }

    #[test]
    fn a_crop_is_cut_out_and_scaled() {
        assert_eq!(grid().resize_part([1, 1, 2, 2], 2, 2, Interpolation::Bicubic).pixels, [5, 6, 8, 9]);
        let pixels = (0..32 * 32).map(|i| if i % 32 < 16 { 10 } else { 200 }).collect();
        let halves = Image { width: 32, height: 32, channels: 1, pixels };
        let left = halves.resize_part([0, 4, 12, 12], 5, 7, Interpolation::Bicubic);
        assert_eq!((left.height, left.width), (7, 5));
        assert!(left.pixels.iter().all(|&value| value == 10), "{:?}", left.pixels);
    }
}
