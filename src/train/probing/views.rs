//! The features of images as they are and, if the head learns from these, of their mirror images.

use std::borrow::Cow;

use anyhow::{Result, ensure};

use crate::features::Features;

/// The features of a split.
pub(super) struct ViewFeatures {
    /// Of the images as they are.
    pub(super) one: Features,
    /// Of the same images in the mirror.
    mirrored: Option<Features>,
}

impl ViewFeatures {
    /// # Errors
    /// If not the same images could be read both times.
    pub(super) fn new(one: Features, mirrored: Option<Features>) -> Result<Self> {
        let same = mirrored.as_ref().is_none_or(|mirrored| mirrored.indices == one.indices);
        ensure!(same, "an image could be read once, and not the second time: are the images being changed?");
        Ok(Self { one, mirrored })
    }

    /// The features that a head is fitted to: those of the images, then those of their mirror images.
    pub(super) fn learned(&self) -> Cow<'_, Features> {
        let Some(mirrored) = &self.mirrored else { return Cow::Borrowed(&self.one) };
        Cow::Owned(Features {
            values: [&self.one.values[..], &mirrored.values].concat(),
            indices: [&self.one.indices[..], &mirrored.indices].concat(),
            pixel_keys: Vec::new(),
            bad: Vec::new(),
            computed: 0,
        })
    }

    /// The mean of both views, if there are two: the logits of a linear head for it are the mean of its logits for both.
    pub(super) fn mean(&self) -> Option<Features> {
        let mirrored = self.mirrored.as_ref()?;
        let values = self.one.values.iter().zip(&mirrored.values).map(|(one, other)| 0.5 * (one + other));
        Some(Features { values: values.collect(), ..self.one.clone() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn features(values: &[f32], indices: &[usize]) -> Features {
        Features { values: values.to_vec(), indices: indices.to_vec(), ..Features::default() }
    }

    #[test]
    fn a_head_learns_from_both_views_and_answers_by_their_mean() {
        let one = || features(&[1.0, 2.0, 3.0, 4.0], &[0, 2]);
        let alone = ViewFeatures::new(one(), None).unwrap();
        assert_eq!((alone.learned().values.len(), alone.mean().is_none()), (4, true));
        let both = ViewFeatures::new(one(), Some(features(&[5.0, 6.0, 7.0, 8.0], &[0, 2]))).unwrap();
        assert_eq!(both.learned().values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(both.learned().indices, [0, 2, 0, 2]);
        let mean = both.mean().unwrap();
        assert_eq!((mean.values, mean.indices), (vec![3.0, 4.0, 5.0, 6.0], vec![0, 2]));
        assert!(ViewFeatures::new(one(), Some(features(&[5.0, 6.0], &[0]))).is_err());
    }
}
