//! What the logits of a data set say, image by image, with the true labels.

/// True labels and what the logits say, gathered batch by batch. The logits themselves are not kept: those of 50,000 images and
/// 21,841 classes would take 4 GB.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictions {
    classes: usize,
    labels: Vec<usize>,
    /// `None` where a logit is not finite.
    outcomes: Vec<Option<Outcome>>,
}

/// A sample that was classified wrongly, and how sure the model was.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfidentMistake {
    /// Position of the sample, in the order in which it was pushed.
    pub sample: usize,
    /// The true class.
    pub truth: usize,
    /// The class that the model chose.
    pub predicted: usize,
    /// Softmax probability of the chosen class.
    pub confidence: f64,
}

/// What one row of finite logits says about a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Outcome {
    /// Index of the largest logit, the first of equals.
    pub(super) predicted: usize,
    /// Softmax probability of `predicted`.
    pub(super) confidence: f64,
    /// Cross-entropy of the true class, in nats.
    pub(super) loss: f64,
    /// How many classes come before the true one; 0 is a correct prediction.
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

    /// Adds a batch.
    ///
    /// # Shapes
    ///
    /// - labels: `[batch]`
    /// - logits: `[batch, classes]`, row by row
    ///
    /// # Panics
    ///
    /// If the shapes disagree or a label is not a class.
    pub fn push(&mut self, labels: &[usize], logits: &[f32]) {
        let Self { classes, .. } = *self;
        assert_eq!(logits.len(), labels.len() * classes, "logits must be [{}, {classes}]", labels.len());
        for &label in labels {
            assert!(label < classes, "label {label} is not one of {classes} classes");
        }
        let rows = labels.iter().zip(logits.chunks_exact(classes));
        self.outcomes.extend(rows.map(|(&label, logits)| Outcome::read(logits, label)));
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

    /// The answer to each sample, in the order in which they were pushed; none where a logit is not finite.
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

    /// The `count` wrong samples about which the model was most sure, the surest first.
    ///
    /// Samples whose logits are not finite have no prediction to be sure about and are left out.
    pub fn confident_mistakes(&self, count: usize) -> Vec<ConfidentMistake> {
        let mut mistakes: Vec<_> = self
            .outcomes()
            .enumerate()
            .filter_map(|(sample, (truth, outcome))| {
                let Outcome { predicted, confidence, .. } = outcome?;
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

    /// Every sample's label with what its logits say; `None` where a logit is not finite.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (usize, Option<Outcome>)> {
        self.labels.iter().copied().zip(self.outcomes.iter().copied())
    }
}

impl Outcome {
    /// Reads one row; `None` if a logit is NaN or infinite: then neither an order nor a softmax exists.
    fn read(logits: &[f32], label: usize) -> Option<Self> {
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
    fn reads_a_row() {
        // softmax([0, ln 3]) = [1/4, 3/4]
        let outcome = Outcome::read(&[0.0, 3f32.ln()], 0).unwrap();
        assert_eq!((outcome.predicted, outcome.rank), (1, 1));
        assert!((outcome.confidence - 0.75).abs() < 1e-7);
        assert!((outcome.loss - 4f64.ln()).abs() < 1e-7);
    }

    #[test]
    fn huge_logits_do_not_overflow() {
        let outcome = Outcome::read(&[f32::MAX, f32::MIN, 0.0], 1).unwrap();
        assert_eq!(outcome.confidence, 1.0);
        assert_eq!(outcome.loss, 2.0 * f64::from(f32::MAX));
    }

    #[test]
    fn ties_go_to_the_lower_index() {
        let outcome = Outcome::read(&[1.0, 2.0, 2.0, 2.0], 3).unwrap();
        assert_eq!((outcome.predicted, outcome.rank), (1, 2));
        let outcome = Outcome::read(&[0.0, -0.0], 1).unwrap();
        assert_eq!((outcome.predicted, outcome.rank), (0, 1));
    }

    #[test]
    fn a_row_that_is_not_finite_says_nothing() {
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(Outcome::read(&[0.0, broken, 1.0], 0), None);
        }
    }

    #[test]
    fn mistakes_come_surest_first() {
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
        assert!(predictions.outcomes.capacity() * size_of::<Option<Outcome>>() < 10_000);
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
