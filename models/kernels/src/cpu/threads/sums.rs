//! Sums over all rows, such as the gradient of a weight, which the chunks of rows compute separately and which are then
//! added in order.

use super::{Buffer, Shared, parallel_elements};
use crate::cpu::simd;

/// The sums of each chunk. Those of the first chunk have a buffer of their own, which becomes the total: a gradient
/// lives until the optimizer's step, and the memory of the other chunks is freed earlier.
pub(crate) struct Sums {
    first: Buffer,
    others: Buffer,
    size: usize,
}

impl Sums {
    /// `size` sums for each chunk, not initialized. Without chunks the total is 0.
    pub(crate) fn new(size: usize, chunks: usize) -> Self {
        let mut first = Buffer::new(size);
        if chunks == 0 {
            // SAFETY: no other task uses the new buffer.
            unsafe { first.shared().slice(0..size) }.fill(0.0);
        }
        Self { first, others: Buffer::new(chunks.saturating_sub(1) * size), size }
    }

    pub(crate) fn shared(&mut self) -> SharedSums<'_> {
        SharedSums { first: self.first.shared(), others: self.others.shared() }
    }

    /// The total: the sums of all chunks, added in order.
    ///
    /// # Safety
    ///
    /// All sums of every chunk must have been written.
    pub(crate) unsafe fn total(self) -> Vec<f32> {
        let size = self.size;
        // SAFETY: the sums of every chunk were written, as the caller promises; without chunks, `new` wrote zeros.
        let (mut total, others) = unsafe { (self.first.written(), self.others.written()) };
        if !others.is_empty() {
            let first = Shared::new(&mut total);
            parallel_elements(size, |range| {
                // SAFETY: the ranges of the tasks are disjoint.
                let sums = unsafe { first.slice(range.clone()) };
                for other in others.chunks_exact(size) {
                    simd::add(sums, &other[range.clone()]);
                }
            });
        }
        total
    }
}

/// [`Sums`] that tasks write, each those of its own chunk.
pub(crate) struct SharedSums<'a> {
    first: Shared<'a>,
    others: Shared<'a>,
}

impl<'a> SharedSums<'a> {
    /// The sums of a chunk.
    ///
    /// # Safety
    ///
    /// While the result is in use, no other task may read or write the sums of this chunk, and they must be written
    /// before they are read.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, chunk: usize) -> &'a mut [f32] {
        let size = self.first.len();
        // SAFETY: the sums of the chunks are disjoint, and no other task uses those of this chunk, as the caller
        // promises.
        unsafe {
            match chunk {
                0 => self.first.slice(0..size),
                _ => self.others.slice((chunk - 1) * size..chunk * size),
            }
        }
    }
}
