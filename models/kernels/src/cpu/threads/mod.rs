//! Work on all threads: buffers cut into parts that tasks fill at the same time.

mod pool;
mod shared;
pub(crate) mod sums;

pub(crate) use shared::{Buffer, Shared};

use std::ops::Range;

/// Runs `task` for every index on the [pool], each by itself: a thread takes over what a slower one has not begun. What a task computes
/// must not depend on which thread runs it.
pub(crate) fn parallel(tasks: usize, task: impl Fn(usize) + Sync) {
    pool::run(tasks, &task);
}

/// [`parallel`] in groups that share scratch memory, small enough that a late thread does not hold up the others.
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

/// Runs `task` on ranges that together cover `length` elements.
pub(crate) fn parallel_elements(length: usize, task: impl Fn(Range<usize>) + Sync) {
    const GROUP: usize = 64;
    let chunks = Chunks::new(length.div_ceil(GROUP), 128);
    parallel(chunks.count(), |index| {
        let groups = chunks.range(index);
        task(groups.start * GROUP..(groups.end * GROUP).min(length));
    });
}

/// Runs `task` for each of `rows` rows of `width` elements, several at a time if they are short; not at all if they are empty.
pub(crate) fn parallel_rows(rows: usize, width: usize, task: impl Fn(usize) + Sync) {
    const ELEMENTS: usize = 8192;
    let chunks = Chunks::new(if width == 0 { 0 } else { rows }, ELEMENTS / width.clamp(1, ELEMENTS));
    parallel(chunks.count(), |index| chunks.range(index).for_each(&task));
}

/// More rows would not make a product faster, but leave the cache.
const LARGEST_CHUNK: usize = 768;

/// `length` rows cut into ranges of about the same size, several for each thread so that a late thread does not hold up the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunks {
    length: usize,
    count: usize,
    /// The ranges begin at multiples of this.
    group: usize,
}

impl Chunks {
    /// Ranges of about `smallest` rows or more, and of at most [`LARGEST_CHUNK`].
    pub(crate) fn new(length: usize, smallest: usize) -> Self {
        let size =
            length.div_ceil(8 * rayon::current_num_threads()).clamp(smallest, LARGEST_CHUNK.max(smallest));
        Self { length, count: length.div_ceil(size), group: 1 }
    }

    /// Four ranges for each thread if they have at least `smallest` rows, else fewer: for what is summed over the rows, one sum a range.
    pub(crate) fn few(length: usize, smallest: usize) -> Self {
        let count = (length / smallest.max(1)).clamp(1, 4 * rayon::current_num_threads());
        Self { length, count: count.min(length), group: 1 }
    }

    /// Ranges of at most `size` rows; with groups, of less than a group more.
    pub(crate) fn of(length: usize, size: usize) -> Self {
        Self { length, count: length.div_ceil(size), group: 1 }
    }

    /// The ranges begin and end between groups of so many rows: those that an operation takes at a time.
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

    /// All ranges, `offset` rows further on.
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
                // The last group may be a part of one.
                assert!(longest < shortest.saturating_add(2 * group), "{chunks:?}");
            }
            assert!(Chunks::of(length, 256).ranges_after(0).all(|range| range.len() <= 256));
            assert!(length < 128 || Chunks::few(length, 128).ranges_after(0).all(|range| range.len() >= 128));
        }
    }
}
