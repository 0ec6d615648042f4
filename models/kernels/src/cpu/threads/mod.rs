//! Parallel loops over chunks of rows or elements, on a [pool] of threads. Tasks write [shared] memory, each its own
//! part.

mod pool;
mod shared;
pub(crate) mod sums;

pub(crate) use shared::{Buffer, Shared};

use std::cell::Cell;
use std::ops::Range;
use std::thread::LocalKey;

/// Runs `task` for every index below `tasks` on the [pool]. A thread that has finished takes over tasks that a slower
/// one has not begun, so that the result of a task must not depend on the thread that runs it.
pub(crate) fn parallel(tasks: usize, task: impl Fn(usize) + Sync) {
    pool::run(tasks, &task);
}

/// [`parallel`] in groups of tasks that share scratch memory. The groups are small enough that a late thread does not
/// delay the others.
pub(crate) fn parallel_with<S>(
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

/// Runs `task` with memory for `length` elements, which hold any values: its thread keeps the memory for later tasks, so that
/// it is neither zeroed nor returned to the system between them.
pub(crate) fn with_scratch<R>(length: usize, task: impl FnOnce(&mut [f32]) -> R) -> R {
    thread_local!(static KEPT: Cell<Vec<f32>> = const { Cell::new(Vec::new()) });
    with_kept(&KEPT, length, task)
}

/// [`with_scratch`] whose memory is in `kept`: for tasks within others, which need memory of their own.
pub(crate) fn with_kept<T: Copy + Default + 'static, R>(
    kept: &'static LocalKey<Cell<Vec<T>>>,
    length: usize,
    task: impl FnOnce(&mut [T]) -> R,
) -> R {
    let mut memory = kept.take();
    if memory.len() < length {
        memory = vec![T::default(); length];
    }
    let result = task(&mut memory[..length]);
    kept.set(memory);
    result
}

/// [`with_scratch`] whose memory begins a cache line.
#[cfg(target_arch = "x86_64")]
pub(crate) fn with_aligned_scratch<R>(length: usize, task: impl FnOnce(&mut [f32]) -> R) -> R {
    const LINE: usize = 64;
    with_scratch(length + LINE / size_of::<f32>(), |memory| {
        let before = memory.as_ptr().align_offset(LINE);
        task(&mut memory[before..][..length])
    })
}

/// Runs `task` on disjoint ranges that together cover `length` elements.
pub(crate) fn parallel_elements(length: usize, task: impl Fn(Range<usize>) + Sync) {
    const GROUP: usize = 64;
    let chunks = Chunks::new(length.div_ceil(GROUP), 128);
    parallel(chunks.count(), |index| {
        let groups = chunks.range(index);
        task(groups.start * GROUP..(groups.end * GROUP).min(length));
    });
}

/// Runs `task` for each of `rows` rows of `width` elements. Short rows are grouped, so that a thread takes several at a
/// time; for rows without elements, nothing runs.
pub(crate) fn parallel_rows(rows: usize, width: usize, task: impl Fn(usize) + Sync) {
    const ELEMENTS: usize = 8192;
    let chunks = Chunks::new(if width == 0 { 0 } else { rows }, ELEMENTS / width.clamp(1, ELEMENTS));
    parallel(chunks.count(), |index| chunks.range(index).for_each(&task));
}

/// The most rows of a chunk, unless its operation asks for more: a product of more rows is not faster, and its output
/// leaves the cache.
const LARGEST_CHUNK: usize = 768;

/// `length` rows, cut into disjoint ranges of about the same size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunks {
    length: usize,
    count: usize,
    /// The ranges begin at multiples of this number.
    group: usize,
}

impl Chunks {
    /// About eight ranges per thread, so that a late thread does not delay the others, of about `smallest` rows or more
    /// and at most [`LARGEST_CHUNK`].
    pub(crate) fn new(length: usize, smallest: usize) -> Self {
        let size =
            length.div_ceil(8 * rayon::current_num_threads()).clamp(smallest, LARGEST_CHUNK.max(smallest));
        Self { length, count: length.div_ceil(size), group: 1 }
    }

    /// Four ranges per thread, or fewer so that each has at least `smallest` rows: for operations that need a sum for
    /// each range.
    pub(crate) fn few(length: usize, smallest: usize) -> Self {
        let count = (length / smallest.max(1)).clamp(1, 4 * rayon::current_num_threads());
        Self { length, count: count.min(length), group: 1 }
    }

    /// Ranges of at most `size` rows. [Groups](Self::in_groups) may add less than a group to a range.
    pub(crate) fn of(length: usize, size: usize) -> Self {
        Self { length, count: length.div_ceil(size), group: 1 }
    }

    /// The same, with ranges of whole groups of rows, apart from the end: for operations that compute a group of rows
    /// at a time.
    pub(crate) fn in_groups(self, group: usize) -> Self {
        Self { count: self.count.min(self.length.div_ceil(group)), group, ..self }
    }

    pub(crate) fn count(self) -> usize {
        self.count
    }

    pub(crate) fn range(self, index: usize) -> Range<usize> {
        let groups = self.length.div_ceil(self.group);
        let start = |index: usize| (index * groups / self.count * self.group).min(self.length);
        start(index)..start(index + 1)
    }

    /// The length of the longest range.
    pub(crate) fn longest(self) -> usize {
        (0..self.count).map(|index| self.range(index).len()).max().unwrap_or(0)
    }

    /// All ranges, shifted by `offset` rows.
    pub(crate) fn ranges_after(self, offset: usize) -> impl Iterator<Item = Range<usize>> {
        (0..self.count).map(move |index| {
            let range = self.range(index);
            offset + range.start..offset + range.end
        })
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
                // The last range may end with a part of a group.
                assert!(longest < shortest.saturating_add(2 * group), "{chunks:?}");
            }
            assert!(Chunks::of(length, 256).ranges_after(0).all(|range| range.len() <= 256));
            assert!(length < 128 || Chunks::few(length, 128).ranges_after(0).all(|range| range.len() >= 128));
        }
    }
}
