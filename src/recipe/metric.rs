//! The metric that compares the epochs of a run.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The result on the validation images that chooses the best epoch and ends a run with `patience`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Share of the images that are classified correctly.
    #[default]
    Accuracy,
    /// Unweighted mean of the classes' F1 scores: rare classes count as much as frequent ones.
    MacroF1,
    /// Unweighted mean of the classes' recalls.
    BalancedAccuracy,
    /// Mean over the classes of the average precision of their probabilities, for images of several labels each, where it
    /// is the default.
    MeanAveragePrecision,
    /// Cross-entropy, which also depends on the confidence of predictions.
    Loss,
}

impl fmt::Display for Metric {
    /// As text in a sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accuracy => "accuracy",
            Self::MacroF1 => "macro F1",
            Self::BalancedAccuracy => "balanced accuracy",
            Self::MeanAveragePrecision => "mean average precision",
            Self::Loss => "loss",
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::recipe::Recipe;

    #[test]
    fn files_and_options_use_the_same_names() {
        for &metric in Metric::value_variants() {
            let name = metric.to_possible_value().unwrap().get_name().to_owned();
            let recipe: Recipe = toml::from_str(&format!("metric = \"{name}\"")).unwrap();
            assert_eq!(recipe, Recipe { metric: Some(metric), ..Recipe::default() });
            assert_eq!(toml::from_str::<Recipe>(&toml::to_string(&recipe).unwrap()).unwrap(), recipe);
        }
        assert_eq!(toml::from_str::<Recipe>("").unwrap().metric(), Metric::Accuracy);
    }
}
