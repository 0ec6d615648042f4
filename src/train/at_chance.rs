//! Detection of runs that do not learn: the training loss and accuracy against those of constant answers, which know
//! how frequent the classes are but never look at the image.

use serde::{Deserialize, Serialize};
use vitrine_datasets::Labels;

use crate::evaluate::Agreement;

/// Minimum number of updates between two judgments.
const MIN_UPDATES: usize = 50;
/// Minimum number of images between two judgments.
const MIN_IMAGES: u64 = 1024;
/// Minimum number of images between two judgments that are not of the most frequent class. With fewer, the comparison
/// shows nothing, whether the model recognizes them or not.
const MIN_OTHER_CLASSES: u64 = 100;
/// Updates at the beginning of an attempt that are left out, as is its learning-rate warm-up.
const SKIPPED_UPDATES: usize = 10;
/// Share of an attempt (0 to 1) before which no judgment is made.
const EARLIEST: f64 = 0.15;
/// Share of the run (0 to 1) after which a new attempt would have too little time, so that no judgment is made any
/// more.
const LATEST: f64 = 0.6;
/// A run counts as learning if its training loss is below that of constant answers by this share of the largest
/// possible reduction.
const MIN_LOSS_REDUCTION: f64 = 0.03;
/// A run also counts as learning if its predictions are better than chance by more than this many standard errors.
/// Untrained weights stay below, although by luck they tell a few classes apart.
const MIN_ERRORS_ABOVE_CHANCE: f64 = 5.0;

/// Training results of the present attempt, summed since its last judgment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChanceWatch {
    /// Whether watching is over: the attempt learns, or too little of the run is left for another one.
    pub settled: bool,
    /// Whether the first updates and the warm-up, which are left out, are over.
    has_begun: bool,
    /// Updates since the last judgment.
    updates: usize,
    /// Sum over images of the training loss.
    loss: f64,
    /// Sum over images of the entropy of their targets, which is the lowest possible loss: label smoothing and mixing
    /// make it positive.
    floor: f64,
    /// The predicted class of each image against the class with the largest target.
    agreement: Agreement,
    /// Sum over images of the targets, per class.
    targets: Vec<f64>,
    /// Number of images by the class with their largest target; includes batches whose results are still on the device.
    classes: Vec<u64>,
}

/// A judgment: training results, and those that constant answers would have.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtChance {
    /// Mean training loss.
    pub loss: f64,
    /// The lowest mean loss of any answer that is the same for all images.
    pub chance_loss: f64,
    /// Training accuracy, from 0 to 1.
    pub accuracy: f64,
    /// The accuracy of always predicting the most frequent class.
    pub chance_accuracy: f64,
}

/// Progress of a run and of its present attempt after an update.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Updates of the present attempt.
    pub updates: usize,
    /// Share of the present attempt that is done, from 0 to 1.
    pub attempt: f64,
    /// Share of the run that is done, from 0 to 1.
    pub run: f64,
    /// Share of an attempt (0 to 1) in which the learning rate rises.
    pub warmup: f64,
}

/// The class with the largest value in each row of `targets`, `[images, classes]`; the first one if several are equal.
pub fn dominant_classes(targets: &[f32], classes: usize) -> Vec<usize> {
    let dominant = |target: &[f32]| {
        (0..classes).fold(0, |best, class| if target[class] > target[best] { class } else { best })
    };
    targets.chunks_exact(classes).map(dominant).collect()
}

impl ChanceWatch {
    /// Adds the targets of a batch, `[images, classes]`. Each row sums to 1, or to the class weight of its image.
    /// `dominant` has the class with the largest target of each image.
    pub fn add_targets(&mut self, targets: &[f32], classes: usize, dominant: &[usize]) {
        if self.settled || !self.has_begun {
            return;
        }
        self.targets.resize(classes, 0.0);
        self.classes.resize(classes, 0);
        dominant.iter().for_each(|class| self.classes[*class] += 1);
        for target in targets.chunks_exact(classes) {
            let weight: f64 = target.iter().copied().map(f64::from).sum();
            self.floor += target.iter().map(|value| entropy_term(f64::from(*value), weight)).sum::<f64>();
            self.targets.iter_mut().zip(target).for_each(|(sum, value)| *sum += f64::from(*value));
        }
    }

    /// Adds the results of a batch: its mean loss, the class with the largest target of each image, and the predicted
    /// class of each.
    pub fn add_results(&mut self, mean_loss: f64, dominant: &[Labels], answers: &[usize]) {
        if self.settled || !self.has_begun {
            return;
        }
        self.loss += mean_loss * dominant.len() as f64;
        if self.agreement.images() == 0 {
            self.agreement = Agreement::new(self.targets.len());
        }
        for (truth, answer) in dominant.iter().zip(answers) {
            truth.only().into_iter().for_each(|truth| self.agreement.add(truth, *answer, 1));
        }
    }

    /// Counts an update. Returns whether [`Self::judge`] is due, before which the results of all batches must be added.
    pub fn count_update(&mut self, moment: Moment) -> bool {
        if self.settled {
            return false;
        }
        if !self.has_begun {
            return moment.updates >= SKIPPED_UPDATES && moment.attempt >= moment.warmup;
        }
        self.updates += 1;
        // The number of images is taken from the targets: results would have to be read back from the device first.
        self.updates >= MIN_UPDATES && self.has_seen_enough()
    }

    /// Ends the watch if a validation is far enough above chance, given in standard errors.
    pub fn add_validation(&mut self, errors_above_chance: f64) {
        self.settled |= errors_above_chance > MIN_ERRORS_ABOVE_CHANCE;
    }

    /// Judges the results since the last judgment, if there are enough, and starts the sums anew.
    ///
    /// Returns the judgment only if the attempt is no better than chance and the run has time for another one.
    pub fn judge(&mut self, moment: Moment) -> Option<AtChance> {
        if self.has_begun && !self.has_seen_enough() {
            return None;
        }
        let seen = std::mem::replace(self, Self { has_begun: true, ..Self::default() });
        if !seen.has_begun || moment.attempt < EARLIEST {
            return None;
        }
        self.settled = seen.is_learning() || moment.run > LATEST;
        (!self.settled).then(|| seen.next_to_chance())
    }

    fn has_seen_enough(&self) -> bool {
        let images: u64 = self.classes.iter().sum();
        images >= MIN_IMAGES && images - self.classes.iter().max().unwrap_or(&0) >= MIN_OTHER_CLASSES
    }

    fn is_learning(&self) -> bool {
        let AtChance { loss, chance_loss, .. } = self.next_to_chance();
        let learnable = chance_loss - self.floor / self.agreement.images() as f64;
        loss < chance_loss - MIN_LOSS_REDUCTION * learnable
            || self.agreement.errors_above_chance() > MIN_ERRORS_ABOVE_CHANCE
    }

    /// The summed results next to those of constant answers.
    fn next_to_chance(&self) -> AtChance {
        let images = self.agreement.images() as f64;
        let total: f64 = self.targets.iter().sum();
        // The best constant answer is the mean target, whatever smoothing, mixing, and class weights there are. Its
        // loss is the entropy of the mean target.
        AtChance {
            loss: self.loss / images,
            chance_loss: self.targets.iter().map(|sum| entropy_term(*sum, total)).sum::<f64>() / images,
            accuracy: self.agreement.observed(),
            chance_accuracy: self.agreement.most_frequent(),
        }
    }
}

/// The contribution of `value` to the entropy, in nats, of a distribution over values that sum to `total`; multiplied
/// by `total`.
fn entropy_term(value: f64, total: f64) -> f64 {
    if value > 0.0 { -value * (value / total).ln() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE: Moment = Moment { updates: 60, attempt: 0.2, run: 0.2, warmup: 0.1 };

    fn as_labels(classes: &[usize]) -> Vec<Labels> {
        classes.iter().map(|&class| class.into()).collect()
    }

    /// A watch that is past the first updates and the warm-up.
    fn begun() -> ChanceWatch {
        let mut watch = ChanceWatch::default();
        assert!(watch.count_update(DUE));
        assert_eq!(watch.judge(DUE), None);
        watch
    }

    /// The predicted class for an image of a class, and its loss.
    type Answer<'a> = &'a dyn Fn(usize) -> (usize, f64);

    /// A watch after `updates` updates on targets smoothed by `smoothing`, with `images[class]` images of each class in
    /// turn.
    fn watched(images: &[usize], smoothing: f64, updates: usize, answer: Answer<'_>) -> ChanceWatch {
        let classes = images.len();
        let all: Vec<usize> =
            images.iter().enumerate().flat_map(|(class, &count)| vec![class; count]).collect();
        let mut watch = begun();
        for update in 0..updates {
            // A stride that shares no factor with the number of images mixes the classes.
            let labels: Vec<usize> =
                (0..32).map(|image| all[(32 * update + image) * 7919 % all.len()]).collect();
            let target = |label: usize, class: usize| {
                smoothing / classes as f64 + if label == class { 1.0 - smoothing } else { 0.0 }
            };
            let row = |&label: &usize| (0..classes).map(move |class| target(label, class) as f32);
            let targets: Vec<f32> = labels.iter().flat_map(row).collect();
            assert_eq!(dominant_classes(&targets, classes), labels);
            let answers: Vec<(usize, f64)> = labels.iter().map(|&label| answer(label)).collect();
            let loss = answers.iter().map(|(_, loss)| loss).sum::<f64>() / 32.0;
            let answers: Vec<usize> = answers.iter().map(|(answer, _)| *answer).collect();
            watch.add_targets(&targets, classes, &labels);
            watch.add_results(loss, &as_labels(&labels), &answers);
            let is_due = update + 1 >= MIN_UPDATES && watch.has_seen_enough();
            assert_eq!(watch.count_update(DUE), is_due);
        }
        watch
    }

    /// The loss of predicting the right one of two classes with probability `share`, at label smoothing 0.1.
    fn smoothed_loss(share: f64) -> f64 {
        -0.95 * share.ln() - 0.05 * (1.0 - share).ln()
    }

    #[test]
    fn a_loss_at_the_entropy_of_the_classes_is_chance() {
        let four = 4f64.ln();
        let always_first = |loss: f64| move |_| (0, loss);
        let found =
            watched(&[8; 4], 0.0, 60, &always_first(four)).judge(DUE).expect("the answers are constant");
        assert!((found.chance_loss - four).abs() < 1e-12, "{found:?}");
        assert_eq!((found.accuracy, found.chance_accuracy), (0.25, 0.25));
        let mut learning = watched(&[8; 4], 0.0, 60, &always_first(0.96 * four));
        assert_eq!(learning.judge(DUE), None);
        assert!(learning.settled, "the watch is over");
    }

    #[test]
    fn label_smoothing_lowers_the_required_reduction_of_the_loss() {
        // With label smoothing 0.5, the best possible loss is 0.5623 and chance is ln 2: learning starts at 3% of the
        // difference.
        let chance = 2f64.ln();
        let judged = |loss: f64| watched(&[1, 1], 0.5, 60, &move |_| (0, loss)).judge(DUE);
        assert_eq!(judged(chance - 0.031 * (chance - 0.562_335)), None);
        assert!(judged(chance - 0.029 * (chance - 0.562_335)).is_some());
    }

    #[test]
    fn recognizing_a_rare_class_counts_as_learning() {
        // The second class is one image in 2, in 100, or in 1000. Perfect answers count as learning even where their
        // loss is above that of a constant answer, as in the last two cases.
        for (images, updates) in [([500, 500], 60), ([990, 10], 400), ([999, 1], 4000)] {
            let perfect = |label| (label, smoothed_loss(0.8));
            let mut watch = watched(&images, 0.1, updates, &perfect);
            assert_eq!(watch.judge(DUE), None, "{images:?}");
            assert!(watch.settled, "{images:?}");
            let blind = |label| (0, if label == 0 { smoothed_loss(0.95) } else { smoothed_loss(0.05) });
            assert!(watched(&images, 0.1, updates, &blind).judge(DUE).is_some(), "{images:?}");
        }
    }

    #[test]
    fn no_judgment_from_too_few_images_of_other_classes() {
        let blind = |label| (0, if label == 0 { smoothed_loss(0.95) } else { smoothed_loss(0.05) });
        let mut watch = watched(&[1300, 4], 0.1, 400, &blind);
        assert_eq!(watch.judge(DUE), None);
        assert!(!watch.settled && watch.updates == 400, "the watch continues and keeps its sums");
    }

    #[test]
    fn with_many_classes_few_right_answers_are_above_chance() {
        // Of 200 classes, chance gets 0.5% right and this answer 2.5%.
        let loss = 200f64.ln();
        let answer = |label: usize| (if label.is_multiple_of(40) { label } else { 1 }, loss);
        assert_eq!(watched(&[5; 200], 0.1, 60, &answer).judge(DUE), None);
        assert!(watched(&[5; 200], 0.1, 60, &|_| (1, loss)).judge(DUE).is_some());
    }

    #[test]
    fn class_weights_change_the_loss_at_chance() {
        // Three of four images are of class 0, and class weights even that out: the chance loss is ln 2.
        let mut watch = begun();
        for _ in 0..60 {
            let row = |image: usize| if image % 4 == 3 { [0.0, 2.0] } else { [2.0 / 3.0, 0.0] };
            let targets: Vec<f32> = (0..32).flat_map(row).collect();
            watch.add_targets(&targets, 2, &dominant_classes(&targets, 2));
            watch.add_results(0.69, &as_labels(&dominant_classes(&targets, 2)), &[0; 32]);
            watch.count_update(DUE);
        }
        let found = watch.judge(DUE).expect("the answers are constant");
        assert!((found.chance_loss - 2f64.ln()).abs() < 1e-6, "{found:?}");
        assert_eq!(found.chance_accuracy, 0.75);
    }

    #[test]
    fn no_judgment_early_in_an_attempt_or_late_in_a_run() {
        let chance = |_| (0, 0.7);
        let mut watch = watched(&[1, 1], 0.0, 60, &chance);
        assert_eq!(watch.judge(Moment { attempt: 0.14, ..DUE }), None);
        assert_eq!(watch, begun(), "the watch continues with new sums");
        let mut watch = watched(&[1, 1], 0.0, 60, &chance);
        assert_eq!(watch.judge(Moment { run: 0.7, ..DUE }), None);
        assert!(watch.settled && !watch.count_update(DUE));
    }

    #[test]
    fn the_first_updates_and_the_warm_up_are_left_out() {
        for early in [Moment { updates: SKIPPED_UPDATES - 1, ..DUE }, Moment { warmup: 0.3, ..DUE }] {
            let mut watch = ChanceWatch::default();
            watch.add_targets(&[1.0, 0.0], 2, &[0]);
            watch.add_results(9.0, &[0.into()], &[1]);
            assert!(!watch.count_update(early));
            assert_eq!(watch, ChanceWatch::default());
        }
    }

    #[test]
    fn a_validation_far_above_chance_ends_the_watch() {
        let mut watch = begun();
        watch.add_validation(4.9);
        assert!(!watch.settled);
        watch.add_validation(5.1);
        assert!(watch.settled);
    }
}
