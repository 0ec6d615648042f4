//! What decoding an image may cost.

use crate::files::DEFAULT_FILE_BYTES;

/// What an image may cost at most: larger ones are refused before memory is taken for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Longest side in pixels.
    pub max_side: u32,
    /// Bytes of the decoded image.
    pub max_bytes: u64,
    /// Bytes of the file.
    pub max_file_bytes: u64,
}

impl Default for DecodeLimits {
    /// 32,768 pixels per side, 640 MiB decoded (more than 200 megapixels in color) and 256 MiB of file.
    fn default() -> Self {
        Self { max_side: 1 << 15, max_bytes: 640 << 20, max_file_bytes: DEFAULT_FILE_BYTES }
    }
}

impl DecodeLimits {
    /// The same with another limit for the file, if there is one.
    pub fn with_max_file_bytes(self, bytes: Option<u64>) -> Self {
        Self { max_file_bytes: bytes.unwrap_or(self.max_file_bytes), ..self }
    }
}
