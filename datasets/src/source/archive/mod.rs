//! A tar or zip archive of one of the folder layouts, read into memory or, where it is large, a temporary file. Paths
//! inside it only give labels and names.

mod contents;
mod tar_entries;
#[cfg(test)]
pub(crate) mod tests;
mod zip_entries;

use std::io::BufReader;
use std::path::Path;

use flate2::read::MultiGzDecoder;

use self::contents::{ArchiveContents, UnpackLimits};
use self::tar_entries::read_tar;
use self::zip_entries::read_zip;
use super::{SourceData, align, cifar, idx};
use crate::{DatasetError, SourceKind};

/// How the archive is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArchiveFormat {
    Tar,
    TarGz,
    Zip,
}

impl ArchiveFormat {
    /// The format that a file name in lower case ends in.
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

    /// The format that a file begins as, whatever it is called.
    pub(crate) fn of_content(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, ..] => Some(Self::TarGz),
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Some(Self::Zip),
            _ if head.get(257..262) == Some(b"ustar") => Some(Self::Tar),
            _ => None,
        }
    }
}

/// Bytes of a file that its format is told from.
pub(crate) const FORMAT_BYTES: usize = 512;
/// How archives begin that are not read, and what they are.
const OTHERS: [(&[u8], &str); 5] = [
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh", "bzip2"),
    (b"\x28\xb5\x2f\xfd", "Zstandard"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!", "RAR"),
];

/// The kind of an archive that is not read.
pub(crate) fn unsupported(head: &[u8]) -> Option<&'static str> {
    OTHERS.into_iter().find(|(start, _)| head.starts_with(start)).map(|(_, kind)| kind)
}

/// Bytes of images that are kept in memory; what is more lies in a temporary file.
const MEMORY_BYTES: u64 = 256 << 20;
/// Bytes of all images of an archive.
const MAX_IMAGE_BYTES: u64 = 64 << 30;

/// Reads an archive by the layout inside it; folders that hold everything else are left out of account.
///
/// # Errors
///
/// A damaged archive, one that unpacks to more than it may, and a layout that is not known.
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
