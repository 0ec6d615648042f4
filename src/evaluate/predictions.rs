//! Predictions for labeled images: for each image, the predicted class, its confidence, and the loss.

/// True labels and predictions, collected batch by batch. The logits are not kept, since those of 50,000 images and
/// 21,841 classes would take 4 GB.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictions {
    classes: usize,
    labels: Vec<usize>,
    /// The prediction for each sample; `None` if a logit is NaN or infinite.
    outcomes: Vec<Option<SampleOutcome>>,
}

/// A sample that was classified wrongly, with the confidence of the prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfidentMistake {
    /// Position of the sample, in the order in which it was pushed.
    pub sample: usize,
    /// The true class.
    pub truth: usize,
    /// The predicted class.
    pub predicted: usize,
    /// Softmax probability of the predicted class, from 0 to 1.
    pub confidence: f64,
}

/// The prediction for one labeled sample, computed from its logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SampleOutcome {
    /// Index of the largest logit; of equal logits, the lowest index.
    pub(super) predicted: usize,
    /// Softmax probability of `predicted`.
    pub(super) confidence: f64,
    /// Cross-entropy of the true class, in nats.
    pub(super) loss: f64,
    /// Number of classes that are ranked before the true one, so 0 for a correct prediction.
    pub(super) rank: usize,
}

impl Predictions {
    /// An empty collection for a model with `classes` outputs.
    ///
    /// # Panics
    ///
    /// If `classes` is zero.
    pub fn new(classes: usize) -> Self {
        assert!(classes > 0, "a classifier has at least one class");
        Self { classes, labels: Vec::new(), outcomes: Vec::new() }
    }

    /// Adds the predictions for a batch.
    ///
    /// # Shapes
    ///
    /// - labels: `[batch]`
    /// - logits: `[batch, classes]`, row by row
    ///
    /// # Panics
    ///
    /// If the shapes disagree or a label is not below the number of classes.
    pub fn push(&mut self, labels: &[usize], logits: &[f32]) {
        let Self { classes, .. } = *self;
        assert_eq!(logits.len(), labels.len() * classes, "logits must be [{}, {classes}]", labels.len());
        for &label in labels {
            assert!(label < classes, "label {label} is not one of {classes} classes");
        }
        let rows = labels.iter().zip(logits.chunks_exact(classes));
        self.outcomes.extend(rows.map(|(&label, logits)| SampleOutcome::new(logits, label)));
        self.labels.extend_from_slice(labels);
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The true classes, in the order in which they were pushed.
    pub fn labels(&self) -> &[usize] {
        &self.labels
    }

    /// The predicted class of each sample, in the order in which they were pushed; `None` if a logit is NaN or
    /// infinite.
    pub fn answers(&self) -> impl Iterator<Item = Option<usize>> {
        self.outcomes().map(|(_, outcome)| outcome.map(|outcome| outcome.predicted))
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether nothing was pushed yet.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The `count` wrong predictions of highest confidence, the highest first.
    ///
    /// Samples with a logit that is NaN or infinite have no confidence and are left out.
    pub fn confident_mistakes(&self, count: usize) -> Vec<ConfidentMistake> {
        let mut mistakes: Vec<_> = self
            .outcomes()
            .enumerate()
            .filter_map(|(sample, (truth, outcome))| {
                let SampleOutcome { predicted, confidence, .. } = outcome?;
                (predicted != truth).then_some(ConfidentMistake { sample, truth, predicted, confidence })
            })
            .collect();
        mistakes.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
        mistakes.truncate(count);
        mistakes
    }

    /// Positions of the samples with a logit that is NaN or infinite, in the order in which they were pushed.
    pub fn not_finite(&self) -> Vec<usize> {
        let outcomes = self.outcomes().enumerate();
        outcomes.filter_map(|(sample, (_, outcome))| outcome.is_none().then_some(sample)).collect()
    }

    /// The label and the prediction of every sample; the prediction is `None` if a logit is NaN or infinite.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (usize, Option<SampleOutcome>)> {
        self.labels.iter().copied().zip(self.outcomes.iter().copied())
    }
}

impl SampleOutcome {
    /// The prediction from the logits of a sample with this label. `None` if a logit is NaN or infinite, since then
    /// neither a ranking nor a softmax exists.
    fn new(logits: &[f32], label: usize) -> Option<Self> {
        if !logits.iter().all(|logit| logit.is_finite()) {
            return None;
        }
        let better = |a: usize, b: usize| logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
        let predicted =
            (1..logits.len()).fold(0, |best, class| if better(class, best) { class } else { best });
        let largest = f64::from(logits[predicted]);
        let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
        Some(Self {
            predicted,
            confidence: 1.0 / sum,
            loss: sum.ln() + largest - f64::from(logits[label]),
            rank: (0..logits.len()).filter(|&class| better(class, label)).count(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn logits_give_class_confidence_loss_and_rank() {
        // softmax([0, ln 3]) = [1/4, 3/4]
        let outcome = SampleOutcome::new(&[0.0, 3f32.ln()], 0).unwrap();
        assert_eq!((outcome.predicted, outcome.rank), (1, 1));
        assert!((outcome.confidence - 0.75).abs() < 1e-7);
        assert!((outcome.loss - 4f64.ln()).abs() < 1e-7);
    }

    #[test]
    fn huge_logits_do_not_overflow() {
        let outcome = SampleOutcome::new(&[f32::MAX, f32::MIN, 0.0], 1).unwrap();
        assert_eq!(outcome.confidence, 1.0);
        assert_eq!(outcome.loss, 2.0 * f64::from(f32::MAX));
    }

    #[test]
    fn ties_go_to_the_lower_index() {
        let outcome = SampleOutcome::new(&[1.0, 2.0, 2.0, 2.0], 3).unwrap();
        assert_eq!((outcome.predicted, outcome.rank), (1, 2));
        let outcome = SampleOutcome::new(&[0.0, -0.0], 1).unwrap();
        assert_eq!((outcome.predicted, outcome.rank), (0, 1));
    }

    #[test]
    fn logits_that_are_not_finite_give_no_prediction() {
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(SampleOutcome::new(&[0.0, broken, 1.0], 0), None);
        }
    }

    #[test]
    fn mistakes_are_sorted_by_confidence() {
        let mut predictions = Predictions::new(2);
        predictions.push(&[0, 0, 1], &[0.0, 1.0, 3.0, 0.0, 5.0, 0.0]);
        predictions.push(&[1, 1], &[f32::NAN, 0.0, 2.0, 0.0]);
        let samples = |count| {
            predictions.confident_mistakes(count).iter().map(|mistake| mistake.sample).collect::<Vec<_>>()
        };
        assert_eq!(samples(9), [2, 4, 0]);
        assert_eq!(samples(1), [2]);
        assert_eq!(predictions.not_finite(), [3]);
    }

    #[test]
    fn logits_are_not_kept() {
        let mut predictions = Predictions::new(1000);
        (0..100).for_each(|label| predictions.push(&[label], &[0.0; 1000]));
        assert!(predictions.outcomes.capacity() * size_of::<Option<SampleOutcome>>() < 10_000);
    }

    #[test]
    #[should_panic(expected = "logits must be [2, 3]")]
    fn a_wrong_shape_is_refused() {
        Predictions::new(3).push(&[0, 1], &[0.0; 5]);
    }

    #[test]
    #[should_panic(expected = "label 3 is not one of 3 classes")]
    fn an_unknown_label_is_refused() {
        Predictions::new(3).push(&[3], &[0.0; 3]);
    }
}
