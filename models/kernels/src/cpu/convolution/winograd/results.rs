//! What a convolution in tiles gives, and the gradients of it: all outputs, or the largest of each two by two with their taps.

use super::Filters;
use crate::cpu::threads::Shared;
use burn::backend::flex::FlexTensor;
use std::ops::Range;

/// The result of a convolution.
pub(in super::super) struct Convolved {
    pub(in super::super) y: FlexTensor,
    /// For each of the largest outputs, its tap, if that is wanted.
    pub(in super::super) winners: Vec<u8>,
    /// The transposed filters for the [gradients](super::Tiles::gradients), if they are wanted and at hand.
    pub(in super::super) transposed: Option<Filters>,
}

/// The gradients of a convolution's results.
#[derive(Clone, Copy)]
pub(in super::super) struct ResultGradients<'a> {
    pub(in super::super) dy: &'a [f32],
    /// For each of the largest outputs, its tap; nothing without pooling.
    pub(in super::super) winners: &'a [u8],
}

/// Results to write, and the taps of the largest outputs, unless the memory for these is empty.
pub(super) struct Results<'a> {
    pub(super) y: &'a mut [f32],
    pub(super) winners: &'a mut [u8],
}

/// Memory for the results of all images, of which each task writes those of some.
#[derive(Clone, Copy)]
pub(super) struct SharedResults<'a> {
    pub(super) y: Shared<'a>,
    pub(super) winners: Shared<'a, u8>,
    /// The results of an image.
    pub(super) image: usize,
}

impl<'a> SharedResults<'a> {
    /// The results of some images.
    ///
    /// # Safety
    ///
    /// While they are in use, no other task may use the results of these images.
    pub(super) unsafe fn of(&self, images: &Range<usize>) -> Results<'a> {
        let range = images.start * self.image..images.end * self.image;
        let kept = if self.winners.len() == 0 { 0..0 } else { range.clone() };
        // SAFETY: as the caller promises.
        unsafe { Results { y: self.y.slice(range), winners: self.winners.slice(kept) } }
    }
}

impl<'a> ResultGradients<'a> {
    /// Those of some images, each with `image` results.
    pub(super) fn of(self, images: &Range<usize>, image: usize) -> Self {
        let range = images.start * image..images.end * image;
        let winners = if self.winners.is_empty() { self.winners } else { &self.winners[range.clone()] };
        Self { dy: &self.dy[range], winners }
    }
}
