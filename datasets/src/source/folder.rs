//! Reading a folder of IDX files, CIFAR batches, or class folders.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::class_folders::Listing;
use super::{Blob, MAX_IMAGES, SourceData, align, cifar, idx};
use crate::{DatasetError, Entry, ImageSource, LeftOut, SourceKind, Walk, shown};

/// Reads a folder, whose layout is recognized.
///
/// # Errors
///
/// If it cannot be read or has no known layout.
pub(crate) fn read(root: &Path) -> Result<SourceData, DatasetError> {
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

/// Whether a folder has the layout of IDX files or CIFAR batches.
pub(crate) fn holds_batches(root: &Path) -> bool {
    files(root).is_ok_and(|blobs| idx::is_layout(&blobs) || cifar::is_layout(&blobs))
}

/// The files directly in a folder, sorted by name.
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

/// All image files and folders below a folder, and the files that are not used.
fn list(root: &Path) -> Result<(Listing, LeftOut), DatasetError> {
    let mut listing = Listing { root: root.to_owned(), images: BTreeMap::new(), folders: BTreeSet::new() };
    let mut left_out = LeftOut::default();
    let below = |path: &Path| {
        let names: Vec<String> = path.strip_prefix(root).unwrap_or(path).iter().map(shown).collect();
        names.join("/")
    };
    for entry in Walk::new(root) {
        match entry {
            Entry::Folder(path) => drop(listing.folders.insert(below(&path))),
            Entry::Image(path) => drop(listing.images.insert(below(&path), ImageSource::File(path))),
            Entry::LeftOut(path, reason) => left_out.add(shown(&path), reason),
        }
        if listing.images.len() > MAX_IMAGES {
            return Err(DatasetError::layout(root, format!("holds more than {MAX_IMAGES} images")));
        }
    }
    Ok((listing, left_out))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn different_names_that_are_not_utf8_give_different_classes_and_images() {
        let root = tempfile::tempdir().unwrap();
        for name in [
            &b"cl\xe9/\xe4.png"[..],
            b"cl\xe9/\xf6.png",
            b"cl\xe9/\xfc.png",
            b"cl\xe8/1.png",
            b"cl\xe8/\xe4.txt",
        ] {
            let path = root.path().join(OsStr::from_bytes(name));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        let found = read(root.path()).unwrap();
        assert_eq!(found.classes, [r"cl\xE8", r"cl\xE9"]);
        let names: Vec<String> = found.train.iter().map(|sample| sample.source.name()).collect();
        let expected = [r"cl\xE8/1.png", r"cl\xE9/\xE4.png", r"cl\xE9/\xF6.png", r"cl\xE9/\xFC.png"];
        assert_eq!(names, expected.map(|name| format!("{}/{name}", root.path().display())));
        assert!(found.left_out.no_images.first[0].ends_with(r"cl\xE8/\xE4.txt"), "{:?}", found.left_out);
        let message = found.train[1].source.decode(&crate::DecodeLimits::default()).unwrap_err().to_string();
        assert!(message.contains(r"cl\xE9/\xE4.png: "), "{message}");
    }
}
