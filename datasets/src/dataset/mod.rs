//! A data set: its splits, its class names and what is known about where it came from.

mod class_sizes;
mod requirements;
mod validation;

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::class_sizes::ClassSizes;
pub use self::validation::{Fold, ValidationOrigin};
use crate::{LeftOut, Sample, Split};

/// What kind of place a data set was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// Drawn by the program.
    Shapes,
    /// Folders of image files, one per class.
    Folder,
    /// A list of files and labels: CSV, TSV or JSON Lines.
    Manifest,
    /// A tar or zip archive of class folders.
    Archive,
    /// IDX files, the format of MNIST.
    Idx,
    /// CIFAR's binary batches.
    Cifar,
}

impl fmt::Display for SourceKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Shapes => "drawn by the program",
            Self::Folder => "image folder",
            Self::Manifest => "manifest",
            Self::Archive => "archive",
            Self::Idx => "IDX files",
            Self::Cifar => "CIFAR binary batches",
        })
    }
}

/// What a data set is, apart from its samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DatasetInfo {
    /// A short name, safe in a file name: run folders are called after it.
    pub name: String,
    /// Class names; a [`Sample::label`] is an index into them.
    pub classes: Vec<String>,
    /// What kind of place it was read from.
    pub source: SourceKind,
    /// How the validation split came about.
    pub validation: ValidationOrigin,
    /// Whether a mirrored image still shows its class. Digits and letters do not.
    pub flip_safe: bool,
}

/// Labeled images in three splits, any of which may be empty.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// What it is.
    pub info: DatasetInfo,
    /// What the weights are fitted to.
    pub train: Vec<Sample>,
    /// What choices are made by.
    pub val: Vec<Sample>,
    /// What is looked at once, at the end.
    pub test: Vec<Sample>,
    /// What was found next to the images and is not used.
    pub left_out: LeftOut,
    /// What the user should know of how the data set was understood, one remark per line.
    pub warnings: Vec<String>,
}

impl Dataset {
    /// The samples of one split.
    pub fn split(&self, split: Split) -> &[Sample] {
        match split {
            Split::Train => &self.train,
            Split::Val => &self.val,
            Split::Test => &self.test,
        }
    }
}

/// The first name that comes twice.
pub fn duplicate_name(names: &[String]) -> Option<&str> {
    let mut seen = HashSet::new();
    names.iter().map(String::as_str).find(|name| !seen.insert(*name))
}
