//! The results of several runs side by side, with their mean and standard deviation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vitrine_datasets::Split;

use crate::evaluate::Metrics;
use crate::run_folder::RunConfig;

/// What the runs of a series differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The seed, and with it everything random but the validation split.
    Seeds,
    /// The part of the training images that is kept for validation.
    Folds,
}

/// What came out of a series: `summary.json`, and the table that is printed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// What the runs differ in.
    pub kind: Kind,
    /// The data set.
    pub data: String,
    /// The architecture.
    pub model: String,
    /// Every run.
    pub runs: Vec<Member>,
    /// The mean over all runs.
    pub mean: BTreeMap<Split, Scores>,
    /// The standard deviation of a single run (of the sample: the divisor is one less than the number of runs).
    pub std: BTreeMap<Split, Scores>,
}

/// One run of a series.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Member {
    /// Its folder inside that of the series.
    pub run: String,
    /// Its seed.
    pub seed: u64,
    /// The scores of its best model on each split that is measured.
    #[serde(flatten)]
    pub splits: BTreeMap<Split, Scores>,
}

/// The scores of a run, or a statistic of the scores of several.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scores {
    /// Accuracy, from 0 to 1.
    pub top1: f64,
    /// Unweighted mean of the F1 scores of the classes.
    pub macro_f1: f64,
    /// Unweighted mean of the recalls of the classes.
    pub balanced_accuracy: f64,
    /// Mean cross-entropy.
    pub loss: f64,
}

impl Member {
    /// A run with its `metrics.json`.
    pub fn new(run: String, config: &RunConfig, results: &BTreeMap<Split, Metrics>) -> Self {
        let splits = results.iter().map(|(split, metrics)| (*split, Scores::of(metrics))).collect();
        Self { run, seed: config.seed, splits }
    }
}

impl Scores {
    fn of(metrics: &Metrics) -> Self {
        let Metrics { top1, macro_f1, loss, .. } = *metrics;
        Self { top1, macro_f1, balanced_accuracy: metrics.balanced_accuracy(), loss }
    }

    /// A statistic of each score of several runs.
    fn each(all: &[Self], statistic: fn(&[f64]) -> f64) -> Self {
        let of = |score: fn(&Self) -> f64| statistic(&all.iter().map(score).collect::<Vec<f64>>());
        Self {
            top1: of(|scores| scores.top1),
            macro_f1: of(|scores| scores.macro_f1),
            balanced_accuracy: of(|scores| scores.balanced_accuracy),
            loss: of(|scores| scores.loss),
        }
    }
}

impl Summary {
    /// The runs of a series with what they have in common.
    pub fn of(kind: Kind, config: &RunConfig, runs: Vec<Member>) -> Self {
        let each = |statistic: fn(&[f64]) -> f64| -> BTreeMap<Split, Scores> {
            let splits =
                Split::ALL.into_iter().filter(|split| runs.iter().all(|run| run.splits.contains_key(split)));
            splits
                .map(|split| {
                    let scores: Vec<Scores> = runs.iter().map(|run| run.splits[&split]).collect();
                    (split, Scores::each(&scores, statistic))
                })
                .collect()
        };
        let (mean, std) = (each(mean), each(deviation));
        Self { kind, data: config.data.clone(), model: config.model_name.clone(), runs, mean, std }
    }

    /// A row per run, then the mean and the standard deviation; the last line ends in `\n` too.
    pub fn table(&self) -> String {
        let width = self.runs.iter().map(|run| run.run.len()).max().unwrap_or(0).max("mean".len());
        let mut table = format!("{:width$}", "run");
        for split in self.mean.keys() {
            table += &format!("  {:>10}  macro F1    loss", format!("{split} top-1"));
        }
        table.push('\n');
        let rows = self.runs.iter().map(|run| (run.run.as_str(), &run.splits));
        for (name, splits) in rows.chain([("mean", &self.mean), ("std", &self.std)]) {
            table += &format!("{name:width$}");
            for split in self.mean.keys() {
                let Scores { top1, macro_f1, loss, .. } = splits[split];
                table += &format!("  {:>9.2}%  {macro_f1:8.4}  {loss:6.4}", 100.0 * top1);
            }
            table.push('\n');
        }
        table
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The sample standard deviation (Bessel's correction).
fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() as f64 - 1.0)).sqrt()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn member(run: &str, top1: f64, has_test: bool) -> Member {
        let scores = Scores { top1, macro_f1: top1 / 2.0, balanced_accuracy: top1 / 4.0, loss: 1.0 - top1 };
        let splits = if has_test { &[Split::Val, Split::Test][..] } else { &[Split::Val] };
        Member { run: run.to_owned(), seed: 0, splits: splits.iter().map(|split| (*split, scores)).collect() }
    }

    fn summary(runs: Vec<Member>) -> Summary {
        let each = |statistic: fn(&[f64]) -> f64| {
            let scores: Vec<Scores> = runs.iter().map(|run| run.splits[&Split::Val]).collect();
            runs[0].splits.keys().map(|split| (*split, Scores::each(&scores, statistic))).collect()
        };
        let (mean, std) = (each(mean), each(deviation));
        Summary { kind: Kind::Folds, data: "data".into(), model: "model".into(), runs, mean, std }
    }

    #[test]
    fn the_statistics_are_those_of_numpy() {
        // numpy.mean and numpy.std(ddof=1) of [0.9, 0.8, 0.85, 0.97]
        let values = [0.9, 0.8, 0.85, 0.97];
        assert!((mean(&values) - 0.88).abs() < 1e-12);
        assert!((deviation(&values) - 0.072_571_803_523_590_81).abs() < 1e-12);
    }

    #[test]
    fn the_table_has_a_row_per_run_and_two_below() {
        let summary = summary(vec![member("fold-1", 0.9, false), member("fold-2", 0.8, false)]);
        let expected = "\
run      val top-1  macro F1    loss
fold-1      90.00%    0.4500  0.1000
fold-2      80.00%    0.4000  0.2000
mean        85.00%    0.4250  0.1500
std          7.07%    0.0354  0.0707
";
        assert_eq!(summary.table(), expected);
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!((&json["kind"], &json["runs"][1]["run"]), (&"folds".into(), &"fold-2".into()));
        assert_eq!(json["runs"][1]["val"]["top1"], 0.8);
        assert!(json["runs"][1].get("test").is_none() && json["std"]["val"]["loss"].is_number(), "{json}");
    }

    #[test]
    fn a_test_split_has_columns_of_its_own() {
        let table = summary(vec![member("seed-9", 0.9, true), member("seed-10", 0.8, true)]).table();
        assert!(table.lines().all(|line| line.len() == table.lines().next().unwrap().len()), "{table}");
        assert!(table.starts_with("run       val top-1") && table.contains("test top-1"), "{table}");
    }
}
