//! Chance-corrected agreement of predictions with the truth: Cohen's kappa (Cohen 1960) and its standard error under
//! independence (Fleiss, Cohen & Everitt 1969, 'Large sample standard errors of kappa and weighted kappa').

use serde::{Deserialize, Serialize};

/// The counts from which kappa is computed: images per true class, images per predicted class, and correct predictions.
///
/// Kappa also measures how well rare classes are recognized, unlike a comparison of the accuracy with the share of the
/// most frequent class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Agreement {
    truth: Vec<u64>,
    answers: Vec<u64>,
    agreed: u64,
    images: u64,
}

impl Agreement {
    /// Counts without any images, for this number of classes.
    pub(crate) fn new(classes: usize) -> Self {
        Self { truth: vec![0; classes], answers: vec![0; classes], agreed: 0, images: 0 }
    }

    /// Adds a number of images of class `truth` for which class `answer` was predicted.
    ///
    /// # Panics
    /// If one of the classes is out of range.
    pub(crate) fn add(&mut self, truth: usize, answer: usize, images: u64) {
        self.truth[truth] += images;
        self.answers[answer] += images;
        self.images += images;
        if truth == answer {
            self.agreed += images;
        }
    }

    /// Number of images.
    pub(crate) fn images(&self) -> u64 {
        self.images
    }

    /// The accuracy: the share of correct predictions, from 0 to 1.
    pub(crate) fn observed(&self) -> f64 {
        self.agreed as f64 / self.images as f64
    }

    /// The share of images of the most frequent class, which is the accuracy of always predicting it.
    pub(crate) fn most_frequent(&self) -> f64 {
        self.truth.iter().copied().max().unwrap_or(0) as f64 / self.images as f64
    }

    /// The expected accuracy if the same predictions were assigned to the images at random, from 0 to 1.
    pub(crate) fn expected(&self) -> f64 {
        self.shares().map(|(truth, answer)| truth * answer).sum()
    }

    /// The number of standard errors by which the accuracy exceeds [`expected`](Self::expected). 0 if all images have
    /// the same true class or the same prediction, since the standard error is then 0.
    pub(crate) fn errors_above_chance(&self) -> f64 {
        let expected = self.expected();
        let both: f64 = self.shares().map(|(truth, answer)| truth * answer * (truth + answer)).sum();
        let variance = (expected + expected * expected - both) / self.images as f64;
        if variance > 1e-15 { (self.observed() - expected) / variance.sqrt() } else { 0.0 }
    }

    /// For each class, the share of images with this true class and the share with this prediction.
    fn shares(&self) -> impl Iterator<Item = (f64, f64)> {
        let share = |count: &u64| *count as f64 / self.images.max(1) as f64;
        self.truth.iter().map(share).zip(self.answers.iter().map(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The agreement of images given as `[truth, answer, count]`, with three classes.
    fn agreement(images: &[[usize; 3]]) -> Agreement {
        let mut agreement = Agreement::new(3);
        images.iter().for_each(|&[truth, answer, count]| agreement.add(truth, answer, count as u64));
        agreement
    }

    #[test]
    fn a_rare_class_that_is_recognized_is_far_from_chance() {
        // 260 images of one class and 1 of another, all correct: the expected accuracy is 0.992367, and the
        // hypergeometric standard deviation of the number of correct predictions is 0.12238.
        let found = agreement(&[[0, 0, 260], [1, 1, 1]]);
        assert!((found.expected() - 0.992_366_8).abs() < 1e-6, "{}", found.expected());
        assert!((found.errors_above_chance() - 16.155).abs() < 0.01, "{}", found.errors_above_chance());
        assert_eq!((found.observed(), found.images()), (1.0, 261));
    }

    #[test]
    fn predictions_that_do_not_depend_on_the_image_are_at_chance() {
        assert_eq!(
            agreement(&[[0, 0, 260], [1, 0, 1]]).errors_above_chance(),
            0.0,
            "always predicting the most frequent class"
        );
        assert_eq!(agreement(&[[0, 0, 40]]).errors_above_chance(), 0.0, "a single class");
        let random = agreement(&[[0, 0, 16], [0, 1, 8], [1, 0, 8], [1, 1, 4]]);
        assert!(random.errors_above_chance().abs() < 1e-12);
        assert!((random.expected() - random.observed()).abs() < 1e-12);
        assert!((random.most_frequent() - 24.0 / 36.0).abs() < 1e-12);
        let opposite = agreement(&[[0, 1, 20], [1, 0, 20]]);
        assert!(
            opposite.errors_above_chance() < -6.0,
            "always predicting the wrong class is far below chance"
        );
    }

    #[test]
    fn equal_classes_give_the_binomial_standard_error() {
        // 60 of 100 correct, and both classes predicted equally often: 50 are expected, with a standard error of 0.05.
        let found = agreement(&[[0, 0, 30], [0, 1, 20], [1, 0, 20], [1, 1, 30]]);
        assert!((found.errors_above_chance() - 2.0).abs() < 1e-9);
    }
}
