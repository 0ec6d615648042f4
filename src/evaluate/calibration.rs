//! Calibration: whether predictions of 80% confidence are correct 80% of the time. Reliability bins and expected
//! calibration error as in On Calibration of Modern Neural Networks (Guo et al. 2017), section 2.

use serde::{Deserialize, Serialize};

use super::predictions::{Predictions, SampleOutcome, logistic};

/// Number of equal-width bins, as in the paper.
pub const RELIABILITY_BINS: usize = 15;

/// The samples whose confidence lies in `(lower, upper]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReliabilityBin {
    /// Lower end of the bin, excluded.
    pub lower: f64,
    /// Upper end of the bin, included.
    pub upper: f64,
    /// Number of samples in the bin.
    pub count: usize,
    /// Mean confidence of these samples; 0 in an empty bin.
    pub confidence: f64,
    /// Fraction of these samples that are classified correctly, or that have the class; 0 in an empty bin.
    pub accuracy: f64,
}

/// Sorts the samples into [`RELIABILITY_BINS`] bins of equal width by the probability of the predicted class. With
/// several labels an image, sorts all pairs of a sample and a class by the probability of the class.
///
/// Samples whose logits are not finite have no confidence and are left out.
pub fn reliability(predictions: &Predictions) -> Vec<ReliabilityBin> {
    let edge = |index: usize| index as f64 / RELIABILITY_BINS as f64;
    let mut bins: Vec<_> = (0..RELIABILITY_BINS)
        .map(|index| ReliabilityBin { lower: edge(index), upper: edge(index + 1), ..Default::default() })
        .collect();
    let mut add = |confidence: f64, is_right: bool| {
        let index = (confidence * RELIABILITY_BINS as f64).ceil() as usize;
        let bin = &mut bins[index.clamp(1, RELIABILITY_BINS) - 1];
        bin.count += 1;
        bin.confidence += confidence;
        bin.accuracy += f64::from(u8::from(is_right));
    };
    let finite = |outcome: Option<SampleOutcome>| outcome.is_some();
    if predictions.is_multi_label() {
        let rows = predictions.rows().zip(predictions.outcomes());
        for ((labels, logits), _) in rows.filter(|(_, (_, outcome))| finite(*outcome)) {
            let classes = logits.iter().enumerate();
            classes.for_each(|(class, &logit)| add(f64::from(logistic(logit)), labels.contains(&class)));
        }
    } else {
        let outcomes = predictions.outcomes().filter_map(|(_, outcome)| outcome);
        outcomes.for_each(|outcome| add(outcome.confidence, outcome.rank == Some(0)));
    }
    for bin in bins.iter_mut().filter(|bin| bin.count > 0) {
        bin.confidence /= bin.count as f64;
        bin.accuracy /= bin.count as f64;
    }
    bins
}

/// The gap between confidence and accuracy of each bin, averaged over the samples: from 0 (perfect) to 1, NaN without
/// samples.
pub fn expected_calibration_error(bins: &[ReliabilityBin]) -> f64 {
    let samples: usize = bins.iter().map(|bin| bin.count).sum();
    let gaps: f64 = bins.iter().map(|bin| bin.count as f64 * (bin.accuracy - bin.confidence).abs()).sum();
    gaps / samples as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two logits for which the first class has this probability.
    fn row(probability: f64) -> [f32; 2] {
        [(probability / (1.0 - probability)).ln() as f32, 0.0]
    }

    #[test]
    fn bins_hold_the_right_samples() {
        let mut predictions = Predictions::new(2);
        predictions.push(&[0, 1, 0], &[row(0.9), row(0.91), row(0.6)].concat());
        let bins = reliability(&predictions);
        assert_eq!(bins.len(), RELIABILITY_BINS);
        assert_eq!(bins.iter().map(|bin| bin.count).collect::<Vec<_>>()[8..], [1, 0, 0, 0, 0, 2, 0]);
        assert!((bins[13].confidence - 0.905).abs() < 1e-6);
        assert_eq!(bins[13].accuracy, 0.5);
        // 2/3 * |0.5 - 0.905| + 1/3 * |1 - 0.6|
        assert!((expected_calibration_error(&bins) - 0.403_333_3).abs() < 1e-6);
    }

    #[test]
    fn a_confidence_of_one_is_in_the_last_bin() {
        let mut predictions = Predictions::new(2);
        predictions.push(&[0, 0], &[1000.0, -1000.0, f32::NAN, 0.0]);
        let bins = reliability(&predictions);
        assert_eq!((bins[14].count, bins[14].confidence), (1, 1.0));
        assert_eq!(expected_calibration_error(&bins), 0.0);
    }

    #[test]
    fn the_upper_edge_is_included() {
        // One third is the lowest confidence possible with three classes, and the upper edge of the fifth bin.
        let mut predictions = Predictions::new(3);
        predictions.push(&[0], &[0.0, 0.0, 0.0]);
        assert_eq!(reliability(&predictions)[4].count, 1);
    }

    #[test]
    fn the_error_without_samples_is_nan() {
        assert!(expected_calibration_error(&reliability(&Predictions::new(4))).is_nan());
    }
}
