//! A data set: its splits, its class names and what is known about where it came from.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{DatasetError, LeftOut, Sample};

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

    /// The split that a folder or manifest word stands for, in any case: `training`, `Train_Set`, `valid`, `validation`,
    /// `dev`, `development`, `testing` and the like.
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        let letters: String = word.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).collect();
        let letters = letters.to_lowercase();
        let stem = ["set", "data", "split", "images"].iter().find_map(|ending| letters.strip_suffix(ending));
        match stem.unwrap_or(&letters) {
            "train" | "training" => Some(Self::Train),
            "val" | "valid" | "validate" | "validation" | "dev" | "devel" | "development" => Some(Self::Val),
            "test" | "testing" => Some(Self::Test),
            _ => None,
        }
    }

    /// Whether a name is that of a split with something before or after it, such as `train_old` or `seg_test`.
    pub(crate) fn is_in_name(name: &str) -> bool {
        let mut words = name.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty());
        Self::from_word(name).is_some() || words.any(|word| Self::from_word(word).is_some())
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
    /// [`DatasetError::UnknownSplit`] for any word but `train`, `val`, `test` and the other usual spellings of them.
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
    /// There is none.
    Absent,
    /// The source has one of its own.
    Given,
    /// Taken out of the training samples, class by class, by their content and a seed.
    SplitOff {
        /// The share asked for; that of a class deviates by chance.
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

/// Labelled pictures in three splits, any of which may be empty.
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
    /// What the user should know of how the data set was understood, a line each.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_words_round_trip() {
        for split in Split::ALL {
            assert_eq!(split.to_string().parse::<Split>().unwrap(), split);
            assert_eq!(serde_json::to_string(&split).unwrap(), format!("\"{split}\""));
        }
        for (split, words) in [
            (
                Split::Train,
                &["Training", "TRAIN", "train_set", "training-data", "TrainSet", "train images"][..],
            ),
            (Split::Val, &["valid", "Validation", "VAL", "dev", "Development", "val_split"]),
            (Split::Test, &["Testing", "TestSet", "test-images"]),
        ] {
            for word in words {
                assert_eq!(word.parse::<Split>().unwrap(), split, "{word}");
            }
        }
    }

    #[test]
    fn a_name_with_a_split_in_it_is_told_from_other_names() {
        for name in ["train", "train_old", "seg_test", "2-Validation", "Training", "my test set"] {
            assert!(Split::is_in_name(name), "{name}");
        }
        for name in ["trainer", "detest", "values", "contest", "set", "", "device"] {
            assert!(!Split::is_in_name(name), "{name}");
        }
    }

    #[test]
    fn an_unknown_split_word_is_named_with_the_known_ones() {
        let message = "holdout".parse::<Split>().unwrap_err().to_string();
        assert!(message.contains("holdout") && message.contains("train, val or test"), "{message}");
    }
}
