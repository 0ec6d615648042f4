//! What can be wrong with a data set, in the user's words.

use std::io;
use std::path::{Path, PathBuf};

use crate::{Fault, LeftOut, Split, shown};

/// What can be wrong with a data set. Every message names the file or argument and the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// Neither a known data set nor something on disk.
    #[error("'{data}' is not a file or folder, and no data set has this name: the names are {names}")]
    UnknownData {
        /// What was asked for.
        data: String,
        /// The names that there are.
        names: String,
    },
    /// A file that is no data set.
    #[error(
        "{} is not a data set: give a folder, a manifest (.csv, .tsv, .jsonl) or an archive (.tar, .tar.gz, \
         .tgz, .zip)",
        shown(path)
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A share for validation that leaves nothing on one side.
    #[error(
        "a validation fraction of {fraction} is not possible: give a number between 0 and 1, such as 0.2"
    )]
    ValidationFraction {
        /// The share asked for.
        fraction: f64,
    },
    /// More folds than images that can be held out: some would have none.
    #[error(
        "{folds} folds are too many: {data} has only {images} different images to hold out, too few for one in each fold \
         (the smallest classes, by different images: {smallest}; the only image of a class is always trained on): use \
         {images} folds at most, or add images"
    )]
    Folds {
        /// How many were asked for.
        folds: usize,
        /// The data set's name.
        data: String,
        /// How many there can be at most: as many as different images of classes that have two or more.
        images: usize,
        /// The smallest classes with their numbers of different images.
        smallest: String,
    },
    /// A file or folder could not be read or written.
    #[error("cannot {action} {}", shown(path))]
    Io {
        /// What was tried: `read`, `write`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A folder, manifest or archive whose content is not laid out as a data set.
    #[error("{}: {problem}", shown(path))]
    Layout {
        /// The folder, manifest or archive.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A folder or archive without a single image.
    #[error("{}: holds no images: {expected}{}", shown(path), left_out.faults().iter().map(|fault| format!("\n{fault}")).collect::<String>())]
    NoImages {
        /// The folder or archive.
        path: PathBuf,
        /// The layouts that it could have.
        expected: &'static str,
        /// The files that it holds.
        left_out: Box<LeftOut>,
    },
    /// A class that one split lacks.
    #[error(
        "{}: the class '{class}' is in {present} but not in {missing}: add images of it there, or \
         remove the class, or correct its name",
        shown(path)
    )]
    OneSidedClass {
        /// The folder, manifest or archive.
        path: PathBuf,
        /// The class.
        class: String,
        /// The split that has it.
        present: Split,
        /// A split that lacks it.
        missing: Split,
    },
    /// A row of a manifest.
    #[error("{}, line {line}: {problem}", shown(path))]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A data file that breaks its format.
    #[error("{file}: {problem}")]
    Malformed {
        /// The file, or its path inside an archive.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// A file that could not be fetched.
    #[error("cannot download {url}: {problem}")]
    Download {
        /// Where it should be.
        url: String,
        /// What went wrong.
        problem: String,
    },
    /// A published data set that is neither on disk nor to be had.
    #[error(
        "{name} is not in {}; to add it by hand, put these files into {}: {}",
        shown(data_dir), shown(folder), urls.join(", ")
    )]
    Unavailable {
        /// The data set's name.
        name: &'static str,
        /// Where it was looked for.
        data_dir: PathBuf,
        /// The files that are missing.
        urls: Vec<String>,
        /// The folder to put them in.
        folder: PathBuf,
        /// Why the download failed; nothing when none was wanted.
        source: Option<Box<DatasetError>>,
    },
    /// An image could not be decoded.
    #[error("{image}: {fault}")]
    Image {
        /// Path of the image, or its place in an archive or buffer.
        image: String,
        /// What is wrong with it.
        fault: Fault,
    },
    /// Loading threads that do not start or do not survive.
    #[error("loading images failed: {problem}")]
    Threads {
        /// What went wrong.
        problem: String,
    },
}

impl DatasetError {
    /// A failed read of `path`.
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action: "read", path, source }
    }

    /// A failed write of `path`.
    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action: "write", path, source }
    }

    /// A wrong layout at `path`.
    pub(crate) fn layout(path: &Path, problem: impl Into<String>) -> Self {
        Self::Layout { path: path.to_owned(), problem: problem.into() }
    }

    /// A broken data file.
    pub(crate) fn malformed(file: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Malformed { file: file.into(), problem: problem.into() }
    }
}
