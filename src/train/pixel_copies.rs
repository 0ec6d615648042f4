//! Detection of images with equal pixels in different files, such as files that were saved again or have other
//! metadata: a validation or test image that equals a training image, and training images of two classes.
//!
//! Splits compare the bytes of files only, because decoding every image before the first step would take as long as an
//! epoch. Pixels are hashed while images are decoded for training. Those of the validation images are compared once: when
//! every training image has been decoded, or at the end of the run; and those of the test images when these are measured.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use vitrine_datasets::Sample;

use crate::evaluate::Predicted;
use crate::text::first_few;

/// Hashes of the pixels of training images, each with the first image that has it.
#[derive(Debug, Default)]
pub(crate) struct PixelCopies {
    /// The training images.
    trained: Arc<[Sample]>,
    /// For each hash, the index of the first training image that has it.
    images: HashMap<u64, usize>,
    /// Training images whose pixels equal those of an image of another class. Maps the index of an image to the index
    /// of that other image.
    contradictions: BTreeMap<usize, usize>,
    /// By index, whether a training image has been hashed.
    seen: Vec<bool>,
    /// Number of training images that have not been hashed.
    unseen: usize,
}

impl PixelCopies {
    /// Starts with the training images, none of which has been hashed.
    pub(super) fn new(trained: Arc<[Sample]>) -> Self {
        Self { seen: vec![false; trained.len()], unseen: trained.len(), trained, ..Self::default() }
    }

    /// Adds the pixel hashes (`keys`) of the training images at `indices`.
    pub(super) fn add(&mut self, indices: &[usize], keys: &[u64]) {
        for (&index, &key) in indices.iter().zip(keys) {
            if !std::mem::replace(&mut self.seen[index], true) {
                self.unseen -= 1;
            }
            let first = *self.images.entry(key).or_insert(index);
            if self.trained[first].labels != self.trained[index].labels {
                self.contradictions.insert(index, first);
            }
        }
    }

    /// Whether every training image has been hashed, except for `unreadable` ones.
    pub(super) fn is_complete(&self, unreadable: usize) -> bool {
        self.unseen <= unreadable
    }

    /// Warnings about images with equal pixels: about `validation` images that equal a training image, and about training
    /// images that equal one of another class. `predicted` has the hashes of the validation images that were decoded.
    pub(super) fn remarks(&self, validation: &[Sample], predicted: &Predicted) -> Vec<String> {
        let contradictions =
            self.contradictions.iter().map(|(&index, &first)| (&self.trained[index], &self.trained[first]));
        let contradictions = remark(
            contradictions.collect(),
            "training images have the same pixels as others of another class, so their labels contradict each other",
        );
        self.copies("validation", validation, predicted).into_iter().chain(contradictions).collect()
    }

    /// A warning about `test` images that equal a training image, as far as these were hashed. `predicted` has the hashes of
    /// the test images that were decoded.
    pub(crate) fn remark_on_test(&self, test: &[Sample], predicted: &Predicted) -> Option<String> {
        self.copies("test", test, predicted)
    }

    /// A warning about images of the split that is called `split`, `measured`, that equal a training image.
    fn copies(&self, split: &str, measured: &[Sample], predicted: &Predicted) -> Option<String> {
        let pairs = predicted.indices.iter().zip(&predicted.pixel_keys);
        let copies =
            pairs.filter_map(|(&index, key)| Some((&measured[index], &self.trained[*self.images.get(key)?])));
        let what = "have the same pixels as training images in other files, so they do not show what the model makes of new images";
        remark(copies.collect(), &format!("{split} images {what}"))
    }
}

/// A warning about pairs of images with equal pixels; `None` without pairs.
fn remark(pairs: Vec<(&Sample, &Sample)>, what: &str) -> Option<String> {
    let names =
        pairs.iter().map(|(image, other)| format!("{} = {}", image.source.name(), other.source.name()));
    let names = first_few(names);
    (!pairs.is_empty()).then(|| {
        format!(
            "warning: {} {what}: {names}; keep one file of each (`vitrine inspect` lists them)",
            pairs.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use vitrine_datasets::ImageSource;

    use super::*;
    use crate::evaluate::Predictions;

    #[test]
    fn equal_pixels_are_reported_after_all_training_images_are_hashed() {
        let samples = |names: &[&str]| -> Vec<Sample> {
            let sample = |(label, name): (usize, &&str)| Sample {
                labels: label.into(),
                source: ImageSource::File(name.into()),
            };
            names.iter().enumerate().map(sample).collect()
        };
        let measured = samples(&["e", "f"]);
        let mut copies = PixelCopies::new(samples(&["a", "b", "c", "d"]).into());
        copies.add(&[2, 0], &[30, 10]);
        copies.add(&[2], &[30]);
        assert!(!copies.is_complete(1));
        copies.add(&[1], &[10]);
        assert!(copies.is_complete(1) && !copies.is_complete(0));
        let predicted = |keys: [u64; 2]| Predicted {
            predictions: Predictions::new(1),
            indices: vec![0, 1],
            pixel_keys: keys.to_vec(),
            bad: Vec::new(),
        };
        let remarks = copies.remarks(&measured, &predicted([7, 10]));
        assert_eq!(remarks.len(), 2);
        assert!(remarks[0].contains("1 validation images") && remarks[0].contains("f = a"), "{remarks:?}");
        assert!(remarks[1].contains("1 training images") && remarks[1].contains("b = a"), "{remarks:?}");
        assert_eq!(copies.remarks(&measured, &predicted([7, 8])).len(), 1);
        let of_test = copies.remark_on_test(&measured, &predicted([30, 7]));
        assert!(of_test.is_some_and(|remark| remark.contains("1 test images") && remark.contains("e = c")));
        assert_eq!(copies.remark_on_test(&measured, &predicted([7, 8])), None);
        assert_eq!(PixelCopies::default().remark_on_test(&measured, &predicted([30, 10])), None);
    }
}
