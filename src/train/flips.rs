//! The decision whether training may mirror images, from the validation images: mirroring changes the class of letters,
//! digits, signs, and arrows, but rarely that of photos.
//!
//! A run whose recipe has `judge_flips` begins without flips and decides later. A model that was trained without mirror
//! images recognizes a mirrored cat nearly as well as a cat, but takes a mirrored b for a d.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::evaluate::Predicted;
use crate::text::first_few;

/// Share of an attempt (0 to 1) from which on validation judges flips.
pub(super) const JUDGE_FROM: f64 = 0.3;
/// Share of an attempt (0 to 1) before which the judgment is put off to a later epoch if the model recognizes too few
/// images.
const JUDGE_BY: f64 = 0.5;
/// The accuracy on validation images that a judgment needs, as a share of the range from chance to 1.
const MIN_RECOGNIZED: f64 = 0.3;

/// Mirroring changes a class if at least this share of its recognized images is no longer recognized when mirrored.
const CLASS_LOSS_THRESHOLD: f64 = 0.5;
/// Mirroring changes the data set as a whole if at least this share of all recognized images is no longer recognized
/// when mirrored.
const LOSS_THRESHOLD: f64 = 0.15;
/// Significance level of both tests, which is divided by the number of classes for the test of a single class: the
/// highest probability of such a loss by chance, if mirroring changed nothing.
const SIGNIFICANCE: f64 = 1e-3;

/// The judgment on flips, with the counts of validation images behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlipVerdict {
    /// Number of epochs that were done at the judgment.
    pub epoch: usize,
    /// Whether the rest of the run mirrors training images.
    pub flips: bool,
    /// Whether the model recognized enough validation images for a well-founded judgment.
    pub is_sure: bool,
    /// Whether the following numbers are of labels of validation images, as these have several each, and not of images.
    #[serde(default)]
    pub counts_labels: bool,
    /// Validation images that are recognized as they are.
    pub recognized: usize,
    /// Validation images that are recognized as they are, but not mirrored.
    pub lost: usize,
    /// Validation images that are recognized mirrored, but not as they are.
    pub gained: usize,
    /// Names of the classes that mirroring changes when each class is tested by itself.
    pub classes: Vec<String>,
}

impl FlipVerdict {
    /// The judgment as a short entry of the report.
    pub fn in_short(&self) -> String {
        match self.flips {
            true if !self.is_sure => format!("from epoch {} on, without evidence", self.epoch + 1),
            true => format!("from epoch {} on", self.epoch + 1),
            false => "none: mirror images are not recognized".to_owned(),
        }
    }
}

impl fmt::Display for FlipVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { recognized, lost, gained, .. } = self;
        let counted = if self.counts_labels { "labels of validation images" } else { "validation images" };
        let numbers = format!(
            "of {recognized} {counted} that are recognized, {lost} are not in the mirror, and {gained} others are"
        );
        if !self.is_sure {
            return write!(
                f,
                "with flips from now on: too little is recognized to say more, only {recognized} {counted} (--no-flips leaves flips \
                 out)"
            );
        }
        if self.flips {
            return write!(f, "with flips from now on: {numbers} (--no-flips leaves flips out)");
        }
        let classes = match self.classes.as_slice() {
            [] => String::new(),
            classes => format!(", above all those of {}", first_few(classes)),
        };
        write!(
            f,
            "without flips, which would change the class: {numbers}{classes} (--flips mirrors images all the same)"
        )
    }
}

/// Counts of validation images, of one class or of all, by whether they are recognized as they are and mirrored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MirrorCounts {
    images: usize,
    recognized: usize,
    lost: usize,
    gained: usize,
}

impl MirrorCounts {
    fn add(&mut self, is_recognized: bool, is_recognized_mirrored: bool) {
        self.images += 1;
        self.recognized += usize::from(is_recognized);
        self.lost += usize::from(is_recognized && !is_recognized_mirrored);
        self.gained += usize::from(!is_recognized && is_recognized_mirrored);
    }

    /// The net loss by mirroring, `lost - gained`, as a share of the recognized images.
    fn net_loss(&self) -> f64 {
        (self.lost as f64 - self.gained as f64) / self.recognized.max(1) as f64
    }

    /// Upper bound of the probability of so large an excess of `lost` over `gained` if both were equally likely
    /// (Hoeffding 1963, theorem 2).
    fn chance_bound(&self) -> f64 {
        if self.lost > self.gained { (-0.5 * self.standard_errors().powi(2)).exp() } else { 1.0 }
    }

    /// The excess of `lost` over `gained` in standard errors.
    fn standard_errors(&self) -> f64 {
        (self.lost as f64 - self.gained as f64) / ((self.lost + self.gained).max(1) as f64).sqrt()
    }
}

/// Judges flips by the predictions for the validation images as they are (`plain`) and `mirrored` (an image of several
/// labels counts once for each), when `epoch` epochs and the share `done` of an attempt are done. Returns `None` if a later epoch
/// has to judge: if too few images are recognized, or an image could be read only once.
pub(super) fn judge(
    plain: &Predicted,
    mirrored: &Predicted,
    names: &[String],
    (epoch, done): (usize, f64),
) -> Option<FlipVerdict> {
    if plain.indices != mirrored.indices {
        return None;
    }
    let (plain, mirrored) = (&plain.predictions, &mirrored.predictions);
    let mut of_class = vec![MirrorCounts::default(); names.len()];
    let mut all = MirrorCounts::default();
    for (sample, labels) in plain.labels().iter().enumerate() {
        for &label in labels.iter() {
            let (is_recognized, is_recognized_mirrored) =
                (plain.is_predicted(sample, label), mirrored.is_predicted(sample, label));
            of_class[label].add(is_recognized, is_recognized_mirrored);
            all.add(is_recognized, is_recognized_mirrored);
        }
    }
    let chance =
        of_class.iter().map(|class| class.images).max().unwrap_or(0) as f64 / all.images.max(1) as f64;
    let recognized = all.recognized as f64 / all.images.max(1) as f64;
    let is_enough = recognized >= chance + MIN_RECOGNIZED * (1.0 - chance);
    if !is_enough && done < JUDGE_BY {
        return None;
    }
    let differs = |class: &MirrorCounts| {
        class.net_loss() >= CLASS_LOSS_THRESHOLD && class.chance_bound() <= SIGNIFICANCE / names.len() as f64
    };
    let classes: Vec<String> = names
        .iter()
        .zip(&of_class)
        .filter(|(_, class)| differs(class))
        .map(|(name, _)| name.clone())
        .collect();
    let flips =
        classes.is_empty() && !(all.net_loss() >= LOSS_THRESHOLD && all.chance_bound() <= SIGNIFICANCE);
    let MirrorCounts { recognized, lost, gained, .. } = all;
    let is_sure = is_enough || !flips;
    let counts_labels = plain.is_multi_label();
    Some(FlipVerdict { epoch, flips, is_sure, counts_labels, recognized, lost, gained, classes })
}

#[cfg(test)]
mod tests {
    use vitrine_datasets::Labels;

    use super::*;
    use crate::evaluate::Predictions;

    /// The same predictions as those for the first images of a loader.
    fn predicted(predictions: Predictions) -> Predicted {
        let indices = (0..predictions.labels().len()).collect();
        Predicted { predictions, indices, pixel_keys: Vec::new(), bad: Vec::new() }
    }

    /// The judgment on images of `classes` classes, given as `[label, prediction, prediction when mirrored, count]`.
    fn judged(classes: usize, images: &[[usize; 4]], done: f64) -> Option<FlipVerdict> {
        let (mut plain, mut mirrored) = (Predictions::new(classes), Predictions::new(classes));
        for &[label, answer, in_mirror, count] in images {
            let logits = |best: usize| {
                (0..classes).map(|class| f32::from(u8::from(class == best))).collect::<Vec<_>>()
            };
            for _ in 0..count {
                plain.push(&[label], &logits(answer));
                mirrored.push(&[label], &logits(in_mirror));
            }
        }
        let names: Vec<String> = (0..classes).map(|class| format!("c{class}")).collect();
        judge(&predicted(plain), &predicted(mirrored), &names, (3, done))
    }

    #[test]
    fn letters_that_mirroring_turns_into_others_rule_out_flips() {
        // b, d, p, and q with 8 images each: too few for a significant result in one class, enough for all together.
        let letters = [[0, 0, 1, 7], [0, 1, 0, 1], [1, 1, 0, 8], [2, 2, 3, 8], [3, 3, 2, 8]];
        let verdict = judged(4, &letters, 0.3).expect("nearly all images are recognized");
        assert_eq!((verdict.flips, verdict.recognized, verdict.lost, verdict.gained), (false, 31, 31, 1));
        assert!(verdict.classes.is_empty() && verdict.to_string().contains("--flips"), "{verdict}");
    }

    #[test]
    fn one_class_that_mirroring_changes_rules_out_flips() {
        let mut arrows: Vec<[usize; 4]> = (0..20).map(|class| [class, class, class, 50]).collect();
        arrows[7] = [7, 7, 8, 45];
        let verdict = judged(20, &arrows, 0.3).expect("nearly all images are recognized");
        assert_eq!((verdict.flips, verdict.classes.as_slice()), (false, &["c7".to_owned()][..]));
        assert!(verdict.to_string().contains("c7"), "{verdict}");
        // With 10 images the result is not significant: one of 20 classes may lose so many by chance.
        arrows[7] = [7, 7, 8, 10];
        assert!(judged(20, &arrows, 0.3).is_some_and(|verdict| verdict.flips));
    }

    #[test]
    fn a_small_loss_by_mirroring_allows_flips() {
        let mut photos = Vec::new();
        for class in 0..10 {
            let other = (class + 1) % 10;
            photos.extend([[class, class, class, 350], [class, class, other, 40], [class, other, class, 25]]);
            photos.push([class, other, other, 85]);
        }
        let verdict = judged(10, &photos, 0.3).expect("enough images are recognized");
        assert!(verdict.flips && verdict.to_string().contains("--no-flips"), "{verdict}");
    }

    #[test]
    fn of_images_with_several_labels_the_labels_are_counted() {
        let mut seen = Predictions::multi_label(2);
        for _ in 0..6 {
            seen.push_labels(vec![Labels::new(vec![0, 1])], &[9.0, 9.0]);
        }
        let names = ["a".to_owned(), "b".to_owned()];
        let seen = predicted(seen);
        let verdict = judge(&seen, &seen, &names, (3, 0.5)).expect("all labels are recognized").to_string();
        assert!(verdict.contains("of 12 labels of validation images that are recognized"), "{verdict}");
        let one_label = judged(2, &[[0, 0, 0, 6], [1, 1, 1, 6]], 0.5).expect("all images are recognized");
        assert!(one_label.to_string().contains("of 12 validation images that"), "{one_label}");
    }

    #[test]
    fn the_judgment_waits_while_too_few_images_are_recognized() {
        let little = [[0, 0, 0, 12], [0, 1, 1, 8], [1, 1, 1, 12], [1, 0, 0, 8]];
        assert_eq!(judged(2, &little, 0.3), None);
        let verdict = judged(2, &little, 0.5).expect("the judgment is due");
        assert!(verdict.flips && verdict.to_string().contains("too little"), "{verdict}");
    }

    #[test]
    fn images_that_could_be_read_only_once_are_not_compared_with_others() {
        let seen = |indices: Vec<usize>| {
            let mut predictions = Predictions::new(2);
            for &index in &indices {
                let logits = if index % 2 == 0 { [1.0, 0.0] } else { [0.0, 1.0] };
                predictions.push(&[index % 2], &logits);
            }
            Predicted { indices, ..predicted(predictions) }
        };
        let names = ["a".to_owned(), "b".to_owned()];
        let (all, fewer) = (seen((0..40).collect()), seen((1..40).collect()));
        let verdict = |plain, mirrored| judge(plain, mirrored, &names, (3, 0.5));
        assert_eq!(verdict(&all, &fewer), None);
        assert_eq!(verdict(&fewer, &all), None);
        assert!(verdict(&fewer, &fewer).is_some_and(|verdict| verdict.flips));
    }
}
