//! Where the elements of a factor come from, and where their packed digits lie.

use super::super::super::view::Matrix;
use super::super::shape::{DEPTH, DIGITS, PANEL, SIDE};

/// The bytes of a line of a tile: 16 words of four digits.
pub(super) const LINE_BYTES: usize = 64;
pub(super) const TILE_BYTES: usize = SIDE * LINE_BYTES;

/// A line of packed elements, aligned as a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct CacheLine(pub(super) [u8; LINE_BYTES]);

/// A factor seen from the product: `outer` elements that stay, `inner` ones that are summed over.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub(super) start: *const f32,
    outer_stride: usize,
    pub(super) inner_stride: usize,
}

// SAFETY: it is only read, and what it points to is borrowed where it is used.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Sync for Source {}

impl Source {
    /// Rows outside, columns inside.
    ///
    /// # Panics
    ///
    /// If the elements lie side by side along neither dimension.
    fn of(matrix: Matrix<'_>) -> Self {
        assert!(matrix.compact(), "a factor with a unit stride");
        let (outer_stride, inner_stride) = matrix.strides();
        Self { start: matrix.start(), outer_stride, inner_stride }
    }

    pub(crate) fn from(self, outer: usize, inner: usize) -> Self {
        let start = self.start.wrapping_add(outer * self.outer_stride + inner * self.inner_stride);
        Self { start, ..self }
    }
}

/// How a tile lies in its register.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operand {
    /// A line for each outer element, along which the words run.
    Left,
    /// A line for each word, along which the outer elements run.
    Right,
}

impl Operand {
    /// A factor seen from the product, and its outer and inner elements.
    ///
    /// # Panics
    ///
    /// If its elements lie side by side along neither dimension.
    pub(crate) fn source(self, factor: Matrix<'_>) -> (Source, [usize; 2]) {
        let outside = match self {
            Self::Left => factor,
            Self::Right => factor.transposed(),
        };
        (Source::of(outside), [outside.rows, outside.columns])
    }

    /// The tiles that a panel of `outer` elements has, or all panels of more: the last one of a left factor may have one only.
    pub(crate) fn tiles(self, outer: usize) -> usize {
        match self {
            Self::Left => outer.div_ceil(SIDE),
            Self::Right => outer.div_ceil(PANEL) * (PANEL / SIDE),
        }
    }

    /// The bytes of a packed factor.
    pub(crate) fn bytes(self, outer: usize, inner: usize) -> usize {
        self.tiles(outer) * (inner.div_ceil(DEPTH) * DIGITS * TILE_BYTES + SIDE * size_of::<f32>())
    }
}

/// Where a packed panel lies: for each block of inner elements, for each digit, its tiles; then AMX of each outer element.
#[derive(Clone, Copy)]
pub(crate) struct Panel {
    start: *mut u8,
    pub(super) tiles: usize,
    pub(super) blocks: usize,
}

impl Panel {
    /// The panel at `start` of `outer` elements, [`PANEL`] or less.
    pub(crate) fn new(start: *mut u8, [outer, inner]: [usize; 2], operand: Operand) -> Self {
        Self { start, tiles: operand.tiles(outer), blocks: inner.div_ceil(DEPTH) }
    }

    /// The tiles from a block on.
    pub(crate) fn block(self, block: usize) -> *mut u8 {
        self.start.wrapping_add(block * DIGITS * self.tiles * TILE_BYTES)
    }

    pub(super) fn tile(self, block: usize, digit: usize, tile: usize) -> *mut u8 {
        self.block(block).wrapping_add((digit * self.tiles + tile) * TILE_BYTES)
    }

    /// What a 1 in the first digit stands for, times 64 so that it is about as large as the elements, for each outer element.
    pub(crate) fn units(self) -> *mut f32 {
        self.block(self.blocks).cast()
    }
}
