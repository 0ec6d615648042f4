//! The micro-kernels: sums of the products of digits over the blocks of two panels, in AMX's eight registers.
//!
//! ```text
//! two tiles of rows by two of columns:
//! for each order                                      4 tiles of sums, 2 tiles of each factor: all 8 registers
//!   for each block of 64 inner elements               its tiles: first-level cache
//!     for each pair of digits of this order
//!       sums += left digits * right digits            4 products of tiles
//! one tile of rows by two of columns:
//! for each block of 64 inner elements                 6 tiles of sums (3 orders), 1 of each factor: all 8 registers
//!   for each pair of digits                           2 products of tiles
//! ```
//!
//! The order of a product is the sum of the positions of its two digits. Each order has its own sums:
//! `[order, tile of rows, tile of columns]`.

use super::detect::Configured;
#[cfg(test)]
use super::emulated::Registers;
use super::shape::{DIGITS, TILE_SUMS};
use std::arch::asm;

/// A step of a kernel as an instruction: `load(register, factor, tiles of the factor's panel, digit, tile)`, or
/// `add(sums, left, right)`, which adds the product of two registers to a third.
macro_rules! instruction {
    (load, $register:literal, $factor:ident, $tiles:literal, $digit:literal, $tile:literal) => {
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
    (add, $sums:literal, $left:literal, $right:literal) => {
        concat!("tdpbssd tmm", $sums, ", tmm", $left, ", tmm", $right)
    };
}

/// The same step on emulated registers; takes the addresses of the blocks of both factors.
#[cfg(test)]
macro_rules! emulate {
    ($registers:ident, [$left:expr, $right:expr], load, $register:literal, left, $tiles:literal, $digit:literal, $tile:literal) => {
        $registers.load($register, $left.add(($digit * $tiles + $tile) * 1024))
    };
    ($registers:ident, [$left:expr, $right:expr], load, $register:literal, right, $tiles:literal, $digit:literal, $tile:literal) => {
        $registers.load($register, $right.add(($digit * $tiles + $tile) * 1024))
    };
    ($registers:ident, $factors:tt, add, $sums:literal, $left:literal, $right:literal) => {
        $registers.add($sums, $left, $right)
    };
}

/// Defines a function that runs its steps on each block of two panels and then writes the registers of sums.
macro_rules! kernel {
    ($(#[$attribute:meta])* $name:ident, $left_tiles:literal, [$($register:literal),*], $($step:ident($($argument:tt),*)),* $(,)?) => {
        $(#[$attribute])*
        ///
        /// # Safety
        ///
        /// - `blocks` must be more than 0.
        /// - `left` must be valid for reads of this many blocks of a left panel, and `right` of a right panel.
        /// - `sums` must be valid for writes of a tile for each register of sums.
        pub(super) unsafe fn $name(
            tiles: &Configured,
            left: *const u8,
            right: *const u8,
            blocks: usize,
            sums: *mut i32,
        ) {
            const { assert!(DIGITS == 3) };
            let Configured { .. } = tiles;
            debug_assert!(blocks > 0);
            #[cfg(test)]
            if tiles.amx.emulated {
                let mut registers = Registers::zero();
                for block in 0..blocks {
                    // SAFETY: both panels have this block, as the caller promises.
                    unsafe {
                        let _factors = [left.add(block * 1024 * 3 * $left_tiles), right.add(block * 1024 * 3 * 2)];
                        $(emulate!(registers, [_factors[0], _factors[1]], $step, $($argument),*);)*
                    }
                }
                // SAFETY: `sums` is valid for a tile for each register, as the caller promises.
                $(unsafe { registers.store($register, sums.add($register * TILE_SUMS)) };)*
                return;
            }
            // SAFETY: `tiles` proves that the CPU has AMX and that it is configured for full tiles; each load reads the
            // 1024 bytes of a tile of a block, and each store writes a tile of sums, which are valid, as the caller
            // promises.
            unsafe {
                asm!(
                    $(concat!("tilezero tmm", $register),)*
                    "2:",
                    $(instruction!($step, $($argument),*),)*
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

/// Two tiles of rows by two of columns, one order after the other: the registers have room only for the sums of one.
///
/// # Safety
///
/// - `blocks` must be more than 0.
/// - `left` must be valid for reads of this many blocks of a left panel of two tiles, and `right` of a right panel.
/// - `sums` must be valid for writes of twelve tiles.
pub(super) unsafe fn two_by_two(
    tiles: &Configured,
    left: *const u8,
    right: *const u8,
    blocks: usize,
    sums: *mut i32,
) {
    // SAFETY: the panels have these blocks, as the caller promises; each order has four of the twelve tiles.
    unsafe {
        order_0(tiles, left, right, blocks, sums);
        order_1(tiles, left, right, blocks, sums.add(4 * TILE_SUMS));
        order_2(tiles, left, right, blocks, sums.add(8 * TILE_SUMS));
    }
}

kernel! {
    /// Products of two first digits.
    order_0, 2, [0, 1, 2, 3],
    load(6, right, 2, 0, 0), load(4, left, 2, 0, 0), load(7, right, 2, 0, 1), load(5, left, 2, 0, 1),
    add(0, 4, 6), add(2, 5, 6), add(1, 4, 7), add(3, 5, 7),
}

kernel! {
    /// Products of a first and a second digit.
    order_1, 2, [0, 1, 2, 3],
    load(6, right, 2, 1, 0), load(4, left, 2, 0, 0), load(7, right, 2, 1, 1), load(5, left, 2, 0, 1),
    add(0, 4, 6), add(2, 5, 6), load(6, right, 2, 0, 0), add(1, 4, 7), load(4, left, 2, 1, 0),
    add(3, 5, 7), load(7, right, 2, 0, 1), load(5, left, 2, 1, 1),
    add(0, 4, 6), add(2, 5, 6), add(1, 4, 7), add(3, 5, 7),
}

kernel! {
    /// Products of a first and a third digit, and of two second digits.
    order_2, 2, [0, 1, 2, 3],
    load(6, right, 2, 2, 0), load(4, left, 2, 0, 0), load(7, right, 2, 2, 1), load(5, left, 2, 0, 1),
    add(0, 4, 6), add(2, 5, 6), load(6, right, 2, 1, 0), add(1, 4, 7), load(4, left, 2, 1, 0),
    add(3, 5, 7), load(7, right, 2, 1, 1), load(5, left, 2, 1, 1),
    add(0, 4, 6), add(2, 5, 6), load(6, right, 2, 0, 0), add(1, 4, 7), load(4, left, 2, 2, 0),
    add(3, 5, 7), load(7, right, 2, 0, 1), load(5, left, 2, 2, 1),
    add(0, 4, 6), add(2, 5, 6), add(1, 4, 7), add(3, 5, 7),
}

kernel! {
    /// One tile of rows by two of columns, all orders at once.
    one_by_two, 1, [0, 1, 2, 3, 4, 5],
    load(6, left, 1, 0, 0),
    load(7, right, 2, 0, 0), add(0, 6, 7), load(7, right, 2, 0, 1), add(1, 6, 7),
    load(7, right, 2, 1, 0), add(2, 6, 7), load(7, right, 2, 1, 1), add(3, 6, 7),
    load(7, right, 2, 2, 0), add(4, 6, 7), load(7, right, 2, 2, 1), add(5, 6, 7),
    load(6, left, 1, 1, 0),
    load(7, right, 2, 0, 0), add(2, 6, 7), load(7, right, 2, 0, 1), add(3, 6, 7),
    load(7, right, 2, 1, 0), add(4, 6, 7), load(7, right, 2, 1, 1), add(5, 6, 7),
    load(6, left, 1, 2, 0),
    load(7, right, 2, 0, 0), add(4, 6, 7), load(7, right, 2, 0, 1), add(5, 6, 7),
}
