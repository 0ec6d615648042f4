//! A folder on disk: IDX files, CIFAR batches, or folders of image files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use walkdir::{DirEntry, WalkDir};

use super::class_folders::Listing;
use super::{Blob, Found, align, cifar, idx, is_hidden, is_image_name};
use crate::{DatasetError, Picture, SourceKind};

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
    align(root, SourceKind::Folder, list(root)?.labelled()?)
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

/// All image files and folders below a folder; links are followed.
fn list(root: &Path) -> Result<Listing, DatasetError> {
    let mut listing = Listing { root: root.to_owned(), pictures: BTreeMap::new(), folders: BTreeSet::new() };
    let is_part = |entry: &DirEntry| entry.depth() == 0 || !is_hidden(&entry.file_name().to_string_lossy());
    for entry in WalkDir::new(root).min_depth(1).follow_links(true).into_iter().filter_entry(is_part) {
        let entry = entry.map_err(|error| {
            let path = error.path().unwrap_or(root).to_owned();
            DatasetError::Io { action: "read", path, source: error.into() }
        })?;
        let below = entry.path().strip_prefix(root).unwrap_or(entry.path());
        let names: Vec<_> = below.iter().map(|name| name.to_string_lossy()).collect();
        if entry.file_type().is_dir() {
            listing.folders.insert(names.join("/"));
        } else if is_image_name(&entry.file_name().to_string_lossy()) {
            listing.pictures.insert(names.join("/"), Picture::File(entry.into_path()));
        }
    }
    Ok(listing)
}
