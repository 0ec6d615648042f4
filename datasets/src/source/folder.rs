//! A folder on disk: IDX files, CIFAR batches, or folders of image files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::class_folders::Listing;
use super::{Blob, Found, MAX_IMAGES, align, cifar, idx};
use crate::{DatasetError, Entry, ImageSource, LeftOut, SourceKind, Walk};

/// Reads a folder by the layout that it has.
///
/// # Errors
///
/// What cannot be read, or is laid out in no known way.
pub(crate) fn read(root: &Path) -> Result<Found, DatasetError> {
    let blobs = files(root)?;
    if idx::is_layout(&blobs) {
        return idx::read(root, blobs);
    }
    if cifar::is_layout(&blobs) {
        return cifar::read(root, blobs);
    }
    let (listing, left_out) = list(root)?;
    let images = listing.labeled(&left_out)?;
    Ok(align(SourceKind::Folder, images, left_out))
}

/// The files right in a folder, by name.
fn files(root: &Path) -> Result<Vec<Blob>, DatasetError> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(root).map_err(DatasetError::read(root))? {
        let path = entry.map_err(DatasetError::read(root))?.path();
        if path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths.into_iter().map(Blob::File).collect())
}

/// All image files and folders below a folder, and what else is there.
fn list(root: &Path) -> Result<(Listing, LeftOut), DatasetError> {
    let mut listing = Listing { root: root.to_owned(), images: BTreeMap::new(), folders: BTreeSet::new() };
    let mut left_out = LeftOut::default();
    let below = |path: &Path| {
        let names: Vec<_> =
            path.strip_prefix(root).unwrap_or(path).iter().map(|name| name.to_string_lossy()).collect();
        names.join("/")
    };
    for entry in Walk::new(root) {
        match entry {
            Entry::Folder(path) => drop(listing.folders.insert(below(&path))),
            Entry::Image(path) => drop(listing.images.insert(below(&path), ImageSource::File(path))),
            Entry::LeftOut(path, reason) => left_out.add(path.display().to_string(), reason),
        }
        if listing.images.len() > MAX_IMAGES {
            return Err(DatasetError::layout(root, format!("holds more than {MAX_IMAGES} images")));
        }
    }
    Ok((listing, left_out))
}
