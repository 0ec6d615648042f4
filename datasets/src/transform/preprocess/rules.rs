//! The rules by which images are resized to a model's input, with the rounding of torchvision, timm, and Hugging Face.

use serde::{Deserialize, Serialize};

/// How the offset of a center crop is rounded when it is half a pixel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CropRounding {
    /// To the nearest even number, as torchvision and timm do.
    #[default]
    HalfToEven,
    /// Down, as Hugging Face's image processors do.
    Down,
}

impl CropRounding {
    /// Whether it is the default, which is left out of files.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The offset of a center crop that cuts off `rest` pixels.
    pub(super) fn half(self, rest: u64) -> u64 {
        match self {
            Self::HalfToEven => (rest as f64 / 2.0).round_ties_even() as u64,
            Self::Down => rest / 2,
        }
    }
}

/// How an image of any size is resized to a model's input.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ResizeRule {
    /// Both sides are scaled to the input size, which may change the aspect ratio.
    Squash,
    /// Both sides are scaled to the input size / crop, then the center is cut out (timm's `crop_mode = squash`).
    SquashCrop {
        /// Share of the scaled sides that is kept, from 0.05 to 1.
        crop: f64,
    },
    /// The shorter side is scaled to the input size / crop, then the center is cut out (timm's `crop_mode = center`).
    ShorterSide {
        /// Share of the scaled side that is kept, from 0.05 to 1.
        crop: f64,
    },
    /// The longer side is scaled to the input size, and the rest is filled with the mean color, which normalization
    /// maps to about 0 (timm's `crop_mode = border` with `crop_pct = 1`).
    Letterbox,
}

impl ResizeRule {
    /// Whether images may be cropped.
    pub fn crops(self) -> bool {
        match self {
            Self::Squash | Self::Letterbox => false,
            Self::SquashCrop { .. } | Self::ShorterSide { .. } => true,
        }
    }
}

/// The length of a side before a crop to `side`, rounded down as timm does. The 1e-6 compensates for rounding errors of
/// a quotient that is an integer.
pub(super) fn scaled(side: u32, crop: f64) -> u32 {
    ((f64::from(side) / crop + 1e-6).floor() as u32).max(side)
}

/// Rows and columns of an image of `size`, scaled with its aspect ratio to cover `target`. One side fits exactly; the
/// other is rounded down if the target is a square, as torchvision's `Resize` does, and to the nearest integer
/// otherwise, as timm's `ResizeKeepRatio` does.
pub(super) fn covering(size: [u32; 2], target: [u32; 2]) -> [u64; 2] {
    let ([height, width], [rows, columns]) = (size.map(u64::from), target.map(u64::from));
    let is_low = height * columns <= width * rows;
    if rows == columns {
        return match is_low {
            true => [rows, rows * width / height],
            false => [columns * height / width, columns],
        };
    }
    let ratio = match is_low {
        true => height as f64 / rows as f64,
        false => width as f64 / columns as f64,
    };
    let [height, width] = size.map(|side| (f64::from(side) / ratio).round_ties_even() as u64);
    [height.max(rows), width.max(columns)]
}

/// Rows and columns of an image of `size`, scaled with its aspect ratio to fit into `target`. One side fits exactly;
/// the other is rounded to the nearest integer, as timm's `ResizeKeepRatio` with `longest = 1` does.
pub(super) fn within(size: [u32; 2], target: [u32; 2]) -> [u32; 2] {
    let [height, width] = size.map(f64::from);
    let ratio = (height / f64::from(target[0])).max(width / f64::from(target[1]));
    let [rows, columns] = [height, width].map(|side| (side / ratio).round_ties_even() as u32);
    [rows.clamp(1, target[0]), columns.clamp(1, target[1])]
}
