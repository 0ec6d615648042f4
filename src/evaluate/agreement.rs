//! Whether answers agree with the truth by more than chance: Cohen's kappa (Cohen 1960) and its standard error if answers and truth are
//! independent (Fleiss, Cohen & Everitt 1969, 'Large sample standard errors of kappa and weighted kappa').

use serde::{Deserialize, Serialize};

/// What kappa is computed from: how often each class is the truth, how often it is the answer, and how often the two are the same.
///
/// Unlike a comparison with the share of the most frequent class, kappa sees what a model knows of rare classes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Agreement {
    truth: Vec<u64>,
    answers: Vec<u64>,
    agreed: u64,
    images: u64,
}

impl Agreement {
    /// No images yet, of so many classes.
    pub(crate) fn new(classes: usize) -> Self {
        Self { truth: vec![0; classes], answers: vec![0; classes], agreed: 0, images: 0 }
    }

    /// Adds images of class `truth` that were taken for class `answer`.
    ///
    /// # Panics
    /// If there is no such class.
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

    /// The share of right answers, from 0 to 1.
    pub(crate) fn observed(&self) -> f64 {
        self.agreed as f64 / self.images as f64
    }

    /// The share of images of the most frequent class: what naming it always would get right.
    pub(crate) fn most_frequent(&self) -> f64 {
        self.truth.iter().copied().max().unwrap_or(0) as f64 / self.images as f64
    }

    /// The share that the same answers would get right if they were given to the images at random.
    pub(crate) fn expected(&self) -> f64 {
        self.shares().map(|(truth, answer)| truth * answer).sum()
    }

    /// By how many standard errors the answers are better than the same ones given at random; 0 where one class alone is the truth or
    /// the answer, so that nothing can be said.
    pub(crate) fn errors_above_chance(&self) -> f64 {
        let expected = self.expected();
        let both: f64 = self.shares().map(|(truth, answer)| truth * answer * (truth + answer)).sum();
        let variance = (expected + expected * expected - both) / self.images as f64;
        if variance > 1e-15 { (self.observed() - expected) / variance.sqrt() } else { 0.0 }
    }

    /// Of each class, its shares of the truth and of the answers.
    fn shares(&self) -> impl Iterator<Item = (f64, f64)> {
        let share = |count: &u64| *count as f64 / self.images.max(1) as f64;
        self.truth.iter().map(share).zip(self.answers.iter().map(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Images as `[truth, answer, count]`.
    fn of(images: &[[usize; 3]]) -> Agreement {
        let mut agreement = Agreement::new(3);
        images.iter().for_each(|&[truth, answer, count]| agreement.add(truth, answer, count as u64));
        agreement
    }

    #[test]
    fn a_rare_class_that_is_recognized_is_far_from_chance() {
        // 260 to 1, all right: the expected share is 0.992367, the hypergeometric standard deviation of the right ones 0.12238 images.
        let found = of(&[[0, 0, 260], [1, 1, 1]]);
        assert!((found.expected() - 0.992_366_8).abs() < 1e-6, "{}", found.expected());
        assert!((found.errors_above_chance() - 16.155).abs() < 0.01, "{}", found.errors_above_chance());
        assert_eq!((found.observed(), found.images()), (1.0, 261));
    }

    #[test]
    fn answers_that_do_not_depend_on_the_image_are_at_chance() {
        assert_eq!(
            of(&[[0, 0, 260], [1, 0, 1]]).errors_above_chance(),
            0.0,
            "always the most frequent class"
        );
        assert_eq!(of(&[[0, 0, 40]]).errors_above_chance(), 0.0, "there is one class alone");
        let random = of(&[[0, 0, 16], [0, 1, 8], [1, 0, 8], [1, 1, 4]]);
        assert!(random.errors_above_chance().abs() < 1e-12);
        assert!((random.expected() - random.observed()).abs() < 1e-12);
        assert!((random.most_frequent() - 24.0 / 36.0).abs() < 1e-12);
        let opposite = of(&[[0, 1, 20], [1, 0, 20]]);
        assert!(opposite.errors_above_chance() < -6.0, "always wrong is no chance, and no learning");
    }

    #[test]
    fn equal_classes_give_the_usual_error_of_a_share() {
        // 60 of 100 right, both answers as often: half is expected, with a standard error of 0.05.
        let found = of(&[[0, 0, 30], [0, 1, 20], [1, 0, 20], [1, 1, 30]]);
        assert!((found.errors_above_chance() - 2.0).abs() < 1e-9);
    }
}
