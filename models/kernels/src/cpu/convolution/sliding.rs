//! The geometry of a square kernel that slides over a map: which of its taps lie inside the map at a place, and at
//! which places it covers a pixel.

use std::ops::Range;

/// A square kernel. Its places are its positions on the map, in reading order, and its taps are its elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kernel {
    /// The number of rows, and of columns.
    pub(crate) size: usize,
    /// The distance between neighboring places.
    pub(crate) stride: usize,
    /// Rows and columns around the map, fewer than the kernel's: at every place some tap lies inside.
    pub(crate) padding: usize,
}

/// Along one axis: rows and columns are alike.
impl Kernel {
    /// Places along `length` pixels, which with the padding are as many as the kernel's or more.
    pub(crate) fn places(self, length: usize) -> usize {
        (length + 2 * self.padding - self.size) / self.stride + 1
    }

    /// The taps that lie inside at a place, along `length` pixels.
    #[inline(always)]
    pub(crate) fn inside(self, place: usize, length: usize) -> Range<usize> {
        let start = place * self.stride; // in the padded map
        self.padding.saturating_sub(start)..self.size.min(length + self.padding - start)
    }

    /// The pixel under a tap that lies [inside](Self::inside).
    #[inline(always)]
    pub(crate) fn pixel(self, place: usize, tap: usize) -> usize {
        place * self.stride + tap - self.padding
    }

    /// The places, out of `places`, at which the kernel covers a pixel.
    #[inline(always)]
    pub(crate) fn covering(self, pixel: usize, places: usize) -> Range<usize> {
        let pixel = pixel + self.padding; // from here on in the padded map
        (pixel + 1).saturating_sub(self.size).div_ceil(self.stride)..places.min(pixel / self.stride + 1)
    }

    /// The tap that lies on a pixel, at a place at which the kernel [covers](Self::covering) it.
    #[inline(always)]
    pub(crate) fn tap(self, place: usize, pixel: usize) -> usize {
        pixel + self.padding - place * self.stride
    }
}

/// The values of one image, with the channels of a pixel next to each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Map<'a, T = f32> {
    values: &'a [T],
    /// Rows and columns.
    pub(crate) size: [usize; 2],
    pub(crate) channels: usize,
}

impl<'a, T> Map<'a, T> {
    /// The image with this index of a batch of these sizes.
    pub(crate) fn new(values: &'a [T], image: usize, [_, rows, columns, channels]: [usize; 4]) -> Self {
        let length = rows * columns * channels;
        Self { values: &values[image * length..(image + 1) * length], size: [rows, columns], channels }
    }

    /// `N` channels of a pixel, from `channel` on.
    ///
    /// # Panics
    ///
    /// If the map does not have them.
    #[inline(always)]
    pub(crate) fn lanes<const N: usize>(&self, pixel: usize, channel: usize) -> &'a [T; N] {
        let start = pixel * self.channels + channel;
        self.values[start..].first_chunk().expect("the map has these channels")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_and_places_are_those_of_the_padded_map() {
        for (size, stride, padding, length) in [
            (3, 2, 1, 8),
            (3, 2, 1, 7),
            (3, 1, 1, 1),
            (5, 1, 2, 2),
            (2, 2, 0, 5),
            (5, 3, 4, 3),
            (16, 1, 8, 17),
            (1, 3, 0, 7),
        ] {
            let kernel = Kernel { size, stride, padding };
            let places = kernel.places(length);
            assert!((places - 1) * stride + size <= length + 2 * padding, "{kernel:?}: too many places");
            assert!(places * stride + size > length + 2 * padding, "{kernel:?}: too few places");

            let all = (0..places).flat_map(|place| (0..size).map(move |tap| (place, tap)));
            let expected: Vec<_> = all
                .filter_map(|(place, tap)| {
                    let pixel = (place * stride + tap).checked_sub(padding)?;
                    (pixel < length).then_some((place, tap, pixel))
                })
                .collect();
            let by_place = (0..places).flat_map(|place| {
                kernel.inside(place, length).map(move |tap| (place, tap, kernel.pixel(place, tap)))
            });
            assert_eq!(by_place.collect::<Vec<_>>(), expected, "{kernel:?}");
            let by_pixel = (0..length).flat_map(|pixel| {
                kernel.covering(pixel, places).map(move |place| (place, kernel.tap(place, pixel), pixel))
            });
            let mut by_pixel: Vec<_> = by_pixel.collect();
            by_pixel.sort_unstable();
            assert_eq!(by_pixel, expected, "{kernel:?}");
        }
    }
}
