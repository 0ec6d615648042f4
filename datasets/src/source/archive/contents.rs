//! The contents of an archive, collected entry by entry: images, IDX and CIFAR files, and files that are not used.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::entries::{Entries, normalized};
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

    fn add_blob(&mut self, name: &str, content: impl Read) -> Result<(), DatasetError> {
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
        self.blobs.push(Blob::Memory { name: self.within(name), bytes: bytes.into() });
        Ok(())
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

    fn max_file_bytes(&self) -> u64 {
        self.limits.file
    }

    fn add_data(&mut self, name: &str, content: impl Read) -> Option<Result<(), DatasetError>> {
        let file_name = name.rsplit('/').next().unwrap_or_default();
        (idx::is_name(file_name) || cifar::is_name(file_name)).then(|| self.add_blob(name, content))
    }

    fn add_image(&mut self, name: String, bytes: Vec<u8>) -> Result<(), DatasetError> {
        self.image_bytes += bytes.len() as u64;
        if self.image_bytes > self.limits.images || self.listing.images.len() >= MAX_IMAGES {
            let (bytes, way_out) = (self.limits.images, "unpack it and give the folder");
            let problem =
                format!("unpacks to more than {bytes} bytes or {MAX_IMAGES} images at '{name}': {way_out}");
            return Err(DatasetError::layout(self.path, problem));
        }
        let shown = self.within(&name);
        let image = self.keep(shown.clone(), bytes)?;
        if self.listing.images.insert(name, image).is_some() {
            let problem =
                "the archive holds several files of this name, of which the last one is used".to_owned();
            self.left_out.add(shown, Reason::Unreadable(Fault::Other(problem)));
        }
        Ok(())
    }

    fn leave_out(&mut self, name: String, reason: Reason) -> Result<(), DatasetError> {
        self.left_out.add(name, reason);
        Ok(())
    }
}
