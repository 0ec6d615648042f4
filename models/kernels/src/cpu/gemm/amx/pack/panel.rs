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

/// The elements of a factor in memory: `outer` elements are the rows or columns of the product, `inner` elements are
/// summed over.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub(super) start: *const f32,
    outer_stride: usize,
    pub(super) inner_stride: usize,
}

// SAFETY: a source is only read, and the matrix that it points to is borrowed while tasks use the source.
unsafe impl Send for Source {}
// SAFETY: see `Send`.
unsafe impl Sync for Source {}

impl Source {
    /// A matrix whose rows are the outer elements, and whose columns are the inner ones.
    ///
    /// # Panics
    ///
    /// If the matrix is not [compact](Matrix::compact).
    fn of(matrix: Matrix<'_>) -> Self {
        assert!(matrix.compact(), "a factor on AMX must have a unit stride");
        let (outer_stride, inner_stride) = matrix.strides();
        Self { start: matrix.start(), outer_stride, inner_stride }
    }

    pub(crate) fn from(self, outer: usize, inner: usize) -> Self {
        let start = self.start.wrapping_add(outer * self.outer_stride + inner * self.inner_stride);
        Self { start, ..self }
    }
}

/// The side of a product that a factor is on, which decides the layout of its tiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operand {
    /// A line for each outer element, which holds its words.
    Left,
    /// A line for each word of inner elements, which holds all outer elements.
    Right,
}

impl Operand {
    /// The elements of a factor, and the number of its outer and of its inner elements.
    ///
    /// # Panics
    ///
    /// If the factor is not [compact](Matrix::compact).
    pub(crate) fn source(self, factor: Matrix<'_>) -> (Source, [usize; 2]) {
        let outside = match self {
            Self::Left => factor,
            Self::Right => factor.transposed(),
        };
        (Source::of(outside), [outside.rows, outside.columns])
    }

    /// The number of tiles of all panels of `outer` elements. The last panel of a left factor may have only one tile.
    pub(crate) fn tiles(self, outer: usize) -> usize {
        match self {
            Self::Left => outer.div_ceil(SIDE),
            Self::Right => outer.div_ceil(PANEL) * (PANEL / SIDE),
        }
    }

    /// The number of bytes of a packed factor.
    pub(crate) fn bytes(self, outer: usize, inner: usize) -> usize {
        self.tiles(outer) * (inner.div_ceil(DEPTH) * DIGITS * TILE_BYTES + SIDE * size_of::<f32>())
    }
}

/// A packed panel: for each block of inner elements, for each digit, the tiles; then the unit of each outer element.
#[derive(Clone, Copy)]
pub(crate) struct Panel {
    start: *mut u8,
    pub(super) tiles: usize,
    pub(super) blocks: usize,
}

impl Panel {
    /// The panel at `start` of at most [`PANEL`] outer elements.
    pub(crate) fn new(start: *mut u8, [outer, inner]: [usize; 2], operand: Operand) -> Self {
        Self { start, tiles: operand.tiles(outer), blocks: inner.div_ceil(DEPTH) }
    }

    /// The address of the tiles from a block on.
    pub(crate) fn block(self, block: usize) -> *mut u8 {
        self.start.wrapping_add(block * DIGITS * self.tiles * TILE_BYTES)
    }

    pub(super) fn tile(self, block: usize, digit: usize, tile: usize) -> *mut u8 {
        self.block(block).wrapping_add((digit * self.tiles + tile) * TILE_BYTES)
    }

    /// The address of the units. The unit of an outer element is the value of 64 in the first digit of its inner
    /// elements, which is about as large as the largest of them.
    pub(crate) fn units(self) -> *mut f32 {
        self.block(self.blocks).cast()
    }
}
