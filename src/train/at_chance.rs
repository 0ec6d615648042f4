//! Whether a run learns at all: what it gets right, against answers that know how frequent the classes are and nothing of the images.

use serde::{Deserialize, Serialize};

/// A judgement is made of at least so many updates,
const UPDATES: usize = 50;
/// and of at least so many images.
const IMAGES: u64 = 1024;
/// Nothing is judged by the first updates of an attempt.
const SKIPPED: usize = 10;
/// Nor before this share of an attempt (0 to 1), nor during its warm-up.
const EARLIEST: f64 = 0.15;
/// A run that is further than this has too little left for another attempt.
const LATEST: f64 = 0.6;
/// A training loss below this share of the loss by chance tells of learning,
const LOSS: f64 = 0.97;
/// and so does an accuracy that is so many standard errors above the one by chance.
const ERRORS: f64 = 3.0;

/// What an attempt at training has shown since it was last judged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChanceWatch {
    /// Whether nothing is to be watched any more: it learns, or it is too late for another attempt.
    pub settled: bool,
    updates: usize,
    /// Loss times images.
    loss: f64,
    correct: u64,
    /// Images by the class that dominates their target.
    classes: Vec<u64>,
    /// The sum of their targets.
    targets: Vec<f64>,
}

/// A judgement: what was measured, and what chance alone would give.
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

/// Where a run and its present attempt stand.
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

impl ChanceWatch {
    /// Takes note of the targets of a batch: `[images, classes]`, each row sums to 1, or to the weight of its image.
    pub fn saw_targets(&mut self, targets: &[f32], classes: usize) {
        if self.settled {
            return;
        }
        self.classes.resize(classes, 0);
        self.targets.resize(classes, 0.0);
        for target in targets.chunks_exact(classes) {
            let dominant =
                (0..classes).fold(0, |best, class| if target[class] > target[best] { class } else { best });
            self.classes[dominant] += 1;
            self.targets.iter_mut().zip(target).for_each(|(sum, value)| *sum += f64::from(*value));
        }
    }

    /// Takes note of the result of such a batch.
    pub fn saw_result(&mut self, mean_loss: f64, correct: u64, images: usize) {
        if !self.settled {
            self.loss += mean_loss * images as f64;
            self.correct += correct;
        }
    }

    /// Takes note of an update, that of number `update` of the attempt, from 1 on; whether it is time to judge. All results until then
    /// must have been seen before.
    pub fn saw_update(&mut self, update: usize) -> bool {
        if self.settled {
            return false;
        }
        self.updates += 1;
        update == SKIPPED || (self.updates >= UPDATES && self.classes.iter().sum::<u64>() >= IMAGES)
    }

    /// Judges what was seen and begins anew.
    ///
    /// Says something if the attempt is no better than chance, and there is time for another one.
    pub fn judge(&mut self, moment: Moment) -> Option<AtChance> {
        let seen = std::mem::take(self);
        if moment.updates < SKIPPED + UPDATES || moment.attempt < moment.warmup.max(EARLIEST) {
            return None;
        }
        let found = seen.compared();
        self.settled = seen.learns(&found) || moment.run > LATEST;
        (!self.settled).then_some(found)
    }

    /// What was seen next to what chance gives.
    fn compared(&self) -> AtChance {
        let images = self.images();
        let total: f64 = self.targets.iter().sum();
        // The best answer that is always the same is the mean target, however it was smoothed, mixed and weighted; its loss is the
        // entropy of that distribution.
        let entropy = |sum: f64| if sum > 0.0 { -sum * (sum / total).ln() } else { 0.0 };
        let most = self.classes.iter().copied().max().unwrap_or(0);
        AtChance {
            loss: self.loss / images,
            chance_loss: self.targets.iter().copied().map(entropy).sum::<f64>() / images,
            accuracy: self.correct as f64 / images,
            chance_accuracy: most as f64 / images,
        }
    }

    fn learns(&self, found: &AtChance) -> bool {
        let chance = found.chance_accuracy;
        let error = (chance * (1.0 - chance) / self.images()).sqrt();
        found.loss < LOSS * found.chance_loss || found.accuracy > chance + ERRORS * error
    }

    fn images(&self) -> f64 {
        self.classes.iter().sum::<u64>() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE: Moment = Moment { updates: 60, attempt: 0.2, run: 0.2, warmup: 0.1 };

    /// 60 updates on 32 images each, with these targets in turn, all with this loss; so many of each batch are right.
    fn watch<const CLASSES: usize>(targets: &[[f32; CLASSES]], loss: f64, correct: u64) -> ChanceWatch {
        let mut watch = ChanceWatch::default();
        for update in 0..60 {
            let batch: Vec<f32> =
                (0..32).flat_map(|image| targets[(32 * update + image) % targets.len()]).collect();
            watch.saw_targets(&batch, CLASSES);
            watch.saw_result(loss, correct, 32);
            assert_eq!(watch.saw_update(SKIPPED + 1 + update), update + 1 >= UPDATES);
        }
        watch
    }

    const FOUR: [[f32; 4]; 4] =
        [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]];
    const TWO: [[f32; 2]; 2] = [[1.0, 0.0], [0.0, 1.0]];

    #[test]
    fn a_loss_at_the_entropy_of_the_classes_is_chance() {
        let four = 4f64.ln();
        let found = watch(&FOUR, four, 8).judge(DUE).expect("it is at chance");
        assert!((found.chance_loss - four).abs() < 1e-12, "{found:?}");
        assert_eq!((found.accuracy, found.chance_accuracy), (0.25, 0.25));
        // 1920 images: a standard error is 1%, so 10 of 32 (31%) are more than three errors above 25%.
        for mut learning in [watch(&FOUR, 0.96 * four, 8), watch(&FOUR, four, 10)] {
            assert_eq!(learning.judge(DUE), None);
            assert!(learning.settled, "it is watched no more");
        }
    }

    #[test]
    fn unequal_smoothed_and_weighted_targets_have_a_chance_of_their_own() {
        // Three of four images are of class 0: entropy 0.5623; with a tenth of the target spread over both classes 0.5882; with weights
        // that make up for the difference ln 2.
        let unequal = |targets: [[f32; 2]; 2]| [targets[0], targets[0], targets[0], targets[1]];
        for (targets, chance) in [
            (unequal(TWO), 0.562_335),
            (unequal([[0.95, 0.05], [0.05, 0.95]]), 0.588_169),
            (unequal([[2.0 / 3.0, 0.0], [0.0, 2.0]]), 2f64.ln()),
        ] {
            let found = watch(&targets, 0.69, 24).judge(DUE).expect("it is at chance");
            assert!((found.chance_loss - chance).abs() < 1e-5, "{found:?}");
            assert_eq!(found.chance_accuracy, 0.75);
            assert_eq!(watch(&targets, 0.96 * chance, 24).judge(DUE), None);
        }
    }

    #[test]
    fn nothing_is_judged_too_early_and_nothing_is_begun_too_late() {
        for early in
            [Moment { updates: 59, ..DUE }, Moment { attempt: 0.14, ..DUE }, Moment { warmup: 0.3, ..DUE }]
        {
            let mut watch = watch(&TWO, 0.7, 16);
            assert_eq!(watch.judge(early), None);
            assert_eq!(watch, ChanceWatch::default(), "it goes on watching");
        }
        let mut watch = watch(&TWO, 0.7, 16);
        assert_eq!(watch.judge(Moment { run: 0.7, ..DUE }), None);
        assert!(watch.settled);
        watch.saw_targets(&[1.0, 0.0], 2);
        assert!(!watch.saw_update(1000));
    }

    #[test]
    fn the_first_updates_do_not_count() {
        let mut watch = ChanceWatch::default();
        for update in 1..=SKIPPED {
            watch.saw_targets(&[1.0, 0.0], 2);
            watch.saw_result(9.0, 0, 1);
            assert_eq!(watch.saw_update(update), update == SKIPPED);
        }
        assert_eq!(watch.judge(Moment { updates: SKIPPED, ..DUE }), None);
        assert_eq!(watch, ChanceWatch::default());
    }
}
