//! Sizes that AMX's registers and our packing give: tiles of 16 lines of 64 bytes, two of them a panel.

/// Bytes that an element is cut into.
pub(super) const DIGITS: usize = 3;
/// Outer elements of a tile, and words in a line of it.
pub(super) const SIDE: usize = 16;
/// Inner elements of a tile, four to a word.
pub(super) const DEPTH: usize = 4 * SIDE;
/// Sums of a tile: 16 rows of 16.
pub(super) const TILE_SUMS: usize = SIDE * SIDE;

/// Rows of a left factor or columns of a right one that are packed together: two tiles, as two by two tiles of sums make the best use of the
/// eight registers.
pub(crate) const PANEL: usize = 32;

/// Rows that fill AMX, as outer elements (whole panels) and as inner ones (a whole tile).
pub(crate) const GROUP: usize = 64;

const _: () = assert!(PANEL == 2 * SIDE && GROUP == DEPTH && GROUP.is_multiple_of(PANEL));
