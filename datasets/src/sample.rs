//! One labelled picture: where its bytes are, and what they decode to.

use std::path::PathBuf;
use std::sync::Arc;

use crate::DatasetError;

/// A decoded picture: 8 bits a channel, rows from the top, channels interleaved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// 1 (grey) or 3 (red, green, blue).
    pub channels: u8,
    /// `height * width * channels` bytes.
    pub pixels: Vec<u8>,
}

/// Where a picture is. Nothing is decoded before [`Picture::decode`] is called.
#[derive(Clone, Debug)]
pub enum Picture {
    /// An image file.
    File(PathBuf),
    /// An encoded image file held in memory, as read from an archive.
    Encoded {
        /// What messages call it: the path inside the archive.
        name: String,
        /// The file's bytes.
        bytes: Arc<[u8]>,
    },
    /// Raw pixels inside a larger buffer, as in IDX files and CIFAR batches.
    Raw {
        /// What messages call it: file and position.
        name: String,
        /// The buffer of all pictures.
        buffer: Arc<[u8]>,
        /// First byte of this picture.
        offset: usize,
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
        /// 1, or 3 as separate planes (the order of CIFAR's batches).
        channels: u8,
    },
    /// Drawn on demand by the `shapes` data set.
    Drawn {
        /// The class to draw.
        class: usize,
        /// Seed of everything that varies.
        seed: u64,
    },
}

/// A picture with its class.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Index into [`crate::DatasetInfo::classes`].
    pub label: usize,
    /// The picture.
    pub picture: Picture,
}
