//! Reading a tar or zip archive of class folders, IDX files, or CIFAR batches, into memory or, if it is large, into a
//! temporary file. Paths inside the archive serve only as labels and names; nothing is unpacked to them.

mod contents;
mod entries;
mod stream;
mod tar_entries;
#[cfg(test)]
pub(crate) mod tests;
mod zip_entries;

use std::io::BufReader;
use std::path::Path;

use flate2::read::MultiGzDecoder;

use self::contents::{ArchiveContents, UnpackLimits};
pub use self::stream::{is_archive_name, read_archive, read_archive_from};
use self::tar_entries::read_tar;
use self::zip_entries::read_zip;
use super::{SourceData, align, cifar, idx};
use crate::{DatasetError, SourceKind};

/// The format of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArchiveFormat {
    Tar,
    TarGz,
    Zip,
}

impl ArchiveFormat {
    /// The format by the extension of a file name in lower case.
    pub(crate) fn of(name: &str) -> Option<Self> {
        if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
            Some(Self::TarGz)
        } else if name.ends_with(".tar") {
            Some(Self::Tar)
        } else if name.ends_with(".zip") {
            Some(Self::Zip)
        } else {
            None
        }
    }

    /// The format by the first bytes of a file, whatever its name.
    pub(crate) fn of_content(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, ..] => Some(Self::TarGz),
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Some(Self::Zip),
            _ if head.get(257..262) == Some(b"ustar") => Some(Self::Tar),
            _ => None,
        }
    }
}

/// Number of first bytes from which the format is recognized.
pub(crate) const FORMAT_BYTES: usize = 512;
/// The first bytes and the names of archive formats that are not supported.
const UNSUPPORTED: [(&[u8], &str); 5] = [
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh", "bzip2"),
    (b"\x28\xb5\x2f\xfd", "Zstandard"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!", "RAR"),
];

/// The name of an archive format that is not supported, by the first bytes of a file.
pub(crate) fn unsupported(head: &[u8]) -> Option<&'static str> {
    UNSUPPORTED.into_iter().find(|(start, _)| head.starts_with(start)).map(|(_, kind)| kind)
}

/// Bytes of images to keep in memory. Further images are kept in a temporary file.
const MEMORY_BYTES: u64 = 256 << 20;
/// Largest total size of the images of an archive, in bytes.
const MAX_IMAGE_BYTES: u64 = 64 << 30;

/// Reads an archive, whose layout is recognized. Images larger than `max_file_bytes` are left out.
///
/// # Errors
///
/// If the archive is damaged, unpacks to more than the limits, or has no known layout.
pub(crate) fn read(
    path: &Path,
    format: ArchiveFormat,
    max_file_bytes: u64,
) -> Result<SourceData, DatasetError> {
    let file = BufReader::with_capacity(1 << 20, super::open(path)?);
    let limits = UnpackLimits { file: max_file_bytes, memory: MEMORY_BYTES, images: MAX_IMAGE_BYTES };
    let mut contents = ArchiveContents::new(path, limits);
    match format {
        ArchiveFormat::Tar => read_tar(file, &mut contents)?,
        ArchiveFormat::TarGz => read_tar(MultiGzDecoder::new(file), &mut contents)?,
        ArchiveFormat::Zip => read_zip(file, &mut contents)?,
    }
    if idx::is_layout(&contents.blobs) {
        return idx::read(path, contents.blobs);
    }
    if cifar::is_layout(&contents.blobs) {
        return cifar::read(path, contents.blobs);
    }
    let images = contents.listing.unwrapped().labeled(&contents.left_out)?;
    Ok(align(SourceKind::Archive, images, contents.left_out))
}
