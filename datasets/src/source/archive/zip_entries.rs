//! Reading the entries of a zip archive.

use std::fs::File;
use std::io::{self, BufReader, Read};

use zip::CompressionMethod;

use super::entries::{Entries, EntryKind};
use crate::DatasetError;

impl EntryKind {
    /// The kind by the Unix mode, if the archive has one.
    fn of_zip(mode: Option<u32>, is_folder: bool) -> Self {
        match mode.unwrap_or_default() & 0o170_000 {
            0o120_000 => Self::LINK,
            0o020_000 | 0o060_000 => Self::DEVICE,
            0o010_000 => Self::PIPE,
            0o140_000 => Self::SOCKET,
            _ if is_folder => Self::Folder,
            _ => Self::File,
        }
    }
}

/// Passes all entries of a zip archive to `contents`.
pub(super) fn read_zip(mut file: BufReader<File>, contents: &mut impl Entries) -> Result<(), DatasetError> {
    // First assume that the archive begins at offset 0. Searching for the start, which self-extracting archives need,
    // fails for some valid archives.
    let at_start = zip::read::Config { archive_offset: zip::read::ArchiveOffset::Known(0) };
    if let Ok(archive) = zip::ZipArchive::with_config(at_start, &mut file) {
        return read_zip_entries(archive, contents);
    }
    let archive =
        zip::ZipArchive::new(file).map_err(|error| contents.damaged("or not a zip file", &error))?;
    read_zip_entries(archive, contents)
}

fn read_zip_entries<R: Read + io::Seek>(
    mut archive: zip::ZipArchive<R>,
    contents: &mut impl Entries,
) -> Result<(), DatasetError> {
    for index in 0..archive.len() {
        let place = format!("at entry {index}");
        let entry = archive.by_index(index).map_err(|error| match error {
            zip::result::ZipError::UnsupportedArchive(problem) => contents.not_supported(problem),
            error => contents.damaged(&place, &error),
        })?;
        if !matches!(entry.compression(), CompressionMethod::Stored | CompressionMethod::Deflated) {
            return Err(contents.not_supported(&format!("compressed by {}", entry.compression())));
        }
        // The `zip` crate decodes a name that is not UTF-8 as code page 437, in which every byte is a character.
        // Some Windows programs separate folders by backslashes.
        let name = entry.name().map_err(|error| contents.damaged(&place, &error))?.replace('\\', "/");
        match EntryKind::of_zip(entry.unix_mode(), entry.is_dir()) {
            EntryKind::File => contents.add_file(name.as_bytes(), entry.size(), entry)?,
            EntryKind::Folder => contents.add_folder(name.as_bytes()),
            EntryKind::Other(problem) => contents.add_other(name.as_bytes(), problem)?,
            EntryKind::Metadata => {}
        }
    }
    Ok(())
}
