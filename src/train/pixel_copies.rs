//! Images with the same pixels in different files, saved again or with another text in them: in training and validation, or in two classes.
//!
//! Splits are chosen by the bytes of files, as decoding every image before the first step would take as long as an epoch. Pixels are
//! compared as they are decoded for training: once, when every training image was seen or the run is over.

use std::collections::{BTreeMap, HashMap};

use vitrine_datasets::Sample;

use crate::evaluate::Predicted;
use crate::text::first_few;

/// The keys of the pixels that were seen in training, each with the first image that has them.
#[derive(Debug, Default)]
pub(super) struct PixelCopies {
    images: HashMap<u64, usize>,
    /// Images of another class than the first image with the same pixels, which stands second.
    contradictions: BTreeMap<usize, usize>,
    seen: Vec<bool>,
    unseen: usize,
}

impl PixelCopies {
    /// Of so many training images, none of which was seen yet.
    pub(super) fn new(images: usize) -> Self {
        Self { seen: vec![false; images], unseen: images, ..Self::default() }
    }

    /// Takes note of the keys of some of the training images.
    pub(super) fn saw(&mut self, trained: &[Sample], indices: &[usize], keys: &[u64]) {
        for (&index, &key) in indices.iter().zip(keys) {
            if !std::mem::replace(&mut self.seen[index], true) {
                self.unseen -= 1;
            }
            let first = *self.images.entry(key).or_insert(index);
            if trained[first].label != trained[index].label {
                self.contradictions.insert(index, first);
            }
        }
    }

    /// Whether every training image was seen, but for some that cannot be read.
    pub(super) fn is_complete(&self, unreadable: usize) -> bool {
        self.unseen <= unreadable
    }

    /// What to say of the images of `measured`, of which `predicted` are some, that have the pixels of images of `trained`, and of those of
    /// `trained` that have the pixels of another class.
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

/// A remark about images and the others that each of them is a copy of; none without any.
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
    fn copies_are_named_once_all_training_images_were_seen() {
        let samples = |names: &[&str]| -> Vec<Sample> {
            let sample =
                |(label, name): (usize, &&str)| Sample { label, source: ImageSource::File(name.into()) };
            names.iter().enumerate().map(sample).collect()
        };
        let (trained, measured) = (samples(&["a", "b", "c", "d"]), samples(&["e", "f"]));
        let mut copies = PixelCopies::new(4);
        copies.saw(&trained, &[2, 0], &[30, 10]);
        copies.saw(&trained, &[2], &[30]);
        assert!(!copies.is_complete(1));
        copies.saw(&trained, &[1], &[10]);
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
