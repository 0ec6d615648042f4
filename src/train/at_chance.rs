//! Whether a run learns at all: what it gets right, against answers that know how frequent the classes are and nothing of the images.

use serde::{Deserialize, Serialize};

use crate::evaluate::Agreement;

/// A judgment is made of at least so many updates,
const UPDATES: usize = 50;
/// of at least so many images,
const IMAGES: u64 = 1024;
/// and of at least so many that are not of the most frequent class: few of them show nothing, whether they are recognized or not.
const TELLING: u64 = 100;
/// The first updates of an attempt do not count, and neither does its warm-up.
const SKIPPED: usize = 10;
/// Nothing is judged before this share of an attempt (0 to 1).
const EARLIEST: f64 = 0.15;
/// A run that is further than this has too little left for another attempt.
const LATEST: f64 = 0.6;
/// The training loss of a run that learns is below the loss by chance by at least this share of what there is to learn.
const LEARNED: f64 = 0.03;
/// Answers of a run that learns are better than chance by so many standard errors: more than those of weights that were never trained, which
/// tell a few classes apart by luck.
const ERRORS: f64 = 5.0;

/// What an attempt at training has shown since it was last judged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChanceWatch {
    /// Whether nothing is to be watched any more: it learns, or it is too late for another attempt.
    pub settled: bool,
    /// Whether the updates that do not count are over.
    has_begun: bool,
    updates: usize,
    /// Loss times images.
    loss: f64,
    /// The least loss that targets such as these leave, times images: the entropy of each, which smoothing and mixing make.
    floor: f64,
    /// What was answered, and the class that dominates each target.
    agreement: Agreement,
    /// The sum of the targets.
    targets: Vec<f64>,
    /// Images by the class that dominates their target, those whose results are not known yet included.
    classes: Vec<u64>,
}

/// A judgment: what was measured, and what chance alone would give.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtChance {
    /// Mean training loss.
    pub loss: f64,
    /// The least loss of answers that do not depend on the image.
    pub chance_loss: f64,
    /// Training accuracy, from 0 to 1.
    pub accuracy: f64,
    /// The accuracy of naming the most frequent class.
    pub chance_accuracy: f64,
}

/// Where a run and its present attempt stand after an update.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Updates of this attempt.
    pub updates: usize,
    /// Share of this attempt that is done.
    pub attempt: f64,
    /// Share of the run that is done.
    pub run: f64,
    /// Share of an attempt in which its learning rate rises.
    pub warmup: f64,
}

/// The class that dominates each target, `[images, classes]`; the first one of several.
pub fn dominant_classes(targets: &[f32], classes: usize) -> Vec<usize> {
    let dominant = |target: &[f32]| {
        (0..classes).fold(0, |best, class| if target[class] > target[best] { class } else { best })
    };
    targets.chunks_exact(classes).map(dominant).collect()
}

impl ChanceWatch {
    /// Takes note of the targets of a batch: `[images, classes]`, each row sums to 1, or to the weight of its image; and
    /// of the classes that dominate them.
    pub fn saw_targets(&mut self, targets: &[f32], classes: usize, dominant: &[usize]) {
        if self.settled || !self.has_begun {
            return;
        }
        self.targets.resize(classes, 0.0);
        self.classes.resize(classes, 0);
        dominant.iter().for_each(|class| self.classes[*class] += 1);
        for target in targets.chunks_exact(classes) {
            let weight: f64 = target.iter().copied().map(f64::from).sum();
            self.floor += target.iter().map(|value| part_of_entropy(f64::from(*value), weight)).sum::<f64>();
            self.targets.iter_mut().zip(target).for_each(|(sum, value)| *sum += f64::from(*value));
        }
    }

    /// Takes note of the result of such a batch: its mean loss, and of each image the class that dominates its target and the answer.
    pub fn saw_result(&mut self, mean_loss: f64, dominant: &[usize], answers: &[usize]) {
        if self.settled || !self.has_begun {
            return;
        }
        self.loss += mean_loss * dominant.len() as f64;
        if self.agreement.images() == 0 {
            self.agreement = Agreement::new(self.targets.len());
        }
        for (truth, answer) in dominant.iter().zip(answers) {
            self.agreement.add(*truth, *answer, 1);
        }
    }

    /// Takes note of an update; whether it is time to judge. All results until then must have been seen before that.
    pub fn saw_update(&mut self, moment: Moment) -> bool {
        if self.settled {
            return false;
        }
        if !self.has_begun {
            return moment.updates >= SKIPPED && moment.attempt >= moment.warmup;
        }
        self.updates += 1;
        // Told by the targets, as results have to be read back from the device.
        self.updates >= UPDATES && self.has_seen_enough()
    }

    /// Takes note of a validation: one that is better than chance by so many standard errors settles the matter.
    pub fn saw_validation(&mut self, errors_above_chance: f64) {
        self.settled |= errors_above_chance > ERRORS;
    }

    /// Judges what was seen, if it is enough, and begins anew.
    ///
    /// Says something if the attempt is no better than chance, and there is time for another one.
    pub fn judge(&mut self, moment: Moment) -> Option<AtChance> {
        if self.has_begun && !self.has_seen_enough() {
            return None;
        }
        let seen = std::mem::replace(self, Self { has_begun: true, ..Self::default() });
        if !seen.has_begun || moment.attempt < EARLIEST {
            return None;
        }
        self.settled = seen.learns() || moment.run > LATEST;
        (!self.settled).then(|| seen.compared())
    }

    fn has_seen_enough(&self) -> bool {
        let images: u64 = self.classes.iter().sum();
        images >= IMAGES && images - self.classes.iter().max().unwrap_or(&0) >= TELLING
    }

    fn learns(&self) -> bool {
        let AtChance { loss, chance_loss, .. } = self.compared();
        let learnable = chance_loss - self.floor / self.agreement.images() as f64;
        loss < chance_loss - LEARNED * learnable || self.agreement.errors_above_chance() > ERRORS
    }

    /// What was seen next to what chance gives.
    fn compared(&self) -> AtChance {
        let images = self.agreement.images() as f64;
        let total: f64 = self.targets.iter().sum();
        // The best answer that is always the same is the mean target, however it was smoothed, mixed and weighted; its loss is the
        // entropy of that distribution.
        AtChance {
            loss: self.loss / images,
            chance_loss: self.targets.iter().map(|sum| part_of_entropy(*sum, total)).sum::<f64>() / images,
            accuracy: self.agreement.observed(),
            chance_accuracy: self.agreement.most_frequent(),
        }
    }
}

/// What one of several numbers, which sum to `total`, adds to their entropy in nats, times `total`.
fn part_of_entropy(value: f64, total: f64) -> f64 {
    if value > 0.0 { -value * (value / total).ln() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE: Moment = Moment { updates: 60, attempt: 0.2, run: 0.2, warmup: 0.1 };

    /// A watch that has begun.
    fn begun() -> ChanceWatch {
        let mut watch = ChanceWatch::default();
        assert!(watch.saw_update(DUE));
        assert_eq!(watch.judge(DUE), None);
        watch
    }

    /// What an image of a class is taken for, and the loss of that.
    type Answer<'a> = &'a dyn Fn(usize) -> (usize, f64);

    /// So many images of each class, in turn, as `updates` updates on targets smoothed by `smoothing`.
    fn watched(images: &[usize], smoothing: f64, updates: usize, answer: Answer<'_>) -> ChanceWatch {
        let classes = images.len();
        let all: Vec<usize> =
            images.iter().enumerate().flat_map(|(class, &count)| vec![class; count]).collect();
        let mut watch = begun();
        for update in 0..updates {
            // Steps that have no factor in common with the number of images mix the classes.
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
            watch.saw_targets(&targets, classes, &labels);
            watch.saw_result(loss, &labels, &answers);
            let is_due = update + 1 >= UPDATES && watch.has_seen_enough();
            assert_eq!(watch.saw_update(DUE), is_due);
        }
        watch
    }

    /// The loss of answering `share` for the class of one of two, with smoothing of 0.1.
    fn smoothed_loss(share: f64) -> f64 {
        -0.95 * share.ln() - 0.05 * (1.0 - share).ln()
    }

    #[test]
    fn a_loss_at_the_entropy_of_the_classes_is_chance() {
        let four = 4f64.ln();
        let always_first = |loss: f64| move |_| (0, loss);
        let found = watched(&[8; 4], 0.0, 60, &always_first(four)).judge(DUE).expect("it is at chance");
        assert!((found.chance_loss - four).abs() < 1e-12, "{found:?}");
        assert_eq!((found.accuracy, found.chance_accuracy), (0.25, 0.25));
        let mut learning = watched(&[8; 4], 0.0, 60, &always_first(0.96 * four));
        assert_eq!(learning.judge(DUE), None);
        assert!(learning.settled, "it is watched no more");
    }

    #[test]
    fn smoothing_leaves_less_to_learn_and_less_is_asked_for() {
        // Smoothing of 0.5 leaves 0.5623 of ln 2 to the best of models: 3% of the rest is enough.
        let chance = 2f64.ln();
        let judged = |loss: f64| watched(&[1, 1], 0.5, 60, &move |_| (0, loss)).judge(DUE);
        assert_eq!(judged(chance - 0.031 * (chance - 0.562_335)), None);
        assert!(judged(chance - 0.029 * (chance - 0.562_335)).is_some());
    }

    #[test]
    fn rare_classes_that_are_recognized_are_no_chance() {
        // A class of 1 in 2, 100, and 1000: all are right, at a loss that is worse than that of naming the most frequent class alone.
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
    fn few_images_of_other_classes_show_nothing() {
        let blind = |label| (0, if label == 0 { smoothed_loss(0.95) } else { smoothed_loss(0.05) });
        let mut watch = watched(&[1300, 4], 0.1, 400, &blind);
        assert_eq!(watch.judge(DUE), None);
        assert!(!watch.settled && watch.updates == 400, "it goes on watching, and keeps what it has seen");
    }

    #[test]
    fn many_classes_need_few_right_answers() {
        // 200 classes: half a percent by chance, and 1 in 40 right.
        let loss = 200f64.ln();
        let answer = |label: usize| (if label.is_multiple_of(40) { label } else { 1 }, loss);
        assert_eq!(watched(&[5; 200], 0.1, 60, &answer).judge(DUE), None);
        assert!(watched(&[5; 200], 0.1, 60, &|_| (1, loss)).judge(DUE).is_some());
    }

    #[test]
    fn weighted_targets_have_a_chance_of_their_own() {
        // Three of four images are of class 0, and weights make up for the difference: ln 2.
        let mut watch = begun();
        for _ in 0..60 {
            let row = |image: usize| if image % 4 == 3 { [0.0, 2.0] } else { [2.0 / 3.0, 0.0] };
            let targets: Vec<f32> = (0..32).flat_map(row).collect();
            watch.saw_targets(&targets, 2, &dominant_classes(&targets, 2));
            watch.saw_result(0.69, &dominant_classes(&targets, 2), &[0; 32]);
            watch.saw_update(DUE);
        }
        let found = watch.judge(DUE).expect("it is at chance");
        assert!((found.chance_loss - 2f64.ln()).abs() < 1e-6, "{found:?}");
        assert_eq!(found.chance_accuracy, 0.75);
    }

    #[test]
    fn nothing_is_judged_too_early_and_nothing_is_begun_too_late() {
        let chance = |_| (0, 0.7);
        let mut watch = watched(&[1, 1], 0.0, 60, &chance);
        assert_eq!(watch.judge(Moment { attempt: 0.14, ..DUE }), None);
        assert_eq!(watch, begun(), "it goes on watching");
        let mut watch = watched(&[1, 1], 0.0, 60, &chance);
        assert_eq!(watch.judge(Moment { run: 0.7, ..DUE }), None);
        assert!(watch.settled && !watch.saw_update(DUE));
    }

    #[test]
    fn neither_the_first_updates_nor_the_warm_up_count() {
        for early in [Moment { updates: SKIPPED - 1, ..DUE }, Moment { warmup: 0.3, ..DUE }] {
            let mut watch = ChanceWatch::default();
            watch.saw_targets(&[1.0, 0.0], 2, &[0]);
            watch.saw_result(9.0, &[0], &[1]);
            assert!(!watch.saw_update(early));
            assert_eq!(watch, ChanceWatch::default());
        }
    }

    #[test]
    fn a_validation_above_chance_ends_the_suspicion() {
        let mut watch = begun();
        watch.saw_validation(4.9);
        assert!(!watch.settled);
        watch.saw_validation(5.1);
        assert!(watch.settled);
    }
}
