//! A decoded image.

/// A decoded image: 8 bits per channel, rows from the top, channels interleaved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// 1 (gray) or 3 (red, green, blue).
    pub channels: u8,
    /// `height * width * channels` bytes.
    pub pixels: Vec<u8>,
}
