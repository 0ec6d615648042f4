//! The contents of an archive, collected entry by entry: images, IDX and CIFAR files, and files that are not used.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use crate::files::{HEAD_BYTES, is_hidden, shown_bytes};
use crate::source::class_folders::Listing;
use crate::source::{Blob, MAX_IMAGES, cifar, idx};
use crate::{DatasetError, Fault, FileKind, ImageSource, LeftOut, Reason, Spool, shown};

/// Largest total size of the IDX files or CIFAR batches of an archive, in bytes. A `.gz` file inside the archive counts
/// with its compressed size.
const MAX_DATA_BYTES: u64 = 384 << 20;

/// Limits on the size of images, in bytes.
#[derive(Clone, Copy)]
pub(super) struct UnpackLimits {
    /// Largest image.
    pub(super) file: u64,
    /// Total size of the images to keep in memory, after which further images go to a temporary file.
    pub(super) memory: u64,
    /// Largest total size of all images.
    pub(super) images: u64,
}

/// The entries of an archive that have been read so far.
pub(super) struct ArchiveContents<'a> {
    path: &'a Path,
    pub(super) listing: Listing,
    /// Files of the IDX and CIFAR layouts.
    pub(super) blobs: Vec<Blob>,
    pub(super) left_out: LeftOut,
    limits: UnpackLimits,
    image_bytes: u64,
    blob_bytes: u64,
    spool: Option<Arc<Spool>>,
}

impl<'a> ArchiveContents<'a> {
    pub(super) fn new(path: &'a Path, limits: UnpackLimits) -> Self {
        let listing = Listing { root: path.to_owned(), images: BTreeMap::new(), folders: BTreeSet::new() };
        let (blobs, left_out) = (Vec::new(), LeftOut::default());
        Self { path, listing, blobs, left_out, limits, image_bytes: 0, blob_bytes: 0, spool: None }
    }

    pub(super) fn add_folder(&mut self, name: &[u8]) {
        if let Some(name) = normalized(name) {
            self.listing.folders.insert(name);
        }
    }

    /// Adds an entry that is neither a file nor a folder, and why it is not used.
    pub(super) fn add_other(&mut self, name: &[u8], problem: &str) {
        let (name, reason) = match normalized(name) {
            Some(name) => (name, Reason::Unreadable(Fault::Other(problem.to_owned()))),
            None => (shown_bytes(name), Reason::Hidden),
        };
        self.left_out.add(self.within(&name), reason);
    }

    /// Adds a file. `claimed` is its size according to the header, which may be wrong: no more than the limit is read
    /// in any case.
    pub(super) fn add_file(
        &mut self,
        name: &[u8],
        claimed: u64,
        mut content: impl Read,
    ) -> Result<(), DatasetError> {
        let Some(name) = normalized(name) else {
            self.left_out.add(self.within(&shown_bytes(name)), Reason::Hidden);
            return Ok(());
        };
        let shown = self.within(&name);
        let file_name = name.rsplit('/').next().unwrap_or_default();
        if idx::is_name(file_name) || cifar::is_name(file_name) {
            return self.add_blob(shown, &name, content);
        }
        let mut head = Vec::new();
        content
            .by_ref()
            .take(HEAD_BYTES as u64)
            .read_to_end(&mut head)
            .map_err(|e| self.damaged_at(&name, &e))?;
        match FileKind::of(file_name, || head.clone()) {
            FileKind::Image => self.add_image(shown, name, claimed, head, content),
            FileKind::Unsupported(format) => {
                self.left_out.add(shown, Reason::Unsupported(format));
                Ok(())
            }
            FileKind::Other => {
                self.left_out.add(shown, Reason::NoImage);
                Ok(())
            }
        }
    }

    fn add_image(
        &mut self,
        shown: String,
        name: String,
        claimed: u64,
        mut bytes: Vec<u8>,
        content: impl Read,
    ) -> Result<(), DatasetError> {
        let limit = self.limits.file;
        if claimed <= limit {
            let rest = (limit + 1).saturating_sub(bytes.len() as u64);
            content.take(rest).read_to_end(&mut bytes).map_err(|error| self.damaged_at(&name, &error))?;
        }
        let size = claimed.max(bytes.len() as u64);
        if size > limit {
            self.left_out.add(shown, Reason::Unreadable(Fault::TooLarge { bytes: size, limit }));
            return Ok(());
        }
        self.image_bytes += bytes.len() as u64;
        if self.image_bytes > self.limits.images || self.listing.images.len() >= MAX_IMAGES {
            let (bytes, way_out) = (self.limits.images, "unpack it and give the folder");
            let problem =
                format!("unpacks to more than {bytes} bytes or {MAX_IMAGES} images at '{name}': {way_out}");
            return Err(DatasetError::layout(self.path, problem));
        }
        let image = self.keep(shown.clone(), bytes)?;
        if self.listing.images.insert(name, image).is_some() {
            let problem =
                "the archive holds several files of this name, of which the last one is used".to_owned();
            self.left_out.add(shown, Reason::Unreadable(Fault::Other(problem)));
        }
        Ok(())
    }

    /// Keeps an image in memory, or in a temporary file once the limit on memory is reached.
    fn keep(&mut self, name: String, bytes: Vec<u8>) -> Result<ImageSource, DatasetError> {
        if self.image_bytes <= self.limits.memory {
            return Ok(ImageSource::Encoded { name, bytes: bytes.into() });
        }
        let failed = |error: std::io::Error| {
            let folder = std::env::temp_dir();
            let problem = format!(
                "cannot be unpacked into {}: {error}; set TMPDIR to a folder with more space, or unpack it and give \
                 the folder",
                shown(folder)
            );
            DatasetError::layout(self.path, problem)
        };
        let spool = match &self.spool {
            Some(spool) => Arc::clone(spool),
            None => Arc::new(Spool::new().map_err(failed)?),
        };
        let place = spool.put(&bytes).map_err(failed)?;
        self.spool = Some(Arc::clone(&spool));
        Ok(ImageSource::Spooled { name, spool, place })
    }

    fn add_blob(&mut self, shown: String, name: &str, content: impl Read) -> Result<(), DatasetError> {
        let left = MAX_DATA_BYTES - self.blob_bytes;
        let mut bytes = Vec::new();
        content.take(left + 1).read_to_end(&mut bytes).map_err(|error| self.damaged_at(name, &error))?;
        if bytes.len() as u64 > left {
            let problem = format!(
                "unpacks to more than {MAX_DATA_BYTES} bytes at '{name}': unpack it and give the folder"
            );
            return Err(DatasetError::layout(self.path, problem));
        }
        self.blob_bytes += bytes.len() as u64;
        self.blobs.push(Blob::Memory { name: shown, bytes: bytes.into() });
        Ok(())
    }

    /// The name of an entry in messages.
    fn within(&self, name: &str) -> String {
        format!("{}/{name}", shown(self.path))
    }

    /// Notes that a tar archive has no end marker, the only sign that it was truncated between two files.
    pub(super) fn add_missing_end(&mut self) {
        let count = self.listing.images.len();
        let problem =
            format!("the archive has no end marker: what follows after {count} images may be missing");
        self.left_out.add(shown(self.path), Reason::Unreadable(Fault::Other(problem)));
    }

    /// Notes a problem with the data after the end of a tar archive.
    pub(super) fn add_rest(&mut self, problem: String) {
        self.left_out.add(shown(self.path), Reason::Unreadable(Fault::Other(problem)));
    }

    fn damaged_at(&self, name: &str, error: &dyn std::error::Error) -> DatasetError {
        self.damaged(&format!("at '{name}'"), error)
    }

    pub(super) fn not_supported(&self, problem: &str) -> DatasetError {
        let problem =
            format!("is of a kind that is not supported ({problem}): unpack it and give the folder");
        DatasetError::layout(self.path, problem)
    }

    pub(super) fn damaged(&self, place: &str, error: &dyn std::error::Error) -> DatasetError {
        DatasetError::malformed(shown(self.path), format!("the archive is damaged {place}: {error}"))
    }
}

/// The path of an entry without `.` components and leading `/`; `None` if a component is hidden.
fn normalized(name: &[u8]) -> Option<String> {
    let parts = name.split(|byte| *byte == b'/');
    let names: Vec<String> =
        parts.filter(|part| !part.is_empty() && *part != b".").map(shown_bytes).collect();
    (!names.is_empty() && !names.iter().any(|name| is_hidden(name))).then(|| names.join("/"))
}

/// The kind of an archive entry.
pub(super) enum EntryKind {
    File,
    Folder,
    /// Neither a file nor a folder, with the reason why it is not used.
    Other(&'static str),
    /// Metadata of other entries.
    Metadata,
}

impl EntryKind {
    pub(super) const LINK: Self = Self::Other("a link inside an archive: unpack it and give the folder");
    pub(super) const SPARSE: Self =
        Self::Other("a sparse file inside an archive: unpack it and give the folder");
    pub(super) const DEVICE: Self = Self::Other("it is a device, not a regular file");
    pub(super) const PIPE: Self = Self::Other("it is a named pipe, not a regular file");
    pub(super) const SOCKET: Self = Self::Other("it is a socket, not a regular file");
    pub(super) const UNKNOWN: Self =
        Self::Other("of a kind that is not known: unpack the archive and give the folder");
}
