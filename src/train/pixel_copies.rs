//! Detection of images with equal pixels in different files, such as files that were saved again or have other
//! metadata: a validation image that equals a training image, and training images of two classes.
//!
//! Splits compare the bytes of files only, because decoding every image before the first step would take as long as an
//! epoch. Pixels are hashed while images are decoded for training, and compared once: when every training image has
//! been decoded, or at the end of the run.

use std::collections::{BTreeMap, HashMap};

use vitrine_datasets::Sample;

use crate::evaluate::Predicted;
use crate::text::first_few;

/// Hashes of the pixels of training images, each with the first image that has it.
#[derive(Debug, Default)]
pub(super) struct PixelCopies {
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
    /// Starts with `images` training images, none of which has been hashed.
    pub(super) fn new(images: usize) -> Self {
        Self { seen: vec![false; images], unseen: images, ..Self::default() }
    }

    /// Adds the pixel hashes (`keys`) of the training images at `indices`.
    pub(super) fn add(&mut self, trained: &[Sample], indices: &[usize], keys: &[u64]) {
        for (&index, &key) in indices.iter().zip(keys) {
            if !std::mem::replace(&mut self.seen[index], true) {
                self.unseen -= 1;
            }
            let first = *self.images.entry(key).or_insert(index);
            if trained[first].labels != trained[index].labels {
                self.contradictions.insert(index, first);
            }
        }
    }

    /// Whether every training image has been hashed, except for `unreadable` ones.
    pub(super) fn is_complete(&self, unreadable: usize) -> bool {
        self.unseen <= unreadable
    }

    /// Warnings about images with equal pixels. The first is about images of `measured` that equal one of `trained`;
    /// `predicted` has the hashes of those that were decoded. The second is about images of `trained` that equal one of
    /// another class.
    pub(super) fn remarks(
        &self,
        trained: &[Sample],
        measured: &[Sample],
        predicted: &Predicted,
    ) -> Vec<String> {
        let pairs = predicted.indices.iter().zip(&predicted.pixel_keys);
        let copies =
            pairs.filter_map(|(&index, key)| Some((&measured[index], &trained[*self.images.get(key)?])));
        let contradictions =
            self.contradictions.iter().map(|(&index, &first)| (&trained[index], &trained[first]));
        let copies = remark(
            copies.collect(),
            "validation images have the same pixels as training images in other files, so they do not show what the model makes of new images",
        );
        let contradictions = remark(
            contradictions.collect(),
            "training images have the same pixels as others of another class, so their labels contradict each other",
        );
        copies.into_iter().chain(contradictions).collect()
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
        let (trained, measured) = (samples(&["a", "b", "c", "d"]), samples(&["e", "f"]));
        let mut copies = PixelCopies::new(4);
        copies.add(&trained, &[2, 0], &[30, 10]);
        copies.add(&trained, &[2], &[30]);
        assert!(!copies.is_complete(1));
        copies.add(&trained, &[1], &[10]);
        assert!(copies.is_complete(1) && !copies.is_complete(0));
        let predicted = |keys: [u64; 2]| Predicted {
            predictions: Predictions::new(1),
            indices: vec![0, 1],
            pixel_keys: keys.to_vec(),
            bad: Vec::new(),
        };
        let remarks = copies.remarks(&trained, &measured, &predicted([7, 10]));
        assert_eq!(remarks.len(), 2);
        assert!(remarks[0].contains("1 validation images") && remarks[0].contains("f = a"), "{remarks:?}");
        assert!(remarks[1].contains("1 training images") && remarks[1].contains("b = a"), "{remarks:?}");
        assert_eq!(copies.remarks(&trained, &measured, &predicted([7, 8])).len(), 1);
    }
}
