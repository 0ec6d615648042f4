//! The innermost loops: sums of the products of digits over the blocks of two panels, in the unit's eight registers.
//!
//! Products of one order, which is that of their two digits added up, have sums of their own: `[order, tile of rows, tile of columns]`.

use super::pack::DIGITS;
use std::arch::asm;

/// A tile of sums: 16 rows of 16.
pub(super) const TILE_SUMS: usize = 256;

/// `load!(register, factor, tiles of the factor's panel, digit, tile)`
macro_rules! load {
    ($register:literal, $factor:ident, $tiles:literal, $digit:literal, $tile:literal) => {
        concat!(
            "tileloadd tmm",
            $register,
            ", [{",
            stringify!($factor),
            "} + {stride} + (",
            $digit,
            " * ",
            $tiles,
            " + ",
            $tile,
            ") * 1024]"
        )
    };
}

/// `add!(sums, left, right)`: adds the products of two registers to a third.
macro_rules! add {
    ($sums:literal, $left:literal, $right:literal) => {
        concat!("tdpbssd tmm", $sums, ", tmm", $left, ", tmm", $right)
    };
}

/// A function that runs some steps on each block of two panels and writes the registers of sums.
macro_rules! kernel {
    ($(#[$attribute:meta])* $name:ident, $left_tiles:literal, [$($register:literal),*], $($step:expr),* $(,)?) => {
        $(#[$attribute])*
        ///
        /// # Safety
        ///
        /// The unit is set up, the panels have `blocks` (more than 0) blocks, and `sums` room for the tiles.
        pub(super) unsafe fn $name(left: *const u8, right: *const u8, blocks: usize, sums: *mut i32) {
            const { assert!(DIGITS == 3) };
            debug_assert!(blocks > 0);
            // SAFETY: by the caller's word.
            unsafe {
                asm!(
                    $(concat!("tilezero tmm", $register),)*
                    "2:",
                    $($step,)*
                    concat!("add {left}, 1024 * 3 * ", $left_tiles),
                    "add {right}, 1024 * 3 * 2",
                    "dec {blocks}",
                    "jnz 2b",
                    $(concat!("tilestored [{sums} + {stride} + 1024 * ", $register, "], tmm", $register),)*
                    left = inout(reg) left => _,
                    right = inout(reg) right => _,
                    blocks = inout(reg) blocks => _,
                    sums = in(reg) sums,
                    stride = in(reg) 64usize,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

/// Two tiles of rows by two of columns, order by order: the registers have room for the sums of one.
///
/// # Safety
///
/// The unit is set up, the panels have `blocks` (more than 0) blocks, and `sums` room for twelve tiles.
pub(super) unsafe fn two_by_two(left: *const u8, right: *const u8, blocks: usize, sums: *mut i32) {
    // SAFETY: by the caller's word.
    unsafe {
        order_0(left, right, blocks, sums);
        order_1(left, right, blocks, sums.add(4 * TILE_SUMS));
        order_2(left, right, blocks, sums.add(8 * TILE_SUMS));
    }
}

kernel! {
    /// The first digits' products.
    order_0, 2, ["0", "1", "2", "3"],
    load!("6", right, 2, "0", "0"), load!("4", left, 2, "0", "0"), load!("7", right, 2, "0", "1"), load!("5", left, 2, "0", "1"),
    add!("0", "4", "6"), add!("2", "5", "6"), add!("1", "4", "7"), add!("3", "5", "7"),
}

kernel! {
    /// Products of a first and a second digit.
    order_1, 2, ["0", "1", "2", "3"],
    load!("6", right, 2, "1", "0"), load!("4", left, 2, "0", "0"), load!("7", right, 2, "1", "1"), load!("5", left, 2, "0", "1"),
    add!("0", "4", "6"), add!("2", "5", "6"), load!("6", right, 2, "0", "0"), add!("1", "4", "7"), load!("4", left, 2, "1", "0"),
    add!("3", "5", "7"), load!("7", right, 2, "0", "1"), load!("5", left, 2, "1", "1"),
    add!("0", "4", "6"), add!("2", "5", "6"), add!("1", "4", "7"), add!("3", "5", "7"),
}

kernel! {
    /// Products of a first and a third digit, and of second ones.
    order_2, 2, ["0", "1", "2", "3"],
    load!("6", right, 2, "2", "0"), load!("4", left, 2, "0", "0"), load!("7", right, 2, "2", "1"), load!("5", left, 2, "0", "1"),
    add!("0", "4", "6"), add!("2", "5", "6"), load!("6", right, 2, "1", "0"), add!("1", "4", "7"), load!("4", left, 2, "1", "0"),
    add!("3", "5", "7"), load!("7", right, 2, "1", "1"), load!("5", left, 2, "1", "1"),
    add!("0", "4", "6"), add!("2", "5", "6"), load!("6", right, 2, "0", "0"), add!("1", "4", "7"), load!("4", left, 2, "2", "0"),
    add!("3", "5", "7"), load!("7", right, 2, "0", "1"), load!("5", left, 2, "2", "1"),
    add!("0", "4", "6"), add!("2", "5", "6"), add!("1", "4", "7"), add!("3", "5", "7"),
}

kernel! {
    /// One tile of rows by two of columns, all orders at once.
    one_by_two, 1, ["0", "1", "2", "3", "4", "5"],
    load!("6", left, 1, "0", "0"),
    load!("7", right, 2, "0", "0"), add!("0", "6", "7"), load!("7", right, 2, "0", "1"), add!("1", "6", "7"),
    load!("7", right, 2, "1", "0"), add!("2", "6", "7"), load!("7", right, 2, "1", "1"), add!("3", "6", "7"),
    load!("7", right, 2, "2", "0"), add!("4", "6", "7"), load!("7", right, 2, "2", "1"), add!("5", "6", "7"),
    load!("6", left, 1, "1", "0"),
    load!("7", right, 2, "0", "0"), add!("2", "6", "7"), load!("7", right, 2, "0", "1"), add!("3", "6", "7"),
    load!("7", right, 2, "1", "0"), add!("4", "6", "7"), load!("7", right, 2, "1", "1"), add!("5", "6", "7"),
    load!("6", left, 1, "2", "0"),
    load!("7", right, 2, "0", "0"), add!("4", "6", "7"), load!("7", right, 2, "0", "1"), add!("5", "6", "7"),
}
