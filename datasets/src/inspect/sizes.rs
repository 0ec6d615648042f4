//! Ranges of the widths, heights, and aspect ratios of images.

use serde::Serialize;

/// The ranges of the widths and heights of images, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SizeRange {
    /// Widths.
    pub width: Extent,
    /// Heights.
    pub height: Extent,
}

impl SizeRange {
    pub(super) fn of(sizes: impl Iterator<Item = (u32, u32)>) -> Option<Self> {
        let (widths, heights) = sizes.unzip();
        Some(Self { width: Extent::of(widths)?, height: Extent::of(heights)? })
    }
}

/// The range of a width or height.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Extent {
    /// The smallest.
    pub min: u32,
    /// The median; the upper one of two.
    pub median: u32,
    /// The largest.
    pub max: u32,
}

impl Extent {
    fn of(mut values: Vec<u32>) -> Option<Self> {
        values.sort_unstable();
        Some(Self { min: *values.first()?, median: *values.get(values.len() / 2)?, max: *values.last()? })
    }
}

/// The aspect ratios of images as longer side / shorter side, which is 1 for a square.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AspectRatios {
    /// The median; the upper one of two.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

impl AspectRatios {
    pub(super) fn of(sizes: impl Iterator<Item = (u32, u32)>) -> Option<Self> {
        let mut ratios: Vec<f64> = sizes
            .map(|(width, height)| f64::from(width.max(height)) / f64::from(width.min(height).max(1)))
            .collect();
        ratios.sort_unstable_by(f64::total_cmp);
        Some(Self { median: *ratios.get(ratios.len() / 2)?, max: *ratios.last()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aspect_ratios_are_taken_of_each_image() {
        let of = |sizes: &[(u32, u32)]| AspectRatios::of(sizes.iter().copied());
        assert_eq!(of(&[(8, 8), (640, 640)]), Some(AspectRatios { median: 1.0, max: 1.0 }));
        // Portrait and landscape photos, whose ranges of widths and heights alone would look like those of squares.
        assert_eq!(of(&[(30, 20), (20, 30), (90, 30)]), Some(AspectRatios { median: 1.5, max: 3.0 }));
        assert_eq!(of(&[]), None);
    }
}
