//! A data set: its splits, its class names and what is known about where it came from.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{DatasetError, Sample};

/// The part of a data set that a sample belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// What the weights are fitted to.
    Train,
    /// What choices are made by: the best epoch, the best setting.
    Val,
    /// What is looked at once, at the end.
    Test,
}

impl Split {
    /// Every split, in the order that reports list them.
    pub const ALL: [Self; 3] = [Self::Train, Self::Val, Self::Test];

    /// The word that flags, manifests and folder names use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Val => "val",
            Self::Test => "test",
        }
    }

    /// The split that a folder or manifest word stands for: `val` is also written `valid` and `validation`.
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        match word.to_ascii_lowercase().as_str() {
            "train" => Some(Self::Train),
            "val" | "valid" | "validation" => Some(Self::Val),
            "test" => Some(Self::Test),
            _ => None,
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl FromStr for Split {
    type Err = DatasetError;

    /// # Errors
    ///
    /// [`DatasetError::UnknownSplit`] for any word but `train`, `val` (`valid`, `validation`) and `test`.
    fn from_str(word: &str) -> Result<Self, DatasetError> {
        Self::from_word(word).ok_or_else(|| DatasetError::UnknownSplit { word: word.to_owned() })
    }
}

/// What kind of place a data set was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// Drawn by the program.
    Shapes,
    /// Folders of image files, one a class.
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

/// How the validation split came about.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationOrigin {
    /// The source has one of its own.
    Given,
    /// Taken out of the training samples, class by class, by seed.
    SplitOff {
        /// The share asked for.
        fraction: f64,
        /// The seed that chose.
        seed: u64,
    },
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
    /// Whether a mirrored picture still shows its class. Digits and letters do not.
    pub flip_safe: bool,
}

/// Labelled pictures in three splits. `train` and `val` are never empty; `test` may be.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// What it is.
    pub info: DatasetInfo,
    /// What the weights are fitted to.
    pub train: Vec<Sample>,
    /// What choices are made by.
    pub val: Vec<Sample>,
    /// What is looked at once, at the end; empty where the source has none.
    pub test: Vec<Sample>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_words_round_trip() {
        for split in Split::ALL {
            assert_eq!(split.to_string().parse::<Split>().unwrap(), split);
            assert_eq!(serde_json::to_string(&split).unwrap(), format!("\"{split}\""));
        }
        for word in ["valid", "Validation", "VAL"] {
            assert_eq!(word.parse::<Split>().unwrap(), Split::Val);
        }
    }

    #[test]
    fn an_unknown_split_word_is_named_with_the_known_ones() {
        let message = "dev".parse::<Split>().unwrap_err().to_string();
        assert!(message.contains("dev") && message.contains("train, val or test"), "{message}");
    }
}
