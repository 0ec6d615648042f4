//! The contents of an archive, collected entry by entry: images, IDX and CIFAR files, and files that are not used.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use super::entries::{Entries, normalized, read_image};
use crate::files::shown_bytes;
use crate::source::class_folders::Listing;
use crate::source::{Blob, MAX_IMAGES, cifar, idx};
use crate::{DatasetError, Fault, ImageSource, LeftOut, Reason, Spool, shown};

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

    /// Adds a file that may be an image.
    fn add_image(
        &mut self,
        shown: String,
        name: String,
        claimed: u64,
        content: impl Read,
    ) -> Result<io::Result<()>, DatasetError> {
        let bytes = match read_image(&name, claimed, content, self.limits.file) {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(reason)) => {
                self.left_out.add(shown, reason);
                return Ok(Ok(()));
            }
            Err(error) => return Ok(Err(error)),
        };
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
        Ok(Ok(()))
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
        let read = content.take(left + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.damaged(&format!("at '{name}'"), &error))?;
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
}

impl Entries for ArchiveContents<'_> {
    fn archive(&self) -> &Path {
        self.path
    }

    fn images(&self) -> usize {
        self.listing.images.len()
    }

    fn add_folder(&mut self, name: &[u8]) {
        if let Some(name) = normalized(name) {
            self.listing.folders.insert(name);
        }
    }

    fn add_file(
        &mut self,
        name: &[u8],
        claimed: u64,
        content: impl Read,
    ) -> Result<io::Result<()>, DatasetError> {
        let Some(name) = normalized(name) else {
            self.left_out.add(self.within(&shown_bytes(name)), Reason::Hidden);
            return Ok(Ok(()));
        };
        let shown = self.within(&name);
        let file_name = name.rsplit('/').next().unwrap_or_default();
        if idx::is_name(file_name) || cifar::is_name(file_name) {
            return self.add_blob(shown, &name, content).map(Ok);
        }
        self.add_image(shown, name, claimed, content)
    }

    fn leave_out(&mut self, name: String, reason: Reason) -> Result<(), DatasetError> {
        self.left_out.add(name, reason);
        Ok(())
    }
}
