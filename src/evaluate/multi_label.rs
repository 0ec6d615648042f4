//! Metrics of images with several labels each, where every class is a decision of its own.

use serde::{Deserialize, Serialize};

use super::counts::ClassCounts;
use super::predictions::{MULTI_LABEL_THRESHOLD, Predictions, logistic};
use crate::serialized::null_is_nan;

/// The metrics that exist only with several labels an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MultiLabelMetrics {
    /// Mean of the [`average_precision`] of the classes that have images, from 0 to 1.
    #[serde(deserialize_with = "null_is_nan")]
    pub mean_average_precision: f64,
    /// The mean average precision of scores that know nothing of the images: the mean share of the images that have a
    /// class, over the same classes.
    #[serde(deserialize_with = "null_is_nan")]
    pub chance_average_precision: f64,
    /// F1 over all pairs of an image and a class, so that frequent classes count more (scikit-learn's
    /// `f1_score(average="micro")`).
    #[serde(deserialize_with = "null_is_nan")]
    pub micro_f1: f64,
    /// Share of the images whose predicted classes are exactly the true ones.
    #[serde(deserialize_with = "null_is_nan")]
    pub exact_match: f64,
}

impl MultiLabelMetrics {
    /// The metrics of predictions with these counts and average precisions of each class.
    pub(super) fn new(predictions: &Predictions, counts: &[ClassCounts], precisions: &[f64]) -> Self {
        let present = || counts.iter().zip(precisions).filter(|(counts, _)| counts.support > 0);
        let classes = present().count() as f64;
        let sum = |of: fn(&ClassCounts) -> usize| counts.iter().map(of).sum();
        let all = ClassCounts {
            support: sum(|counts| counts.support),
            predicted: sum(|counts| counts.predicted),
            hits: sum(|counts| counts.hits),
        };
        let samples = predictions.len() as f64;
        let not_finite = predictions.not_finite();
        let exact = predictions.rows().enumerate().filter(|(index, (labels, logits))| {
            let is_right = |(class, logit): (usize, &f32)| labels.contains(&class) == is_predicted(*logit);
            logits.iter().enumerate().all(is_right) && not_finite.binary_search(index).is_err()
        });
        Self {
            mean_average_precision: present().map(|(_, precision)| precision).sum::<f64>() / classes,
            chance_average_precision: present()
                .map(|(counts, _)| counts.support as f64 / samples)
                .sum::<f64>()
                / classes,
            micro_f1: all.f1(),
            exact_match: exact.count() as f64 / samples,
        }
    }
}

/// Whether a class of this logit counts as predicted.
fn is_predicted(logit: f32) -> bool {
    logistic(logit) >= MULTI_LABEL_THRESHOLD
}

/// The counts of each class, and its average precision (NaN without images).
pub(super) fn class_counts(predictions: &Predictions) -> (Vec<ClassCounts>, Vec<f64>) {
    let of_class = |class: usize| {
        let mut counts = ClassCounts::default();
        let mut scored = Vec::with_capacity(predictions.len());
        for (labels, logits) in predictions.rows() {
            let (is_true, is_predicted) = (labels.contains(&class), is_predicted(logits[class]));
            counts.support += usize::from(is_true);
            counts.predicted += usize::from(is_predicted);
            counts.hits += usize::from(is_true && is_predicted);
            scored.push((logits[class], is_true));
        }
        (counts, average_precision(scored))
    };
    (0..predictions.classes()).map(of_class).unzip()
}

/// The average precision of scores, each with whether it belongs to a positive: the sum over the distinct scores, from
/// the highest to the lowest, of the precision down to it times the rise in recall (scikit-learn's
/// `average_precision_score`). NaN without positives.
pub fn average_precision(mut scored: Vec<(f32, bool)>) -> f64 {
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let positives = scored.iter().filter(|(_, is_positive)| *is_positive).count();
    let (mut taken, mut hits, mut sum) = (0, 0, 0.0);
    for equal in scored.chunk_by(|a, b| a.0 == b.0) {
        let found = equal.iter().filter(|(_, is_positive)| *is_positive).count();
        (taken, hits) = (taken + equal.len(), hits + found);
        sum += found as f64 * hits as f64 / taken as f64;
    }
    sum / positives as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use vitrine_datasets::Labels;

    use super::*;
    use crate::evaluate::Metrics;

    /// 30 samples of 4 classes with some equal scores, of which each has up to two labels. The formula gives the same
    /// numbers in Python.
    fn four_classes() -> Predictions {
        let mut predictions = Predictions::multi_label(4);
        for sample in 0..30usize {
            let labels: Vec<usize> =
                (0..3).filter(|class| (sample * 7 + class * 5) % (class + 3) == 0).collect();
            let logit = |class: usize| {
                let i = sample * 5 + class;
                ((i * i * 37 + i * 11) % 23) as f32 / 6.0 - 2.0
                    + if labels.contains(&class) { 1.0 } else { 0.0 }
            };
            let logits = std::array::from_fn::<f32, 4, _>(logit);
            predictions.push_labels(vec![Labels::new(labels)], &logits);
        }
        predictions
    }

    #[test]
    fn agrees_with_scikit_learn() {
        let names: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let metrics = Metrics::compute(&four_classes(), &names);
        let of_labels = metrics.multi_label.clone().unwrap();
        let precisions: Vec<f64> =
            metrics.per_class.iter().map(|class| class.average_precision.unwrap()).collect();
        let found = [
            of_labels.mean_average_precision,
            of_labels.chance_average_precision,
            of_labels.micro_f1,
            of_labels.exact_match,
            metrics.macro_f1,
            metrics.loss,
            metrics.top1,
            precisions[0],
            precisions[1],
            precisions[2],
        ];
        // scikit-learn 1.9.1: average_precision_score, f1_score, accuracy_score, and log_loss of all pairs.
        let expected = [
            0.605_361_95,
            0.266_666_67,
            0.325,
            0.1,
            0.306_126_48,
            0.708_635_33,
            0.555_555_56,
            0.427_196_97,
            0.651_515_15,
            0.737_373_74,
        ];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        }
        assert_eq!(metrics.per_class[3].support, 0);
        assert!(precisions[3].is_nan(), "the mean leaves out a class without images: {precisions:?}");
    }

    #[test]
    fn metrics_are_read_back_from_json_which_holds_no_confusion() {
        let names: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let metrics = Metrics::compute(&four_classes(), &names);
        let json = serde_json::to_value(&metrics).unwrap();
        assert!(
            json["mean_average_precision"].is_number()
                && json["per_class"][0]["average_precision"].is_number()
        );
        assert!(json.get("confusion").is_none() && json.get("confusion_cells").is_none(), "{json}");
        // The class without images has none.
        assert_eq!(json["per_class"][3]["average_precision"], serde_json::Value::Null);
        let read: Metrics = serde_json::from_value(json.clone()).unwrap();
        assert!(read.per_class[3].average_precision.is_some_and(f64::is_nan));
        assert_eq!(
            (&read.multi_label, &read.per_class[..3]),
            (&metrics.multi_label, &metrics.per_class[..3])
        );
        assert_eq!(serde_json::to_value(&read).unwrap(), json);
        // Earlier versions wrote 0, and nothing with one label an image.
        let mut earlier = json;
        earlier["per_class"][3]["average_precision"] = 0.0.into();
        earlier["per_class"][2].as_object_mut().unwrap().remove("average_precision");
        let read: Metrics = serde_json::from_value(earlier).unwrap();
        assert_eq!([3, 2].map(|class| read.per_class[class].average_precision), [Some(0.0), None]);
    }

    #[test]
    fn scores_that_are_all_equal_have_the_precision_of_chance() {
        let precision = average_precision(vec![(0.5, true), (0.5, false), (0.5, false), (0.5, false)]);
        assert_eq!(precision, 0.25);
        assert!(average_precision(vec![(0.5, false)]).is_nan(), "there are no positives");
    }

    #[test]
    fn large_logits_are_ranked_although_their_probabilities_round_to_one() {
        let mut predictions = Predictions::multi_label(1);
        let labels = [vec![0], vec![], vec![0], vec![]].map(Labels::new).to_vec();
        predictions.push_labels(labels, &[40.0, 20.0, 30.0, -1.0]);
        let metrics = Metrics::compute(&predictions, &["a".to_owned()]);
        assert_eq!(metrics.per_class[0].average_precision, Some(1.0));
    }

    #[test]
    fn logits_that_are_not_finite_predict_nothing() {
        let mut predictions = Predictions::multi_label(2);
        predictions.push_labels(vec![0.into(), 1.into()], &[9.0, -9.0, f32::NAN, 9.0]);
        let metrics = Metrics::compute(&predictions, &["a".to_owned(), "b".to_owned()]);
        assert_eq!((metrics.invalid, metrics.top1, metrics.per_class[1].recall), (1, 0.5, 0.0));
        assert_eq!(metrics.multi_label.unwrap().exact_match, 0.5);
    }
}
