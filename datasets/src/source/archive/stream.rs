//! The images of an archive one after the other, in the memory of one.

use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::ArchiveFormat;
use super::entries::Entries;
use super::tar_entries::read_tar;
use super::zip_entries::read_zip;
use crate::{DatasetError, ImageSource, LeftOut, Reason, shown};

/// Whether a file is an archive whose images can be read one after the other, by its name: `.tar`, `.tar.gz`, `.tgz`, or
/// `.zip`.
pub fn is_archive_name(name: &str) -> bool {
    ArchiveFormat::of(&name.to_ascii_lowercase()).is_some()
}

/// Passes the images of a local archive to `found`, in their order, until it breaks off: each in memory, or with its name and why it
/// cannot be used: one that is damaged in a zip archive is among these. An image's name is the path of the archive, and its own in it.
/// Returns the files that are no images, or hidden.
///
/// # Errors
///
/// If the archive cannot be opened, is damaged, or has no image. Images that were found before are passed on.
pub fn read_archive(
    path: &Path,
    max_file_bytes: u64,
    found: impl FnMut(Result<ImageSource, (String, String)>) -> ControlFlow<()>,
) -> Result<LeftOut, DatasetError> {
    let file = BufReader::with_capacity(1 << 20, crate::source::open(path)?);
    let name = shown(path.file_name().unwrap_or_default()).to_ascii_lowercase();
    if ArchiveFormat::of(&name) == Some(ArchiveFormat::Zip) {
        return Stream::new(path, max_file_bytes, found).read(|stream| read_zip(file, stream));
    }
    read_archive_from(path, file, max_file_bytes, found)
}

/// [`read_archive`] of a tar archive that comes from elsewhere, compressed by gzip or not. `path` is its name.
///
/// # Errors
///
/// If the archive cannot be read, is damaged, or has no image. Images that were found before are passed on.
pub fn read_archive_from(
    path: &Path,
    reader: impl Read,
    max_file_bytes: u64,
    found: impl FnMut(Result<ImageSource, (String, String)>) -> ControlFlow<()>,
) -> Result<LeftOut, DatasetError> {
    const GZIP: &[u8] = b"\x1f\x8b";
    let mut reader = BufReader::with_capacity(1 << 16, reader);
    Stream::new(path, max_file_bytes, found).read(|stream| {
        let head = reader.fill_buf().map_err(|error| stream.damaged("at its start", &error))?;
        if head.starts_with(GZIP) {
            read_tar(MultiGzDecoder::new(reader), stream)
        } else {
            read_tar(reader, stream)
        }
    })
}

/// The entries of an archive, whose images are passed on.
struct Stream<'a, F> {
    path: &'a Path,
    max_file_bytes: u64,
    found: F,
    images: usize,
    others: LeftOut,
    broken_off: bool,
}

impl<'a, F: FnMut(Result<ImageSource, (String, String)>) -> ControlFlow<()>> Stream<'a, F> {
    fn new(path: &'a Path, max_file_bytes: u64, found: F) -> Self {
        Self { path, max_file_bytes, found, images: 0, others: LeftOut::default(), broken_off: false }
    }

    /// Reads the archive.
    fn read(
        mut self,
        read: impl FnOnce(&mut Self) -> Result<(), DatasetError>,
    ) -> Result<LeftOut, DatasetError> {
        let read = read(&mut self);
        if !self.broken_off {
            read?;
            if self.images == 0 {
                return Err(DatasetError::layout(self.path, "the archive holds no images".to_owned()));
            }
        }
        Ok(self.others)
    }

    /// Passes on an image, or why it cannot be used.
    fn pass(&mut self, image: Result<ImageSource, (String, String)>) -> Result<(), DatasetError> {
        self.images += 1;
        if (self.found)(image).is_continue() {
            return Ok(());
        }
        // Ends the reader; nobody sees the error.
        self.broken_off = true;
        Err(self.not_supported("nobody reads it"))
    }
}

impl<F: FnMut(Result<ImageSource, (String, String)>) -> ControlFlow<()>> Entries for Stream<'_, F> {
    fn archive(&self) -> &Path {
        self.path
    }

    fn images(&self) -> usize {
        self.images
    }

    fn add_folder(&mut self, _: &[u8]) {}

    fn max_file_bytes(&self) -> u64 {
        self.max_file_bytes
    }

    fn add_image(&mut self, name: String, bytes: Vec<u8>) -> Result<(), DatasetError> {
        self.pass(Ok(ImageSource::Encoded { name: self.within(&name), bytes: bytes.into() }))
    }

    fn leave_out(&mut self, name: String, reason: Reason) -> Result<(), DatasetError> {
        match reason {
            Reason::NoImage | Reason::Hidden => {
                self.others.add(name, reason);
                Ok(())
            }
            Reason::Unsupported(_) | Reason::Unreadable(_) => self.pass(Err((name, reason.message()))),
        }
    }
}
