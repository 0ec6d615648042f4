//! Readers of data sets, one per layout: class folders, archives, manifests, IDX files, CIFAR batches, and the
//! published data sets.

pub(crate) mod archive;
pub(crate) mod cifar;
mod class_folders;
pub(crate) mod download;
pub(crate) mod folder;
pub(crate) mod idx;
pub(crate) mod manifest;
pub(crate) mod published;
pub(crate) mod shapes;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::read::MultiGzDecoder;

pub use self::download::DownloadProgress;
use crate::{
    DatasetError, ImageSource, Labels, LeftOut, Sample, SourceKind, Split, is_image_name, open_regular, shown,
};

/// Largest total size of the pixels of a data set of IDX files or CIFAR batches, in bytes, since they are held in
/// memory.
const MAX_BYTES: u64 = 640 << 20;

/// Largest number of images of a data set.
const MAX_IMAGES: usize = 4 << 20;

/// What a reader has found in a source: classes and samples by split. Every split may be empty.
#[derive(Debug)]
pub(crate) struct SourceData {
    pub(crate) classes: Vec<String>,
    pub(crate) multi_label: bool,
    pub(crate) train: Vec<Sample>,
    pub(crate) val: Vec<Sample>,
    pub(crate) test: Vec<Sample>,
    pub(crate) source: SourceKind,
    pub(crate) flip_safe: bool,
    pub(crate) left_out: LeftOut,
}

/// An image with its split and the names of its classes.
pub(crate) struct LabeledImage {
    pub(crate) split: Split,
    pub(crate) classes: Vec<String>,
    pub(crate) source: ImageSource,
}

/// Numbers classes in lexicographic order of their names, the same in every split, and distributes the images to their
/// splits.
pub(crate) fn align(source: SourceKind, images: Vec<LabeledImage>, left_out: LeftOut) -> SourceData {
    let classes: BTreeSet<&str> =
        images.iter().flat_map(|labeled| labeled.classes.iter().map(String::as_str)).collect();
    let classes: Vec<String> = classes.into_iter().map(str::to_owned).collect();
    let (train, val, test) = (vec![], vec![], vec![]);
    let mut found =
        SourceData { classes, multi_label: false, train, val, test, source, flip_safe: true, left_out };
    for LabeledImage { split, classes, source } in images {
        let index = |class: &String| found.classes.partition_point(|name| name < class);
        let labels = Labels::new(classes.iter().map(index).collect());
        let samples = match split {
            Split::Train => &mut found.train,
            Split::Val => &mut found.val,
            Split::Test => &mut found.test,
        };
        samples.push(Sample { labels, source });
    }
    found
}

/// Opens a regular file of any size.
fn open(path: &Path) -> Result<File, DatasetError> {
    let file = open_regular(path, u64::MAX).map_err(|fault| DatasetError::layout(path, fault.to_string()))?;
    Ok(file.0)
}

/// A data file (IDX or CIFAR), either on disk or in memory after it was read from an archive.
#[derive(Clone, Debug)]
pub(crate) enum Blob {
    File(PathBuf),
    Memory { name: String, bytes: Arc<[u8]> },
}

impl Blob {
    /// The name of the file in messages.
    fn name(&self) -> String {
        match self {
            Self::File(path) => shown(path),
            Self::Memory { name, .. } => name.clone(),
        }
    }

    /// The last component of its path.
    fn file_name(&self) -> String {
        match self {
            Self::File(path) => shown(path.file_name().unwrap_or_default()),
            Self::Memory { name, .. } => name.rsplit('/').next().unwrap_or_default().to_owned(),
        }
    }

    /// A reader of its content, which is decompressed if its name ends in `.gz`.
    fn reader(&self) -> Result<Box<dyn Read + '_>, DatasetError> {
        let reader: Box<dyn Read> = match self {
            Self::File(path) => Box::new(BufReader::new(open(path)?)),
            Self::Memory { bytes, .. } => Box::new(&bytes[..]),
        };
        Ok(if self.file_name().ends_with(".gz") { Box::new(MultiGzDecoder::new(reader)) } else { reader })
    }

    /// Its whole content, which must be at most `limit` bytes.
    fn read_all(&self, limit: u64) -> Result<Vec<u8>, DatasetError> {
        let mut bytes = Vec::new();
        let read = self.reader()?.take(limit.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| self.malformed(format!("cannot be read to its end: {error}")))?;
        if bytes.len() as u64 > limit {
            return Err(self.malformed(format!("is longer than the limit of {limit} bytes")));
        }
        Ok(bytes)
    }

    /// The error for a file that does not follow its format.
    fn malformed(&self, problem: impl Into<String>) -> DatasetError {
        DatasetError::malformed(self.name(), problem)
    }
}

/// Reads the data set at `path` with default options.
///
/// # Errors
///
/// As [`read_with`].
pub(crate) fn read(path: &Path) -> Result<SourceData, DatasetError> {
    read_with(path, crate::files::DEFAULT_FILE_BYTES, None)
}

/// Reads the data set at `path`, whose layout is recognized. Images in an archive that are larger than `max_file_bytes`
/// are left out. `label_separator` is the character between the labels of an image in a manifest.
///
/// # Errors
///
/// If `path` cannot be read or has no known layout, or if a separator is stated that has no effect.
pub(crate) fn read_with(
    path: &Path,
    max_file_bytes: u64,
    label_separator: Option<char>,
) -> Result<SourceData, DatasetError> {
    let name = shown(path.file_name().unwrap_or_default()).to_ascii_lowercase();
    if let Some(format) = manifest::ManifestFormat::of(&name).filter(|_| !path.is_dir()) {
        return manifest::read(path, format, label_separator);
    }
    if label_separator.is_some() {
        return Err(DatasetError::no_label_lists(shown(path)));
    }
    if path.is_dir() {
        return folder::read(path);
    }
    if name.strip_suffix(".gz").and_then(manifest::ManifestFormat::of).is_some() {
        return Err(DatasetError::layout(
            path,
            "is packed: unpack it (gunzip), as lists are read as .csv, .tsv, or .jsonl",
        ));
    }
    let head = head(path)?;
    if let Some(format) =
        archive::ArchiveFormat::of_content(&head).or_else(|| archive::ArchiveFormat::of(&name))
    {
        return archive::read(path, format, max_file_bytes);
    }
    match archive::unsupported(&head) {
        Some(kind) => {
            let problem = format!(
                "is a {kind} archive, which is not supported: unpack it, or pack it as .tar.gz or .zip"
            );
            Err(DatasetError::layout(path, problem))
        }
        None => Err(DatasetError::UnknownFormat { path: path.to_owned() }),
    }
}

/// Whether there is a data set at `path` that is no folder of image files: a manifest, an archive, or a folder of IDX
/// files or CIFAR batches. A file with the name of an image is none of them, whatever its content.
pub(crate) fn is_packed(path: &Path) -> bool {
    if path.is_dir() {
        return folder::holds_batches(path);
    }
    let name = shown(path.file_name().unwrap_or_default()).to_ascii_lowercase();
    let is_archive = || {
        archive::ArchiveFormat::of(&name).is_some()
            || head(path).is_ok_and(|head| archive::ArchiveFormat::of_content(&head).is_some())
    };
    path.is_file() && !is_image_name(&name) && (manifest::ManifestFormat::of(&name).is_some() || is_archive())
}

/// The first bytes of a regular file; empty if it is none.
fn head(path: &Path) -> Result<Vec<u8>, DatasetError> {
    let mut head = Vec::new();
    if let Ok((file, _)) = open_regular(path, u64::MAX) {
        file.take(archive::FORMAT_BYTES as u64).read_to_end(&mut head).map_err(DatasetError::read(path))?;
    }
    Ok(head)
}
