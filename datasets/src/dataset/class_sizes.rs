//! The number of images of each class, and class weights that balance them.

use crate::Sample;

/// Number of images of each class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassSizes(Vec<usize>);

impl ClassSizes {
    /// Counts the samples of each of `classes` classes.
    ///
    /// # Panics
    ///
    /// If a label is not below `classes`.
    pub fn of(samples: &[Sample], classes: usize) -> Self {
        let mut sizes = vec![0; classes];
        for class in samples.iter().flat_map(|sample| sample.labels.iter()) {
            sizes[*class] += 1;
        }
        Self(sizes)
    }

    /// Index and size of the smallest and of the largest class that have images; of several equal ones, the first.
    /// `None` if no class has images.
    pub fn extremes(&self) -> Option<[(usize, usize); 2]> {
        let sizes = || self.0.iter().copied().enumerate().filter(|(_, size)| *size > 0);
        let smallest = sizes().min_by_key(|(_, size)| *size)?;
        Some([smallest, sizes().rev().max_by_key(|(_, size)| *size)?])
    }

    /// The weight of an image of each class, as scikit-learn's `class_weight="balanced"`: `images / (classes * images
    /// of the class)`, where `classes` counts those that have images. Each class has the same total weight, and the
    /// mean weight of all images is 1. The weight of a class without images is 0.
    pub fn balanced_weights(&self) -> Vec<f32> {
        let images: usize = self.0.iter().sum();
        let classes = self.0.iter().filter(|size| **size > 0).count();
        let weight = |&size: &usize| if size == 0 { 0.0 } else { images as f32 / (classes * size) as f32 };
        self.0.iter().map(weight).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ImageSource;

    fn sizes(sizes: &[usize]) -> ClassSizes {
        let sample =
            |label| Sample { labels: usize::into(label), source: ImageSource::Drawn { class: 0, seed: 0 } };
        let samples: Vec<Sample> =
            sizes.iter().enumerate().flat_map(|(label, &size)| vec![sample(label); size]).collect();
        ClassSizes::of(&samples, sizes.len())
    }

    #[test]
    fn weights_are_those_of_scikit_learn_and_have_mean_1() {
        // sklearn.utils.class_weight.compute_class_weight("balanced", classes=[0, 1, 2], y=[0] * 6 + [1] * 2 + [2] * 4)
        let weights = sizes(&[6, 2, 4]).balanced_weights();
        for (weight, expected) in weights.iter().zip([2.0 / 3.0, 2.0, 1.0]) {
            assert!((weight - expected).abs() < 1e-6, "{weights:?}");
        }
        for counts in [&[90, 9, 1][..], &[5, 0, 15], &[3, 3]] {
            let weights = sizes(counts).balanced_weights();
            let together: Vec<f32> =
                counts.iter().zip(&weights).map(|(&size, weight)| size as f32 * weight).collect();
            let images: usize = counts.iter().sum();
            assert!((together.iter().sum::<f32>() / images as f32 - 1.0).abs() < 1e-6, "{weights:?}");
            let present = || together.iter().filter(|weight| **weight > 0.0);
            assert!(present().all(|weight| (weight - together[0]).abs() < 1e-4), "{together:?}");
        }
    }

    #[test]
    fn classes_without_images_are_neither_smallest_nor_largest() {
        assert_eq!(sizes(&[4, 0, 9, 1, 9]).extremes(), Some([(3, 1), (2, 9)]));
        assert_eq!(sizes(&[2, 2]).extremes(), Some([(0, 2), (0, 2)]));
        assert_eq!(sizes(&[0, 0]).extremes(), None);
    }
}
