//! Rules for resizing, and the sizes that they give.

use serde::{Deserialize, Serialize};

/// How half a pixel before a center crop is rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CropRounding {
    /// To the even number, as torchvision and timm do.
    #[default]
    HalfToEven,
    /// Down, as Hugging Face's processors do.
    Down,
}

impl CropRounding {
    /// Whether nothing needs to be said of it.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Half of what is cut off: where the center begins.
    pub(super) fn half(self, rest: u64) -> u64 {
        match self {
            Self::HalfToEven => (rest as f64 / 2.0).round_ties_even() as u64,
            Self::Down => rest / 2,
        }
    }
}

/// How an image of any size becomes one of the model's size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ResizeRule {
    /// Both sides are scaled, whatever that does to the shape.
    Squash,
    /// Both sides are scaled to size / crop, then the center is cut out (timm's `crop_mode = squash`).
    SquashCrop {
        /// Share of the scaled sides that is kept: from 0.05 to 1.
        crop: f64,
    },
    /// The shorter side is scaled to size / crop, then the center is cut out (timm's `crop_mode = center`).
    ShorterSide {
        /// Share of the scaled side that is kept: from 0.05 to 1.
        crop: f64,
    },
    /// The longer side is scaled to the size, and the rest is filled with the mean color, which is about 0 once it is
    /// normalized (timm's `crop_mode = border` with `crop_pct = 1`).
    Letterbox,
}

impl ResizeRule {
    /// Whether a part of some images is cut off.
    pub fn crops(self) -> bool {
        match self {
            Self::Squash | Self::Letterbox => false,
            Self::SquashCrop { .. } | Self::ShorterSide { .. } => true,
        }
    }
}

/// The side before a crop that keeps a share of it, rounded down as timm does; what is whole but for rounding stays whole.
pub(super) fn scaled(side: u32, crop: f64) -> u32 {
    ((f64::from(side) / crop + 1e-6).floor() as u32).max(side)
}

/// Rows and columns of an image of `size` scaled to cover `target`: the side that is shorter in proportion fits exactly. The other one is
/// rounded down for a square, as torchvision's `Resize` does, and to the nearest number otherwise, as timm's `ResizeKeepRatio` does.
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

/// Rows and columns of an image of `size` scaled to lie within `target`: the side that is longer in proportion fits exactly, the
/// other one is rounded to the nearest number, as timm's `ResizeKeepRatio` does with `longest = 1`.
pub(super) fn within(size: [u32; 2], target: [u32; 2]) -> [u32; 2] {
    let [height, width] = size.map(f64::from);
    let ratio = (height / f64::from(target[0])).max(width / f64::from(target[1]));
    let [rows, columns] = [height, width].map(|side| (side / ratio).round_ties_even() as u32);
    [rows.clamp(1, target[0]), columns.clamp(1, target[1])]
}
