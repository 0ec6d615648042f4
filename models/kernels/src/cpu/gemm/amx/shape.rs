//! The sizes of tiles and panels: AMX's registers hold tiles of 16 lines of 64 bytes, and two tiles are packed together
//! as a panel.

/// The bytes that an element is split into.
pub(super) const DIGITS: usize = 3;
/// The outer elements of a tile, and the words of a line.
pub(super) const SIDE: usize = 16;
/// The inner elements of a tile, four in each word.
pub(super) const DEPTH: usize = 4 * SIDE;
/// The sums of a tile: 16 rows of 16.
pub(super) const TILE_SUMS: usize = SIDE * SIDE;

/// The rows of a left factor, or columns of a right one, that are packed together: two tiles, because two by two tiles
/// of sums make the best use of the eight registers.
pub(crate) const PANEL: usize = 32;

/// A number of rows that leaves no part of a tile empty, both as outer elements (whole panels) and as inner ones (a
/// whole tile).
pub(crate) const GROUP: usize = 64;

const _: () = assert!(PANEL == 2 * SIDE && GROUP == DEPTH && GROUP.is_multiple_of(PANEL));
