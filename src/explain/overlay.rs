//! A map drawn over its image, with a color bar next to it.

use std::ops::Range;

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};
use vitrine_datasets::{Image, Interpolation};

use super::colormap::viridis;

/// Small images are enlarged by a whole factor, until the shorter side has at least about this many pixels.
const SHORTER_SIDE: u32 = 224;
/// The width of the color bar and of the gap before it, as shares of the height of the image.
const BAR: f32 = 0.06;
/// The share of the map in a color; the rest is the image in gray.
const OPACITY: f32 = 0.6;

/// The values of a map from the one that is drawn darkest to the one that is drawn brightest: from 0, unless a value is
/// negative.
pub(super) fn scale(values: &[f32]) -> Range<f32> {
    let low = values.iter().copied().fold(0.0, f32::min);
    low..values.iter().copied().fold(low, f32::max)
}

/// The image as the model sees it, enlarged if it is small.
pub(super) fn enlarged(image: &Image) -> Image {
    let factor = SHORTER_SIDE.div_ceil(image.width.min(image.height)).max(1);
    if factor == 1 {
        return image.with_channels(3);
    }
    let interpolation = Interpolation::Bicubic;
    image.with_channels(3).resize(image.width * factor, image.height * factor, interpolation)
}

/// The map over the image, and to the right of it a bar with the colors of the scale, the largest value at the top. The
/// gap between them is transparent.
///
/// # Shapes
/// - image: of 3 channels, from [`enlarged`]
/// - layer: `[rows, columns]`
pub(super) fn png(image: &Image, layer: &[f32], grid: [usize; 2]) -> Vec<u8> {
    let bar = ((image.height as f32 * BAR) as u32).max(4);
    let width = image.width + 2 * bar;
    let mut pixels = Vec::with_capacity((width * image.height) as usize * 4);
    for (y, row) in drawn(image, layer, grid).pixels.chunks_exact(image.width as usize * 3).enumerate() {
        pixels.extend(row.as_chunks::<3>().0.iter().flat_map(|&[red, green, blue]| [red, green, blue, 255]));
        pixels.resize(pixels.len() + bar as usize * 4, 0);
        let [red, green, blue] = viridis(1.0 - y as f32 / (image.height - 1).max(1) as f32);
        pixels.extend([red, green, blue, 255].repeat(bar as usize));
    }
    encoded(&pixels, [width, image.height], ExtendedColorType::Rgba8)
}

/// The map over the image, without a bar.
///
/// # Shapes
/// - image: of 3 channels
/// - layer: `[rows, columns]`
/// - output: as the image
pub(super) fn drawn(image: &Image, layer: &[f32], [rows, columns]: [usize; 2]) -> Image {
    let Range { start, end } = scale(layer);
    let share = |value: f32| if end > start { (value - start) / (end - start) } else { 0.0 };
    let mut pixels = Vec::with_capacity(image.pixels.len());
    for (y, row) in image.pixels.chunks_exact(image.width as usize * 3).enumerate() {
        let down = place(y, image.height, rows);
        for (x, pixel) in row.as_chunks::<3>().0.iter().enumerate() {
            let value = between(layer, columns, down, place(x, image.width, columns));
            pixels.extend(blend(*pixel, viridis(share(value))));
        }
    }
    Image { pixels, ..*image }
}

/// An image of 3 channels as PNG.
pub fn image_png(image: &Image) -> Vec<u8> {
    encoded(&image.pixels, [image.width, image.height], ExtendedColorType::Rgb8)
}

fn encoded(pixels: &[u8], [width, height]: [u32; 2], color: ExtendedColorType) -> Vec<u8> {
    let mut png = Vec::new();
    PngEncoder::new(&mut png)
        .write_image(pixels, width, height, color)
        .expect("an image with the right number of pixels can be written to memory");
    png
}

/// The gray of a pixel (ITU-R 601), mixed with the color of the map.
fn blend(pixel: [u8; 3], color: [u8; 3]) -> [u8; 3] {
    let [red, green, blue] = pixel.map(f32::from);
    let gray = 0.299 * red + 0.587 * green + 0.114 * blue;
    color.map(|value| (OPACITY * f32::from(value) + (1.0 - OPACITY) * gray).round() as u8)
}

/// Where a pixel lies among the centers of patches: the patch before it, and the share of the next one.
fn place(pixel: usize, pixels: u32, patches: usize) -> (usize, f32) {
    let place = (pixel as f32 + 0.5) / pixels as f32 * patches as f32 - 0.5;
    let place = place.clamp(0.0, (patches - 1) as f32);
    let before = (place as usize).min(patches.saturating_sub(2));
    (before, place - before as f32)
}

/// The value at a place, interpolated between the four nearest patches.
fn between(layer: &[f32], columns: usize, (row, down): (usize, f32), (column, right): (usize, f32)) -> f32 {
    let across = |row: usize| {
        let values = &layer[row * columns..][..columns];
        let next = values[(column + 1).min(columns - 1)];
        values[column] + right * (next - values[column])
    };
    let (above, rows) = (across(row), layer.len() / columns);
    above + down * (across((row + 1).min(rows - 1)) - above)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_brightest_pixel_is_at_the_largest_value_and_the_bar_has_the_whole_scale() {
        let black = Image { width: 32, height: 32, channels: 1, pixels: vec![0; 32 * 32] };
        let image = enlarged(&black);
        assert_eq!((image.width, image.height, image.channels), (224, 224, 3));
        let mut layer = [0.0; 16];
        layer[6] = 0.5; // row 1, column 2
        let drawn = image::load_from_memory(&png(&image, &layer, [4, 4])).unwrap().into_rgba8();
        assert_eq!(drawn.dimensions(), (224 + 2 * 13, 224));
        let light = |x, y| drawn.get_pixel(x, y).0[..3].iter().map(|&byte| u32::from(byte)).sum::<u32>();
        let all = (0..224u32).flat_map(|y| (0..224u32).map(move |x| (x, y)));
        let (x, y) = all.max_by_key(|&(x, y)| light(x, y)).unwrap();
        assert!((x / 56, y / 56) == (2, 1), "{x} {y}");
        assert_eq!(drawn.get_pixel(249, 0).0, [253, 231, 37, 255]);
        assert_eq!(drawn.get_pixel(249, 223).0, [68, 1, 84, 255]);
        assert_eq!(drawn.get_pixel(230, 9).0[3], 0, "the gap is transparent");
    }

    #[test]
    fn a_flat_map_and_a_single_patch_can_be_drawn() {
        assert_eq!(
            (scale(&[0.0; 3]), scale(&[-2.0, 1.0]), scale(&[0.5, 1.0])),
            (0.0..0.0, -2.0..1.0, 0.0..1.0)
        );
        let image = enlarged(&Image { width: 2, height: 3, channels: 3, pixels: vec![9; 18] });
        for layer in [vec![0.0], vec![1.0, 2.0]] {
            png(&image, &layer, [layer.len(), 1]);
            png(&image, &layer, [1, layer.len()]);
        }
    }
}
