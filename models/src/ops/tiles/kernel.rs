//! The innermost loops: sums of the products of parts over the blocks of two panels, in the unit's eight registers.

/// From a left panel, a right panel, the number of their blocks, and where the sums go.
pub(super) type Kernel = unsafe fn(*const u8, *const u8, usize, *mut f32);

/// `load!(register, factor, tiles of the factor's panel, part, tile)`
macro_rules! load {
    ($register:literal, $factor:ident, $tiles:literal, $part:literal, $tile:literal) => {
        concat!(
            "tileloadd tmm",
            $register,
            ", [{",
            stringify!($factor),
            "} + {stride} + ((",
            $part,
            " - 1) * ",
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
        concat!("tdpbf16ps tmm", $sums, ", tmm", $left, ", tmm", $right)
    };
}

/// A function that sums the products of two panels' blocks into four tiles. Products for the same sums are kept apart: each takes several
/// times as long to finish as to start.
macro_rules! kernel {
    ($(#[$attribute:meta])* $name:ident, $parts:literal, $left_tiles:literal, $right_tiles:literal, $($step:expr),* $(,)?) => {
        $(#[$attribute])*
        ///
        /// # Safety
        ///
        /// The unit is set up, the panels have `blocks` (more than 0) blocks of these parts, and `sums` room for four tiles.
        unsafe fn $name(left: *const u8, right: *const u8, blocks: usize, sums: *mut f32) {
            debug_assert!(blocks > 0);
            // SAFETY: by the caller's word.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "2:",
                    $($step,)*
                    concat!("add {left}, 1024 * ", $parts, " * ", $left_tiles),
                    concat!("add {right}, 1024 * ", $parts, " * ", $right_tiles),
                    "dec {blocks}",
                    "jnz 2b",
                    "tilestored [{sums} + {stride}], tmm0",
                    "tilestored [{sums} + {stride} + 1024], tmm1",
                    "tilestored [{sums} + {stride} + 2048], tmm2",
                    "tilestored [{sums} + {stride} + 3072], tmm3",
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

/// `add_in_order!(one, sums, of one, of two)`: [`add!`] for the factor that has one tile and the one that has two.
macro_rules! add_in_order {
    (left, $sums:literal, $one:literal, $two:literal) => {
        add!($sums, $one, $two)
    };
    (right, $sums:literal, $one:literal, $two:literal) => {
        add!($sums, $two, $one)
    };
}

/// [`Highest`](super::Precision::Highest): three parts, six products.
pub(super) mod highest {
    use super::Kernel;
    use std::arch::asm;

    /// By whether the left panel has two tiles, then the right one.
    pub(in super::super) const KERNELS: [[Kernel; 2]; 2] =
        [[one_by_one, one_by_two], [two_by_one, two_by_two]];

    kernel! {
        /// Two tiles of rows by two of columns. The left panel, which stays in the nearest cache, is read more often than the right one.
        two_by_two, 3, 2, 2,
        load!("6", right, 2, "1", "0"), load!("4", left, 2, "3", "0"), load!("7", right, 2, "1", "1"), load!("5", left, 2, "3", "1"),
        add!("0", "4", "6"), add!("1", "4", "7"), load!("4", left, 2, "1", "0"), add!("2", "5", "6"), add!("3", "5", "7"), load!("5", left, 2, "1", "1"),
        add!("0", "4", "6"), add!("1", "4", "7"), load!("4", left, 2, "2", "0"), add!("2", "5", "6"), add!("3", "5", "7"), load!("5", left, 2, "2", "1"),
        add!("0", "4", "6"), add!("2", "5", "6"), load!("6", right, 2, "2", "0"), add!("1", "4", "7"), add!("3", "5", "7"), load!("7", right, 2, "2", "1"),
        add!("0", "4", "6"), add!("1", "4", "7"), load!("4", left, 2, "1", "0"), add!("2", "5", "6"), add!("3", "5", "7"), load!("5", left, 2, "1", "1"),
        add!("0", "4", "6"), add!("2", "5", "6"), load!("6", right, 2, "3", "0"), add!("1", "4", "7"), add!("3", "5", "7"), load!("7", right, 2, "3", "1"),
        add!("0", "4", "6"), add!("2", "5", "6"), add!("1", "4", "7"), add!("3", "5", "7"),
    }

    /// A kernel for one tile of one factor and two of the other.
    macro_rules! one_and_two {
        ($(#[$attribute:meta])* $name:ident, $left_tiles:literal, $right_tiles:literal, $one:ident, $two:ident) => {
            kernel! {
                $(#[$attribute])*
                $name, 3, $left_tiles, $right_tiles,
                load!("6", $two, 2, "1", "0"), load!("4", $one, 1, "1", "0"), load!("7", $two, 2, "1", "1"), load!("5", $one, 1, "3", "0"),
                add_in_order!($one, "0", "4", "6"), add_in_order!($one, "1", "4", "7"),
                add_in_order!($one, "2", "5", "6"), add_in_order!($one, "3", "5", "7"), load!("5", $one, 1, "2", "0"),
                add_in_order!($one, "0", "5", "6"), load!("6", $two, 2, "2", "0"), add_in_order!($one, "1", "5", "7"), load!("7", $two, 2, "2", "1"),
                add_in_order!($one, "2", "4", "6"), add_in_order!($one, "3", "4", "7"),
                add_in_order!($one, "0", "5", "6"), load!("6", $two, 2, "3", "0"), add_in_order!($one, "1", "5", "7"), load!("7", $two, 2, "3", "1"),
                add_in_order!($one, "2", "4", "6"), add_in_order!($one, "3", "4", "7"),
            }
        };
    }

    one_and_two! {
        /// One tile of rows by two of columns; registers 2 and 3 hold half of the sums.
        one_by_two, 1, 2, left, right
    }

    one_and_two! {
        /// Two tiles of rows by one of columns; registers 2 and 3 hold half of the sums.
        two_by_one, 2, 1, right, left
    }

    kernel! {
        /// One tile; all four registers hold parts of its sums.
        one_by_one, 3, 1, 1,
        load!("4", left, 1, "1", "0"), load!("6", right, 1, "1", "0"), load!("5", left, 1, "2", "0"), load!("7", right, 1, "2", "0"),
        add!("0", "4", "6"), add!("1", "4", "7"), add!("2", "5", "6"), load!("6", right, 1, "3", "0"), add!("3", "5", "7"), load!("5", left, 1, "3", "0"),
        load!("7", right, 1, "1", "0"), add!("0", "4", "6"), add!("1", "5", "7"),
    }
}

/// [`High`](super::Precision::High): two parts, three products.
pub(super) mod high {
    use super::Kernel;
    use std::arch::asm;

    /// By whether the left panel has two tiles, then the right one.
    pub(in super::super) const KERNELS: [[Kernel; 2]; 2] =
        [[one_by_one, one_by_two], [two_by_one, two_by_two]];

    kernel! {
        /// Two tiles of rows by two of columns.
        two_by_two, 2, 2, 2,
        load!("6", right, 2, "1", "0"), load!("4", left, 2, "2", "0"), load!("7", right, 2, "1", "1"), load!("5", left, 2, "2", "1"),
        add!("0", "4", "6"), add!("1", "4", "7"), load!("4", left, 2, "1", "0"), add!("2", "5", "6"), add!("3", "5", "7"), load!("5", left, 2, "1", "1"),
        add!("0", "4", "6"), add!("2", "5", "6"), load!("6", right, 2, "2", "0"), add!("1", "4", "7"), add!("3", "5", "7"), load!("7", right, 2, "2", "1"),
        add!("0", "4", "6"), add!("2", "5", "6"), add!("1", "4", "7"), add!("3", "5", "7"),
    }

    /// A kernel for one tile of one factor and two of the other.
    macro_rules! one_and_two {
        ($(#[$attribute:meta])* $name:ident, $left_tiles:literal, $right_tiles:literal, $one:ident, $two:ident) => {
            kernel! {
                $(#[$attribute])*
                $name, 2, $left_tiles, $right_tiles,
                load!("6", $two, 2, "1", "0"), load!("4", $one, 1, "1", "0"), load!("7", $two, 2, "1", "1"), load!("5", $one, 1, "2", "0"),
                add_in_order!($one, "0", "4", "6"), add_in_order!($one, "1", "4", "7"),
                add_in_order!($one, "2", "5", "6"), load!("6", $two, 2, "2", "0"), add_in_order!($one, "3", "5", "7"), load!("7", $two, 2, "2", "1"),
                add_in_order!($one, "0", "4", "6"), add_in_order!($one, "1", "4", "7"),
            }
        };
    }

    one_and_two! {
        /// One tile of rows by two of columns; registers 2 and 3 hold part of the sums.
        one_by_two, 1, 2, left, right
    }

    one_and_two! {
        /// Two tiles of rows by one of columns; registers 2 and 3 hold part of the sums.
        two_by_one, 2, 1, right, left
    }

    kernel! {
        /// One tile; three registers hold parts of its sums.
        one_by_one, 2, 1, 1,
        load!("4", left, 1, "1", "0"), load!("6", right, 1, "1", "0"), load!("5", left, 1, "2", "0"), load!("7", right, 1, "2", "0"),
        add!("0", "4", "6"), add!("1", "4", "7"), add!("2", "5", "6"),
    }
}
