//! A weight of bytes as the kernels read it.

use std::ops::Range;

/// The columns of a panel, and the lines of a block.
pub(super) const SIDE: usize = 16;
/// The inner elements of a block: four in each line.
pub(super) const DEPTH: usize = 64;
/// The bytes of a block of a panel.
pub(super) const BLOCK: usize = SIDE * DEPTH;

/// 64 bytes, aligned as a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([i8; 64]);

/// Lines of zeros for `bytes` bytes.
fn lines(bytes: usize) -> Vec<Line> {
    vec![Line([0; 64]); bytes.div_ceil(64)]
}

/// The columns of a weight in panels of 16, an even number of them. A line of a panel holds four inner elements of each column; 16
/// lines are a block, and in AMX's terms a tile.
///
/// The inner elements come in segments: one for a linear layer, one for each row of a convolution's kernel. A segment begins a block,
/// and what its last block lacks is 0, as are the columns that the last panels lack.
#[derive(Clone, Debug)]
pub(crate) struct Panels {
    lines: Vec<Line>,
    /// The sum of each column's bytes.
    pub(super) sums: Vec<i32>,
    /// The scale of each column.
    pub(super) scales: Vec<f32>,
    pub(crate) columns: usize,
    pub(crate) segments: usize,
    /// The blocks of a segment.
    pub(super) blocks: usize,
    /// The inner elements.
    inner: usize,
}

impl Panels {
    /// The panels of a weight of `segments * length` inner elements, those of a column next to each other.
    pub(crate) fn new(bytes: &[i8], [segments, length]: [usize; 2], scales: &[f32]) -> Self {
        let columns = scales.len();
        debug_assert_eq!(bytes.len(), segments * length * columns);
        let padded = columns.next_multiple_of(2 * SIDE);
        let blocks = length.div_ceil(DEPTH);
        let mut panels = Self {
            lines: lines(padded * segments * blocks * DEPTH),
            sums: vec![0; padded],
            scales: scales.iter().copied().chain(std::iter::repeat(0.0)).take(padded).collect(),
            columns,
            segments,
            blocks,
            inner: segments * length,
        };
        let panel_lines = panels.panel_lines();
        for (column, bytes) in bytes.chunks_exact((segments * length).max(1)).enumerate() {
            panels.sums[column] = bytes.iter().map(|&byte| i32::from(byte)).sum();
            for (segment, bytes) in bytes.chunks_exact(length).enumerate() {
                let first = column / SIDE * panel_lines + segment * blocks * SIDE;
                for (line, four) in panels.lines[first..].iter_mut().zip(bytes.chunks(4)) {
                    line.0[column % SIDE * 4..][..four.len()].copy_from_slice(four);
                }
            }
        }
        panels
    }

    /// The columns of a range.
    ///
    /// # Panics
    ///
    /// If there are no such columns.
    pub(crate) fn part(&self, columns: Range<usize>) -> Self {
        assert!(columns.end <= self.columns);
        let panel_lines = self.panel_lines();
        let padded = columns.len().next_multiple_of(2 * SIDE);
        let padding = padded - columns.len();
        let mut part = Self {
            lines: lines(64 * padded / SIDE * panel_lines),
            sums: [&self.sums[columns.clone()], &vec![0; padding][..]].concat(),
            scales: [&self.scales[columns.clone()], &vec![0.0; padding][..]].concat(),
            columns: columns.len(),
            segments: self.segments,
            blocks: self.blocks,
            inner: self.inner,
        };
        for (to, from) in columns.enumerate() {
            let place = |column: usize| (column / SIDE * panel_lines, column % SIDE * 4);
            let ((to_first, to), (from_first, from)) = (place(to), place(from));
            let to_lines = part.lines[to_first..].iter_mut();
            for (line, source) in to_lines.zip(&self.lines[from_first..][..panel_lines]) {
                line.0[to..][..4].copy_from_slice(&source.0[from..][..4]);
            }
        }
        part
    }

    /// The number of values that an output reads.
    pub(crate) fn inner(&self) -> usize {
        self.inner
    }

    /// The lines of a panel.
    fn panel_lines(&self) -> usize {
        self.segments * self.blocks * SIDE
    }

    /// The number of pairs of panels.
    pub(super) fn pairs(&self) -> usize {
        self.sums.len() / (2 * SIDE)
    }

    /// The bytes of a panel.
    pub(super) fn panel_bytes(&self) -> usize {
        64 * self.panel_lines()
    }

    /// The address of a panel.
    ///
    /// # Panics
    ///
    /// If there is no such panel.
    pub(super) fn panel(&self, panel: usize) -> *const i8 {
        self.lines[panel * self.panel_lines()..][..self.panel_lines()].as_ptr().cast()
    }
}
