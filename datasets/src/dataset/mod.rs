//! A data set: its three splits of samples, its class names, and its origin.

mod class_sizes;
mod faults;
mod look_alike;
mod requirements;
mod validation;

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::class_sizes::ClassSizes;
pub use self::validation::{Fold, ValidationOrigin};
use crate::{LeftOut, Sample, Split};

/// The kind of source that a data set was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// The synthetic data set `shapes`.
    Shapes,
    /// Folders of image files, one per class.
    Folder,
    /// A list of files and labels: CSV, TSV, or JSON Lines.
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

/// Name, classes, and origin of a data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DatasetInfo {
    /// A short name that is safe in a file name; run folders are named after it.
    pub name: String,
    /// Class names, indexed by [`Sample::labels`].
    pub classes: Vec<String>,
    /// Whether an image has any number of classes, and not exactly one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub multi_label: bool,
    /// The kind of source that it was read from.
    pub source: SourceKind,
    /// Where the validation split comes from.
    pub validation: ValidationOrigin,
    /// Whether a mirrored image still shows its class, which is false for digits and letters.
    pub flip_safe: bool,
}

/// Labeled images in three splits, any of which may be empty.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Name, classes, and origin.
    pub info: DatasetInfo,
    /// Images for fitting the weights.
    pub train: Vec<Sample>,
    /// Images for choosing the best epoch and settings.
    pub val: Vec<Sample>,
    /// Images for the final measurement.
    pub test: Vec<Sample>,
    /// Files that were found next to the images and are not used.
    pub left_out: LeftOut,
    /// Warnings about how the data set was interpreted.
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

/// The first name that occurs twice.
pub fn duplicate_name(names: &[String]) -> Option<&str> {
    let mut seen = HashSet::new();
    names.iter().map(String::as_str).find(|name| !seen.insert(*name))
}
