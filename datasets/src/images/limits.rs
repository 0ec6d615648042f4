//! Limits on the size of an image file and of its decoded pixels.

use crate::files::DEFAULT_FILE_BYTES;

/// The largest image that is decoded. A larger one is refused before memory is allocated for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Largest width and height, in pixels.
    pub max_side: u32,
    /// Largest size of the decoded image, in bytes.
    pub max_bytes: u64,
    /// Largest size of the file, in bytes.
    pub max_file_bytes: u64,
}

impl Default for DecodeLimits {
    /// 32,768 pixels per side, 640 MiB of pixels (more than 200 megapixels in color), and files of 256 MiB.
    fn default() -> Self {
        Self { max_side: 1 << 15, max_bytes: 640 << 20, max_file_bytes: DEFAULT_FILE_BYTES }
    }
}

impl DecodeLimits {
    /// These limits with another limit on the size of the file, if one is given.
    pub fn with_max_file_bytes(self, bytes: Option<u64>) -> Self {
        Self { max_file_bytes: bytes.unwrap_or(self.max_file_bytes), ..self }
    }
}
