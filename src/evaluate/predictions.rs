//! Predictions for labeled images: for each image, the predicted class, its confidence, and the loss, and with several
//! labels an image the logit of every class.

use vitrine_datasets::Labels;

/// The probability from which on a class counts as predicted, with several labels an image.
pub const MULTI_LABEL_THRESHOLD: f32 = 0.5;

/// True labels and predictions, collected batch by batch. With one label an image, the logits are not kept, since those
/// of 50,000 images and 21,841 classes would take 4 GB.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictions {
    classes: usize,
    labels: Vec<Labels>,
    /// The prediction for each sample; `None` if a logit is NaN or infinite.
    outcomes: Vec<Option<SampleOutcome>>,
    /// With several labels an image, the logit of every class, `[samples, classes]`, and negative infinity for a sample
    /// with a logit that is NaN or infinite. Large logits differ where their probabilities are all 1 in float32.
    logits: Option<Vec<f32>>,
}

/// A sample that was classified wrongly, with the confidence of the mistake.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfidentMistake {
    /// Position of the sample, in the order in which it was pushed.
    pub sample: usize,
    /// The true classes.
    pub truth: Labels,
    /// The class that was predicted wrongly or missed.
    pub class: usize,
    /// Whether the class is a true one that was not predicted, which happens only with several labels an image.
    pub is_missed: bool,
    /// Probability of the predicted class, from 0 to 1, or 1 less the probability of the missed class.
    pub confidence: f64,
}

/// The prediction for one labeled sample, computed from its logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SampleOutcome {
    /// Index of the largest logit; of equal logits, the lowest index.
    pub(super) predicted: usize,
    /// Probability of `predicted`.
    pub(super) confidence: f64,
    /// Cross-entropy of the true class, in nats; with several labels an image the mean binary cross-entropy of all
    /// classes.
    pub(super) loss: f64,
    /// Number of classes that are ranked before the first true one, so 0 for a correct prediction. `None` without a
    /// true class.
    pub(super) rank: Option<usize>,
}

impl Predictions {
    /// An empty collection for a model with `classes` outputs.
    ///
    /// # Panics
    ///
    /// If `classes` is zero.
    pub fn new(classes: usize) -> Self {
        assert!(classes > 0, "a classifier has at least one class");
        Self { classes, labels: Vec::new(), outcomes: Vec::new(), logits: None }
    }

    /// As [`Self::new`], for images of several labels each: every logit is judged by itself.
    ///
    /// # Panics
    ///
    /// If `classes` is zero.
    pub fn multi_label(classes: usize) -> Self {
        Self { logits: Some(Vec::new()), ..Self::new(classes) }
    }

    /// Adds the predictions for a batch of samples with one label each.
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
        self.push_labels(labels.iter().map(|&label| label.into()).collect(), logits);
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
    /// If the shapes disagree, a label is not below the number of classes, or a sample has not exactly one label without
    /// [`Self::multi_label`].
    pub fn push_labels(&mut self, labels: Vec<Labels>, logits: &[f32]) {
        let Self { classes, .. } = *self;
        assert_eq!(logits.len(), labels.len() * classes, "logits must be [{}, {classes}]", labels.len());
        for &label in labels.iter().flat_map(|labels| labels.iter()) {
            assert!(label < classes, "label {label} is not one of {classes} classes");
        }
        for (labels, logits) in labels.iter().zip(logits.chunks_exact(classes)) {
            let is_finite = logits.iter().all(|logit| logit.is_finite());
            let outcome = is_finite.then(|| match self.logits {
                Some(_) => SampleOutcome::multi_label(logits, labels),
                None => {
                    let label =
                        labels.only().expect("a sample has one label, without several labels an image");
                    SampleOutcome::single_label(logits, label)
                }
            });
            if let Some(kept) = &mut self.logits {
                let value = |&logit: &f32| if is_finite { logit } else { f32::NEG_INFINITY };
                kept.extend(logits.iter().map(value));
            }
            self.outcomes.push(outcome);
        }
        self.labels.extend(labels);
    }

    /// Adds the predictions of another collection for the same classes.
    ///
    /// # Panics
    ///
    /// If the classes or the number of labels of an image differ.
    pub fn append(&mut self, mut other: Self) {
        assert_eq!(
            (self.classes, self.logits.is_some()),
            (other.classes, other.logits.is_some()),
            "predictions of the same kind"
        );
        self.labels.append(&mut other.labels);
        self.outcomes.append(&mut other.outcomes);
        if let (Some(all), Some(more)) = (&mut self.logits, other.logits) {
            all.extend(more);
        }
    }

    /// Whether these are predictions for images of several labels each: see [`Self::multi_label`].
    pub fn is_multi_label(&self) -> bool {
        self.logits.is_some()
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The true classes, in the order in which they were pushed.
    pub fn labels(&self) -> &[Labels] {
        &self.labels
    }

    /// The predicted class of each sample, in the order in which they were pushed; `None` if a logit is NaN or
    /// infinite.
    pub fn answers(&self) -> impl Iterator<Item = Option<usize>> {
        self.outcomes().map(|(_, outcome)| outcome.map(|outcome| outcome.predicted))
    }

    /// Whether a class was predicted for a sample: it has the largest logit, or with several labels an image a probability
    /// of at least [`MULTI_LABEL_THRESHOLD`].
    ///
    /// # Panics
    ///
    /// If there is no such sample or class.
    pub fn is_predicted(&self, sample: usize, class: usize) -> bool {
        match self.row(sample) {
            Some(logits) => logistic(logits[class]) >= MULTI_LABEL_THRESHOLD,
            None => self.outcomes[sample].is_some_and(|outcome| outcome.predicted == class),
        }
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether nothing was pushed yet.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The `count` wrong predictions of highest confidence, the highest first. With several labels an image, the worst
    /// mistake of each image counts.
    ///
    /// Samples with a logit that is NaN or infinite have no confidence and are left out.
    pub fn confident_mistakes(&self, count: usize) -> Vec<ConfidentMistake> {
        let mut mistakes: Vec<_> = self
            .outcomes()
            .enumerate()
            .filter_map(|(sample, (truth, outcome))| {
                let outcome = outcome?;
                let (class, is_missed, confidence) = match self.row(sample) {
                    Some(logits) => worst_mistake(logits, truth)?,
                    None if truth.contains(&outcome.predicted) => return None,
                    None => (outcome.predicted, false, outcome.confidence),
                };
                Some(ConfidentMistake { sample, truth: truth.clone(), class, is_missed, confidence })
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
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (&Labels, Option<SampleOutcome>)> {
        self.labels.iter().zip(self.outcomes.iter().copied())
    }

    /// With several labels an image, the labels and the logits of every sample.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&Labels, &[f32])> {
        self.labels.iter().zip(self.logits.as_deref().unwrap_or_default().chunks_exact(self.classes))
    }

    /// With several labels an image, the logits of one sample.
    fn row(&self, sample: usize) -> Option<&[f32]> {
        Some(&self.logits.as_ref()?[sample * self.classes..][..self.classes])
    }
}

/// The class of the most confident mistake, whether it was missed, and the confidence. `None` if all classes are right.
fn worst_mistake(logits: &[f32], truth: &Labels) -> Option<(usize, bool, f64)> {
    let mistake = |(class, &logit): (usize, &f32)| {
        let probability = logistic(logit);
        let (is_true, is_predicted) = (truth.contains(&class), probability >= MULTI_LABEL_THRESHOLD);
        let confidence = if is_true { 1.0 - probability } else { probability };
        (is_true != is_predicted).then_some((class, is_true, f64::from(confidence)))
    };
    logits.iter().enumerate().filter_map(mistake).max_by(|a, b| a.2.total_cmp(&b.2))
}

/// The probability for a logit that is judged by itself: `1 / (1 + exp(-logit))`.
pub(super) fn logistic(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// Whether class `a` is ranked before class `b`: its logit is larger, or equal and its index lower.
fn is_before(logits: &[f32], a: usize, b: usize) -> bool {
    logits[a] > logits[b] || (logits[a] == logits[b] && a < b)
}

/// The class with the largest logit.
fn first(logits: &[f32]) -> usize {
    (1..logits.len()).fold(0, |best, class| if is_before(logits, class, best) { class } else { best })
}

/// Number of classes that are ranked before one class.
fn rank(logits: &[f32], class: usize) -> usize {
    (0..logits.len()).filter(|&other| is_before(logits, other, class)).count()
}

impl SampleOutcome {
    /// The prediction from the finite logits of a sample with this label alone.
    fn single_label(logits: &[f32], label: usize) -> Self {
        let predicted = first(logits);
        let largest = f64::from(logits[predicted]);
        let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
        Self {
            predicted,
            confidence: 1.0 / sum,
            loss: sum.ln() + largest - f64::from(logits[label]),
            rank: Some(rank(logits, label)),
        }
    }

    /// The prediction from the finite logits of a sample with any number of labels.
    fn multi_label(logits: &[f32], labels: &Labels) -> Self {
        let predicted = first(logits);
        let losses = logits.iter().enumerate().map(|(class, &logit)| {
            let logit = f64::from(logit);
            let target = if labels.contains(&class) { 1.0 } else { 0.0 };
            logit.max(0.0) - logit * target + (-logit.abs()).exp().ln_1p()
        });
        Self {
            predicted,
            confidence: f64::from(logistic(logits[predicted])),
            loss: losses.sum::<f64>() / logits.len() as f64,
            rank: labels.iter().map(|&label| rank(logits, label)).min(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn logits_give_class_confidence_loss_and_rank() {
        // softmax([0, ln 3]) = [1/4, 3/4]
        let outcome = SampleOutcome::single_label(&[0.0, 3f32.ln()], 0);
        assert_eq!((outcome.predicted, outcome.rank), (1, Some(1)));
        assert!((outcome.confidence - 0.75).abs() < 1e-7);
        assert!((outcome.loss - 4f64.ln()).abs() < 1e-7);
    }

    #[test]
    fn huge_logits_do_not_overflow() {
        let outcome = SampleOutcome::single_label(&[f32::MAX, f32::MIN, 0.0], 1);
        assert_eq!(outcome.confidence, 1.0);
        assert_eq!(outcome.loss, 2.0 * f64::from(f32::MAX));
    }

    #[test]
    fn ties_go_to_the_lower_index() {
        let outcome = SampleOutcome::single_label(&[1.0, 2.0, 2.0, 2.0], 3);
        assert_eq!((outcome.predicted, outcome.rank), (1, Some(2)));
        let outcome = SampleOutcome::single_label(&[0.0, -0.0], 1);
        assert_eq!((outcome.predicted, outcome.rank), (0, Some(1)));
    }

    #[test]
    fn logits_that_are_not_finite_give_no_prediction() {
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut predictions = Predictions::new(3);
            predictions.push(&[0], &[0.0, broken, 1.0]);
            assert_eq!(predictions.outcomes().next().unwrap().1, None);
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
    fn with_several_labels_each_class_is_judged_by_itself() {
        let ln3 = 3f32.ln();
        let mut predictions = Predictions::multi_label(2);
        let labels = vec![Labels::new(vec![0, 1]), Labels::new(vec![]), Labels::from(1)];
        predictions.push_labels(labels, &[ln3, -ln3, -ln3, -ln3, f32::NAN, 0.0]);
        let logits = predictions.rows().flat_map(|(_, logits)| logits);
        let found: Vec<f32> = logits.map(|&logit| logistic(logit)).collect();
        for (found, expected) in found.iter().zip([0.75, 0.25, 0.25, 0.25, 0.0, 0.0]) {
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        }
        let outcomes: Vec<_> = predictions.outcomes().map(|(_, outcome)| outcome).collect();
        let both = outcomes[0].unwrap();
        assert_eq!((both.predicted, both.rank), (0, Some(0)));
        // -(ln 3/4 + ln 1/4) / 2
        assert!((both.loss - (16f64 / 3.0).ln() / 2.0).abs() < 1e-7);
        assert_eq!((outcomes[1].unwrap().rank, outcomes[2]), (None, None));
        let mistakes = predictions.confident_mistakes(9);
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        let ConfidentMistake { sample, class, is_missed, confidence, .. } = mistakes[0];
        assert_eq!((sample, class, is_missed, (confidence * 1e6).round() / 1e6), (0, 1, true, 0.75));
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
