//! Work on all threads: buffers cut into parts that tasks fill at the same time.

use super::thread_pool;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;

/// Memory for floats that tasks write: fresh pages are not zeroed twice.
pub(in crate::ops) struct Buffer(Vec<MaybeUninit<f32>>);

impl Buffer {
    /// Room for so many elements, none of them written.
    pub(in crate::ops) fn new(length: usize) -> Self {
        let mut data = Vec::with_capacity(length);
        data.resize_with(length, MaybeUninit::uninit);
        Self(data)
    }

    /// The elements, for tasks to write.
    pub(in crate::ops) fn shared(&mut self) -> Shared<'_> {
        Shared { start: self.0.as_mut_ptr().cast(), length: self.0.len(), marker: PhantomData }
    }

    /// The elements.
    ///
    /// # Safety
    ///
    /// Each of them was written.
    pub(in crate::ops) unsafe fn written(self) -> Vec<f32> {
        let mut data = ManuallyDrop::new(self.0);
        // SAFETY: pointer, length and capacity are those of a vector that is not dropped; `MaybeUninit<f32>` has the size and alignment of
        // f32, and each element holds one, as the caller promises.
        unsafe { Vec::from_raw_parts(data.as_mut_ptr().cast(), data.len(), data.capacity()) }
    }
}

/// Runs `task` for every index on the [thread_pool], each by itself: a thread takes over what a slower one has not begun. What a task computes
/// must not depend on which thread runs it.
pub(in crate::ops) fn parallel(tasks: usize, task: impl Fn(usize) + Sync) {
    thread_pool::run(tasks, &task);
}

/// [`parallel`] in groups that share scratch memory, small enough that a late thread does not hold up the others.
pub(in crate::ops) fn parallel_with<S>(
    tasks: usize,
    scratch: impl Fn() -> S + Sync,
    task: impl Fn(&mut S, usize) + Sync,
) {
    let groups = Chunks::of(tasks, (tasks / (16 * rayon::current_num_threads())).max(1));
    parallel(groups.count(), |group| {
        let mut scratch = scratch();
        groups.range(group).for_each(|index| task(&mut scratch, index));
    });
}

/// Runs `task` on ranges that together cover `length` elements.
pub(in crate::ops) fn parallel_elements(length: usize, task: impl Fn(Range<usize>) + Sync) {
    const GROUP: usize = 64;
    let chunks = Chunks::new(length.div_ceil(GROUP), 128);
    parallel(chunks.count(), |index| {
        let groups = chunks.range(index);
        task(groups.start * GROUP..(groups.end * GROUP).min(length));
    });
}

/// Runs `task` for each of `rows` rows of `width` elements, several at a time if they are short; not at all if they are empty.
pub(in crate::ops) fn parallel_rows(rows: usize, width: usize, task: impl Fn(usize) + Sync) {
    const ELEMENTS: usize = 8192;
    let chunks = Chunks::new(if width == 0 { 0 } else { rows }, ELEMENTS / width.clamp(1, ELEMENTS));
    parallel(chunks.count(), |index| chunks.range(index).for_each(&task));
}

/// More rows would not make a product faster, but leave the cache.
const LARGEST_CHUNK: usize = 768;

/// `length` rows cut into ranges of about the same size, several for each thread so that a late thread does not hold up the others.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Chunks {
    length: usize,
    count: usize,
    /// The ranges begin at multiples of this.
    group: usize,
}

impl Chunks {
    /// Ranges of about `smallest` rows or more, and of at most [`LARGEST_CHUNK`].
    pub(in crate::ops) fn new(length: usize, smallest: usize) -> Self {
        let size =
            length.div_ceil(8 * rayon::current_num_threads()).clamp(smallest, LARGEST_CHUNK.max(smallest));
        Self { length, count: length.div_ceil(size), group: 1 }
    }

    /// Four ranges for each thread if they have at least `smallest` rows, else fewer: for what is summed over the rows, one sum a range.
    pub(in crate::ops) fn few(length: usize, smallest: usize) -> Self {
        let count = (length / smallest.max(1)).clamp(1, 4 * rayon::current_num_threads());
        Self { length, count: count.min(length), group: 1 }
    }

    /// Ranges of at most `size` rows; with groups, of less than a group more.
    pub(in crate::ops) fn of(length: usize, size: usize) -> Self {
        Self { length, count: length.div_ceil(size), group: 1 }
    }

    /// The ranges begin and end between groups of so many rows: those that an operation takes at a time.
    pub(in crate::ops) fn in_groups(self, group: usize) -> Self {
        Self { count: self.count.min(self.length.div_ceil(group)), group, ..self }
    }

    pub(in crate::ops) fn count(self) -> usize {
        self.count
    }

    pub(in crate::ops) fn range(self, index: usize) -> Range<usize> {
        let groups = self.length.div_ceil(self.group);
        let start = |index: usize| (index * groups / self.count * self.group).min(self.length);
        start(index)..start(index + 1)
    }

    /// All ranges, `offset` rows further on.
    pub(in crate::ops) fn ranges_after(self, offset: usize) -> impl Iterator<Item = Range<usize>> {
        (0..self.count).map(move |index| {
            let range = self.range(index);
            offset + range.start..offset + range.end
        })
    }
}

/// A mutable buffer that several tasks write at once, each its own part.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Shared<'a, T = f32> {
    start: *mut T,
    length: usize,
    marker: PhantomData<&'a mut [T]>,
}

// SAFETY: every way to write through it is unsafe and asks for disjoint parts.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(in crate::ops) fn new(data: &'a mut [T]) -> Self {
        Self { start: data.as_mut_ptr(), length: data.len(), marker: PhantomData }
    }

    pub(in crate::ops) fn len(&self) -> usize {
        self.length
    }

    /// The address of `length` elements from `offset` on.
    ///
    /// # Safety
    ///
    /// What is written through it must not be in use elsewhere at the same time.
    pub(in crate::ops) unsafe fn pointer(&self, offset: usize, length: usize) -> *mut T {
        assert!(offset.checked_add(length).is_some_and(|end| length == 0 || end <= self.length));
        // SAFETY: in bounds by the assertion, but for an empty part, which is never followed.
        self.start.wrapping_add(offset)
    }

    /// The elements of `range`. Those of a [`Buffer`] are written before they are read.
    ///
    /// # Safety
    ///
    /// No other part in use at the same time may overlap it.
    #[allow(clippy::mut_from_ref)]
    pub(in crate::ops) unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.length);
        // SAFETY: in bounds by the assertion; no other part that is in use overlaps `range`, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_all_rows_once_in_whole_groups() {
        for length in [0, 1, 31, 32, 33, 520, 1040, 4160, 5000] {
            for (chunks, group) in [
                (Chunks::new(length, 16), 1),
                (Chunks::few(length, 128), 1),
                (Chunks::new(length, 64).in_groups(64), 64),
                (Chunks::of(length, 256).in_groups(64), 64),
                (Chunks::of(length, usize::MAX), 1),
            ] {
                let (mut end, mut shortest, mut longest) = (0, usize::MAX, 0);
                for range in chunks.ranges_after(0) {
                    assert_eq!(range.start, end, "{chunks:?}");
                    assert!(range.start % group == 0 && range.end > range.start, "{chunks:?}: {range:?}");
                    (shortest, longest) = (shortest.min(range.len()), longest.max(range.len()));
                    end = range.end;
                }
                assert_eq!(end, length, "{chunks:?}");
                // The last group may be a part of one.
                assert!(longest < shortest.saturating_add(2 * group), "{chunks:?}");
            }
            assert!(Chunks::of(length, 256).ranges_after(0).all(|range| range.len() <= 256));
            assert!(length < 128 || Chunks::few(length, 128).ranges_after(0).all(|range| range.len() >= 128));
        }
    }
}
