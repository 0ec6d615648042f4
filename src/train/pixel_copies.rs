//! Detection of images with equal pixels in different files, such as files that were saved again or have other
//! metadata: a validation or test image that equals a training image, and training images of two classes.
//!
//! Splits compare the bytes of files only, because decoding every image before the first step would take as long as an
//! epoch. Pixels are hashed while images are decoded for training. Those of the validation images are compared once: when
//! every training image has been decoded, or at the end of the run; and those of the test images when these are measured.
//! An inspection decodes every image, and says the same in advance.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use vitrine_datasets::{ContentKey, Duplicate, DuplicateGroup, Sample, Split};

use crate::evaluate::Predicted;
use crate::text::first_few;

/// What is said of measured images that equal training images.
const NOT_NEW: &str = "have the same pixels as training images in other files, so they do not show what the model makes of new images";

/// What is said of training images that equal one of another class.
const CONTRADICTING: &str =
    "training images have the same pixels as others of another class, so their labels contradict each other";

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
        let name = |index: usize| self.trained[index].source.name();
        let contradictions = self.contradictions.iter().map(|(&index, &first)| (name(index), name(first)));
        let contradictions = described(contradictions.collect(), CONTRADICTING).map(warning);
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
        let copies = pairs.filter_map(|(&index, key)| {
            let trained = &self.trained[*self.images.get(key)?];
            Some((measured[index].source.name(), trained.source.name()))
        });
        described(copies.collect(), &format!("{split} images {NOT_NEW}")).map(warning)
    }
}

/// What a run would say of the groups of equal images that an inspection has found, without the word with which warnings
/// begin. Copies of a file are not counted: a run names them before it begins, and does not measure those of training images.
pub(crate) fn pixel_remarks(duplicates: &[DuplicateGroup]) -> Vec<String> {
    let copies = |split| names(duplicates.iter().flat_map(|group| copies_in(group, split)));
    let contradictions = names(duplicates.iter().flat_map(contradictions_in));
    let remarks = [
        described(copies(Split::Val), &format!("validation images {NOT_NEW}")),
        described(contradictions, CONTRADICTING),
        described(copies(Split::Test), &format!("test images {NOT_NEW}")),
    ];
    remarks.into_iter().flatten().collect()
}

/// The images of the split `measured` in a group of equal images, each with the training image that it equals.
fn copies_in(group: &DuplicateGroup, measured: Split) -> Vec<(&Duplicate, &Duplicate)> {
    let trained = || group.images.iter().filter(|image| image.split == Split::Train);
    let Some(first) = trained().next() else { return Vec::new() };
    let keys: HashSet<ContentKey> = trained().map(|image| image.key).collect();
    let copies = group.images.iter().filter(|image| image.split == measured && !keys.contains(&image.key));
    copies.map(|image| (image, first)).collect()
}

/// The training images in a group of equal images that are of another class than the first one, each with that one.
fn contradictions_in(group: &DuplicateGroup) -> Vec<(&Duplicate, &Duplicate)> {
    let mut trained = group.images.iter().filter(|image| image.split == Split::Train);
    let Some(first) = trained.next() else { return Vec::new() };
    let others = trained.filter(|image| image.class != first.class && image.key != first.key);
    others.map(|image| (image, first)).collect()
}

/// The names of pairs of images.
fn names<'a>(pairs: impl Iterator<Item = (&'a Duplicate, &'a Duplicate)>) -> Vec<(String, String)> {
    pairs.map(|(image, other)| (image.image.clone(), other.image.clone())).collect()
}

/// Says of how many images something holds, with the names of each and of the one that it equals; `None` without images.
fn described(pairs: Vec<(String, String)>, what: &str) -> Option<String> {
    let count = pairs.len();
    let names = first_few(pairs.into_iter().map(|(image, other)| format!("{image} = {other}")));
    (count > 0)
        .then(|| format!("{count} {what}: {names}; keep one file of each (`vitrine inspect` lists them)"))
}

/// The remark as a warning of a run.
fn warning(remark: String) -> String {
    format!("warning: {remark}")
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
