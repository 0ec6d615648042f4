//! Reading the entries of a zip archive.

use std::fs::File;
use std::io::{self, BufReader, Read};

use zip::CompressionMethod;
use zip::result::ZipError;

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
        let listed = archive.by_index_data(index).and_then(|entry| {
            // The `zip` crate decodes a name that is not UTF-8 as code page 437, in which every byte is a character.
            // Some Windows programs separate folders by backslashes.
            let name = entry.name()?.replace('\\', "/");
            Ok((name, EntryKind::of_zip(entry.unix_mode(), entry.is_dir())))
        });
        let (name, kind) = listed.map_err(|error| contents.damaged(&format!("at entry {index}"), &error))?;
        match kind {
            EntryKind::File => read_zip_file(&mut archive, (index, name.as_bytes()), contents)?,
            EntryKind::Folder => contents.add_folder(name.as_bytes()),
            EntryKind::Other(problem) => contents.add_other(name.as_bytes(), problem)?,
            EntryKind::Metadata => {}
        }
    }
    Ok(())
}

/// Passes a file of a zip archive to `contents`. An image that is damaged costs no other, since the archive's directory
/// says where each file is.
fn read_zip_file<R: Read + io::Seek>(
    archive: &mut zip::ZipArchive<R>,
    (index, name): (usize, &[u8]),
    contents: &mut impl Entries,
) -> Result<(), DatasetError> {
    let read = match archive.by_index(index) {
        Ok(entry) => match entry.compression() {
            CompressionMethod::Stored | CompressionMethod::Deflated => {
                contents.add_file(name, entry.size(), entry)?
            }
            other => return Err(contents.not_supported(&format!("compressed by {other}"))),
        },
        Err(ZipError::UnsupportedArchive(problem)) => return Err(contents.not_supported(problem)),
        Err(error) => contents.add_file(name, 0, Missing(error))?,
    };
    match read {
        Ok(()) => Ok(()),
        Err(error) => contents.add_other(name, &format!("it is damaged: {error}")),
    }
}

/// The content of a file that is not where the archive's directory says.
struct Missing(ZipError);

impl Read for Missing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::new(io::ErrorKind::InvalidData, self.0.to_string()))
    }
}
