//! The metrics of an evaluation, in the form of `vitrine evaluate --json`.

use serde::{Deserialize, Serialize};

use super::agreement::Agreement;
use super::calibration::{expected_calibration_error, reliability};
use super::confusion::{Confusion, ConfusionCell};
use super::counts::{ClassCounts, ratio, wilson_interval};
use super::multi_label::{MultiLabelMetrics, class_counts};
use super::predictions::Predictions;
use crate::serialized::{null_is_nan, null_is_some_nan};

/// The metrics of an evaluation.
///
/// With several labels an image, a class is predicted if its probability is at least one half; images without labels
/// are left out of the accuracies; there is no confusion matrix; and `multi_label` has the metrics of that case.
///
/// A sample with a logit that is NaN or infinite is never dropped: it counts as wrong in every accuracy and in the
/// recall of its class, makes `loss` NaN, and is counted in `invalid`. Only `confusion` and `ece` leave it out. An
/// undefined value, such as that loss or a mean over no samples, is NaN here and `null` in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Number of samples.
    pub samples: usize,
    /// Mean cross-entropy in nats, without label smoothing; with several labels an image the mean binary cross-entropy of
    /// all classes.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// Fraction of samples whose largest logit is the true class, or one of several; the lower index wins a tie. Samples
    /// without labels are left out.
    #[serde(deserialize_with = "null_is_nan")]
    pub top1: f64,
    /// Fraction of samples whose true class, or one of several, is among the five largest logits, or among all if there are fewer.
    /// Samples without labels are left out.
    #[serde(deserialize_with = "null_is_nan")]
    pub top5: f64,
    /// Unweighted mean of F1 over the classes that occur as the class of a sample or as a prediction. Other classes of
    /// the model are left out (scikit-learn's `f1_score(average="macro", zero_division=0)` without `labels`).
    #[serde(deserialize_with = "null_is_nan")]
    pub macro_f1: f64,
    /// Expected calibration error: the mean distance of confidence and accuracy over 15 bins of confidence (Guo et al. 2017, section 2).
    #[serde(deserialize_with = "null_is_nan")]
    pub ece: f64,
    /// Every class's scores, in class order.
    pub per_class: Vec<ClassMetrics>,
    /// The confusion matrix.
    #[serde(flatten)]
    pub confusion: Confusion,
    /// 95% Wilson score interval of `top1`: the uncertainty due to the number of samples alone.
    pub top1_interval: [f64; 2],
    /// Number of samples with a logit that is not finite.
    pub invalid: usize,
    /// The metrics that exist only with several labels an image.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub multi_label: Option<MultiLabelMetrics>,
}

/// One class's scores; a score whose denominator is zero is 0, except for the average precision, which is NaN then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassMetrics {
    /// The class's name.
    pub label: String,
    /// Of the samples predicted as this class, the fraction that belong to it.
    pub precision: f64,
    /// Of the samples that belong to this class, the fraction predicted as it.
    pub recall: f64,
    /// Harmonic mean of precision and recall.
    pub f1: f64,
    /// Number of samples that belong to this class.
    pub support: usize,
    /// With several labels an image, the average precision of the class's probabilities; `null` if no sample belongs to the
    /// class.
    #[serde(default, deserialize_with = "null_is_some_nan", skip_serializing_if = "Option::is_none")]
    pub average_precision: Option<f64>,
}

impl Metrics {
    /// Computes the metrics of predictions. `class_names` are in the order of the logits.
    ///
    /// # Panics
    ///
    /// If there are not as many names as classes.
    pub fn compute(predictions: &Predictions, class_names: &[String]) -> Self {
        let classes = predictions.classes();
        assert_eq!(class_names.len(), classes, "one name for each of {classes} classes");
        let samples = predictions.len();
        let (mut loss, mut correct, mut in_top5, mut labeled, mut invalid) = (0.0, 0, 0, 0, 0);
        for (labels, outcome) in predictions.outcomes() {
            labeled += usize::from(!labels.is_empty());
            let Some(outcome) = outcome else {
                invalid += 1;
                loss = f64::NAN;
                continue;
            };
            loss += outcome.loss;
            correct += usize::from(outcome.rank == Some(0));
            in_top5 += usize::from(outcome.rank.is_some_and(|rank| rank < 5));
        }
        let (confusion, counts, precisions) = match predictions.is_multi_label() {
            true => {
                let (counts, precisions) = class_counts(predictions);
                (Confusion::default(), counts, Some(precisions))
            }
            false => {
                let (confusion, counts) = confusion(predictions);
                (confusion, counts, None)
            }
        };
        let precisions = precisions.as_deref();
        Self {
            samples,
            loss: loss / samples as f64,
            top1: correct as f64 / labeled as f64,
            top5: in_top5 as f64 / labeled as f64,
            macro_f1: macro_f1(&counts),
            ece: expected_calibration_error(&reliability(predictions)),
            per_class: class_scores(&counts, precisions, class_names),
            confusion,
            top1_interval: wilson_interval(correct, labeled),
            invalid,
            multi_label: precisions
                .map(|precisions| MultiLabelMetrics::new(predictions, &counts, precisions)),
        }
    }

    /// Unweighted mean of the recalls of the classes that have samples (scikit-learn's `balanced_accuracy_score`); NaN
    /// without samples.
    pub fn balanced_accuracy(&self) -> f64 {
        let recalls: Vec<f64> =
            self.per_class.iter().filter(|class| class.support > 0).map(|class| class.recall).collect();
        recalls.iter().sum::<f64>() / recalls.len() as f64
    }

    /// The agreement of predictions and true classes, without the samples whose logits are not finite.
    fn agreement(&self) -> Agreement {
        let mut agreement = Agreement::new(self.per_class.len());
        let cells = self.confusion.cells();
        cells.for_each(|cell| agreement.add(cell.truth, cell.predicted, cell.count as u64));
        agreement
    }

    /// The number of standard errors by which the accuracy exceeds [`chance`](Self::chance).
    pub(crate) fn errors_above_chance(&self) -> f64 {
        self.agreement().errors_above_chance()
    }

    /// The expected accuracy if the same predictions were assigned to the images at random, from 0 to 1.
    pub(crate) fn chance(&self) -> f64 {
        self.agreement().expected()
    }

    /// The `count` most frequent confusions, the most frequent first. Equal ones are in class order.
    pub fn most_confused(&self, count: usize) -> Vec<ConfusionCell> {
        let mut cells: Vec<_> = self.confusion.cells().filter(|cell| cell.truth != cell.predicted).collect();
        cells.sort_by_key(|cell| std::cmp::Reverse(cell.count));
        cells.truncate(count);
        cells
    }
}

/// The confusion matrix of samples with one label each, and the counts of each class.
fn confusion(predictions: &Predictions) -> (Confusion, Vec<ClassCounts>) {
    let classes = predictions.classes();
    let mut counts = vec![ClassCounts::default(); classes];
    let mut confusion = Confusion::new(classes);
    for (labels, outcome) in predictions.outcomes() {
        let Some(label) = labels.only() else { continue };
        counts[label].support += 1;
        let Some(outcome) = outcome else { continue };
        confusion.add(label, outcome.predicted);
        counts[outcome.predicted].predicted += 1;
        counts[label].hits += usize::from(outcome.predicted == label);
    }
    (confusion, counts)
}

/// Precision, recall and F1 of every class.
fn class_scores(
    counts: &[ClassCounts],
    average_precisions: Option<&[f64]>,
    class_names: &[String],
) -> Vec<ClassMetrics> {
    let scores = |(class, label): (usize, &String)| {
        let ClassCounts { support, predicted, hits } = counts[class];
        ClassMetrics {
            label: label.clone(),
            precision: ratio(hits, predicted),
            recall: ratio(hits, support),
            f1: counts[class].f1(),
            support,
            average_precision: average_precisions.map(|precisions| precisions[class]),
        }
    };
    class_names.iter().enumerate().map(scores).collect()
}

/// The mean F1 of the classes that have samples or were predicted; NaN if there are none.
fn macro_f1(counts: &[ClassCounts]) -> f64 {
    let occurring = counts.iter().filter(|counts| counts.support > 0 || counts.predicted > 0);
    let scores: Vec<f64> = occurring.map(|counts| counts.f1()).collect();
    scores.iter().sum::<f64>() / scores.len() as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|index| format!("class {index}")).collect()
    }

    fn assert_close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() < 1e-6, "{actual} is not {expected}");
    }

    /// The confusion matrix, as rows of true classes.
    fn matrix(metrics: &Metrics) -> Vec<Vec<usize>> {
        let classes = 0..metrics.per_class.len();
        let row =
            |truth| classes.clone().map(|predicted| metrics.confusion.count(truth, predicted)).collect();
        classes.clone().map(row).collect()
    }

    /// Metrics of samples given as `(true class, predicted class, number of samples)`.
    fn counted(classes: usize, counts: &[(usize, usize, usize)]) -> Metrics {
        let mut predictions = Predictions::new(classes);
        for &(truth, predicted, count) in counts {
            let mut logits = vec![0.0; classes];
            logits[predicted] = 1.0;
            (0..count).for_each(|_| predictions.push(&[truth], &logits));
        }
        Metrics::compute(&predictions, &names(classes))
    }

    /// 40 samples of 7 classes, the last of which has no sample. The formula gives the same numbers in Python.
    fn seven_classes() -> Predictions {
        let mut predictions = Predictions::new(7);
        for sample in 0..40 {
            let label = (sample * 5 + sample / 6) % 6;
            let logit = |class: usize| {
                let i = sample * 7 + class;
                ((i * i * 37 + i * 11) % 101) as f32 / 20.0 + if class == label { 2.0 } else { 0.0 }
            };
            predictions.push(&[label], &std::array::from_fn::<f32, 7, _>(logit));
        }
        predictions
    }

    #[test]
    fn agrees_with_scikit_learn() {
        // scikit-learn 1.9.1: log_loss, accuracy_score, top_k_accuracy_score, f1_score(average="macro",
        // zero_division=0), precision_recall_fscore_support and confusion_matrix with labels=range(7).
        let metrics = Metrics::compute(&seven_classes(), &names(7));
        assert_eq!((metrics.samples, metrics.invalid), (40, 0));
        assert_close(metrics.loss, 1.172_863_29);
        assert_close(metrics.top1, 0.525);
        assert_close(metrics.top5, 0.975);
        assert_close(metrics.macro_f1, 0.466_980_64);
        // The mean of the recalls of the six classes with samples, as in balanced_accuracy_score.
        assert_close(
            metrics.balanced_accuracy(),
            (2.0 / 7.0 + 5.0 / 6.0 + 2.0 / 3.0 + 3.0 / 7.0 + 2.0 / 7.0 + 5.0 / 7.0) / 6.0,
        );
        let scores = [
            (2.0 / 3.0, 0.285_714_29, 0.4, 7),
            (0.714_285_71, 0.833_333_33, 0.769_230_77, 6),
            (0.5, 0.666_666_67, 0.571_428_57, 6),
            (0.5, 0.428_571_43, 0.461_538_46, 7),
            (2.0 / 3.0, 0.285_714_29, 0.4, 7),
            (0.625, 0.714_285_71, 2.0 / 3.0, 7),
            (0.0, 0.0, 0.0, 0),
        ];
        for (class, (precision, recall, f1, support)) in metrics.per_class.iter().zip(scores) {
            assert_close(class.precision, precision);
            assert_close(class.recall, recall);
            assert_close(class.f1, f1);
            assert_eq!(class.support, support);
        }
        #[rustfmt::skip]
        assert_eq!(matrix(&metrics), [
            [2, 0, 0, 2, 0, 0, 3],
            [1, 5, 0, 0, 0, 0, 0],
            [0, 1, 4, 0, 1, 0, 0],
            [0, 1, 1, 3, 0, 2, 0],
            [0, 0, 2, 0, 2, 1, 2],
            [0, 0, 1, 1, 0, 5, 0],
            [0, 0, 0, 0, 0, 0, 0],
        ]);
        // The error computed in NumPy by the formula of Guo et al., and the interval of
        // scipy.stats.binomtest(21, 40).proportion_ci(method="wilson").
        assert_close(metrics.ece, 0.164_161_43);
        assert_close(metrics.top1_interval[0], 0.374_973_62);
        assert_close(metrics.top1_interval[1], 0.670_645_30);
    }

    #[test]
    fn two_classes_by_hand() {
        // Probabilities of class 1: 3/4, 1/4, 3/4, 1/2 (a tie: class 0); labels 1, 1, 0, 0.
        let ln3 = 3f32.ln();
        let mut predictions = Predictions::new(2);
        predictions.push(&[1, 1, 0], &[0.0, ln3, ln3, 0.0, 0.0, ln3]);
        predictions.push(&[0], &[0.0, 0.0]);
        let metrics = Metrics::compute(&predictions, &names(2));
        assert_eq!((metrics.samples, metrics.top1, metrics.top5), (4, 0.5, 1.0));
        assert_eq!(matrix(&metrics), [[1, 1], [1, 1]]);
        // (ln 4/3 + ln 4 + ln 4 + ln 2) / 4
        assert_close(metrics.loss, (128f64 / 3.0).ln() / 4.0);
        // 3/4 * |1/3 - 3/4| + 1/4 * |1 - 1/2|
        assert_close(metrics.ece, 0.4375);
        assert_eq!(metrics.macro_f1, 0.5);
    }

    #[test]
    fn macro_f1_leaves_out_classes_that_do_not_occur() {
        // scikit-learn: f1_score([0, 0, 1, 1], [0, 0, 1, 3], average="macro", zero_division=0) is
        // (1 + 2/3 + 0) / 3 over the labels 0, 1 and 3; label 2 is in neither list.
        let mut predictions = Predictions::new(4);
        for (label, chosen) in [(0, 0), (0, 0), (1, 1), (1, 3)] {
            predictions.push(
                &[label],
                &std::array::from_fn::<f32, 4, _>(|class| f32::from(u8::from(class == chosen))),
            );
        }
        let metrics = Metrics::compute(&predictions, &names(4));
        assert_close(metrics.macro_f1, 5.0 / 9.0);
        assert_eq!(metrics.per_class[2].f1, 0.0);
        assert!(Metrics::compute(&Predictions::new(2), &names(2)).macro_f1.is_nan());
    }

    #[test]
    fn logits_that_are_not_finite_count_as_wrong() {
        let mut predictions = Predictions::new(3);
        predictions.push(&[0, 1], &[9.0, 0.0, 0.0, f32::NAN, 9.0, 0.0]);
        let metrics = Metrics::compute(&predictions, &names(3));
        assert_eq!((metrics.top1, metrics.top5, metrics.invalid), (0.5, 0.5, 1));
        assert_eq!((metrics.per_class[1].recall, metrics.per_class[1].support), (0.0, 1));
        assert_eq!(matrix(&metrics), [[1, 0, 0], [0, 0, 0], [0, 0, 0]]);
        assert!(metrics.loss.is_nan());
        assert!(metrics.ece < 0.01);
    }

    #[test]
    fn metrics_without_samples_are_nan_also_after_json() {
        let metrics = Metrics::compute(&Predictions::new(2), &names(2));
        assert!(metrics.top1.is_nan() && metrics.loss.is_nan());
        assert_eq!(metrics.top1_interval, [0.0, 1.0]);
        let json = serde_json::to_string(&metrics).unwrap();
        assert!(json.contains(r#""loss":null,"top1":null"#), "{json}");
        let read: Metrics = serde_json::from_str(&json).unwrap();
        assert!(read.loss.is_nan() && read.ece.is_nan());
    }

    #[test]
    fn json_has_the_documented_keys_in_order() {
        let mut predictions = Predictions::new(2);
        predictions.push(&[0], &[1.0, 0.0]);
        let metrics = Metrics::compute(&predictions, &names(2));
        let json = serde_json::to_string(&metrics).unwrap();
        let keys = ["samples", "loss", "top1", "top5", "macro_f1", "ece", "per_class", "confusion"];
        let places: Vec<_> = keys.iter().map(|key| json.find(&format!("\"{key}\":")).unwrap()).collect();
        assert!(places.is_sorted(), "{json}");
        assert!(json.contains(r#"{"label":"class 0","precision":1.0,"recall":1.0,"f1":1.0,"support":1}"#));
        assert_eq!(serde_json::from_str::<Metrics>(&json).unwrap(), metrics);
    }

    #[test]
    fn agreement_above_chance_is_measured_in_standard_errors() {
        // With two classes, the number of standard errors (z) is the square root of the number of samples times the
        // correlation (phi) of truth and prediction.
        for (counts, z) in [
            // 260 samples of one class and 1 of the other, all correct: phi is 1.
            (&[(0, 0, 260), (1, 1, 1)][..], 261f64.sqrt()),
            // 100 samples with a phi of (40 * 40 - 10 * 10) / 2500 = 0.6.
            (&[(0, 0, 40), (0, 1, 10), (1, 0, 10), (1, 1, 40)], 6.0),
            (&[(0, 1, 40), (0, 0, 10), (1, 1, 10), (1, 0, 40)], -6.0),
            (&[(0, 0, 25), (0, 1, 25), (1, 0, 25), (1, 1, 25)], 0.0),
            // Only one class is predicted, or only one has samples.
            (&[(0, 0, 260), (1, 0, 1)], 0.0),
            (&[(0, 0, 9), (0, 1, 2)], 0.0),
            (&[(0, 0, 9)], 0.0),
            (&[], 0.0),
        ] {
            assert_close(counted(2, counts).errors_above_chance(), z);
        }
        // Three classes of 2, 1, and 1 samples, all correct. In the notation of Fleiss et al.: p = q = 1/2, 1/4, 1/4,
        // so pe = 3/8, the sum of p q (p + q) is 2 (1/8 + 1/64 + 1/64) = 5/16, and var0 = (3/8 + 9/64 - 5/16) / (4 *
        // 25/64) = (13/64) / (100/64) = 0.13.
        assert_close(
            counted(3, &[(0, 0, 2), (1, 1, 1), (2, 2, 1)]).errors_above_chance(),
            1.0 / 0.13f64.sqrt(),
        );
        // No class is both true and predicted, so both the accuracy and the expected accuracy are 0.
        assert_eq!(counted(4, &[(0, 2, 5), (1, 3, 5)]).errors_above_chance(), 0.0);
        let metrics = counted(3, &[(0, 0, 2), (1, 0, 1), (2, 2, 1)]);
        assert_close(metrics.chance(), 0.5 * 0.75 + 0.25 * 0.25);
    }

    #[test]
    fn memory_with_many_classes_grows_with_images_and_not_with_the_matrix() {
        // The whole confusion matrix of 50,000 classes would take 20 GB.
        let classes = 50_000;
        let metrics = counted(classes, &[(7, 7, 2), (49_999, 3, 1), (5, 49_999, 1)]);
        assert_eq!((metrics.top1, metrics.confusion.cells().count()), (0.5, 3));
        assert_eq!(metrics.confusion.count(49_999, 3), 1);
        assert_eq!(metrics.most_confused(9).len(), 2);
        let json = serde_json::to_value(&metrics).unwrap();
        assert!(json.get("confusion").is_none());
        let cells = serde_json::json!([[5, 49_999, 1], [7, 7, 2], [49_999, 3, 1]]);
        assert_eq!(json["confusion_cells"], cells);
        assert_eq!(serde_json::from_value::<Metrics>(json).unwrap(), metrics);
    }

    #[test]
    fn confusions_are_ranked() {
        let counts = [(0, 1, 1), (2, 0, 3), (1, 2, 1), (0, 0, 5)];
        let pairs = counted(3, &counts).most_confused(2);
        let pair = |truth, predicted, count| ConfusionCell { truth, predicted, count };
        assert_eq!(pairs, [pair(2, 0, 3), pair(0, 1, 1)]);
    }

    #[test]
    fn intervals_agree_with_scipy() {
        // scipy.stats.binomtest(hits, samples).proportion_ci(method="wilson")
        let cases = [
            (0, 10, 0.0, 0.277_532_80),
            (5, 10, 0.236_593_09, 0.763_406_91),
            (10, 10, 0.722_467_20, 1.0),
            (873, 1000, 0.850_925_25, 0.892_219_99),
            (9871, 10_000, 0.984_693_80, 0.989_132_11),
        ];
        for (hits, samples, lower, upper) in cases {
            let [low, high] = wilson_interval(hits, samples);
            assert_close(low, lower);
            assert_close(high, upper);
        }
    }

    #[test]
    #[should_panic(expected = "one name for each of 3 classes")]
    fn a_missing_class_name_is_refused() {
        Metrics::compute(&Predictions::new(3), &names(2));
    }
}
