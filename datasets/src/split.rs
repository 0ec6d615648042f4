//! The splits of a data set: training, validation, and test.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::listed::listed;

listed! {
    /// A split of a data set: training, validation, or test.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Split {
        /// Images for fitting the weights.
        Train,
        /// Images for choosing the best epoch and settings.
        Val,
        /// Images for the final measurement.
        Test,
    }
}

impl Split {
    /// The word for the split in flags, manifests, and folder names.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Val => "val",
            Self::Test => "test",
        }
    }

    /// The split that a word in a folder name or manifest means, in upper or lower case: `training`, `Train_Set`,
    /// `valid`, `validation`, `dev`, `development`, `testing`, and the like.
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

    /// Whether one of the words in a name means a split, as in `train_old` or `seg_test`.
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

/// The error for a word that means no split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a split: write train, val or test")]
pub struct UnknownSplit(String);

impl FromStr for Split {
    type Err = UnknownSplit;

    /// # Errors
    ///
    /// For any word other than the usual spellings of `train`, `val`, and `test`.
    fn from_str(word: &str) -> Result<Self, UnknownSplit> {
        Self::from_word(word).ok_or_else(|| UnknownSplit(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_split_is_parsed() {
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
    fn words_for_splits_are_found_in_names() {
        for name in ["train", "train_old", "seg_test", "2-Validation", "Training", "my test set"] {
            assert!(Split::is_in_name(name), "{name}");
        }
        for name in ["trainer", "detest", "values", "contest", "set", "", "device"] {
            assert!(!Split::is_in_name(name), "{name}");
        }
    }

    #[test]
    fn the_error_for_an_unknown_word_lists_the_splits() {
        let message = "holdout".parse::<Split>().unwrap_err().to_string();
        assert!(message.contains("holdout") && message.contains("train, val or test"), "{message}");
    }
}
