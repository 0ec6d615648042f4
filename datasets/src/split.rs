//! The parts of a data set.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::listed::listed;

listed! {
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
}

impl Split {
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

/// A word that names no split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a split: write train, val or test")]
pub struct UnknownSplit(String);

impl FromStr for Split {
    type Err = UnknownSplit;

    /// # Errors
    ///
    /// For any word but `train`, `val`, `test` and the other usual spellings of them.
    fn from_str(word: &str) -> Result<Self, UnknownSplit> {
        Self::from_word(word).ok_or_else(|| UnknownSplit(word.to_owned()))
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
