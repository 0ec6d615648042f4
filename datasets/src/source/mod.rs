//! One file per layout, and what they have in common: labelled pictures found somewhere, aligned into splits.

pub(crate) mod archive;
pub(crate) mod cifar;
mod class_folders;
pub(crate) mod folder;
pub(crate) mod idx;
pub(crate) mod manifest;
pub(crate) mod published;
pub(crate) mod shapes;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::read::MultiGzDecoder;

use crate::files::DEFAULT_FILE_BYTES;
use crate::{DatasetError, LeftOut, Picture, Sample, SourceKind, Split, open_regular};

/// The most bytes of pixels that a data set of IDX files or CIFAR batches may hold in memory.
const MAX_BYTES: u64 = 640 << 20;

/// The most images of one data set, whatever they hold.
const MAX_IMAGES: usize = 4 << 20;

/// What a source holds, before a validation split is taken from what has none.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) classes: Vec<String>,
    pub(crate) train: Vec<Sample>,
    pub(crate) val: Vec<Sample>,
    pub(crate) test: Vec<Sample>,
    pub(crate) source: SourceKind,
    pub(crate) flip_safe: bool,
    pub(crate) left_out: LeftOut,
}

/// A picture with its class by name.
pub(crate) struct Labelled {
    pub(crate) split: Split,
    pub(crate) class: String,
    pub(crate) picture: Picture,
}

/// Which splits have a class, by position in [`Split::ALL`].
type Presence = [bool; 3];

/// Classes numbered by name, in lexicographic order, the same in every split.
///
/// # Errors
///
/// Fewer than two classes, no training pictures, or a class that training lacks or that is in one of several
/// splits alone.
pub(crate) fn align(
    origin: &Path,
    source: SourceKind,
    pictures: Vec<Labelled>,
    left_out: LeftOut,
) -> Result<Found, DatasetError> {
    let mut presence: BTreeMap<String, Presence> = BTreeMap::new();
    for labelled in &pictures {
        match presence.get_mut(&labelled.class) {
            Some(is_in) => is_in[labelled.split as usize] = true,
            None => {
                let is_in = Split::ALL.map(|split| split == labelled.split);
                presence.insert(labelled.class.clone(), is_in);
            }
        }
    }
    check_classes(origin, &presence)?;
    let classes: Vec<String> = presence.into_keys().collect();
    let (train, val, test) = (vec![], vec![], vec![]);
    let mut found = Found { classes, train, val, test, source, flip_safe: true, left_out };
    for Labelled { split, class, picture } in pictures {
        let label = found.classes.partition_point(|name| *name < class);
        let samples = match split {
            Split::Train => &mut found.train,
            Split::Val => &mut found.val,
            Split::Test => &mut found.test,
        };
        samples.push(Sample { label, picture });
    }
    Ok(found)
}

fn check_classes(origin: &Path, presence: &BTreeMap<String, Presence>) -> Result<(), DatasetError> {
    let is_given = |split: Split| presence.values().any(|is_in| is_in[split as usize]);
    let given: Vec<Split> = Split::ALL.into_iter().filter(|&split| is_given(split)).collect();
    if !given.contains(&Split::Train) {
        let problem = "has no training pictures: a data set needs a train split";
        return Err(DatasetError::layout(origin, problem));
    }
    for (class, is_in) in presence {
        let (present, missing): (Vec<Split>, Vec<Split>) =
            given.iter().partition(|&&split| is_in[split as usize]);
        if missing.contains(&Split::Train) || (present.len() == 1 && !missing.is_empty()) {
            return Err(DatasetError::OneSidedClass {
                path: origin.to_owned(),
                class: class.clone(),
                present: present[0],
                missing: missing[0],
            });
        }
    }
    match presence.keys().next() {
        Some(class) if presence.len() == 1 => {
            let problem = format!("has one class alone, '{class}': a classifier needs two or more");
            Err(DatasetError::layout(origin, problem))
        }
        _ => Ok(()),
    }
}

/// Opens a regular file of any size.
fn open(path: &Path) -> Result<File, DatasetError> {
    let file = open_regular(path, u64::MAX).map_err(|problem| DatasetError::layout(path, problem))?;
    Ok(file.0)
}

/// A data file: on disk, or held in memory after it was read from an archive.
#[derive(Clone, Debug)]
pub(crate) enum Blob {
    File(PathBuf),
    Memory { name: String, bytes: Arc<[u8]> },
}

impl Blob {
    /// What messages call it.
    fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Memory { name, .. } => name.clone(),
        }
    }

    /// The last part of its path.
    fn file_name(&self) -> String {
        match self {
            Self::File(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Self::Memory { name, .. } => name.rsplit('/').next().unwrap_or_default().to_owned(),
        }
    }

    /// Its content, unpacked where its name ends in `.gz`.
    fn reader(&self) -> Result<Box<dyn Read + '_>, DatasetError> {
        let reader: Box<dyn Read> = match self {
            Self::File(path) => Box::new(BufReader::new(open(path)?)),
            Self::Memory { bytes, .. } => Box::new(&bytes[..]),
        };
        Ok(if self.file_name().ends_with(".gz") { Box::new(MultiGzDecoder::new(reader)) } else { reader })
    }

    /// All of its content, when that is at most `limit` bytes.
    fn read_all(&self, limit: u64) -> Result<Vec<u8>, DatasetError> {
        let mut bytes = Vec::new();
        let read = self.reader()?.take(limit.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| self.malformed(format!("cannot be read to its end: {error}")))?;
        if bytes.len() as u64 > limit {
            return Err(
                self.malformed(format!("is longer than the {limit} bytes that it should have at most"))
            );
        }
        Ok(bytes)
    }

    /// A breach of its format.
    fn malformed(&self, problem: impl Into<String>) -> DatasetError {
        DatasetError::malformed(self.name(), problem)
    }
}

/// Reads what `path` points to, by the layout that it has; images of an archive have at most the usual size.
///
/// # Errors
///
/// As [`read_up_to`].
pub(crate) fn read(path: &Path) -> Result<Found, DatasetError> {
    read_up_to(path, DEFAULT_FILE_BYTES)
}

/// Reads what `path` points to, by the layout that it has; images of an archive have at most `max_file_bytes`.
///
/// # Errors
///
/// What cannot be read, or is laid out in no known way.
pub(crate) fn read_up_to(path: &Path, max_file_bytes: u64) -> Result<Found, DatasetError> {
    if path.is_dir() {
        return folder::read(path);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    if let Some(format) = manifest::Format::of(&name) {
        manifest::read(path, format)
    } else if let Some(format) = archive::Format::of(&name) {
        archive::read(path, format, max_file_bytes)
    } else {
        Err(DatasetError::UnknownFormat { path: path.to_owned() })
    }
}
