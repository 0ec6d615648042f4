//! Errors of finding, opening, decoding, and splitting data sets.

use std::io;
use std::path::{Path, PathBuf};

use crate::{Fault, LeftOut, Split, shown};

/// An error of finding, opening, decoding, or splitting a data set.
///
/// Messages name the file or the number in question and, where there is one, a way out. They name no command-line
/// flags.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// Neither the name of a data set nor an existing path.
    #[error("'{data}' is not a file or folder, and no data set has this name: the names are {names}")]
    UnknownData {
        /// The name or path given.
        data: String,
        /// The known names, separated by commas.
        names: String,
    },
    /// A file of no known format.
    #[error(
        "{} is not a data set: give a folder, a manifest (.csv, .tsv, .jsonl) or an archive (.tar, .tar.gz, \
         .tgz, .zip)",
        shown(path)
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A validation fraction that is not between 0 and 1.
    #[error(
        "a validation fraction of {fraction} is not possible: give a number between 0 and 1, such as 0.2"
    )]
    ValidationFraction {
        /// The fraction given.
        fraction: f64,
    },
    /// More folds than images to hold out, so that some folds would be empty.
    #[error(
        "{folds} folds are too many: {data} has only {images} different images to hold out, too few for one in each \
         fold (the smallest classes, by different images: {smallest}; the only image of a class is always trained on): \
         use {images} folds at most, or add images"
    )]
    Folds {
        /// Number of folds given.
        folds: usize,
        /// Name of the data set.
        data: String,
        /// Number of images that can be held out, and so the largest possible number of folds: the different images of
        /// all classes that have two or more.
        images: usize,
        /// The names of the smallest classes, each with its number of different images.
        smallest: String,
    },
    /// A file or folder could not be read or written.
    #[error("cannot {action} {}", shown(path))]
    Io {
        /// The action that failed: `read` or `write`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A folder, manifest, or archive of no known layout.
    #[error("{}: {problem}", shown(path))]
    Layout {
        /// The folder, manifest, or archive.
        path: PathBuf,
        /// The problem, and a way out.
        problem: String,
    },
    /// A folder or archive without a single image.
    #[error("{}: holds no images: {expected}{}", shown(path), lines(left_out.faults()))]
    NoImages {
        /// The folder or archive.
        path: PathBuf,
        /// A description of the layouts that are recognized.
        expected: &'static str,
        /// The files in it that are not used.
        left_out: Box<LeftOut>,
    },
    /// A class that is missing from a split.
    #[error(
        "{}: the class '{class}' is in {present} but not in {missing}{}: add images of it there, or \
         remove the class, or correct its name",
        shown(path), look_alike.as_deref().unwrap_or_default()
    )]
    OneSidedClass {
        /// The folder, manifest, or archive.
        path: PathBuf,
        /// Name of the class.
        class: String,
        /// A split that has images of it.
        present: Split,
        /// A split that has none.
        missing: Split,
        /// A remark about a class of that split whose name looks like this one, in parentheses and after a space.
        look_alike: Option<String>,
    },
    /// A separator of labels was stated for a data set without texts that it could separate.
    #[error("{data}: a separator of labels has no effect: {reason}")]
    LabelSeparator {
        /// Name or path of the data set.
        data: String,
        /// Why it has none.
        reason: &'static str,
    },
    /// An invalid row of a manifest.
    #[error("{}, line {line}: {problem}", shown(path))]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// Line number, counted from 1.
        line: u64,
        /// The problem, and a way out.
        problem: String,
    },
    /// A data file that does not follow its format.
    #[error("{file}: {problem}")]
    Malformed {
        /// Path of the file, which may be inside an archive.
        file: String,
        /// The problem.
        problem: String,
    },
    /// A file could not be downloaded.
    #[error("cannot download {url}: {problem}")]
    Download {
        /// Address of the file.
        url: String,
        /// The problem.
        problem: String,
    },
    /// A published data set is not on disk and was not downloaded.
    #[error(
        "{name} is not in {}; to add it by hand, put these files into {}: {}",
        shown(data_dir), shown(folder), urls.join(", ")
    )]
    Unavailable {
        /// Name of the data set.
        name: &'static str,
        /// The folder in which it was looked for.
        data_dir: PathBuf,
        /// Addresses of the missing files.
        urls: Vec<String>,
        /// The folder to put them in.
        folder: PathBuf,
        /// Why the download failed; `None` if none was attempted.
        source: Option<Box<DatasetError>>,
    },
    /// An image could not be decoded.
    #[error("{image}: {fault}")]
    Image {
        /// Path of the image, which may be inside an archive, or its file and its index in that file.
        image: String,
        /// Why it cannot be decoded.
        fault: Fault,
    },
    /// Threads that load images could not be started, or panicked.
    #[error("loading images failed: {problem}")]
    Threads {
        /// The problem.
        problem: String,
    },
}

impl DatasetError {
    /// Wraps the I/O error of reading `path`.
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action: "read", path, source }
    }

    /// Wraps the I/O error of writing `path`.
    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action: "write", path, source }
    }

    /// A [`Self::Layout`] error for `path`.
    pub(crate) fn layout(path: &Path, problem: impl Into<String>) -> Self {
        Self::Layout { path: path.to_owned(), problem: problem.into() }
    }

    /// A [`Self::Malformed`] error for `file`.
    pub(crate) fn malformed(file: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Malformed { file: file.into(), problem: problem.into() }
    }

    /// A [`Self::LabelSeparator`] error for `data`, which is no manifest.
    pub(crate) fn no_label_lists(data: impl Into<String>) -> Self {
        let reason = "only CSV, TSV, and JSON Lines list the labels of an image";
        Self::LabelSeparator { data: data.into(), reason }
    }
}

/// Remarks as further lines of a message.
pub(crate) fn lines(remarks: Vec<String>) -> String {
    remarks.into_iter().map(|remark| format!("\n{remark}")).collect()
}
