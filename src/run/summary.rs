//! The summary of a series: the scores of its runs with their mean and standard deviation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vitrine_datasets::Split;

use crate::evaluate::Metrics;
use crate::events::clock;
use crate::recipe::AskedLength;
use crate::run_folder::RunConfig;
use crate::text::{count, first_few};

/// The one setting in which the runs of a series differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The seed, which determines everything random except the validation split.
    Seeds,
    /// The fold of the training images that is the validation split (cross-validation).
    Folds,
}

/// The results of a series, as `summary.json` holds them and [`Summary::table`] prints them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The setting in which the runs differ.
    pub kind: Kind,
    /// Name or path of the data set.
    pub data: String,
    /// Name of the architecture.
    pub model: String,
    /// The runs in order.
    pub runs: Vec<Member>,
    /// The mean over all runs, for each split that all of them measured.
    pub mean: BTreeMap<Split, Scores>,
    /// The sample standard deviation over all runs (the divisor is the number of runs minus one), for the same splits.
    pub std: BTreeMap<Split, Scores>,
}

/// One run of a series.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Member {
    /// The name of the run's folder within that of the series.
    pub run: String,
    /// The seed of the run.
    pub seed: u64,
    /// The length of the run: the same for all, unless an earlier version of the program has lengthened one of them.
    pub length: AskedLength,
    /// The scores of the run's best model on each split that was measured.
    #[serde(flatten)]
    pub splits: BTreeMap<Split, Scores>,
}

/// The scores of one run, or a statistic (mean, standard deviation) of the scores of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scores {
    /// Accuracy, from 0 to 1.
    pub top1: f64,
    /// Unweighted mean of the F1 scores of the classes, from 0 to 1.
    pub macro_f1: f64,
    /// Unweighted mean of the recalls of the classes, from 0 to 1.
    pub balanced_accuracy: f64,
    /// Mean cross-entropy, in nats.
    pub loss: f64,
    /// Mean average precision, with several labels an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_average_precision: Option<f64>,
}

impl Member {
    /// A run of this length with the metrics of its `metrics.json`.
    pub fn new(
        run: String,
        config: &RunConfig,
        length: AskedLength,
        results: &BTreeMap<Split, Metrics>,
    ) -> Self {
        let splits = results.iter().map(|(split, metrics)| (*split, Scores::of(metrics))).collect();
        Self { run, seed: config.seed, length, splits }
    }
}

impl Scores {
    fn of(metrics: &Metrics) -> Self {
        let Metrics { top1, macro_f1, loss, .. } = *metrics;
        let mean_average_precision = metrics.multi_label.as_ref().map(|of| of.mean_average_precision);
        Self { top1, macro_f1, balanced_accuracy: metrics.balanced_accuracy(), loss, mean_average_precision }
    }

    /// Applies a statistic to each score over several runs.
    fn combine(all: &[Self], statistic: fn(&[f64]) -> f64) -> Self {
        let of = |score: fn(&Self) -> f64| statistic(&all.iter().map(score).collect::<Vec<f64>>());
        Self {
            top1: of(|scores| scores.top1),
            macro_f1: of(|scores| scores.macro_f1),
            balanced_accuracy: of(|scores| scores.balanced_accuracy),
            loss: of(|scores| scores.loss),
            mean_average_precision: all
                .iter()
                .map(|scores| scores.mean_average_precision)
                .collect::<Option<Vec<f64>>>()
                .map(|precisions| statistic(&precisions)),
        }
    }
}

impl Summary {
    /// Summarizes the runs of a series. `config` is the configuration of the first run.
    pub fn of(kind: Kind, config: &RunConfig, runs: Vec<Member>) -> Self {
        let each = |statistic: fn(&[f64]) -> f64| -> BTreeMap<Split, Scores> {
            let splits =
                Split::ALL.into_iter().filter(|split| runs.iter().all(|run| run.splits.contains_key(split)));
            splits
                .map(|split| {
                    let scores: Vec<Scores> = runs.iter().map(|run| run.splits[&split]).collect();
                    (split, Scores::combine(&scores, statistic))
                })
                .collect()
        };
        let (mean, std) = (each(mean), each(deviation));
        Self { kind, data: config.data.clone(), model: config.model_name.clone(), runs, mean, std }
    }

    /// A text table with a row per run, then the mean and the standard deviation, and a line about runs of different lengths. The
    /// last line ends in `\n` as well.
    pub fn table(&self) -> String {
        let width = self.runs.iter().map(|run| run.run.len()).max().unwrap_or(0).max("mean".len());
        let mut table = format!("{:width$}", "run");
        for split in self.mean.keys() {
            table += &format!("  {:>10}  macro F1    loss", format!("{split} top-1"));
            table += if self.mean[split].mean_average_precision.is_some() { "  mean AP" } else { "" };
        }
        table.push('\n');
        let rows = self.runs.iter().map(|run| (run.run.as_str(), &run.splits));
        for (name, splits) in rows.chain([("mean", &self.mean), ("std", &self.std)]) {
            table += &format!("{name:width$}");
            for split in self.mean.keys() {
                let Scores { top1, macro_f1, loss, mean_average_precision, .. } = splits[split];
                table += &format!("  {:>9.2}%  {macro_f1:8.4}  {loss:6.4}", 100.0 * top1);
                table += &mean_average_precision.map_or_else(String::new, |mean| format!("  {mean:7.4}"));
            }
            table.push('\n');
        }
        table + &self.lengths()
    }

    /// A line that names runs of different lengths; empty if all have the same.
    fn lengths(&self) -> String {
        let mut lengths: Vec<(AskedLength, Vec<&str>)> = Vec::new();
        for Member { run, length, .. } in &self.runs {
            match lengths.iter_mut().find(|(other, _)| other == length) {
                Some((_, runs)) => runs.push(run.as_str()),
                None => lengths.push((*length, vec![run.as_str()])),
            }
        }
        if lengths.len() < 2 {
            return String::new();
        }
        let each =
            lengths.into_iter().map(|(length, runs)| format!("{} ({})", stated(length), first_few(runs)));
        format!("the runs have different lengths: {}\n", each.collect::<Vec<_>>().join(", "))
    }
}

/// A length in words.
fn stated(AskedLength { epochs, seconds }: AskedLength) -> String {
    let epochs = epochs.map(|epochs| count(epochs, "epoch"));
    epochs.into_iter().chain(seconds.map(clock)).collect::<Vec<_>>().join(" or ")
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
        let mean_average_precision = None;
        let (macro_f1, balanced_accuracy, loss) = (top1 / 2.0, top1 / 4.0, 1.0 - top1);
        let scores = Scores { top1, macro_f1, balanced_accuracy, loss, mean_average_precision };
        let splits = if has_test { &[Split::Val, Split::Test][..] } else { &[Split::Val] };
        let length = AskedLength { epochs: Some(3), seconds: None };
        let splits = splits.iter().map(|split| (*split, scores)).collect();
        Member { run: run.to_owned(), seed: 0, length, splits }
    }

    fn summary(runs: Vec<Member>) -> Summary {
        let each = |statistic: fn(&[f64]) -> f64| {
            let scores: Vec<Scores> = runs.iter().map(|run| run.splits[&Split::Val]).collect();
            runs[0].splits.keys().map(|split| (*split, Scores::combine(&scores, statistic))).collect()
        };
        let (mean, std) = (each(mean), each(deviation));
        Summary { kind: Kind::Folds, data: "data".into(), model: "model".into(), runs, mean, std }
    }

    #[test]
    fn mean_and_deviation_agree_with_numpy() {
        // numpy.mean and numpy.std(ddof=1) of [0.9, 0.8, 0.85, 0.97]
        let values = [0.9, 0.8, 0.85, 0.97];
        assert!((mean(&values) - 0.88).abs() < 1e-12);
        assert!((deviation(&values) - 0.072_571_803_523_590_81).abs() < 1e-12);
    }

    #[test]
    fn the_table_has_a_row_per_run_then_mean_and_deviation() {
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
        assert_eq!(json["runs"][1]["length"]["epochs"], 3);
        assert!(json["runs"][1].get("test").is_none() && json["std"]["val"]["loss"].is_number(), "{json}");
    }

    #[test]
    fn runs_of_different_lengths_are_named_below_the_table() {
        let lengths =
            [(Some(3), None), (Some(9), None), (Some(3), None), (None, Some(90.0)), (Some(1), Some(5.0))];
        let members = lengths.into_iter().enumerate().map(|(place, (epochs, seconds))| {
            let length = AskedLength { epochs, seconds };
            Member { length, ..member(&format!("seed-{place}"), 0.9, false) }
        });
        let expected = "the runs have different lengths: 3 epochs (seed-0, seed-2), 9 epochs (seed-1), 1:30 (seed-3), \
            1 epoch or 5 s (seed-4)";
        assert_eq!(summary(members.collect()).table().lines().next_back(), Some(expected));
    }

    #[test]
    fn a_test_split_has_columns_of_its_own() {
        let table = summary(vec![member("seed-9", 0.9, true), member("seed-10", 0.8, true)]).table();
        assert!(table.lines().all(|line| line.len() == table.lines().next().unwrap().len()), "{table}");
        assert!(table.starts_with("run       val top-1") && table.contains("test top-1"), "{table}");
    }
}
