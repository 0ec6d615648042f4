//! Validation and test images whose pixels are also trained on, from other files: saved again, or with another text in them.
//!
//! Splits are chosen by the bytes of files, as decoding every image before the first step would take as long as an epoch. Pixels are
//! compared as they are decoded for training: once, when every training image was seen or the run is over.

use std::collections::HashMap;

use vitrine_datasets::Sample;

use crate::evaluate::Predicted;
use crate::names::first_few;

/// The keys of the pixels that were seen in training, each with the first image that has them.
#[derive(Debug, Default)]
pub(super) struct PixelCopies {
    images: HashMap<u64, usize>,
    seen: Vec<bool>,
    unseen: usize,
}

impl PixelCopies {
    /// Of so many training images, none of which was seen yet.
    pub(super) fn new(images: usize) -> Self {
        Self { images: HashMap::new(), seen: vec![false; images], unseen: images }
    }

    /// Takes note of the keys of training images.
    pub(super) fn saw(&mut self, indices: &[usize], keys: &[u64]) {
        for (&index, &key) in indices.iter().zip(keys) {
            if !std::mem::replace(&mut self.seen[index], true) {
                self.unseen -= 1;
            }
            self.images.entry(key).or_insert(index);
        }
    }

    /// Whether every training image was seen, but for some that cannot be read.
    pub(super) fn is_complete(&self, unreadable: usize) -> bool {
        self.unseen <= unreadable
    }

    /// What to say of the images of `measured`, of which `predicted` are some, that have the pixels of images of `trained`.
    pub(super) fn remark(
        &self,
        trained: &[Sample],
        measured: &[Sample],
        predicted: &Predicted,
    ) -> Option<String> {
        let pairs = predicted.indices.iter().zip(&predicted.pixel_keys).filter_map(|(&index, key)| {
            let twin = *self.images.get(key)?;
            Some(format!("{} = {}", measured[index].source.name(), trained[twin].source.name()))
        });
        let pairs: Vec<String> = pairs.collect();
        (!pairs.is_empty()).then(|| {
            format!(
                "warning: {} validation images have the same pixels as training images in other files, so they are recognized too well: \
                 {}; keep one file of each (`vitrine inspect` lists them)",
                pairs.len(),
                first_few(pairs)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use vitrine_datasets::ImageSource;

    use super::*;
    use crate::evaluate::Predictions;

    #[test]
    fn copies_are_named_once_all_training_images_were_seen() {
        let samples = |names: &[&str]| -> Vec<Sample> {
            names.iter().map(|name| Sample { label: 0, source: ImageSource::File(name.into()) }).collect()
        };
        let (trained, measured) = (samples(&["a", "b", "c", "d"]), samples(&["e", "f"]));
        let mut copies = PixelCopies::new(4);
        copies.saw(&[2, 0], &[30, 10]);
        copies.saw(&[2], &[30]);
        assert!(!copies.is_complete(1));
        copies.saw(&[1], &[10]);
        assert!(copies.is_complete(1) && !copies.is_complete(0));
        let predicted = |keys: [u64; 2]| Predicted {
            predictions: Predictions::new(1),
            indices: vec![0, 1],
            pixel_keys: keys.to_vec(),
            bad: Vec::new(),
        };
        let remark = copies.remark(&trained, &measured, &predicted([7, 10])).unwrap_or_default();
        assert!(remark.contains("1 validation images") && remark.contains("f = a"), "{remark}");
        assert_eq!(copies.remark(&trained, &measured, &predicted([7, 8])), None);
    }
}
