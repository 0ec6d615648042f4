//! Whether mirror images show their class, judged by the validation images: letters, digits, signs and arrows do not, most photos do.
//!
//! A run whose recipe has `judge_flips` begins without flips. A model that has seen no mirror images recognizes those of a cat nearly as
//! well as the cat, and takes a mirrored b for a d.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::evaluate::Predictions;
use crate::text::first_few;

/// Share of an attempt (0 to 1) after which the first validation judges,
pub(super) const FROM: f64 = 0.3;
/// and until which a validation that recognizes too little leaves it to the next one.
const UNTIL: f64 = 0.5;
/// Share of the validation images that must be recognized above chance by then.
const RECOGNIZED: f64 = 0.3;

/// A class looks different in the mirror if it loses at least this share of its recognized images there,
const CLASS_LOSS: f64 = 0.5;
/// and all classes together do if they lose at least this share of theirs,
const LOSS: f64 = 0.15;
/// where a data set that looks the same would show it with at most this probability.
const CHANCE: f64 = 1e-3;

/// What the validation images have shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlipVerdict {
    /// The epoch after which it was judged.
    pub epoch: usize,
    /// Whether the rest of the run mirrors its images.
    pub flips: bool,
    /// Whether enough was recognized to judge by.
    pub is_sure: bool,
    /// Validation images that were recognized as they are.
    pub recognized: usize,
    /// Those that were not in the mirror.
    pub lost: usize,
    /// Those that were in the mirror alone.
    pub gained: usize,
    /// Names of the classes that look different in the mirror, by themselves.
    pub classes: Vec<String>,
}

impl FlipVerdict {
    /// The verdict for a list of facts.
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
        let numbers = format!(
            "of {recognized} validation images that are recognized, {lost} are not in the mirror, and {gained} others are"
        );
        if !self.is_sure {
            return write!(
                f,
                "with flips from now on: too little is recognized to say more, only {recognized} validation images (--no-flips leaves flips \
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

/// What a class's validation images, or all of them, are taken for as they are and in the mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mirrored {
    images: usize,
    recognized: usize,
    lost: usize,
    gained: usize,
}

impl Mirrored {
    fn add(&mut self, is_recognized: bool, is_recognized_mirrored: bool) {
        self.images += 1;
        self.recognized += usize::from(is_recognized);
        self.lost += usize::from(is_recognized && !is_recognized_mirrored);
        self.gained += usize::from(!is_recognized && is_recognized_mirrored);
    }

    /// Images that are lost for good, as a share of those that are recognized.
    fn loss(&self) -> f64 {
        (self.lost as f64 - self.gained as f64) / self.recognized.max(1) as f64
    }

    /// A bound of the probability that so many more are lost than gained, if either is as likely (Hoeffding 1963, theorem 2).
    fn chance(&self) -> f64 {
        if self.lost > self.gained { (-0.5 * self.errors().powi(2)).exp() } else { 1.0 }
    }

    /// By how many standard errors more are lost than gained.
    fn errors(&self) -> f64 {
        (self.lost as f64 - self.gained as f64) / ((self.lost + self.gained).max(1) as f64).sqrt()
    }
}

/// Judges by the same validation images as they are and in the mirror, after `epoch` epochs and the share `done` of an attempt. Nothing
/// where too little is recognized to say so, and there is time to wait.
pub(super) fn judge(
    plain: &Predictions,
    mirrored: &Predictions,
    names: &[String],
    (epoch, done): (usize, f64),
) -> Option<FlipVerdict> {
    let mut of_class = vec![Mirrored::default(); names.len()];
    let mut all = Mirrored::default();
    for ((label, answer), in_mirror) in plain.labels().iter().zip(plain.answers()).zip(mirrored.answers()) {
        let (is_recognized, is_recognized_mirrored) = (answer == Some(*label), in_mirror == Some(*label));
        of_class[*label].add(is_recognized, is_recognized_mirrored);
        all.add(is_recognized, is_recognized_mirrored);
    }
    let chance =
        of_class.iter().map(|class| class.images).max().unwrap_or(0) as f64 / all.images.max(1) as f64;
    let recognized = all.recognized as f64 / all.images.max(1) as f64;
    let is_enough = recognized >= chance + RECOGNIZED * (1.0 - chance);
    if !is_enough && done < UNTIL {
        return None;
    }
    let differs =
        |class: &Mirrored| class.loss() >= CLASS_LOSS && class.chance() <= CHANCE / names.len() as f64;
    let classes: Vec<String> = names
        .iter()
        .zip(&of_class)
        .filter(|(_, class)| differs(class))
        .map(|(name, _)| name.clone())
        .collect();
    let flips = classes.is_empty() && !(all.loss() >= LOSS && all.chance() <= CHANCE);
    let Mirrored { recognized, lost, gained, .. } = all;
    let is_sure = is_enough || !flips;
    Some(FlipVerdict { epoch, flips, is_sure, recognized, lost, gained, classes })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Images as `[label, answer, answer in the mirror, count]` of so many classes.
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
        judge(&plain, &mirrored, &names, (3, done))
    }

    #[test]
    fn letters_that_become_others_end_flips() {
        // b, d, p, and q with 8 images each: too few to say it of a class, enough for all together.
        let letters = [[0, 0, 1, 7], [0, 1, 0, 1], [1, 1, 0, 8], [2, 2, 3, 8], [3, 3, 2, 8]];
        let verdict = judged(4, &letters, 0.3).expect("nearly all is recognized");
        assert_eq!((verdict.flips, verdict.recognized, verdict.lost, verdict.gained), (false, 31, 31, 1));
        assert!(verdict.classes.is_empty() && verdict.to_string().contains("--flips"), "{verdict}");
    }

    #[test]
    fn one_class_that_becomes_another_ends_flips() {
        let mut arrows: Vec<[usize; 4]> = (0..20).map(|class| [class, class, class, 50]).collect();
        arrows[7] = [7, 7, 8, 45];
        let verdict = judged(20, &arrows, 0.3).expect("nearly all is recognized");
        assert_eq!((verdict.flips, verdict.classes.as_slice()), (false, &["c7".to_owned()][..]));
        assert!(verdict.to_string().contains("c7"), "{verdict}");
        // Of 10 images it is no evidence, as some of 20 classes may look so by chance.
        arrows[7] = [7, 7, 8, 10];
        assert!(judged(20, &arrows, 0.3).is_some_and(|verdict| verdict.flips));
    }

    #[test]
    fn photos_that_lose_a_little_keep_flips() {
        let mut photos = Vec::new();
        for class in 0..10 {
            let other = (class + 1) % 10;
            photos.extend([[class, class, class, 350], [class, class, other, 40], [class, other, class, 25]]);
            photos.push([class, other, other, 85]);
        }
        let verdict = judged(10, &photos, 0.3).expect("it is recognized");
        assert!(verdict.flips && verdict.to_string().contains("--no-flips"), "{verdict}");
    }

    #[test]
    fn a_model_that_recognizes_little_is_asked_again_as_long_as_there_is_time() {
        let little = [[0, 0, 0, 12], [0, 1, 1, 8], [1, 1, 1, 12], [1, 0, 0, 8]];
        assert_eq!(judged(2, &little, 0.3), None);
        let verdict = judged(2, &little, 0.5).expect("there is no more time");
        assert!(verdict.flips && verdict.to_string().contains("too little"), "{verdict}");
    }
}
