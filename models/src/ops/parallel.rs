//! Work on the thread pool: buffers cut into parts that tasks fill at the same time.

use rayon::prelude::*;
use std::marker::PhantomData;
use std::ops::Range;

/// A buffer whose every element the caller writes before it reads any: fresh pages are not zeroed twice.
#[allow(clippy::uninit_vec)]
pub(super) fn buffer(length: usize) -> Vec<f32> {
    let mut data = Vec::with_capacity(length);
    // SAFETY: the capacity is `length`, f32 has no invalid bit pattern, and the callers write every element first.
    unsafe { data.set_len(length) };
    data
}

/// Runs `task` for every index on the thread pool. What a task computes must not depend on which thread runs it.
pub(super) fn parallel(tasks: usize, task: impl Fn(usize) + Send + Sync) {
    match tasks {
        0 => (),
        1 => task(0),
        _ => (0..tasks).into_par_iter().for_each(task),
    }
}

/// Runs `task` on ranges that together cover `length` elements.
pub(super) fn parallel_elements(length: usize, task: impl Fn(Range<usize>) + Send + Sync) {
    const GROUP: usize = 64;
    let chunks = Chunks::new(length.div_ceil(GROUP), 128);
    parallel(chunks.count(), |index| {
        let groups = chunks.range(index);
        task(groups.start * GROUP..(groups.end * GROUP).min(length));
    });
}

/// More rows would not make a product faster, but leave the cache.
const LARGEST_CHUNK: usize = 768;

/// `length` rows cut into equal ranges, several for each thread so that a late thread does not hold up the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunks {
    length: usize,
    size: usize,
}

impl Chunks {
    /// Ranges of at least `smallest` rows and at most [`LARGEST_CHUNK`].
    pub(super) fn new(length: usize, smallest: usize) -> Self {
        let size =
            length.div_ceil(4 * rayon::current_num_threads()).clamp(smallest, LARGEST_CHUNK.max(smallest));
        Self { length, size }
    }

    /// Two ranges for each thread if they have at least `smallest` rows, else fewer: for what is summed over the rows, one sum a range.
    pub(super) fn few(length: usize, smallest: usize) -> Self {
        Self { length, size: length.div_ceil(2 * rayon::current_num_threads()).max(smallest) }
    }

    pub(super) fn count(self) -> usize {
        self.length.div_ceil(self.size)
    }

    pub(super) fn range(self, index: usize) -> Range<usize> {
        index * self.size..((index + 1) * self.size).min(self.length)
    }
}

/// A mutable buffer that several tasks write at once, each its own part.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    start: *mut f32,
    length: usize,
    marker: PhantomData<&'a mut [f32]>,
}

// SAFETY: every way to write through it is unsafe and asks for disjoint parts.
unsafe impl Send for Shared<'_> {}
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    pub(super) fn new(data: &'a mut [f32]) -> Self {
        Self { start: data.as_mut_ptr(), length: data.len(), marker: PhantomData }
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// The address of `length` elements from `offset` on.
    ///
    /// # Safety
    ///
    /// What is written through it must not be in use elsewhere at the same time.
    pub(super) unsafe fn pointer(&self, offset: usize, length: usize) -> *mut f32 {
        assert!(offset.checked_add(length).is_some_and(|end| length == 0 || end <= self.length));
        // SAFETY: in bounds by the assertion, but for an empty part, which is never followed.
        self.start.wrapping_add(offset)
    }

    /// The elements of `range`.
    ///
    /// # Safety
    ///
    /// No other part in use at the same time may overlap it.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn slice(&self, range: Range<usize>) -> &'a mut [f32] {
        assert!(range.start <= range.end && range.end <= self.length);
        // SAFETY: in bounds by the assertion, unaliased by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
