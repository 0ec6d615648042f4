//! Sums over chunks of rows, such as the gradient of a weight: one for each chunk, until they are added up in order.

use super::{Buffer, Shared, parallel_elements};
use crate::cpu::simd;

/// Sums over chunks of rows, one for each chunk until all are done. The first lies where the total will, as a gradient lives until the
/// optimizer's step and the others need not.
pub(crate) struct Sums {
    first: Buffer,
    others: Buffer,
    size: usize,
}

impl Sums {
    /// `size` sums for each chunk, to be written before they are read; 0 if there is no chunk.
    pub(crate) fn new(size: usize, chunks: usize) -> Self {
        let mut first = Buffer::new(size);
        if chunks == 0 {
            // SAFETY: nothing else uses the buffer.
            unsafe { first.shared().slice(0..size) }.fill(0.0);
        }
        Self { first, others: Buffer::new(chunks.saturating_sub(1) * size), size }
    }

    pub(crate) fn shared(&mut self) -> SharedSums<'_> {
        SharedSums { first: self.first.shared(), others: self.others.shared() }
    }

    /// The sums over all chunks, added up in order.
    ///
    /// # Safety
    ///
    /// Each chunk's task wrote its sums.
    pub(crate) unsafe fn total(self) -> Vec<f32> {
        let size = self.size;
        // SAFETY: as the caller promises; without a chunk they are zeros.
        let (mut total, others) = unsafe { (self.first.written(), self.others.written()) };
        if !others.is_empty() {
            let first = Shared::new(&mut total);
            parallel_elements(size, |range| {
                // SAFETY: the ranges are disjoint.
                let sums = unsafe { first.slice(range.clone()) };
                for other in others.chunks_exact(size) {
                    simd::add(sums, &other[range.clone()]);
                }
            });
        }
        total
    }
}

/// [`Sums`] that tasks write, each its chunk's.
pub(crate) struct SharedSums<'a> {
    first: Shared<'a>,
    others: Shared<'a>,
}

impl<'a> SharedSums<'a> {
    /// The sums of a chunk.
    ///
    /// # Safety
    ///
    /// No other task may have the same chunk.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, chunk: usize) -> &'a mut [f32] {
        let size = self.first.len();
        // SAFETY: the chunks have parts of their own, and no other task has this chunk, as the caller promises.
        unsafe {
            match chunk {
                0 => self.first.slice(0..size),
                _ => self.others.slice((chunk - 1) * size..chunk * size),
            }
        }
    }
}
