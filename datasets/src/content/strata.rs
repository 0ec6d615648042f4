//! The strata of a split: groups of images, of each of which both sides of the split get their share.

use crate::Labels;

/// The strata of the training images: one for each class, and one for the images without a class.
///
/// An image of several classes belongs to the rarest of them, so that rare classes are divided as evenly as possible
/// (the idea of Sechidis et al. 2011, iterative stratification, in a single pass).
pub(super) struct Strata {
    /// Number of training images of each class.
    sizes: Vec<usize>,
}

impl Strata {
    /// The strata of training images with these labels, each of which is one of `classes` classes.
    pub(super) fn of<'a>(labels: impl Iterator<Item = &'a Labels>, classes: usize) -> Self {
        let mut sizes = vec![0; classes];
        labels.flat_map(|labels| labels.iter()).for_each(|class| sizes[*class] += 1);
        Self { sizes }
    }

    /// Number of strata.
    pub(super) fn len(&self) -> usize {
        self.sizes.len() + 1
    }

    /// The index of the stratum of an image with these labels: that of its rarest class, or the last one without labels.
    pub(super) fn stratum(&self, labels: &Labels) -> usize {
        labels.iter().copied().min_by_key(|class| self.sizes[*class]).unwrap_or(self.sizes.len())
    }
}
