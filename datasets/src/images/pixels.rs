//! A decoded image: its pixels in memory.

use std::hash::Hasher as _;

use twox_hash::xxhash3_64::Hasher;

/// A decoded image: 8 bits per channel, rows from top to bottom, channels interleaved.
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

impl Image {
    /// Checks that there is a pixel, that an image has 1 or 3 channels, and that its bytes are as many as its sides say.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { width, height, channels, pixels } = self;
        if *width == 0 || *height == 0 {
            return Err(format!("it has {width} by {height} pixels"));
        }
        if ![1, 3].contains(channels) {
            return Err(format!("it has {channels} channels: 1 or 3 are possible"));
        }
        let bytes = u128::from(*width) * u128::from(*height) * u128::from(*channels);
        match pixels.len() as u128 == bytes {
            true => Ok(()),
            false => Err(format!(
                "it has {} bytes: {bytes} are needed for {width} by {height} pixels",
                pixels.len()
            )),
        }
    }

    /// A hash of size, number of channels, and pixels (XXH3, 64 bits). It is equal for images with the same pixels from
    /// different files, but not for a gray image with one channel and the same image with three.
    pub(crate) fn key(&self) -> u64 {
        let mut hasher = Hasher::new();
        hasher.write(&self.width.to_le_bytes());
        hasher.write(&self.height.to_le_bytes());
        hasher.write(&[self.channels]);
        hasher.write(&self.pixels);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_depends_on_pixels_size_and_channels() {
        let image = |width, height, channels, first| {
            let mut pixels = vec![7; (width * height) as usize * usize::from(channels)];
            pixels[0] = first;
            Image { width, height, channels, pixels }.key()
        };
        assert_eq!(image(6, 2, 1, 9), image(6, 2, 1, 9));
        let keys =
            [image(6, 2, 1, 9), image(6, 2, 1, 8), image(2, 6, 1, 9), image(2, 2, 3, 9), image(12, 1, 1, 9)];
        for (place, key) in keys.iter().enumerate() {
            assert!(!keys[..place].contains(key), "{place}");
        }
    }
}
