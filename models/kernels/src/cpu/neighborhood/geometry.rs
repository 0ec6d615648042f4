//! Where the neighbors of a grid's patches lie, as offsets along vectors of patches.

use crate::cpu::simd::LANES;
use crate::neighbors::Neighborhood;
use std::ops::Range;

/// The offsets of a neighborhood, and the shape of the planes that they are read from.
pub(super) struct Geometry {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) prefix: usize,
    /// The columns before and after those of the grid in a plane, so that every offset stays inside it.
    pub(super) padding: usize,
    /// The columns of a plane.
    pub(super) width: usize,
    /// The rows that the patches of a row attend to.
    pub(super) spans: Vec<Range<usize>>,
    /// The rows whose patches attend to a row.
    pub(super) readers: Vec<Range<usize>>,
    /// The most rows that a patch attends to.
    pub(super) tallest: usize,
    /// The smallest distance between a patch and a column that it attends to.
    pub(super) first_offset: isize,
    /// The number of distances between patches and columns.
    pub(super) offsets: usize,
    pub(super) segments: Vec<Segment>,
}

/// Up to [`LANES`] patches of a row.
pub(super) struct Segment {
    /// The column of the first patch.
    pub(super) start: usize,
    /// The distances that a patch of the segment uses, as indices from the smallest.
    pub(super) offsets: Range<usize>,
    /// For each of them, minus infinity in the lanes that do not use it.
    pub(super) mask: Vec<[f32; LANES]>,
}

impl Geometry {
    pub(super) fn new(neighborhood: Neighborhood) -> Self {
        let [rows, columns] = neighborhood.grid;
        let spans: Vec<Range<usize>> = (0..rows).map(|row| neighborhood.span(0, row)).collect();
        let readers = (0..rows).map(|row| {
            let reads = |reader: &usize| spans[*reader].contains(&row);
            let first = (0..rows).find(reads).unwrap_or(row);
            first..(first..rows).take_while(reads).last().map_or(first, |last| last + 1)
        });
        let [low, high] = neighborhood.reach(1);
        let padding = low.unsigned_abs().max(high.unsigned_abs());
        Self {
            rows,
            columns,
            prefix: neighborhood.prefix,
            padding,
            width: columns.next_multiple_of(LANES) + 2 * padding,
            readers: readers.collect(),
            tallest: spans.iter().map(Range::len).max().unwrap_or(0),
            first_offset: low,
            offsets: (high - low) as usize + 1,
            segments: (0..columns)
                .step_by(LANES)
                .map(|start| Segment::new(neighborhood, start, low))
                .collect(),
            spans,
        }
    }

    /// The place in a row of a plane of a column at an offset, by its index.
    pub(super) fn place(&self, column: usize, offset: usize) -> usize {
        (self.padding + column + offset).wrapping_add_signed(self.first_offset)
    }
}

impl Segment {
    fn new(neighborhood: Neighborhood, start: usize, first_offset: isize) -> Self {
        let columns = start..(start + LANES).min(neighborhood.grid[1]);
        let spans: Vec<Range<usize>> = columns.clone().map(|column| neighborhood.span(1, column)).collect();
        let index = |column: usize, other: usize| (other as isize - column as isize - first_offset) as usize;
        let used = || columns.clone().zip(&spans);
        let low = used().map(|(column, span)| index(column, span.start)).min().unwrap_or(0);
        let high = used().map(|(column, span)| index(column, span.end)).max().unwrap_or(0);
        let mask = (low..high).map(|offset| {
            // Lanes after the last column attend to everything: their queries are zero, and nothing reads them.
            let mut mask = [0.0; LANES];
            for (lane, (column, span)) in used().enumerate() {
                if !(index(column, span.start)..index(column, span.end)).contains(&offset) {
                    mask[lane] = f32::NEG_INFINITY;
                }
            }
            mask
        });
        Self { start, offsets: low..high, mask: mask.collect() }
    }
}
